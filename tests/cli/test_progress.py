"""What is on the screen while a run, or many, are being done: bars in a terminal, plain lines elsewhere."""

from __future__ import annotations

import io
import os
import re
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from rich.progress import Progress
from tests.conftest import MakeRun, job

from polyfed.cli import progress
from polyfed.cli.progress import duration, follow, follow_grid
from polyfed.experiments import grid
from polyfed.experiments.grid import run_jobs
from polyfed.experiments.jobs import Snapshot
from polyfed.report.tables import amount, percent
from polyfed.runs.rounds import Run


class Screen(Console):
    """A console whose output can be read, of a terminal or of none."""

    def __init__(self, *, terminal: bool) -> None:
        self.written = io.StringIO()
        super().__init__(file=self.written, width=200, force_terminal=terminal)

    @property
    def plain(self) -> str:
        """What was written, without colours and movements of the cursor."""
        return re.sub(r"\x1b\[[\d;?]*[a-zA-Z]", "", self.written.getvalue())


def last_status(run: Run) -> str:
    """Accuracies and bytes of a finished run as they are to be printed."""
    own, whole = (percent(run.summary["last"][part]["mean"]) for part in ("own", "whole"))
    up, down = (amount(run.ledger.total(direction)) for direction in ("up", "down"))
    return f"own {own} % · all {whole} % · {up} up, {down} down · 0 s left"


# -- one run -------------------------------------------------------------------------------------------------


def test_in_a_terminal_a_run_has_a_bar_with_its_accuracy_and_bytes(make_run: MakeRun) -> None:
    run, screen = make_run("fedavg"), Screen(terminal=True)
    follow(run, screen)
    last = screen.plain.strip().splitlines()[-1]
    assert run.finished
    assert last.startswith("run ")
    assert "3/3 rounds" in last
    assert last_status(run) in last
    assert "\x1b[" in screen.written.getvalue()


def test_beside_the_bar_is_the_step_under_way_until_the_run_has_finished(make_run: MakeRun) -> None:
    run = make_run("local")
    run.fleet.under_way = "train 2/4"
    bars = Progress(console=Screen(terminal=True))
    bars.add_task("run", total=3)
    column = progress._StepColumn(run)
    assert column.render(bars.tasks[0]).plain == "train 2/4"
    bars.update(bars.tasks[0].id, completed=3)
    assert column.render(bars.tasks[0]).plain == ""


def test_elsewhere_there_is_a_plain_line_for_the_last_round(make_run: MakeRun) -> None:
    run, screen = make_run("fedavg"), Screen(terminal=False)
    follow(run, screen)
    assert screen.written.getvalue().splitlines()[-1] == f"run: round 3/3 {last_status(run)}"


def test_clients_that_failed_are_counted(make_run: MakeRun, monkeypatch: pytest.MonkeyPatch) -> None:
    run, screen = make_run("fedavg", rounds=1), Screen(terminal=False)
    go = run.go

    def with_failures(listener: Callable[[Run], None]) -> None:
        def tell(now: Run) -> None:
            assert now.last is not None
            now.last["failures"] = [{}, {}]
            listener(now)

        go(tell)

    monkeypatch.setattr(run, "go", with_failures)
    follow(run, screen)
    assert " · 2 failed · " in screen.written.getvalue()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_a_run_after_its_round_and_says_so(
    make_run: MakeRun, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], number: int
) -> None:
    run, before = make_run("local", rounds=10), signal.getsignal(number)
    one_round = run._one_round

    def interrupted() -> None:
        if run.round == 1:
            os.kill(os.getpid(), number)
        one_round()

    monkeypatch.setattr(run, "_one_round", interrupted)
    follow(run, Screen(terminal=False))
    assert (run.round, run.directory.manifest["round"]) == (2, 2)
    assert "finishing round 2, then saving" in capfd.readouterr().err
    assert signal.getsignal(number) == before


# -- many runs -----------------------------------------------------------------------------------------------


def test_elsewhere_there_is_a_line_for_each_finished_run_and_for_each_failure(
    tmp_path: Path, small: dict[str, Any]
) -> None:
    jobs = [job(tmp_path / f"seed-{seed}", small, seed=seed, rounds=2) for seed in (0, 1)]
    run_jobs(jobs[:1], 1)
    hopeless = job(tmp_path / "hopeless", small, training={"batch": 16, "lr": 1e30})
    screen = Screen(terminal=False)
    (failure,) = follow_grid([*jobs, hopeless], 1, screen)
    lines = screen.written.getvalue().splitlines()
    assert lines[0] == "1 of 3 runs had finished before"
    assert [line for line in lines if line.startswith("seed-1 has finished (2 of 3)")]
    assert lines[-1] == f"failed: {hopeless.path}: {failure.reason}"


def test_in_a_terminal_there_are_bars_and_no_thread_beside_the_forks(
    tmp_path: Path, small: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Looked at a hundred times in a run: none can be over before it was seen.
    monkeypatch.setattr(grid, "POLL_SECONDS", 0.005)
    jobs = [job(tmp_path / f"seed-{seed}", small, seed=seed, rounds=60) for seed in (0, 1)]
    screen = Screen(terminal=True)
    threads: list[int] = []
    tell = progress._GridScreen.tell

    def counting(self: Any, now: Snapshot) -> None:
        threads.append(len(list(Path("/proc/self/task").iterdir())))
        tell(self, now)

    threads_before = len(list(Path("/proc/self/task").iterdir()))
    monkeypatch.setattr(progress._GridScreen, "tell", counting)
    follow_grid(jobs, 2, screen)
    assert "2/2 runs" in screen.plain
    assert "seed-1" in screen.plain
    assert re.search(r"\d+/60 rounds", screen.plain)
    assert max(threads) <= threads_before


def test_in_a_terminal_failures_are_counted_and_named_below_the_bars(
    tmp_path: Path, small: dict[str, Any]
) -> None:
    good = job(tmp_path / "good", small, rounds=1)
    hopeless = job(tmp_path / "hopeless", small, training={"batch": 16, "lr": 1e30})
    screen = Screen(terminal=True)
    (failure,) = follow_grid([hopeless, good], 1, screen)
    *bars, last = screen.plain.strip().splitlines()
    assert last == f"failed: {hopeless.path}: {failure.reason}"
    assert "1/2 runs · 1 failed" in bars[-1]


def test_time_left_is_in_the_unit_that_fits() -> None:
    assert [duration(seconds) for seconds in (4.2, 89, 600, 7199, 9000)] == [
        "4 s",
        "89 s",
        "10 min",
        "2 h 0 min",
        "2 h 30 min",
    ]
