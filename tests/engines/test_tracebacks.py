"""A bug in a step of the user's own: where it is stands in the reason, the whole traceback in the run directory."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest
from tests.conftest import MakeRun

from polyfed import Client, Declaration, Fields, Fleet, Method, Server, client_step
from polyfed.engines import Inline, Pool
from polyfed.errors import RunError, StepFailed
from polyfed.federation.engine import Engine
from polyfed.testing import failures_of

ENGINES = [Inline(), Pool(2)]


class Buggy(Method):
    """One client's step has a bug, deep in a function of the user's."""

    name = "buggy"
    guilty: tuple[int, ...] = (1,)

    def declare(self) -> Declaration:
        return Declaration()

    @client_step
    def train(self, me: Client) -> Fields:
        if me.facts.index in self.guilty:
            look_up({})
        return {}

    def round(self, t: int, fleet: Fleet, server: Server) -> None:
        fleet.ask(self.train, fleet.sample())


class AllBuggy(Buggy):
    name = "all-buggy"
    guilty = (0, 1, 2, 3)


def look_up(table: dict[str, int]) -> int:
    return table["missing"]


def place() -> str:
    lines, first = inspect.getsourcelines(look_up)
    return f"{Path(__file__).name}:{first + len(lines) - 1}"


@pytest.mark.parametrize("engine", ENGINES, ids=["inline", "pool"])
def test_the_reason_says_where_and_the_log_has_it_all(make_run: MakeRun, engine: Engine) -> None:
    run = make_run(Buggy, engine, rounds=2)
    run.go()
    assert [failure["reason"] for failure in failures_of(run.path)] == [
        f"KeyError: 'missing' ({place()})"
    ] * 2
    log = (run.path / "failures.log").read_text()
    assert "round 1: client-1 in step 'train'" in log
    assert "round 2: client-1 in step 'train'" in log
    assert 'return table["missing"]' in log


@pytest.mark.parametrize("engine", ENGINES, ids=["inline", "pool"])
def test_where_every_client_fails_the_run_ends_at_once_with_the_traceback_for_a_cause(
    make_run: MakeRun, engine: Engine
) -> None:
    run = make_run(AllBuggy, engine, rounds=5)
    with pytest.raises(RunError, match=f"round 1: every client failed.*{place()}") as caught:
        run.go()
    assert isinstance(caught.value.__cause__, StepFailed)
    assert "in look_up" in str(caught.value.__cause__)
    log = (run.path / "failures.log").read_text()
    assert log.count("Traceback") == 1  # the same for all
    assert "client-0 in step 'train', client-1 in step 'train'" in log


def test_without_failures_there_is_no_log(make_run: MakeRun) -> None:
    run = make_run(type("Fine", (Buggy,), {"guilty": ()}), rounds=1)
    run.go()
    assert not (run.path / "failures.log").exists()
