"""What a method does before its first round is done once, whenever the run is stopped or killed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.conftest import MakeRun

import polyfed
from polyfed.federation.method import Fleet
from polyfed.federation.nodes import Server
from polyfed.runs.checkpoint import read_lines, read_manifest
from polyfed.runs.rounds import Run
from polyfed.testing import result_of

FEDMD: dict[str, Any] = {
    "name": "fedmd",
    "public_training": {"epochs": 1},
    "private_training": {"epochs": 2},
    "distil": {"epochs": 1},
}


def fedmd(make_run: MakeRun, name: str, **changes: Any) -> Run:
    return make_run(
        FEDMD,
        name=name,
        data={"public": {"source": "share", "share": 0.2}},
        models={"names": ["mlp-small", "cnn-small"], "server": "mlp-small"},
        **changes,
    )


@pytest.fixture
def undisturbed(make_run: MakeRun) -> dict[str, Any]:
    run = fedmd(make_run, "undisturbed")
    run.go()
    return result_of(run.path)


def stopped_while_preparing(run: Run, monkeypatch: pytest.MonkeyPatch) -> Path:
    prepare = run.method.prepare

    def stop_and_prepare(fleet: Fleet, server: Server) -> None:
        run.stop()
        prepare(fleet, server)

    monkeypatch.setattr(run.method, "prepare", stop_and_prepare)
    run.go()
    run.close()
    return run.path


@pytest.mark.parametrize("checkpoint_seconds", [0, 3600])
@pytest.mark.parametrize("workers", [1, 2])
def test_a_run_stopped_while_it_prepares_goes_on_as_if_it_had_not(
    make_run: MakeRun,
    undisturbed: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
    workers: int,
    checkpoint_seconds: float,
) -> None:
    run = fedmd(make_run, "stopped", checkpoint_seconds=checkpoint_seconds)
    path = stopped_while_preparing(run, monkeypatch)
    assert (run.round, run.prepared) == (0, True)
    manifest = read_manifest(path)
    assert (manifest["round"], manifest["prepared"]) == (0, True)
    assert [line["round"] for line in read_lines(path / "history.jsonl")] == [0]
    assert not (path / "summary.json").exists()
    resumed = polyfed.resume(path, workers=workers)
    assert resumed.finished
    assert result_of(path) == undisturbed


def test_what_was_prepared_is_not_prepared_again(make_run: MakeRun, monkeypatch: pytest.MonkeyPatch) -> None:
    path = stopped_while_preparing(fedmd(make_run, "stopped"), monkeypatch)
    again = polyfed.reopen(path, workers=1)

    def prepare(fleet: Fleet, server: Server) -> None:
        raise AssertionError("prepared twice")

    monkeypatch.setattr(again.method, "prepare", prepare)
    again.go()
    again.close()
    assert [line["round"] for line in read_lines(path / "history.jsonl")] == [0, 1, 2, 3]


class Killed(BaseException):
    """As good as kill -9: nothing is saved."""


@pytest.mark.parametrize("checkpoint_seconds", [0, 3600], ids=["saved", "not saved"])
def test_a_run_killed_in_its_first_round_goes_on_as_if_it_had_not(
    make_run: MakeRun,
    undisturbed: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
    checkpoint_seconds: float,
) -> None:
    """What was prepared is in the last checkpoint, or it is done again."""
    run = fedmd(make_run, "killed", checkpoint_seconds=checkpoint_seconds)

    def die(t: int, fleet: Fleet, server: Server) -> None:
        raise Killed

    monkeypatch.setattr(run.method, "round", die)
    with pytest.raises(Killed):
        run.go()
    run.close()
    assert read_manifest(run.path)["prepared"] == (checkpoint_seconds == 0)
    polyfed.resume(run.path, workers=1)
    assert result_of(run.path) == undisturbed
