"""Many runs: `sweep` and `reproduce`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import typer

from polyfed.cli.progress import follow_grid
from polyfed.cli.running import read_cost, show_cost
from polyfed.cli.screen import console, print_any, say
from polyfed.experiments import SweepResult, papers, plan_sweep, read_sets
from polyfed.experiments.reproduce import (
    check_ready,
    conclude,
    full_report,
    paper_details,
    papers_overview,
    plan_reproduction,
    plan_tables,
)


def sweep(
    file: Path,
    sets: Sequence[str],
    seeds: int,
    out: Path | None,
    workers: int | None,
    *,
    target: str | None = None,
    of: str | None = None,
) -> None:
    """Do what is left of a sweep, then show and write what came out."""
    ready = plan_sweep(file, read_sets(sets), seeds, out)
    cost = read_cost(target, of, ready.task)
    ready.begin()
    try:
        failures = follow_grid(ready.jobs, workers, console)
    except KeyboardInterrupt:
        _show_sweep(ready.result())
        console.print("stopped; the same command goes on", soft_wrap=True)
        raise typer.Exit(130) from None
    result = ready.result(failures)
    _show_sweep(result)
    if cost is not None:
        show_cost(result.runs, cost)
    for line in (*result.stopped_early(), *result.failed_clients()):
        say(line)
    say(f"wrote {', '.join(map(str, ready.write(result)))}")
    if failures:
        console.print(f"{len(failures)} of {len(ready.jobs)} runs failed; the same command tries them again")
        raise typer.Exit(1)


def _show_sweep(result: SweepResult) -> None:
    console.print(result.table())
    print_any(result.further_table())


def reproduce(
    what: str | None,
    scale: str,
    rows: str,
    columns: str,
    seeds: int | None,
    plan: bool,
    out: Path,
    workers: int | None,
) -> None:
    """List papers, say what would be run, or measure a table again."""
    if what is None:
        console.print(papers_overview([papers.load(name) for name in papers.known()]))
        return
    if "/" not in what or what.endswith(papers.ENDING):
        console.print(paper_details(papers.load(what), console.width))
        return
    wanted = plan_reproduction(
        what, scale=scale, rows=_words(rows), columns=_words(columns), seeds=seeds, out=out
    )
    if plan:
        title = f"{what} at scale {scale}: {len(wanted.jobs)} runs in {wanted.folder}/RUN/SETTING/seed-N"
        console.print(title, soft_wrap=True, highlight=False)
        console.print(plan_tables(wanted))
        return
    check_ready(wanted)
    try:
        failures = follow_grid(list(wanted.jobs.values()), workers, console)
    except KeyboardInterrupt:
        console.print(f"go on with: {wanted.command}", soft_wrap=True, markup=False)
        raise typer.Exit(130) from None
    measured, written = conclude(wanted)
    if measured is not None:
        console.print(full_report(measured, console.width))
    console.print(f"wrote {', '.join(map(str, written))}", soft_wrap=True)
    if failures:
        raise typer.Exit(1)


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]
