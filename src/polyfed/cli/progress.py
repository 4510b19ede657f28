"""The progress of a run, or of many, on the screen: bars in a terminal, plain lines elsewhere; stopping by Ctrl-C."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TaskID, TextColumn
from rich.table import Column
from rich.text import Text

from polyfed.experiments import Job, JobFailure, Snapshot, run_jobs
from polyfed.report.tables import amount, percent
from polyfed.runs.rounds import Run
from polyfed.runs.signals import stop_signals_call

STDERR = 2
PLAIN_SECONDS = 5.0  # between lines where the output is not a terminal
PLAIN_GRID_SECONDS = 15.0
WIDEST_NAME = 60


def follow(run: Run, console: Console) -> None:
    """Do a run and show its progress: rounds, accuracy, bytes, time left."""
    with stopping_after_the_round(run):
        run.open()  # before the bar has a thread: workers are forked here
        status = _StatusLine(run)
        if console.is_terminal:
            columns = (
                TextColumn("{task.description}"),
                BarColumn(),
                TextColumn("{task.completed}/{task.total} rounds"),
                TextColumn("{task.fields[status]}"),
                _StepColumn(run),
            )
            with Progress(*columns, console=console) as progress:
                bar = progress.add_task(
                    run.config.name, total=run.config.rounds, completed=run.round, status=""
                )
                run.go(lambda now: progress.update(bar, completed=now.round, status=status.text()))
        else:

            def tell(now: Run) -> None:
                if status.due() or now.finished:
                    line = f"{now.config.name}: round {now.round}/{now.config.rounds} {status.text()}"
                    console.print(line, soft_wrap=True, markup=False)

            run.go(tell)


class _StepColumn(ProgressColumn):
    """The step under way, and how many clients have done it: a round may take minutes."""

    def __init__(self, run: Run) -> None:
        super().__init__()
        self.run = run

    def render(self, task: Task) -> Text:
        return Text("" if task.finished else self.run.fleet.under_way, style="dim")


class _StatusLine:
    """A run's accuracy, bytes and time left in one line, and when to print it."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.first_round = run.round
        self.started = time.monotonic()
        self.printed_at = 0.0

    def due(self) -> bool:
        if time.monotonic() - self.printed_at < PLAIN_SECONDS:
            return False
        self.printed_at = time.monotonic()
        return True

    def text(self) -> str:
        run = self.run
        done = run.round - self.first_round
        left = (time.monotonic() - self.started) / max(done, 1) * (run.config.rounds - run.round)
        parts = []
        summary = (run.last or {}).get("summary", {})
        for part, title in (("own", "own"), ("whole", "all")):
            if part in summary:
                parts.append(f"{title} {percent(summary[part]['mean'])} %")
        parts.append(f"{amount(run.ledger.total('up'))} up, {amount(run.ledger.total('down'))} down")
        failures = len((run.last or {}).get("failures", ()))
        if failures:
            parts.append(f"{failures} failed")
        parts.append(f"{left:.0f} s left")
        return " · ".join(parts)


@contextmanager
def stopping_after_the_round(run: Run) -> Iterator[None]:
    """Ctrl-C (or SIGTERM) ends a run after the round under way, with a checkpoint; a second one ends it at once."""
    asked = 0

    def stop(_signal: int, _frame: FrameType | None) -> None:
        nonlocal asked
        asked += 1
        if asked > 1:
            raise KeyboardInterrupt
        # Straight to the terminal: rich may be in the middle of something when the signal comes.
        words = (
            f"\nfinishing round {run.round + 1}, then saving; Ctrl-C again stops at once"
            f" (then `polyfed resume {run.path}` goes on from the last checkpoint)\n"
        )
        os.write(STDERR, words.encode())
        run.stop()

    with stop_signals_call(stop):
        yield


def follow_grid(jobs: Sequence[Job], workers: int | None, console: Console) -> list[JobFailure]:
    """Do many runs and show their progress; those that failed are printed at the end, and returned.

    Raises `KeyboardInterrupt` if it was stopped: then everything is saved, and the same jobs go on.
    """
    screen = _GridBars(console) if console.is_terminal else _GridLines(console)
    try:
        return run_jobs(jobs, workers, screen.tell)
    finally:
        screen.close()


class _GridScreen:
    """Shows the progress of a grid; prints failures at the end."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.last: Snapshot | None = None
        self.stopping = False

    def tell(self, now: Snapshot) -> None:
        if now.stopping and not self.stopping:
            # Straight to the terminal: this may be a signal's handler, with rich in the middle of something.
            self.stopping = True
            words = "\nfinishing the rounds under way, then saving; Ctrl-C again stops at once\n"
            os.write(STDERR, words.encode())
            return
        self.show(now)
        self.last = now

    def show(self, now: Snapshot) -> None:
        raise NotImplementedError

    def close(self) -> None:
        """Print which runs failed, and why."""
        for failure in self.last.failures if self.last is not None else ():
            line = f"failed: {failure.job.path}: {failure.reason}"
            self.console.print(line, soft_wrap=True, markup=False, highlight=False)


class _GridBars(_GridScreen):
    """A bar for the grid and one for each run under way.

    They are drawn when there is a new snapshot, not by a thread of rich's own, since processes are forked all the time.
    What those processes write must not go through the bars that they have inherited.
    """

    def __init__(self, console: Console) -> None:
        super().__init__(console)
        columns = (
            TextColumn(
                "{task.description}",
                markup=False,
                table_column=Column(no_wrap=True, overflow="ellipsis", max_width=WIDEST_NAME),
            ),
            BarColumn(),
            TextColumn("{task.fields[status]}"),
        )
        self.progress = Progress(
            *columns, console=console, auto_refresh=False, redirect_stdout=False, redirect_stderr=False
        )
        self.bars: dict[str, TaskID] = {}
        self.whole = self.progress.add_task("all runs", total=1.0, status="")

    def show(self, now: Snapshot) -> None:
        if self.last is None:
            self.progress.start()
        parts = [f"{len(now.finished)}/{now.jobs} runs", _time_left(now)]
        if now.failures:
            parts.insert(1, f"{len(now.failures)} failed")
        self.progress.update(self.whole, completed=now.share, status=" · ".join(filter(None, parts)))
        names = {run.name for run in now.under_way}
        for name in [name for name in self.bars if name not in names]:
            self.progress.remove_task(self.bars.pop(name))
        for run in now.under_way:
            if run.name not in self.bars:
                self.bars[run.name] = self.progress.add_task(f"  {run.name}", total=run.rounds, status="")
            status = f"{run.round}/{run.rounds} rounds"
            self.progress.update(self.bars[run.name], completed=run.round, status=status)
        self.progress.refresh()

    def close(self) -> None:
        self.progress.stop()
        super().close()


class _GridLines(_GridScreen):
    """A line when a run has finished, and from time to time one on those under way."""

    printed_at = 0.0

    def show(self, now: Snapshot) -> None:
        before = len(self.last.finished) if self.last is not None else None
        if before is None and now.finished:
            self._say(f"{len(now.finished)} of {now.jobs} runs had finished before")
        for number, name in enumerate(now.finished[before:] if before is not None else (), (before or 0) + 1):
            self._say(f"{name} has finished ({number} of {now.jobs})", _time_left(now))
        if now.under_way and time.monotonic() - self.printed_at >= PLAIN_GRID_SECONDS:
            runs = ", ".join(f"{run.name} {run.round}/{run.rounds}" for run in now.under_way)
            self._say(f"under way: {runs}", _time_left(now))

    def _say(self, *parts: str) -> None:
        self.printed_at = time.monotonic()
        line = " · ".join(filter(None, parts))
        self.console.print(line, soft_wrap=True, markup=False, highlight=False)


def _time_left(now: Snapshot) -> str:
    return f"{duration(now.seconds_left)} left" if now.seconds_left else ""


def duration(seconds: float) -> str:
    """Seconds, minutes or hours, whichever fits best."""
    minutes = round(seconds / 60)
    if minutes < 2:
        return f"{seconds:.0f} s"
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h {minutes % 60} min"
