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
from tests.conftest import MakeRun, job

from polyfed.cli import progress
from polyfed.cli.progress import duration, follow, follow_grid
from polyfed.experiments import grid
from polyfed.experiments.grid import run_jobs
from polyfed.experiments.jobs import Snapshot, UnderWay
from polyfed.report.tables import amount, percent
from polyfed.runs.rounds import Run


class Screen(Console):
    """A console whose output can be read, of a terminal or of none."""

    def __init__(self, *, terminal: bool, width: int = 200) -> None:
        self.written = io.StringIO()
        super().__init__(file=self.written, width=width, force_terminal=terminal)

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
    bar = progress._RunBar(run, Screen(terminal=True))
    bar.show(0, ["own 81.2 %"])
    assert bar.status().plain == "own 81.2 % · train 2/4"
    run.round = 3
    assert bar.status().plain == "own 81.2 %"


STATUS = ["own 81.2 %", "all 100.0 %", "123.4 MB up, 987.6 MB down", "12 failed", "2 h 30 min left"]


@pytest.mark.parametrize("width", [60, 80, 100])
def test_in_a_narrow_terminal_nothing_of_the_bar_is_cut(make_run: MakeRun, width: int) -> None:
    run = make_run("local", rounds=300)
    run.config = run.config.model_copy(update={"name": "a-long-name-of-a-run-that-was-swept-over-alpha=0.1"})
    run.fleet.under_way = "personalise 123/1000"
    screen = Screen(terminal=True, width=width)
    bar = progress._RunBar(run, screen)
    bar.show(249, STATUS)
    for line in bar.get_renderables():
        screen.print(line)
    lines = screen.plain.splitlines()
    assert lines[0].startswith("a-long-na")
    assert lines[0].rstrip().endswith("249/300 rounds")
    for part in [*STATUS, "personalise 123/1000"]:
        assert any(part in line for line in lines), part
    assert max(map(len, lines)) <= width


def test_in_a_narrow_terminal_a_run_has_its_status_below_the_bar(make_run: MakeRun) -> None:
    run, screen = make_run("fedavg"), Screen(terminal=True, width=80)
    follow(run, screen)
    bar, status = (line.rstrip() for line in screen.plain.strip().splitlines()[-2:])
    assert bar.endswith("3/3 rounds")
    assert status == last_status(run)


def test_elsewhere_there_is_a_plain_line_for_the_last_round(make_run: MakeRun) -> None:
    run, screen = make_run("fedavg"), Screen(terminal=False)
    follow(run, screen)
    assert screen.written.getvalue().splitlines()[-1] == f"run: round 3/3 {last_status(run)}"


def test_clients_that_failed_are_counted_and_named(
    make_run: MakeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, screen = make_run("fedavg", rounds=1), Screen(terminal=False)
    go = run.go

    def with_failures(listener: Callable[[Run], None]) -> None:
        def tell(now: Run) -> None:
            assert now.last is not None
            now.last["failures"] = [{"client": "client-2"}, {"client": "client-0"}]
            listener(now)

        go(tell)

    monkeypatch.setattr(run, "go", with_failures)
    follow(run, screen)
    assert " · 2 failed (client-2, client-0) · " in screen.written.getvalue()


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
    hopeless = job(tmp_path / "hopeless", small, training={"epochs": 1, "batch": 16, "lr": 1e30})
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
    hopeless = job(tmp_path / "hopeless", small, training={"epochs": 1, "batch": 16, "lr": 1e30})
    screen = Screen(terminal=True)
    (failure,) = follow_grid([hopeless, good], 1, screen)
    *bars, last = screen.plain.strip().splitlines()
    assert last == f"failed: {hopeless.path}: {failure.reason}"
    assert "1/2 runs · 1 failed" in bars[-1]


@pytest.mark.parametrize("width", [60, 80])
def test_in_a_narrow_terminal_nothing_of_a_grids_bars_is_cut(width: int) -> None:
    names = [f"method=fedavg,training.lr=0.1,data.partition.alpha={alpha}/seed-0" for alpha in ("0.1", "1")]
    screen = Screen(terminal=True, width=width)
    bars = progress._GridBars(screen)
    under_way = tuple(UnderWay(name, 249, 300) for name in names)
    bars.show(Snapshot(18, (), under_way, (), stopping=False, share=0.5, seconds_left=9000.0))
    bars.close()
    whole, first, second = (line.rstrip() for line in screen.plain.splitlines()[-3:])
    assert whole.startswith("0/18 runs · 2 h 30 min left")
    for line, alpha in ((first, "0.1"), (second, "1")):
        assert line.startswith("  method=fedavg")
        assert f"={alpha}/seed-0" in line
        assert line.endswith(" 249/300 rounds")
        assert len(line) <= width


def test_time_left_is_in_the_unit_that_fits() -> None:
    assert [duration(seconds) for seconds in (4.2, 89, 600, 7199, 9000)] == [
        "4 s",
        "89 s",
        "10 min",
        "2 h 0 min",
        "2 h 30 min",
    ]
