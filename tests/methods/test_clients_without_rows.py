"""One rule for all methods: a client without training rows takes no part in learning; it is scored all the same."""

from __future__ import annotations

import pytest
import torch
from tests.conftest import MakeRun

import polyfed
from polyfed.errors import CheckpointError
from polyfed.federation.method import registered
from polyfed.runs.history import RunRecord

PARTITION = {"kind": "dirichlet", "alpha": 0.05, "minimum": 0}


@pytest.mark.parametrize("method", registered())
def test_a_client_without_rows_is_asked_for_nothing(make_run: MakeRun, method: str) -> None:
    run = make_run(
        method,
        rounds=2,
        data={
            "clients": 12,
            "limit": 80,
            "partition": PARTITION,
            "public": {"source": "share", "share": 0.2},
        },
        models={"server": "mlp-small"},
        training={"lr": 0.01},
    )
    roster = run.federation.roster
    empty = {facts.name for facts in roster if not facts.samples}
    assert 0 < len(empty) < len(roster)
    run.go()
    record = RunRecord(run.path)
    assert all("failures" not in line for line in record.history)
    learnt = {entry.client for entry in record.ledger if entry.purpose == "training"}
    if method != "pooled":  # of which one client stands in for the data centre
        assert learnt == {facts.name for facts in roster if facts.samples}
    assert not {roster.name(index) for index in run.client_files()} & empty
    kept = run.server.memory.get("weights", {})
    assert all(bool(torch.isfinite(tensor).all()) for model in kept.values() for tensor in model.values())


def test_why_it_has_no_final_model_is_said(make_run: MakeRun) -> None:
    run = make_run("local", rounds=1, data={"clients": 12, "limit": 80, "partition": PARTITION})
    run.go()
    name = next(facts.name for facts in run.federation.roster if not facts.samples)
    with pytest.raises(CheckpointError, match=rf"{name} has no final model in .*: it holds no training rows"):
        polyfed.load_model(run.path, name)


def test_a_cohort_is_drawn_among_those_that_hold_rows(make_run: MakeRun) -> None:
    run = make_run("fedavg", data={"clients": 12, "limit": 80, "partition": PARTITION}, cohort={"count": 3})
    for number in range(1, 30):
        run.fleet.begin(number, measuring=False)
        cohort = run.fleet.sample()
        assert len(cohort) == 3
        assert all(facts.samples for facts in cohort)
