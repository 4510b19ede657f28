"""One run, or a few beside each other: `run`, `resume`, `compare`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import typer

from polyfed.cli.progress import follow
from polyfed.cli.screen import console, print_any
from polyfed.report.tables import compare_further, compare_table, confusion_table, result_table
from polyfed.runs import api
from polyfed.runs.history import RunRecord, local_run_for, siblings
from polyfed.runs.rounds import Run


def run(file: Path, overrides: Sequence[str], out: Path | None, workers: int | None, engine: str) -> None:
    """Do a run and show its result."""
    go(api.prepare(file, overrides=overrides, out=out, workers=workers, engine=engine))


def resume(directory: Path, workers: int | None, engine: str) -> None:
    """Go on with a run; show the result of one that has finished."""
    record = RunRecord(directory)
    if record.finished:
        console.print(f"{directory} has finished already.")
        _show(directory)
    else:
        go(api.reopen(directory, workers=workers, engine=engine))


def compare(directories: Sequence[Path]) -> None:
    """Several runs in one table; what was measured beside accuracy in another."""
    records = [RunRecord(path) for path in directories]
    console.print(compare_table(records))
    print_any(compare_further(records))


def go(ready: Run, *, show: bool = True) -> None:
    """Do a run with its progress on the screen, then show its result."""
    try:
        follow(ready, console)
    finally:
        ready.close()
    if ready.finished and show:
        _show(ready.path)
    elif not ready.finished:
        console.print(
            f"saved after round {ready.round}; go on with: polyfed resume {ready.path}", soft_wrap=True
        )
        raise typer.Exit(130)


def _show(path: Path) -> None:
    record = RunRecord(path)
    local = local_run_for(record, siblings(path))
    known = local if local is not None and local.path.resolve() != path.resolve() else None
    console.print(result_table(record, known))
    print_any(confusion_table(record))
    if known is None and record.summary["method"] != "local":
        command = f"polyfed run {path}/config.yaml --set method=local --out {path.parent / 'local'}"
        console.print(f"to see the gain over local training: {command}", soft_wrap=True)
    console.print(f"everything is in {path}", soft_wrap=True)
