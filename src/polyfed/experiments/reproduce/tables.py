"""A paper's table as measured, beside what the paper prints: for the terminal."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import NamedTuple

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from polyfed.experiments.papers.paper import (
    RoundChoice,
    TableColumn,
    TableRow,
)
from polyfed.experiments.papers.results import MeasuredTable
from polyfed.experiments.reproduce.formats import MISSING, UNIT_NAMES, filled, format_over_seeds, plural
from polyfed.experiments.reproduce.verdicts import claims_list, rules

GAP = "  "  # between groups of columns
AROUND = 3  # around a cell: a space on each side, and one between columns
SECOND = "  chosen round"  # a row's second line
CHOSEN: dict[RoundChoice, str] = {
    "round": "the round chosen on validation",
    "each": "the round chosen on validation for each client",
}


class CellTexts(NamedTuple):
    """What is printed in one cell."""

    paper: str
    last: str
    chosen: str


def cell_texts(measured: MeasuredTable, row: TableRow, column: TableColumn) -> CellTexts:
    cell = measured.cells[row.key, column.key]
    unit = measured.table.unit_of(row, column)
    printed = row.paper.get(column.key)
    chosen = "" if cell.chosen == {} else format_over_seeds(cell.chosen, unit)
    return CellTexts(printed.text if printed else MISSING, format_over_seeds(cell.last, unit), chosen)


def heading(measured: MeasuredTable) -> str:
    """A table's name, scale and title, in one line."""
    unit = UNIT_NAMES[measured.unit] if measured.unit else ""
    scale = f" at scale {measured.scale}, {plural(measured.seeds, 'seed')}" if measured.is_run else ""
    return f"{measured.paper.id}/{measured.key}{scale}: {measured.table.title}{f' ({unit})' if unit else ''}"


def full_report(measured: MeasuredTable, width: int) -> Group:
    """Everything that is printed of a table: its numbers, its claims, what to know when reading them."""
    parts: list[RenderableType] = [Text(heading(measured)), *measured_tables(measured, width)]
    if measured.judgements:
        parts.append(claims_list(measured, width))
    return Group(*parts, Text(f"\n{footnotes(measured, width)}"))


def measured_tables(measured: MeasuredTable, width: int) -> list[Table]:
    """Rows × columns, in each cell the paper's number and the one measured; several tables if one would be too wide.

    The second, dim line of a row is the round chosen on validation. A group of columns has its name above it.
    """
    named = max(len(name) for name in (SECOND, *(row.name for row in measured.rows))) + 4
    cells = {column.key: _cells(measured, column) for column in measured.columns}
    widths = {key: max(len(line) for pair in lines for line in pair) + AROUND for key, lines in cells.items()}
    if measured.table.groups:
        for group in by_group(measured.columns):
            middle = group[len(group) // 2]
            widths[middle.key] = max(widths[middle.key], len(middle.group) + AROUND)
    else:
        widths = dict.fromkeys(widths, max(widths.values()))
    parts = side_by_side(measured.columns, widths, width - named)
    return [_table(measured, part, cells) for part in parts]


def side_by_side(
    columns: Sequence[TableColumn], widths: Mapping[str, int], room: int
) -> list[list[TableColumn]]:
    """Columns in parts that fit into a width; a group is divided only if it is too wide by itself."""

    def fits(part: Sequence[TableColumn]) -> bool:
        gaps = len(GAP) * (len(by_group(part)) - 1)
        return sum(widths[column.key] for column in part) + gaps <= room

    def filled(pieces: Iterable[list[TableColumn]]) -> list[list[TableColumn]]:
        parts: list[list[TableColumn]] = []
        for piece in pieces:
            if parts and fits([*parts[-1], *piece]):
                parts[-1] += piece
            else:
                parts.append(piece)
        return parts

    return filled(piece for group in by_group(columns) for piece in filled([column] for column in group))


def by_group(columns: Sequence[TableColumn]) -> list[list[TableColumn]]:
    return [list(members) for _, members in groupby(columns, key=lambda column: column.group)]


Cells = Mapping[str, Sequence[tuple[str, str]]]


def _table(measured: MeasuredTable, part: Sequence[TableColumn], cells: Cells) -> Table:
    table = Table(box=box.SIMPLE_HEAD)
    table.add_column("", no_wrap=True)
    for number, group in enumerate(by_group(part)):
        for place, column in enumerate(group):
            gap = GAP if number and not place else ""
            title = f"{measured.paper.short_name(column)}\n{gap}{cells[column.key][0][0]}"
            if measured.table.groups:
                title = f"{column.group if place == len(group) // 2 else ''}\n{title}"
            table.add_column(Text(title), justify="right", no_wrap=True)
    for place, row in enumerate(measured.rows, start=1):
        pairs = [cells[column.key][place] for column in part]
        second = any(lower.strip() for _, lower in pairs)
        lines = (
            [(row.name, SECOND), *pairs] if second else [(row.name, ""), *((upper, "") for upper, _ in pairs)]
        )
        table.add_row(*(_two_lines(upper, lower) for upper, lower in lines))
    return table


def _two_lines(upper: str, lower: str) -> Text:
    return Text.assemble(upper, "\n" if lower else "", (lower, "dim"))


def _cells(measured: MeasuredTable, column: TableColumn) -> list[tuple[str, str]]:
    """A column's heading and cells, two lines each, the paper's numbers and ours below each other."""
    found = [cell_texts(measured, row, column) for row in measured.rows]
    left = max(len("paper"), *(len(each.paper) for each in found))
    right = max(len("here"), *(len(text) for each in found for text in (each.last, each.chosen)))
    lines = [("paper", "here", ""), *found]
    return [
        (f"{paper:>{left}}  {last:>{right}}", f"{'':>{left}}  {chosen:>{right}}")
        for paper, last, chosen in lines
    ]


def footnotes(measured: MeasuredTable, width: int) -> str:
    """What to know when reading the table: notes, what was scaled, how claims are judged."""
    lines = notes(measured)
    if measured.is_run:
        lines += [f"scaled: {text}" for text in measured.paper.scales[measured.scale].says]
        lines.append(
            f"here: the last round, mean ± spread over seeds; below it {CHOSEN[measured.paper.chosen]}"
        )
    lines += rules(measured)
    return "\n".join(filled(line, width, "• ", "  ") for line in lines)


def notes(measured: MeasuredTable) -> list[str]:
    """The notes on single rows, and what was not measured."""
    rows: dict[str, list[str]] = {}
    for row in measured.rows:
        rows.setdefault(row.note, []).append(row.name)
    lines = [f"{'; '.join(names)}: {note}" for note, names in rows.items() if note]
    missing = [f"{row.name} ({column.key})" for row, column in measured.unmeasured()]
    return lines + ([f"not measured: {', '.join(missing)}"] if missing else [])
