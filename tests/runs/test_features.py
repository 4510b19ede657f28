"""One feature size for all: given by `models.features`, needed by methods that share features, kept to the end."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.conftest import Command
from torch import nn

import polyfed
from polyfed import Client, Declaration, Fields, Fleet, Method, Need, Server, client_step, learn
from polyfed.errors import MethodError
from polyfed.models import Network, feature_count
from polyfed.runs.config import read_config
from polyfed.runs.federation import Federation
from polyfed.runs.setup import set_up
from polyfed.testing import result_of

MIXED: dict[str, Any] = {"data": {"limit": 300, "clients": 4}, "models": {"names": ["mlp", "cnn-small"]}}


class Sharing(Method):
    """Needs one feature size."""

    name = "sharing"

    def declare(self) -> Declaration:
        return Declaration(needs={Need.COMMON_FEATURES: ""})

    @client_step
    def train(self, me: Client) -> Fields:
        learn.supervised(me.model, *me.tensors(me.train), me.training, me.rng("batches"))
        return {}

    def round(self, t: int, fleet: Fleet, server: Server) -> None:
        fleet.ask(self.train, fleet.sample())


def small() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 24), nn.Tanh(), nn.Linear(24, 10))


def large() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 40), nn.Tanh(), nn.Linear(40, 10))


def featureless() -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 10, 8), nn.Flatten())


def federation(content: dict[str, Any], own: Any = None, kind: type[Method] = Sharing) -> Federation:
    config = read_config(content)
    return set_up(config, models=own, method=kind(kind.Settings(), config.training))


@pytest.mark.parametrize(
    ("models", "own", "message"),
    [
        (
            {"names": ["mlp", "cnn-small"]},
            None,
            "sharing needs one feature size for all, here are mlp 128, cnn-small 64: set models.features=64",
        ),
        (
            {"names": ["mlp", "small"], "clients": {"0": "mlp"}},
            {"small": small},
            "sharing needs one feature size for all, here are small 24, mlp 128: set models.features=24",
        ),
        (
            {"features": 64},
            {"small": small, "large": large},
            "sharing needs one feature size for all, here are small 24, large 40: give the last nn.Linear of your own"
            " models inputs of one size",
        ),
    ],
    ids=["built-in", "own and built-in", "own"],
)
def test_different_feature_sizes_are_refused_with_what_to_set(
    models: dict[str, Any], own: Any, message: str
) -> None:
    with pytest.raises(MethodError) as refused:
        federation({**MIXED, "models": models}, own)
    assert str(refused.value) == message


def test_a_model_without_features_is_refused_where_they_are_needed() -> None:
    with pytest.raises(polyfed.UserError, match=r"calls no nn\.Linear, so it has no features"):
        federation(MIXED | {"models": {}}, {"net": featureless})


def test_with_one_size_for_all_the_need_is_met_and_the_size_is_known() -> None:
    made = federation({**MIXED, "models": {"names": ["mlp", "cnn-small"], "features": 24}})
    assert {
        name: feature_count(made.population.build(name), (1, 8, 8)) for name in made.roster.architectures
    } == {
        "mlp": 24,
        "cnn-small": 24,
    }
    assert made.sizes["features"] == 24
    mixed = {**MIXED, "models": {"clients": {"0": "mlp"}, "features": 24}}
    assert federation(mixed, {"small": small}).sizes["features"] == 24


def test_a_method_that_does_not_need_them_is_not_asked_for_features() -> None:
    class Modest(Sharing):
        def declare(self) -> Declaration:
            return replace(super().declare(), needs={})

    made = federation(MIXED | {"models": {}}, {"net": featureless}, Modest)
    assert "features" not in made.sizes


def test_final_models_are_loaded_with_their_projection(tmp_path: Path) -> None:
    content = {**MIXED, "models": {"names": ["mlp-small", "cnn-small"], "server": "mlp", "features": 12}}
    method = {"name": "fedmd", "public_training": None, "private_training": None, "distil": {"epochs": 1}}
    content["data"] = {**content["data"], "public": {"source": "share", "share": 0.2}}
    done = polyfed.run(content, method=method, rounds=1, out=tmp_path / "run", workers=1)
    for name in ("client-0", "client-1", "server"):
        model = polyfed.load_model(done.path, name)
        assert isinstance(model, Network)
        assert feature_count(model, (1, 8, 8)) == 12
    assert done.server.model is not None
    loaded = polyfed.load_model(done.path, "server").state_dict()
    assert all(torch.equal(loaded[key], value) for key, value in done.server.model.state_dict().items())


def test_a_run_with_one_feature_size_is_resumed_to_the_bit(tmp_path: Path) -> None:
    content = {**MIXED, "models": {"names": ["mlp-small", "cnn-small"], "features": 12}, "method": "local"}
    whole = polyfed.run(content, rounds=2, out=tmp_path / "whole", workers=1)
    begun = polyfed.prepare(content, rounds=2, out=tmp_path / "begun", workers=1)
    begun.go(lambda run: run.stop())
    begun.close()
    assert result_of(polyfed.resume(begun.path, workers=2).path) == result_of(whole.path)


def test_stacked_clients_with_a_projection_learn_what_they_learn_alone(tmp_path: Path) -> None:
    found = []
    for stack in (1, 4):
        content = {**MIXED, "models": {"names": ["mlp-small"], "features": 12}, "stack": stack}
        done = polyfed.run(content, rounds=1, out=tmp_path / str(stack), workers=1)
        assert done.federation.stackable() == {"mlp-small"}
        model = polyfed.load_model(done.path, "client-0")
        found.append(torch.cat([parameter.detach().flatten() for parameter in model.parameters()]))
    assert not torch.equal(*found)  # else nothing was stacked
    torch.testing.assert_close(*found, rtol=0, atol=1e-5)


def test_budgets_count_the_projection() -> None:
    """mlp-small on 8×8 digits: 64-64-10 has 4,810 parameters; with 500 features 64-64-500-10 has 41,670."""
    for features, chosen in ((None, "mlp-small"), (500, "mlp")):
        content = {
            **MIXED,
            "models": {
                "names": ["mlp", "mlp-small"],
                "features": features,
                "assign": "budget",
                "budgets": [{"parameters": 5000 if features is None else 100_000}],
            },
        }
        made = federation(content, kind=polyfed.methods.Local)
        assert made.roster.architectures == (chosen,)
    # 64-128-128-500-10: 26,138 - 1,290 + 64,500 + 5,010 = 94,358 fit into 100,000 and not into 94,000
    content["models"]["budgets"] = [{"parameters": 94_000}]
    assert federation(content, kind=polyfed.methods.Local).roster.architectures == ("mlp-small",)


def test_models_are_listed_with_their_features(command: Command) -> None:
    said = command("models", "mlp*")
    assert said.code == 0
    assert "features" in said.out
    row = next(line for line in said.out.splitlines() if "mlp-large" in line)
    assert row.split()[-2:] == ["256", "default"]
