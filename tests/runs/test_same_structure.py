"""Models given from Python that have one structure are one architecture, whatever they are called."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from torch import nn
from torch.nn import functional as F

import polyfed
from polyfed.errors import UserError
from polyfed.runs.api import Models
from polyfed.testing import result_of

RNG = np.random.default_rng(0)
Y = RNG.integers(0, 3, 120)
X = (RNG.normal(size=(120, 6)) + 2 * Y[:, None]).astype(np.float32)
BASE: dict[str, Any] = {
    "data": {"clients": 4, "partition": {"kind": "iid"}},
    "training": {"epochs": 1, "batch": 16},
    "rounds": 2,
    "stack": 1,
}


class Net(nn.Module):
    def __init__(self, width: int = 8, activation: Any = F.relu) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(6, width), nn.Linear(width, 3)
        self.activation = activation

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.head(self.activation(self.body(x)))
        return out


def filled(value: float) -> nn.Module:
    model = Net()
    nn.init.constant_(model.head.bias, value)
    return model


def go(out: Path, models: Models, **config: Any) -> polyfed.Run:
    return polyfed.run(
        {**BASE, **config}, data=(X, Y), models=models, out=out, workers=config.pop("workers", 1)
    )


ALIKE: dict[str, Models] = {
    "lambdas": [lambda: Net(), lambda: Net(8)],  # noqa: PLW0108
    "partials": [functools.partial(Net, 8), functools.partial(Net, width=8)],
    "modules": [Net(), Net()],
    "one function twice": [Net, Net],
    "two names": {"north": Net, "south": lambda: Net(8)},
}


@pytest.mark.parametrize("kind", ALIKE)
def test_fedavg_averages_them(tmp_path: Path, kind: str) -> None:
    run = go(tmp_path / "run", ALIKE[kind])
    [name] = run.federation.roster.architectures
    assigned = json.loads((run.path / "assignment.json").read_text())
    assert [(group["model"], group["clients"]) for group in assigned["groups"]] == [(name, 4)]
    assert [file.name for file in (run.path / "models").glob("*.safetensors")] == [
        f"shared_{name}.safetensors"
    ]
    if kind == "two names":
        assert name == "north"  # the first's


@pytest.mark.parametrize(
    "models",
    [
        [lambda: Net(activation=F.relu), lambda: Net(activation=F.tanh)],
        [lambda: Net(8), lambda: Net(9)],
        [Net, lambda: Net().double()],
    ],
    ids=["activation", "width", "type"],
)
def test_others_stay_apart(tmp_path: Path, models: Models) -> None:
    with pytest.raises(UserError, match=r"method.within=architecture"):
        go(tmp_path / "run", models)


def test_each_maker_still_makes_its_own_clients_models(tmp_path: Path) -> None:
    run = go(tmp_path / "run", {"zero": lambda: filled(0), "one": lambda: filled(1)}, method="local")
    population = run.federation.population
    assert run.federation.roster.architectures == ("zero",)
    for index in range(4):
        assert population.own_model(index).get_parameter("head.bias").tolist() == [float(index % 2)] * 3
    drawn = [population.own_model(index).get_parameter("body.weight") for index in (0, 2)]
    assert not drawn[0].equal(drawn[1])


def test_other_weights_that_will_not_be_used_are_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    given = {"north": filled(0), "south": filled(1)}
    run = go(tmp_path / "run", given)
    told = "'north' and 'south' are one architecture, and fedavg starts all of its clients from one model"
    assert f"{told}: the weights of 'north'" in caplog.text
    assert run.federation.population.build("north").get_parameter("head.bias").tolist() == [0.0] * 3
    caplog.clear()
    go(tmp_path / "local", given, method="local")
    one = filled(0)
    go(tmp_path / "same", {"north": one, "south": one})
    assert "one architecture" not in caplog.text


def test_built_in_models_keep_their_names(tmp_path: Path) -> None:
    config = {**BASE, "method": "local", "models": {"names": ["mine"], "clients": {"3": "mlp"}}}
    run = polyfed.run(config, data=(X, Y), models={"mine": Net}, out=tmp_path / "run", workers=1)
    assert run.federation.roster.architectures == ("mine", "mlp")


def test_inline_pool_and_resumed_are_one_and_every_client_has_its_model(tmp_path: Path) -> None:
    given = {"zero": lambda: filled(0), "one": lambda: filled(1)}
    undisturbed = go(tmp_path / "one", given, method="local")
    ready = polyfed.prepare(
        {**BASE, "method": "local"}, data=(X, Y), models=given, out=tmp_path / "two", workers=1
    )
    ready.go(lambda run: run.stop())
    ready.close()
    assert yaml.safe_load((ready.path / "config.yaml").read_text())["models"]["names"] == ["zero", "one"]
    with pytest.raises(UserError, match="'one' is a model of your own: pass it again"):
        polyfed.resume(ready.path, data=(X, Y), models={"zero": given["zero"]})
    again = polyfed.resume(ready.path, data=(X, Y), models=given, workers=2)
    assert result_of(again.path) == result_of(undisturbed.path)
    model = polyfed.load_model(again.path, "client-1", make=Net)
    assert len(model.predict(X).classes) == len(X)


def test_frozen_parts_that_differ_make_two_architectures(tmp_path: Path) -> None:
    def trained(value: float) -> nn.Module:
        model = filled(0)
        nn.init.constant_(model.get_parameter("body.weight"), value)
        model.get_submodule("body").requires_grad_(False)
        return model

    same = go(tmp_path / "same", [lambda: trained(1), lambda: trained(1)])
    assert len(same.federation.roster.architectures) == 1
    with pytest.raises(UserError, match=r"method.within=architecture"):
        go(tmp_path / "run", [lambda: trained(1), lambda: trained(2)])
