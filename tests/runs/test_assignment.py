"""Who trains what and why: written before the first round, printed, and read back."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.conftest import SMALL, Command, MakeRun

import polyfed
from polyfed import Declaration
from polyfed.errors import CheckpointError
from polyfed.federation.roster import Facts
from polyfed.learn import Training
from polyfed.methods.dsfl import DSFL
from polyfed.methods.fedavg import FedAvg
from polyfed.methods.pooled import Pooled
from polyfed.runs.architectures import NAMED, REASONS
from polyfed.runs.assignment import Assignment
from polyfed.runs.config import read_config
from polyfed.runs.contents import read_as
from polyfed.runs.federation import Federation
from polyfed.runs.history import RunRecord
from polyfed.runs.manifest import read_manifest, seal
from polyfed.runs.setup import Simulation, set_up

# On digits mlp-small has 64·64 + 64 + 64·10 + 10 = 4,810 parameters, mlp 26,122.
BUDGETS = [{"parameters": 5_000}, {"parameters": 1_500_000}, {}]
MIXED = {
    "names": ["mlp-small", "mlp"],
    "assign": "budget",
    "budgets": BUDGETS,
    "clients": {"4": "mlp"},
}


def simulated(**models: Any) -> Federation:
    method = {"name": "fedavg", "within": "architecture"}
    return set_up(
        read_config({**SMALL, "data": {**SMALL["data"], "clients": 7}, "models": models, "method": method})
    )


def test_every_client_has_its_model_its_budget_and_the_reason_in_words() -> None:
    found = simulated(**MIXED).assignment
    assert [found.group_of(client).model for client in range(7)] == [
        "mlp-small", "mlp", "mlp", "mlp-small", "mlp", "mlp", "mlp-small",
    ]  # fmt: skip
    assert [(group.clients, group.why) for group in found.groups] == [
        (3, "largest of 2 that fits 5,000 parameters"),
        (1, "largest of 2 that fits 1.5 M parameters"),
        (2, "largest of 2 that fits any budget"),
        (1, "named in models.clients"),
    ]
    assert found.clients == [0, 1, 2, 0, 3, 2, 0]
    named = found.group_of(4)
    assert named.budget is not None
    assert named.budget.parameters == 1_500_000
    assert found.models["mlp-small"].parameters == 64 * 64 + 64 + 64 * 10 + 10
    assert found.models["mlp-small"].weights_bytes == 4 * (64 * 64 + 64 + 64 * 10 + 10)


@pytest.mark.parametrize(
    ("models", "reasons"),
    [
        ({"names": ["mlp-small"]}, {"the only model"}),
        ({"names": ["mlp-small", "mlp"]}, {"in turn"}),
        ({"names": ["mlp-small", "mlp"], "assign": "random"}, {"drawn at random"}),
        (
            {
                "names": ["mlp-small", "mlp"],
                "assign": "budget",
                "budgets": [{"macs": 9_000, "memory_mb": 2.5}],
            },
            {"largest of 2 that fits 9,000 MACs, 2.5 MB of memory"},
        ),
    ],
)
def test_the_reason_is_the_rule_that_assigned(models: dict[str, Any], reasons: set[str]) -> None:
    found = simulated(**models).assignment
    assert {group.why for group in found.groups} == reasons
    assert (found.clients == []) == (len(found.groups) == 1)
    assert found.count == 7


def test_equal_budgets_are_one_group() -> None:
    budgets = [{"parameters": 5_000}, {"parameters": 5_000}, {"parameters": 5_000, "macs": 10**9}]
    found = simulated(names=["mlp-small", "mlp"], assign="budget", budgets=budgets).assignment
    assert [group.clients for group in found.groups] == [5, 2]


def test_a_million_clients_are_a_few_megabytes_and_no_objects() -> None:
    federation = simulated(**MIXED)
    assert isinstance(federation, Simulation)
    models = federation.models
    models.which, models.reasons = np.arange(1_000_000) % 2, np.zeros(1_000_000, dtype=np.int8)
    models.reasons[17] = REASONS.index(NAMED)
    found = federation.assignment
    written = json.dumps(found.model_dump())
    assert len(found.groups) == 7  # two models by three budgets, and the one that is named
    assert found.count == 1_000_000
    assert len(written) < 3.1e6


def test_it_is_in_the_run_directory_before_the_first_round_and_stays_as_it_was(make_run: MakeRun) -> None:
    run = make_run("fedavg", name="begun")
    run.open()
    begun = (run.path / "assignment.json").read_bytes()
    assert RunRecord(run.path).assignment == run.federation.assignment
    run.go()
    run.close()
    assert (run.path / "assignment.json").read_bytes() == begun


def _group(**changes: Any) -> dict[str, Any]:
    return {"model": "m", "clients": 2, "why": "in turn", "budget": None, "exchanged": None, **changes}


def _content(*groups: dict[str, Any], clients: list[int]) -> dict[str, Any]:
    size = {"parameters": 1, "macs": 1, "memory_bytes": 1, "weights_bytes": 100}
    big = {**size, "weights_bytes": 400}
    return {"batch": 1, "models": {"m": size, "n": big}, "groups": list(groups), "clients": clients}


@pytest.mark.parametrize(
    "content",
    [
        {},
        [],
        _content(clients=[]),
        _content(_group(), _group(clients=1), clients=[0, 1]),
        _content(_group(), _group(clients=1), clients=[0, 1, 9]),
        _content(_group(model="other"), clients=[]),
        _content(_group(exchanged="other"), clients=[]),
        _content(_group(clients=-1), clients=[]),
        _content(_group(clients=10**400), clients=[]),
        _content(_group(), _group(clients=1), clients=[0, 10**15, 0]),
    ],
)
def test_what_is_no_assignment_is_not_taken_for_one(content: Any) -> None:
    assert read_as(Assignment, content) is None


def test_one_that_was_forged_is_refused_in_a_line(make_run: MakeRun) -> None:
    run = make_run("fedavg")
    run.go()
    run.close()
    (run.path / "assignment.json").write_text("{}")
    manifest = read_manifest(run.path)
    manifest["assignment"] = polyfed.disk.digest(b"{}")
    (run.path / "manifest.json").write_text(json.dumps({**manifest, "digest": seal(manifest)}))
    with pytest.raises(CheckpointError, match=r"assignment\.json was truncated or edited .* run it again"):
        _ = RunRecord(run.path).assignment


def test_the_exchanged_model_is_the_clients_own_or_the_servers_where_clients_keep_theirs() -> None:
    facts = Facts(0, "client-0", 10, "mlp")

    class Knowledge(FedAvg):
        def declare(self) -> Declaration:
            return replace(super().declare(), keeps={"model"})

    def exchanged(kind: type[Any], server: str | None) -> str | None:
        made = kind(kind.Settings(), Training())
        found: str | None = made.exchanged(facts, server)
        return found

    assert exchanged(FedAvg, "lenet5") == "mlp"
    assert exchanged(Knowledge, "lenet5") == "lenet5"
    assert exchanged(Knowledge, None) == "mlp"
    assert exchanged(DSFL, "lenet5") is None  # posteriors travel
    assert exchanged(Pooled, None) is None  # data are in one place


def test_the_exchanged_bytes_are_a_mean_over_clients() -> None:
    two, one = _group(exchanged="m"), _group(clients=1, exchanged="n")
    both = read_as(Assignment, _content(two, one, clients=[0, 1, 0]))
    assert both is not None
    assert both.exchanged_bytes == pytest.approx((2 * 100 + 400) / 3)
    part = read_as(Assignment, _content(two, _group(clients=1), clients=[0, 1, 0]))
    assert part is not None
    assert part.exchanged_bytes is None


def test_run_prints_it_and_show_tells_it_again(command: Command, tmp_path: Path) -> None:
    config = {
        **SMALL,
        "rounds": 1,
        "models": MIXED,
        "data": {**SMALL["data"], "clients": 7},
        "method": "local",
    }
    (tmp_path / "file.yaml").write_text(json.dumps(config))
    printed = command("run", "file.yaml", "--out", "run", "--no-figure").out
    shown = command("show", "run", "--clients")
    for said in (printed, shown.out):
        assert "who trains what: 7 clients" in said
        assert "largest of 2 that fits 1.5 M parameters" in said
        assert "named in models.clients (budget: 1.5 M parameters)" in said
    assert "client-6" in shown.out
    assert "whole test set, mean" in shown.out
    assert printed.index("who trains what") < printed.index("round 1/1")
    assert command("show", "nothing").code == 2
