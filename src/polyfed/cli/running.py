"""One run, or a few beside each other: `run`, `resume`, `show`, `compare`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import typer

from polyfed.cli.progress import follow
from polyfed.cli.screen import console, print_any, say
from polyfed.errors import ConfigError, UserError, describe
from polyfed.report.assignments import assignment_table, clients_table
from polyfed.report.communication import (
    Whose,
    courses,
    read_target,
    read_whose,
    seldom_evaluated,
    target_table,
    whole_table,
)
from polyfed.report.comparison import Comparison, compare_runs
from polyfed.report.tables import confusion_table, result_table
from polyfed.runs import api
from polyfed.runs.communication import by_setup
from polyfed.runs.folders import unused_folder
from polyfed.runs.history import RunRecord, local_run_for, siblings
from polyfed.runs.rounds import Run
from polyfed.tasks import Task

CURVES = "curves.png"
COMPARED = Path("compare.png")

# What draws is imported only where something is drawn: matplotlib takes half a second of every launch.


def run(
    file: Path,
    overrides: Sequence[str],
    out: Path | None,
    workers: int | None,
    engine: str,
    *,
    overwrite: bool,
    figure: bool,
) -> None:
    """Do a run and show its result."""
    ready = api.prepare(
        file, overrides=overrides, out=out, workers=workers, engine=engine, overwrite=overwrite
    )
    console.print(assignment_table(ready.federation.assignment))
    go(ready)
    _show(ready.path, figure=figure)


def resume(
    directory: Path,
    rounds: int | None,
    workers: int | None,
    engine: str,
    *,
    figure: bool,
    trust: Sequence[str],
) -> None:
    """Go on with a run, to so many rounds in all; show the result of one that has finished."""
    record = RunRecord(directory)
    if record.finished and rounds in (None, record.summary["rounds"]):
        record.verify()
        say(f"{directory} has finished already{_how_it_goes_on(record)}.")
    else:
        go(api.reopen(directory, workers=workers, engine=engine, rounds=rounds, trust=trust))
    _show(directory, figure=figure)


def finish(directory: Path, workers: int | None, engine: str, *, figure: bool, trust: Sequence[str]) -> None:
    """Give a run that was stopped its result where it is, and show it."""
    record = RunRecord(directory)
    if record.finished:
        record.verify()
        say(f"{directory} has finished already{_how_it_goes_on(record)}.")
    else:
        ready = api.reopen(directory, workers=workers, engine=engine, trust=trust)
        try:
            ready.finish()
        finally:
            ready.close()
    _show(directory, figure=figure)


def show(directory: Path, *, clients: bool) -> None:
    """Who trains what in a run, and its result if it has one."""
    record = RunRecord(directory)
    if record.finished:
        record.verify()
    console.print(assignment_table(record.assignment))
    if clients:
        console.print(clients_table(record.assignment, record.client_names))
    if record.finished:
        _show_result(record)
    else:
        rounds = f"{record.manifest['round']} of {record.config['rounds']} rounds"
        say(f"{directory} has done {rounds}: `{record.resume_command}` goes on")
        if record.manifest["round"]:
            say(f"`{record.finish_command}` gives it its result as it is")


def compare(
    directories: Sequence[Path],
    wanted: Path | None,
    *,
    figure: bool,
    target: str | None = None,
    of: str | None = None,
) -> None:
    """Several runs in one table and one figure; with a target, also what it costs to reach it."""
    if wanted is not None and figure:
        from polyfed.report.drawing import check_writable  # noqa: PLC0415

        check_writable(wanted)
    comparison = compare_runs(directories)
    cost = read_cost(target, of, comparison.task)
    show_comparison(comparison)
    print_any(comparison.further_table())
    if cost is not None:
        show_cost(by_setup(comparison.runs), cost)
    if wanted is not None and figure:
        say(f"wrote {_draw_compared(comparison, wanted, cost)}")
    elif figure:
        draw_comparison(comparison, COMPARED, cost)


class CostQuestion(NamedTuple):
    """What is to be known of what a score costs: to which target, and whose score (None: the default)."""

    target: float
    of: Whose | None


def read_cost(target: str | None, of: str | None, task: Task) -> CostQuestion | None:
    """What --target and --of ask for; None without them."""
    if target is None:
        if of is not None:
            raise ConfigError(f"--of {of}: give --target too, such as --target 0.6")
        return None
    return CostQuestion(read_target(target, task), None if of is None else read_whose(of))


def show_cost(groups: Mapping[str, Sequence[RunRecord]], cost: CostQuestion) -> None:
    """Rounds and bytes to a target, by setup."""
    found = courses(groups, cost.of)
    if any(each.points for each in found):
        console.print(target_table(found, cost.target))
        console.print(whole_table(found))
    else:
        say("there is no test data in these runs: nothing reaches a target")
    for note in seldom_evaluated(found):
        say(note)


def go(ready: Run) -> None:
    """Do a run with its progress on the screen."""
    try:
        follow(ready, console)
    except KeyboardInterrupt:
        saved = ready.directory.manifest.get("round")
        what = "before its first checkpoint" if saved is None else f"in round {ready.round + 1}"
        say(f"stopped {what}; go on after round {saved or 0} with: polyfed resume {ready.path}")
        raise typer.Exit(130) from None
    finally:
        ready.close()
    if not ready.finished:
        where = f"{ready.path}{ready.config.to_trust}"
        say(f"saved after round {ready.round}; go on with: polyfed resume {where}")
        if ready.round:
            say(f"or give it its result as it is: polyfed finish {where}")
        raise typer.Exit(130)


def show_comparison(comparison: Comparison) -> None:
    """The table and what a reader must know beside it."""
    console.print(comparison.table())
    for note in comparison.notes():
        say(note)


def draw_comparison(comparison: Comparison, path: Path, cost: CostQuestion | None = None) -> None:
    """Draw a comparison as a courtesy; beside a file of that name that is not ours, under another name."""
    _as_a_courtesy(lambda: _draw_compared(comparison, _free(path), cost))


def _how_it_goes_on(record: RunRecord) -> str:
    """What to type so that a run goes on which ended before its last round."""
    return f"; `{record.resume_command} --rounds N` goes on to N rounds" if record.stopped else ""


def _as_many_rounds(record: RunRecord) -> str:
    """What gives another run as many rounds as this one had, where that is not in its config."""
    if record.stopped is None:
        return ""
    return f" --set rounds={record.summary['rounds']} --set evaluate.patience=null"


def _show(path: Path, *, figure: bool) -> None:
    record = RunRecord(path)
    known = _show_result(record)
    if known is None and not record.is_local:
        beside = unused_folder(path.parent / "local")
        alike = f"--set method=local{_as_many_rounds(record)}"
        say(f"to see the gain over local training: polyfed run {path}/config.yaml {alike} --out {beside}")
    if figure:
        _as_a_courtesy(lambda: _draw_run(record))
    say(f"everything is in {path}")


def _show_result(record: RunRecord) -> RunRecord | None:
    """Print what came out of a run; give back the local run beside it that it was compared with, if there is one."""
    local = local_run_for(record, siblings(record.path))
    known = local if local is not None and local.path.resolve() != record.path.resolve() else None
    console.print(result_table(record, known))
    print_any(confusion_table(record))
    if record.stopped is not None:
        say(f"stopped early {record.stopped}")
    for line in record.failure_lines:
        say(line)
    return known


def _as_a_courtesy(draw: Callable[[], Path | None]) -> None:
    """Draw and say where; what goes wrong is said in a line, and costs the run nothing."""
    try:
        path = draw()
    except Exception as error:
        say(f"no figure was drawn: {error if isinstance(error, UserError) else describe(error)}")
    else:
        if path is not None:
            say(f"wrote {path}")


def _draw_run(record: RunRecord) -> Path | None:
    from polyfed.report.drawing import drawn_by_polyfed  # noqa: PLC0415
    from polyfed.report.run_figure import run_figure  # noqa: PLC0415

    path = record.path / CURVES
    return None if path.exists() and not drawn_by_polyfed(path) else run_figure(record, path)


def _draw_compared(comparison: Comparison, path: Path, cost: CostQuestion | None) -> Path:
    from polyfed.report.communication_figure import communication_figure  # noqa: PLC0415
    from polyfed.report.curves import score_curves  # noqa: PLC0415

    if not comparison.measured:
        raise ConfigError("there is no test data in these runs: nothing to draw")
    if cost is not None:
        found = courses(by_setup(comparison.runs), cost.of or "all")
        return communication_figure(found, cost.target, path)
    return score_curves({name: [record] for name, record in comparison.by_method().items()}, path)


def _free(path: Path) -> Path:
    """This file if it is not there or a figure of ours, else the first of NAME-2, NAME-3 … that is."""
    from polyfed.report.drawing import drawn_by_polyfed  # noqa: PLC0415

    candidate, number = path, 1
    while candidate.exists() and not drawn_by_polyfed(candidate):
        number += 1
        candidate = path.with_stem(f"{path.stem}-{number}")
    return candidate
