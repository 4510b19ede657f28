"""Who holds what, as a table: how many rows of which class, or of which group where rows have no class of their own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from rich import box
from rich.table import Table

from polyfed.data import CLASS_LABELS, NUMBER_LABELS, SEVERAL_LABELS, Targets
from polyfed.report.fitting import FittedTable, Row
from polyfed.report.tables import percent

MOST_CLIENTS = 50  # listed; the others are only counted


class Grouping(NamedTuple):
    """What to call the groups of rows that are counted: one of them, several, and what they are in words."""

    one: str
    several: str
    meaning: str = ""


CLASSES = Grouping("class", "classes")
_GROUPINGS = {
    CLASS_LABELS.kind: CLASSES,
    NUMBER_LABELS.kind: Grouping(
        "group", "groups", "a group is a tenth of all rows, from low numbers to high"
    ),
    SEVERAL_LABELS.kind: Grouping("rarest class", "groups", "a row counts for the rarest class that it has"),
}
_ONE_GROUP = ("rows",)  # where rows are not told apart


def grouping_of(groups: Sequence[str], targets: Targets) -> Grouping:
    """What the groups are in which rows with such labels are counted."""
    known = Grouping("", "") if tuple(groups) == _ONE_GROUP else _GROUPINGS.get(targets.kind)
    return known or Grouping("group", "groups")


def partition_table(
    counts: np.ndarray[Any, Any],
    groups: Sequence[str],
    models: Sequence[str],
    clients: Sequence[str] | None = None,
    grouping: Grouping = CLASSES,
) -> Table | FittedTable:
    """Who holds how many samples of which class, or group of rows.

    groups: what to call each of them. grouping: what they are; where rows are not told apart, samples alone are shown.
    models, clients: each client's model, and its name; its number where names are not given.
    """
    few = len(groups) <= 20
    told = (grouping.several, *(groups if few else (f"largest {grouping.one}",))) if grouping.one else ()
    rows = []
    for index, row in enumerate(counts[:MOST_CLIENTS]):
        held = (
            [str(count) if count else "·" for count in row]
            if few
            else [f"{percent(row.max() / row.sum())} %"]
        )
        cells = [str(row.sum()), str((row > 0).sum()), *held][: 1 + len(told)]
        rows.append(Row([str(index) if clients is None else clients[index], models[index]], cells))
    if len(counts) > MOST_CLIENTS:
        rows.append(Row(["…", f"{len(counts) - MOST_CLIENTS} more"], [""] * (1 + len(told))))
    title = f"{len(counts)} clients, {counts.sum()} samples"
    if grouping is not CLASSES:
        headings = ["samples", *told]
        return FittedTable(title, ["client", "model"], headings, rows, caption=grouping.meaning)
    table = Table(box=box.SIMPLE_HEAD, title_justify="left", title=title)
    for name in ("client", "model", "samples", *told):
        table.add_column(str(name), justify="left" if name in ("client", "model") else "right")
    for each in rows:
        table.add_row(*each.names, *each.cells)
    return table
