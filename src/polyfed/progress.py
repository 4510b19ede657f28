"""A run's progress on the screen: a bar in a terminal, plain lines elsewhere; Ctrl-C ends it well."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from polyfed.report.tables import amount, percent
from polyfed.run import Run

STDERR = 2
PLAIN_SECONDS = 5.0  # between lines where there is no terminal


def follow(run: Run, console: Console) -> None:
    """Do a run and show how it gets on: rounds, accuracy, bytes, time left."""
    with stopping_well(run):
        run.open()  # before the bar has a thread: workers are forked here
        clock = _Clock(run)
        if console.is_terminal:
            columns = (
                TextColumn("{task.description}"),
                BarColumn(),
                TextColumn("{task.completed}/{task.total} rounds"),
                TextColumn("{task.fields[news]}"),
            )
            with Progress(*columns, console=console) as progress:
                bar = progress.add_task(
                    run.config.name, total=run.config.rounds, completed=run.round, news=""
                )
                run.go(lambda now: progress.update(bar, completed=now.round, news=clock.news()))
        else:

            def tell(now: Run) -> None:
                if clock.due() or now.finished:
                    line = f"{now.config.name}: round {now.round}/{now.config.rounds} {clock.news()}"
                    console.print(line, soft_wrap=True, markup=False)

            run.go(tell)


class _Clock:
    """What there is to say of a run, and when."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.first_round = run.round
        self.started = time.monotonic()
        self.said = 0.0

    def due(self) -> bool:
        if time.monotonic() - self.said < PLAIN_SECONDS:
            return False
        self.said = time.monotonic()
        return True

    def news(self) -> str:
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
def stopping_well(run: Run) -> Iterator[None]:
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

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
