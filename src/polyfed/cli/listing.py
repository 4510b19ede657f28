"""What there is: methods, models, data sets, and who holds what in a federation."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from polyfed import data as cached
from polyfed.cli.screen import console, read_shape, say, show, tell
from polyfed.data import PARTITIONS
from polyfed.disk import check_regular
from polyfed.errors import ConfigError, nearest
from polyfed.models import check_trusted, named_on_the_command_line
from polyfed.report.details import (
    data_details,
    method_details,
    model_details,
    partition_details,
    task_details,
)
from polyfed.report.measures import metrics_table
from polyfed.report.partitions import grouping_of, partition_table
from polyfed.report.selection import Wishes, select, selection_tables
from polyfed.report.tables import (
    data_table,
    method_summaries,
    methods_table,
    models_table,
    tasks_table,
)
from polyfed.runs.config import read_config
from polyfed.runs.setup import set_up

FIGURES = (".png", ".jpg", ".pdf", ".svg")
WIDE = 120  # columns from which on there is room for long cells


def methods(
    name: str | None,
    *,
    no_public_data: bool,
    no_weights: bool,
    no_server: bool,
    different_models: bool,
    task: str | None,
    overrides: Sequence[str] = (),
) -> None:
    """Every method and what it needs and sends; or everything about one; or which fit what is wished for.

    overrides: settings with which one of them is asked what it declares.
    """
    learnt = None if task is None else read_config({"task": task}).make_task()
    wishes = Wishes(no_public_data, no_weights, no_server, different_models, learnt)
    if overrides and (name is None or wishes):
        raise ConfigError(f"--set {overrides[0]}: give the name of one method before it")
    if wishes:
        if name is not None:
            raise ConfigError(f"{name}, or which methods fit: leave the name or the options out")
        console.print(selection_tables(select(wishes)))
        if wishes.no_public_data:
            tell("where public data need no labels, noise can stand in for them: data.public.source=noise")
        tell("polyfed methods NAME: everything about one, with its settings")
    elif name is None:
        console.print(methods_table(in_short=console.width >= WIDE))
        if console.width < WIDE:
            console.print(method_summaries())
        tell("polyfed methods NAME: everything about one, with its settings")
    else:
        show(method_details(name, console.width, overrides))


def tasks(name: str | None) -> None:
    """What can be learnt; or everything about one task."""
    if name is None:
        console.print(tasks_table())
        tell("polyfed tasks NAME: everything about one, with its settings; a run file's key is `task`")
    else:
        show(task_details(name, console.width))


def models(pattern: str, shape: str, outputs: int, norm: str) -> None:
    """The models whose names match a wildcard, for inputs of a shape such as 3x32x32; or everything about one."""
    size = read_shape(shape)
    if norm not in ("batch", "group"):
        raise ConfigError(f"--norm {norm}: use batch or group")
    if set(pattern) & set("*?["):
        console.print(models_table(pattern, size, outputs, norm))  # type: ignore[arg-type]
        tell("polyfed models NAME: everything about one")
    else:
        show(model_details(pattern, size, outputs, norm, console.width))  # type: ignore[arg-type]


def data(name: str | None) -> None:
    """The named data sets; or everything about one."""
    if name is None:
        console.print(data_table())
        tell("polyfed data NAME: everything about one")
    else:
        show(data_details(name, console.width))


def metrics() -> None:
    """Every metric beside a task's own score."""
    console.print(metrics_table(titles=console.width >= WIDE))
    tell(
        "any other of scikit-learn's: its name, or {name: fbeta_score, beta: 2}; torchmetrics:NAME; one of your own:"
        " my_module:cost; all of these are computed where the rows are"
    )


def check_cache() -> None:
    """Compare every cached data set with its fingerprint, and say which were damaged."""
    broken = cached.check_cache()
    for line in broken:
        say(f"{line}; it was removed, and is decoded again when it is next used")
    if not broken:
        say("every cached data set is as it was written")


def partition(what: Path | None, overrides: Sequence[str], figure: Path, trust: Sequence[str]) -> None:
    """Who holds what by a run file: a table and a picture. Without one, or for a kind: what can be set."""
    if what is None:
        show(partition_details(list(PARTITIONS), console.width))
        tell("polyfed partition FILE: who holds what, printed and plotted")
    elif str(what) in PARTITIONS and not what.exists():
        show(partition_details([str(what)], console.width))
    elif not what.suffix and not what.exists():
        raise ConfigError(f"no run file and no kind of partition '{what}': {nearest(str(what), PARTITIONS)}")
    else:
        _partition_of(what, overrides, figure, trust)


def _partition_of(file: Path, overrides: Sequence[str], figure: Path, trust: Sequence[str]) -> None:
    if figure.suffix.lower() not in FIGURES:
        raise ConfigError(
            f"--figure {figure}: its name must end in {', '.join(FIGURES[:-1])} or {FIGURES[-1]}"
        )
    if not figure.parent.is_dir():
        raise ConfigError(f"--figure {figure}: there is no folder {figure.parent}")
    if figure.exists():
        check_regular(figure)
    config = read_config(file, overrides)
    check_trusted(config.code_names(), [*trust, *named_on_the_command_line(overrides)], file)
    federation = set_up(config)
    roster, held = federation.roster, federation.holdings
    groups, counts = held.group_words, held.class_counts()
    grouping = grouping_of(groups, federation.task.targets)
    models = [facts.architecture for facts in roster]
    names = list(roster.names)
    console.print(partition_table(counts, groups, models, names, grouping))
    # Imported only where something is drawn: matplotlib takes half a second of every launch.
    from polyfed.report.figures import bubble_chart  # noqa: PLC0415

    title = held.title if config.data.is_brought else f"{held.title}: {len(roster)} clients"
    bubble_chart(counts, groups, figure, title, roster.names.given, grouping.one)
    console.print(f"wrote {figure}", soft_wrap=True)
