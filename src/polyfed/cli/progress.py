"""The progress of a run, or of many, on the screen: bars in a terminal, plain lines elsewhere; stopping by Ctrl-C."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from rich.console import Console, RenderableType
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TaskID, TextColumn
from rich.table import Column
from rich.text import Text

from polyfed.errors import visible
from polyfed.experiments import Job, JobFailure, Snapshot, run_jobs
from polyfed.report.fitting import distinct, shortened
from polyfed.report.tables import amount, with_unit
from polyfed.runs.failures import few_names
from polyfed.runs.rounds import Run
from polyfed.runs.signals import stop_signals_call

STDERR = 2
PLAIN_SECONDS = 5.0  # between lines where the output is not a terminal
PLAIN_GRID_SECONDS = 15.0
ONE_LINE = 170  # in a terminal of so many columns all that is known of a run is in one line
ROUNDS_WIDTH = 19  # `1234/1234 rounds`, with what is between the columns
GRID_STATUS_WIDTH = 40  # `12/18 runs · 2 failed · 2 h 30 min left`
WIDE_GRID = 145
WIDEST_NAME = 60
LEAST_BAR = 8


def follow(run: Run, console: Console) -> None:
    """Do a run and show its progress: rounds, scores, bytes, time left."""
    with stopping_after_the_round(run):
        run.open()  # before the bar has a thread: workers are forked here
        status = _StatusLine(run)
        if console.is_terminal:
            with _RunBar(run, console) as progress:
                run.go(lambda now: progress.show(now.round, status.parts()))
        else:

            def tell(now: Run) -> None:
                if status.due() or now.finished:
                    line = f"{now.config.name}: round {now.round}/{now.config.rounds} {status.text()}"
                    console.print(line, soft_wrap=True, markup=False)

            run.go(tell)


class _RunBar(Progress):
    """A bar with rounds, and beside it, or in a narrow terminal below, scores, bytes and time left.

    At the end is the step under way, and how many clients have done it: a round may take minutes.
    """

    def __init__(self, run: Run, console: Console) -> None:
        self.run = run
        self.parts: Sequence[str] = ()
        self.width = console.width
        self.wide = self.width >= ONE_LINE
        name = shortened(run.config.name, self.width // (6 if self.wide else 3))
        columns: list[ProgressColumn] = [
            TextColumn("{task.description}", markup=False, table_column=Column(no_wrap=True)),
            BarColumn(40 if self.wide else max(10, self.width - len(name) - ROUNDS_WIDTH)),
            TextColumn("{task.completed}/{task.total} rounds", table_column=Column(no_wrap=True)),
        ]
        if self.wide:
            columns.append(_TextOf(self.status))
        super().__init__(*columns, console=console)
        self.bar = self.add_task(name, total=run.config.rounds, completed=run.round)

    def show(self, number: int, parts: Sequence[str]) -> None:
        self.parts = parts
        self.update(self.bar, completed=number)

    def status(self) -> Text:
        """What is known, and the step under way. Lines break between two parts, never inside one."""
        step = "" if self.run.finished else self.run.fleet.under_way
        words, room = Text(), self.width
        for part in filter(None, [*self.parts, step]):
            between = " · " if words else ""
            if len(between) + len(part) > room:
                between, room = "\n", self.width + 1
            words.append(between).append(part, style="dim" if part == step else "")
            room -= len(between) + len(part)
        return words

    def get_renderables(self) -> Iterator[RenderableType]:
        yield self.make_tasks_table(self.tasks)
        if not self.wide:
            yield self.status()


class _TextOf(ProgressColumn):
    """A column whose text is asked for whenever it is drawn."""

    def __init__(self, text: Callable[[], Text]) -> None:
        super().__init__()
        self.text = text

    def render(self, task: Task) -> Text:
        return self.text()


class _StatusLine:
    """A run's scores, bytes and time left in one line, and when to print it."""

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
        return " · ".join(self.parts())

    def parts(self) -> list[str]:
        run = self.run
        done = run.round - self.first_round
        left = (time.monotonic() - self.started) / max(done, 1) * (run.config.rounds - run.round)
        parts = []
        summary = (run.last or {}).get("summary", {})
        learnt = run.federation.task
        measure = "" if learnt.unit == "%" else f"{learnt.measure} "
        for part, title in (("own", "own"), ("whole", "all")):
            if part in summary:
                parts.append(f"{title} {measure}{with_unit(learnt, summary[part]['mean'])}")
        parts.append(f"{amount(run.ledger.total('up'))} up, {amount(run.ledger.total('down'))} down")
        failures = (run.last or {}).get("failures", ())
        if failures:
            names = few_names(failure["client"] for failure in failures)
            parts.append(f"{len(failures)} failed ({names})")
        return [*parts, f"stopped early: {run.patience.words()}" if run.stopped else f"{duration(left)} left"]


@contextmanager
def stopping_after_the_round(run: Run) -> Iterator[None]:
    """Ctrl-C or SIGTERM ends a run after the round under way, with a checkpoint; a second one ends it at once.

    A round that goes on for more than a few seconds after SIGTERM is abandoned.
    """

    def stop() -> None:
        # Straight to the terminal: rich may be in the middle of something when the signal comes.
        words = (
            f"\nfinishing round {run.round + 1}, then saving; Ctrl-C again stops at once"
            f" (then `polyfed resume {run.path}{run.config.to_trust}` goes on from the last checkpoint)\n"
        )
        os.write(STDERR, visible(words).encode())
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
        # In a narrow terminal what is known of all runs is in the place of their name.
        self.wide = console.width >= WIDE_GRID
        bar = min(40, console.width - GRID_STATUS_WIDTH - ROUNDS_WIDTH)
        room = console.width - ROUNDS_WIDTH - (bar if bar >= LEAST_BAR else 0)
        self.name_width = min(WIDEST_NAME, room - (GRID_STATUS_WIDTH - ROUNDS_WIDTH if self.wide else 0))
        columns: list[ProgressColumn] = [
            TextColumn("{task.description}", markup=False, table_column=Column(overflow="fold")),
            TextColumn("{task.fields[status]}", table_column=Column(no_wrap=True)),
        ]
        if bar >= LEAST_BAR:
            columns.insert(1, BarColumn(bar))
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
        words = " · ".join(filter(None, parts))
        description, status = ("all runs", words) if self.wide else (words, "")
        self.progress.update(self.whole, completed=now.share, description=description, status=status)
        names = [run.name for run in now.under_way]
        shown = distinct(names, self.name_width - 2)
        for name in [name for name in self.bars if name not in names]:
            self.progress.remove_task(self.bars.pop(name))
        for run, name in zip(now.under_way, shown, strict=True):
            if run.name not in self.bars:
                self.bars[run.name] = self.progress.add_task(name, total=run.rounds, status="")
            status = f"{run.round}/{run.rounds} rounds"
            bar = self.bars[run.name]
            self.progress.update(bar, completed=run.round, description=f"  {name}", status=status)
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
