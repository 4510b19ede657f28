"""`models.server: smallest` and `models.shares`: what they come to, and that a run says and keeps it."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import SMALL, Command
from torch import nn

import polyfed
from polyfed.errors import PolyfedError
from polyfed.runs.config import read_config
from polyfed.runs.federation import Federation
from polyfed.runs.rounds import Run
from polyfed.runs.setup import set_up
from polyfed.testing import result_of
from polyfed.yaml_files import read_yaml

TWO = {"names": ["mlp", "mlp-small"]}  # 26,122 and 4,810 parameters on digits


def config_for(models: dict[str, Any], clients: int = 4, **changes: Any) -> dict[str, Any]:
    data = {**SMALL["data"], "clients": clients}
    return {**SMALL, "data": data, "method": "fedorion", "models": models, **changes}


def simulated(models: dict[str, Any], clients: int = 4, given: Any = None, **changes: Any) -> Federation:
    makers = {maker.__name__: maker for maker in given or ()}
    return set_up(read_config(config_for(models, clients, **changes)), models=makers)


def prepared(path: Path, models: dict[str, Any]) -> Run:
    config = config_for(models, rounds=2)
    return polyfed.prepare(config, models=[larger, smaller], out=path, workers=1)


def who(federation: Federation) -> list[str]:
    return [facts.architecture for facts in federation.roster]


# -- models.server: smallest ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "server", "found"),
    [
        ("fedorion", None, "mlp-small"),
        ("fedorion", "smallest", "mlp-small"),
        ("fedorion", "mlp", "mlp"),
        ("fedavg", None, None),
        ("fedkem", "smallest", "mlp-small"),
    ],
)
def test_the_servers_model_stands_by_its_name_in_the_config(
    method: str, server: str | None, found: str | None
) -> None:
    settings: dict[str, Any] = {"name": method, **({"within": "architecture"} if method == "fedavg" else {})}
    settings |= {"fusion": "average"} if method == "fedkem" else {}
    federation = simulated({**TWO, "server": server}, method=settings)
    assert (federation.server().architecture, federation.config.models.server) == (found, found)


def test_it_is_the_smallest_that_a_client_trains_and_the_first_of_equals() -> None:
    assert simulated({**TWO, "clients": {"0-3": "mlp"}}).config.models.server == "mlp"

    def one() -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))

    def two() -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))

    assert simulated({}, given=[one, two]).config.models.server == "one"
    assert simulated({}, given=[two, one]).config.models.server == "two"


def larger() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 20), nn.BatchNorm1d(20), nn.ReLU(), nn.Linear(20, 10))


def smaller() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 10))


@pytest.mark.parametrize("order", [(larger, smaller), (smaller, larger)], ids=["as given", "turned round"])
def test_a_run_of_own_modules_goes_on_with_the_model_it_began_with(tmp_path: Path, order: Any) -> None:
    """Also if the models are given in another order when it is resumed."""
    whole, run = prepared(tmp_path / "whole", {}), prepared(tmp_path / "run", {})
    whole.go()
    run.go(lambda now: now.stop())
    for each in (whole, run):
        each.close()
    assert not run.finished
    resumed = polyfed.resume(run.path, models=list(order), workers=1)
    assert result_of(resumed.path) == result_of(whole.path)
    assert read_yaml(run.path / "config.yaml", "no config")["models"]["server"] == "smaller"


def test_without_a_default_a_method_still_asks_for_a_server_model() -> None:
    with pytest.raises(PolyfedError, match=r"models\.server"):
        simulated(TWO, method={"name": "fedkem", "fusion": "average"})


# -- models.shares -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("models", "clients", "counts"),
    [
        ({**TWO, "shares": {"mlp-small": 0.5}}, 8, {"mlp-small": 4, "mlp": 4}),
        ({**TWO, "shares": {"mlp-small": 0.53}}, 30, {"mlp-small": 16, "mlp": 14}),
        ({**TWO, "shares": {"mlp-small": 0.0}}, 5, {"mlp": 5}),
        ({**TWO, "shares": {"mlp-small": 1.0}}, 5, {"mlp-small": 5}),
        ({"names": ["mlp"], "shares": {"mlp-small": 0.25}}, 8, {"mlp-small": 2, "mlp": 6}),
        # 0.5 · 5 is rounded once: what the first has too little is the second's.
        ({"shares": {"mlp-small": 0.5, "mlp-large": 0.5}}, 5, {"mlp-small": 2, "mlp-large": 3}),
    ],
)
def test_so_many_clients_train_a_model_and_the_others_share_the_rest(
    models: dict[str, Any], clients: int, counts: dict[str, int]
) -> None:
    assert Counter(who(simulated(models, clients))) == counts


def test_who_is_not_drawn_is_dealt_the_other_models_in_turn() -> None:
    """As if there were no shares: a client's model does not change for another's being drawn."""
    names = ["mlp", "mlp-large", "mlp-small"]
    found = who(simulated({"names": names, "shares": {"mlp-small": 1 / 3}}, 9))
    assert found.count("mlp-small") == 3
    others = ["mlp", "mlp-large"]
    assert all(name in ("mlp-small", others[place % 2]) for place, name in enumerate(found))


def test_clients_are_drawn_by_the_seed_and_by_nothing_else() -> None:
    models = {**TWO, "shares": {"mlp-small": 0.5}}
    first = who(simulated(models, 8))
    assert first == who(simulated(models, 8, method="local"))
    assert first != who(simulated(models, 8, seed=1))
    more = who(simulated({**TWO, "shares": {"mlp-small": 0.75}}, 8))
    # Who was drawn for half of them is among three quarters: such runs can be compared.
    assert all(
        after == "mlp-small" for before, after in zip(first, more, strict=True) if before == "mlp-small"
    )


def test_named_clients_go_first_and_the_assignment_says_why() -> None:
    federation = simulated({**TWO, "shares": {"mlp-small": 1.0}, "clients": {"2": "mlp"}})
    assert [(group.model, group.clients, group.why) for group in federation.assignment.groups] == [
        ("mlp-small", 3, "drawn by models.shares"),
        ("mlp", 1, "named in models.clients"),
    ]
    assert who(federation) == ["mlp-small", "mlp-small", "mlp", "mlp-small"]


def test_who_is_not_drawn_has_the_reason_of_the_rule() -> None:
    for names, reason in ((["mlp"], "the only model without a share"), (["mlp", "mlp-large"], "in turn")):
        federation = simulated({"names": names, "shares": {"mlp-small": 0.5}}, 6)
        assert {group.why for group in federation.assignment.groups} == {"drawn by models.shares", reason}


def test_own_modules_have_shares_by_their_names_and_a_run_goes_on_with_them(tmp_path: Path) -> None:
    run = prepared(tmp_path / "run", {"shares": {"smaller": 0.75}})
    assert Counter(who(run.federation)) == {"smaller": 3, "larger": 1}
    run.go(lambda now: now.stop())
    run.close()
    resumed = polyfed.resume(run.path, models=[smaller, larger], workers=1)
    assert resumed.summary["rounds"] == 2
    told = json.loads((run.path / "assignment.json").read_text())
    assert {(group["model"], group["clients"]) for group in told["groups"]} == {("smaller", 3), ("larger", 1)}


@pytest.mark.parametrize(
    ("models", "complaint"),
    [
        ({"shares": {"mlp": 0.6, "mlp-small": 0.5}}, r"models\.shares.*add up to 1\.1: 1 is all clients"),
        ({"shares": {"mlp": 1.5}}, r"models\.shares\.mlp"),
        ({"shares": {"mlp": -0.5}}, r"models\.shares\.mlp"),
        ({"shares": {"mlpp": 0.5}}, "did you mean 'mlp'"),
        ({"names": ["mlp"], "shares": {"mlp": 0.5}}, "leave 2 of 4 clients without a model"),
        ({"names": ["mlp"], "server": "smalest"}, "smalest"),
    ],
)
def test_mistakes_are_one_line(models: dict[str, Any], complaint: str) -> None:
    with pytest.raises(PolyfedError, match=complaint) as caught:
        simulated(models)
    assert "\n" not in str(caught.value)


def test_a_share_can_be_set_on_the_command_line(command: Command, tmp_path: Path) -> None:
    (tmp_path / "file.yaml").write_text(json.dumps(config_for(TWO, rounds=1, method="local")))
    setting = "models.shares={mlp-small: 0.75}"
    said = command("run", "file.yaml", "--out", "run", "--no-figure", "--workers", 1, "--set", setting)
    assert (said.code, said.err) == (0, "")
    assert "drawn by models.shares" in said.out
