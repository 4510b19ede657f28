"""Many runs: what is skipped, what goes on, and what is left of it all when processes fail, die or are stopped."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import job, round_of

from polyfed import disk
from polyfed.experiments import grid
from polyfed.experiments.grid import run_jobs
from polyfed.experiments.jobs import Job, Snapshot, state_of
from polyfed.runs import api
from polyfed.runs.checkpoint import read_lines, read_manifest
from polyfed.runs.rounds import Run
from polyfed.testing import result_of

fork = multiprocessing.get_context("fork")

LONG = 20  # rounds: long enough to be killed in the middle


@pytest.fixture(autouse=True)
def _look_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grid, "POLL_SECONDS", 0.01)


@pytest.fixture
def long_jobs(small: dict[str, Any]) -> Callable[[Path], list[Job]]:
    """Three runs that take a while, with a checkpoint every few rounds."""
    small["checkpoint_seconds"] = 0.1

    def make(folder: Path) -> list[Job]:
        return [
            job(folder / method / f"seed-{seed}", small, method=method, seed=seed, rounds=LONG)
            for method, seed in (("local", 0), ("fedavg", 0), ("local", 1))
        ]

    return make


@pytest.fixture(scope="module")
def undisturbed() -> dict[str, Any]:
    return {}


@pytest.fixture
def expected(
    undisturbed: dict[str, Any],
    long_jobs: Callable[[Path], list[Job]],
    tmp_path_factory: pytest.TempPathFactory,
) -> dict[str, Any]:
    """What comes of the long runs, done one by one."""
    if not undisturbed:
        for each in long_jobs(tmp_path_factory.mktemp("one-by-one")):
            run = api.prepare_checked(each.config, each.path, 1)
            run.go()
            run.close()
            undisturbed["/".join(each.path.parts[-2:])] = result_of(each.path)
    return undisturbed


def results(jobs: list[Job]) -> dict[str, Any]:
    return {"/".join(each.path.parts[-2:]): result_of(each.path) for each in jobs}


# -- carrying out --------------------------------------------------------------------------------------------


def test_results_are_the_same_whatever_the_workers(tmp_path: Path, small: dict[str, Any]) -> None:
    """One run at a time in this process; two at a time; two at a time with two workers each."""

    def jobs(workers: int) -> list[Job]:
        folder = tmp_path / str(workers)
        return [job(folder / method / "seed-0", small, method=method) for method in ("local", "fedavg")]

    for workers in (1, 2, 4):
        assert run_jobs(jobs(workers), workers) == []
    assert results(jobs(1)) == results(jobs(2)) == results(jobs(4))


def test_what_has_finished_is_not_touched(tmp_path: Path, small: dict[str, Any]) -> None:
    jobs = [job(tmp_path / f"seed-{seed}", small, seed=seed, rounds=1) for seed in (0, 1)]
    run_jobs(jobs, 1)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    told: list[Snapshot] = []
    assert run_jobs(jobs, 2, told.append) == []
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before
    assert told[0].finished == ("seed-0", "seed-1")
    assert told[0].share == 1


@pytest.mark.parametrize("workers", [1, 2])
def test_a_run_that_fails_does_not_stop_the_others(
    tmp_path: Path, small: dict[str, Any], monkeypatch: pytest.MonkeyPatch, workers: int
) -> None:
    """One fails with an error of ours (its learning rate makes NaN), one with a bug."""
    hopeless = job(tmp_path / "hopeless", small, training={"epochs": 1, "batch": 16, "lr": 1e30})
    buggy = job(tmp_path / "buggy", small)
    good = [job(tmp_path / f"seed-{seed}", small, seed=seed) for seed in (0, 1)]
    prepare = api.prepare_checked

    def with_bug(config: Any, out: Path, *args: Any, **given: Any) -> Any:
        return 1 / 0 if out == buggy.path else prepare(config, out, *args, **given)

    monkeypatch.setattr(api, "prepare_checked", with_bug)
    failures = run_jobs([hopeless, buggy, *good], workers)
    reasons = {failure.job.path.name: failure.reason for failure in failures}
    assert reasons.keys() == {"hopeless", "buggy"}
    assert "every client failed" in reasons["hopeless"]
    assert reasons["buggy"] == "ZeroDivisionError: division by zero"
    assert all(state_of(each) == "finished" for each in good)


def test_a_damaged_folder_is_a_failure_and_the_others_go_on(tmp_path: Path, small: dict[str, Any]) -> None:
    jobs = [job(tmp_path / f"seed-{seed}", small, seed=seed, rounds=1) for seed in (0, 1)]
    run_jobs(jobs[:1], 1)
    (jobs[0].path / "manifest.json").write_text("{}")
    (failure,) = run_jobs(jobs, 2)
    assert failure.job is jobs[0]
    assert "truncated or edited" in failure.reason
    assert state_of(jobs[1]) == "finished"


def test_runs_that_use_several_threads_are_not_forked(tmp_path: Path, small: dict[str, Any]) -> None:
    """A process forked from one with threads hangs at its first threaded operation."""
    assert grid._start_method([job(tmp_path, small)]) == "fork"
    assert grid._start_method([job(tmp_path, small), job(tmp_path, small, server_threads=2)]) == "spawn"


# -- death and signals ---------------------------------------------------------------------------------------


def process_of(name: str) -> int | None:
    """The process of a run; None if it has ended and was not joined yet."""
    return next((child.pid for child in multiprocessing.active_children() if child.name == name), None)


@pytest.fixture
def gate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Runs in processes of their own wait after round 3 for this file, or until they are told to stop."""
    gate, here, whole = tmp_path / "gate", os.getpid(), Run._one_round

    def one_round(self: Run) -> None:
        while os.getpid() != here and self.round >= 3 and not (self._stopping or gate.exists()):
            time.sleep(0.01)
        whole(self)

    monkeypatch.setattr(Run, "_one_round", one_round)
    return gate


@pytest.mark.parametrize("workers", [2, 6])
def test_a_process_that_is_killed_costs_nothing(
    tmp_path: Path,
    long_jobs: Callable[[Path], list[Job]],
    expected: dict[str, Any],
    caplog: pytest.LogCaptureFixture,
    gate: Path,
    workers: int,
) -> None:
    """`kill -9` of one run in the middle, with and without workers of its own."""
    killed: list[str] = []

    def kill(now: Snapshot) -> None:
        for run in now.under_way:
            pid = process_of(run.name)
            if not killed and run.round >= 2 and pid is not None:
                os.kill(pid, signal.SIGKILL)
                killed.append(run.name)
                gate.touch()

    jobs = long_jobs(tmp_path / "runs")
    assert run_jobs(jobs, workers, kill) == []
    assert f"{killed[0]}: its process died (signal SIGKILL)" in caplog.text
    assert results(jobs) == expected


def test_a_run_whose_process_dies_twice_is_a_failure(
    tmp_path: Path, long_jobs: Callable[[Path], list[Job]], expected: dict[str, Any]
) -> None:
    deaths: list[int] = []

    def kill(now: Snapshot) -> None:
        for run in now.under_way:
            if run.name == "fedavg/seed-0" and run.round >= 1 and len(deaths) < 2:
                pid = process_of(run.name)
                if pid is not None and pid not in deaths:
                    os.kill(pid, signal.SIGKILL)
                    deaths.append(pid)

    jobs = long_jobs(tmp_path)
    (failure,) = run_jobs(jobs, 2, kill)
    assert failure.job is jobs[1]
    assert failure.reason == "its process died twice (signal SIGKILL)"
    assert results([jobs[0], jobs[2]]) == {
        name: result for name, result in expected.items() if name != "fedavg/seed-0"
    }
    assert run_jobs(jobs, 1) == []
    assert results(jobs) == expected


@pytest.mark.parametrize(("number", "workers"), [(signal.SIGTERM, 2), (signal.SIGINT, 1)])
def test_a_signal_to_this_process_alone_ends_the_runs_under_way_after_their_rounds(
    tmp_path: Path,
    long_jobs: Callable[[Path], list[Job]],
    expected: dict[str, Any],
    gate: Path,
    number: signal.Signals,
    workers: int,
) -> None:
    assert not gate.exists()  # nobody is far ahead of the others
    told: list[Snapshot] = []

    def interrupt(now: Snapshot) -> None:
        told.append(now)
        if now.under_way and not now.stopping and all(run.round >= 2 for run in now.under_way):
            os.kill(os.getpid(), number)

    jobs = long_jobs(tmp_path / "runs")
    before = signal.getsignal(number)
    with pytest.raises(KeyboardInterrupt):
        run_jobs(jobs, workers, interrupt)
    assert signal.getsignal(number) == before
    assert told[-1].stopping
    assert [state_of(each) for each in jobs] == ["begun"] * workers + ["new"] * (3 - workers)
    for each in jobs[:workers]:
        saved = read_manifest(each.path)["round"]
        assert saved == list(read_lines(each.path / "history.jsonl"))[-1]["round"]
    assert run_jobs(jobs, 1) == []
    assert results(jobs) == expected


@pytest.mark.parametrize("workers", [1, 2])
def test_a_second_signal_ends_everything_at_once(tmp_path: Path, small: dict[str, Any], workers: int) -> None:
    jobs = [job(tmp_path / f"seed-{seed}", small, seed=seed, rounds=10_000) for seed in (0, 1)]

    def interrupt(now: Snapshot) -> None:
        if now.under_way and all(run.round for run in now.under_way):
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        run_jobs(jobs, workers, interrupt)
    assert multiprocessing.active_children() == []
    assert [state_of(each) for each in jobs] == ["begun"] * workers + ["new"] * (2 - workers)


def test_a_grid_that_was_killed_can_be_begun_again_at_once(
    tmp_path: Path, long_jobs: Callable[[Path], list[Job]], expected: dict[str, Any], gate: Path
) -> None:
    """Its runs end with it, in the middle of a round that would not end by itself."""
    jobs = long_jobs(tmp_path / "runs")
    process = fork.Process(target=run_jobs, args=(jobs, 2))
    process.start()
    deadline = time.monotonic() + 60
    while min(round_of(each.path) for each in jobs[:2]) < 2:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    process.kill()
    process.join()
    assert [state_of(each) for each in jobs] == ["begun", "begun", "new"]
    assert not gate.exists()
    assert run_jobs(jobs, 1) == []
    assert results(jobs) == expected


def test_a_folder_that_a_process_holds_for_a_while_is_waited_for(
    tmp_path: Path, small: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As that of a process that was killed and has not ended yet."""
    held = job(tmp_path / "held", small, rounds=1)
    held.path.mkdir()
    lock = disk.lock(held.path)
    timer = threading.Timer(0.3, lock.close)
    timer.start()
    assert run_jobs([held], 1) == []
    monkeypatch.setattr(grid, "ENDING_SECONDS", 0.1)
    again = job(tmp_path / "again", small, rounds=1)
    again.path.mkdir()
    lock = disk.lock(again.path)
    (failure,) = run_jobs([again], 1)
    assert "another process is at work" in failure.reason
    lock.close()
