"""A paper's table as measured, beside what the paper prints: for the terminal."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import NamedTuple

from rich import box
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from polyfed.experiments.papers.claims import Judgement, Mark
from polyfed.experiments.papers.paper import (
    RoundChoice,
    TableColumn,
    TableRow,
    Unit,
)
from polyfed.experiments.papers.results import MeasuredTable
from polyfed.experiments.papers.terms import terms_of
from polyfed.report.tables import amount
from polyfed.runs.metrics import mean_and_spread

UNIT_NAMES: dict[Unit, str] = {"percent": "accuracy in %", "count": "", "bytes": "bytes", "number": ""}
SIGNS: dict[Mark, str] = {"shown": "✓", "not shown": "✗", "not measured": "·"}
STYLES: dict[Mark, str] = {"shown": "green", "not shown": "red", "not measured": "dim"}
RULE = (
    "A claim is judged seed by seed. It is shown if the mean difference is beyond the claim's margin by more than"
    " its spread over seeds (sample standard deviation; with one seed: if it is beyond the margin at all). Otherwise"
    " it is not shown, which is not the same as refuted. Of several comparisons in one claim, the weakest decides and"
    " is printed."
)
MISSING = "–"
GAP = "  "  # between groups of columns
AROUND = 3  # around a cell: a space on each side, and one between columns
SECOND = "  chosen round"  # a row's second line
CHOSEN: dict[RoundChoice, str] = {
    "round": "the round chosen on validation",
    "each": "the round chosen on validation for each client",
}


def format_number(value: float, unit: Unit, *, sign: bool = False) -> str:
    """A number in its unit."""
    if unit == "percent":
        return f"{value:+.1f}" if sign else f"{value:.1f}"
    if unit == "count":
        return f"{value:+,.0f}" if sign else f"{value:,.0f}"
    if unit == "bytes":
        return ("-" if value < 0 else "+" if sign else "") + amount(abs(value))
    return f"{value:+.4g}" if sign else f"{value:.4g}"


def format_mean(mean: float, spread: float | None, unit: Unit, *, sign: bool = False) -> str:
    return format_number(mean, unit, sign=sign) + (
        "" if spread is None else f" ± {format_number(spread, unit)}"
    )


def format_over_seeds(values: Mapping[int, float], unit: Unit) -> str:
    """Mean and spread over seeds."""
    return format_mean(*mean_and_spread(list(values.values())), unit) if values else MISSING


class CellTexts(NamedTuple):
    """What is printed in one cell."""

    paper: str
    last: str
    chosen: str


def cell_texts(measured: MeasuredTable, row: TableRow, column: TableColumn) -> CellTexts:
    cell = measured.cells[row.key, column.key]
    unit = measured.table.unit_of(row, column)
    printed = row.paper.get(column.key)
    chosen = format_over_seeds(cell.chosen, unit) if cell.chosen else ""
    return CellTexts(printed.text if printed else MISSING, format_over_seeds(cell.last, unit), chosen)


def heading(measured: MeasuredTable) -> str:
    """A table's name, scale and title, in one line."""
    unit = UNIT_NAMES[measured.table.unit]
    scale = f" at scale {measured.scale}, {plural(measured.seeds, 'seed')}" if measured.is_run else ""
    return f"{measured.paper.id}/{measured.key}{scale}: {measured.table.title}{f' ({unit})' if unit else ''}"


def full_report(measured: MeasuredTable, width: int) -> Group:
    """Everything that is printed of a table: its numbers, its claims, what to know when reading them."""
    parts: list[RenderableType] = [Text(heading(measured)), *measured_tables(measured, width)]
    if measured.judgements:
        parts.append(claims_list(measured))
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


# -- claims ------------------------------------------------------------------------------------------------------


class ClaimLine(NamedTuple):
    """What is printed of a claim in one column."""

    where: str
    mark: Mark
    weakest: str
    here: str
    seeds: str
    paper: str
    otherwise: str
    """The mark at the chosen round, if it differs."""


def claim_line(measured: MeasuredTable, judged: Judgement) -> ClaimLine:
    unit, sign = _unit(measured, judged), judged.claim.ratio is None
    several = judged.column is not None and len(measured.columns) > 1
    where = (
        measured.paper.column_name(measured.table.column(judged.column)) if several and judged.column else ""
    )
    comparison, chosen = judged.last.weakest, judged.chosen.mark
    otherwise = chosen if chosen not in (judged.last.mark, "not measured") else ""
    if comparison is None:
        return ClaimLine(where, judged.last.mark, "", "", "", "", otherwise)
    printed = [other.mean for other in judged.paper.comparisons if other.what == comparison.what]
    return ClaimLine(
        where,
        judged.last.mark,
        comparison.what,
        format_mean(comparison.mean, comparison.spread, unit, sign=sign),
        f"{comparison.held}/{comparison.seeds}" if measured.is_run else "",
        format_number(printed[0], unit, sign=sign) if printed else "",
        otherwise,
    )


def _unit(measured: MeasuredTable, judged: Judgement) -> Unit:
    """The unit of a claim's differences: that of the rows compared. A ratio has none."""
    if judged.claim.ratio is not None:
        return "number"
    term = terms_of(judged.claim, measured.key)[0]
    table = measured.paper.tables[term.table]
    return table.unit_of(table.row(term.row), table.column(term.column or judged.column or ""))


def claims_by_text(measured: MeasuredTable) -> list[tuple[str, list[ClaimLine]]]:
    """Each claim with its lines, one for each column in which it was judged."""
    grouped = groupby(measured.judgements, key=lambda judged: id(judged.claim))
    found = [list(members) for _, members in grouped]
    return [(members[0].claim.text, [claim_line(measured, each) for each in members]) for members in found]


def claims_list(measured: MeasuredTable) -> Group:
    """The paper's claims, each with its mark in every column in which it was judged."""
    parts: list[RenderableType] = [
        Text("what the paper claims, judged on the numbers measured here", style="italic")
    ]
    for text, lines in claims_by_text(measured):
        good = sum(line.mark == "shown" for line in lines)
        tally = "" if len(lines) == 1 else f"  ({good} of {len(lines)})"
        parts.append(Text(f"\n{text}{tally}", style="bold"))
        grid = Table.grid(padding=(0, 2))
        for line in lines:
            grid.add_row(*_claim_cells(line))
        parts.append(Padding(grid, (0, 0, 0, 2)))
    return Group(*parts)


def _claim_cells(line: ClaimLine) -> Iterable[Text]:
    yield Text(f"{SIGNS[line.mark]} {line.mark:<12}", style=STYLES[line.mark])
    if line.where:
        yield Text(line.where)
    if line.weakest:
        yield Text(f"{line.weakest}: {line.here}")
        yield Text(f"in {line.seeds} seeds" if line.seeds else "", style="dim")
        yield Text(f"paper {line.paper}" if line.paper else "", style="dim")
    if line.otherwise:
        yield Text(f"chosen round: {line.otherwise}", style="dim")


def footnotes(measured: MeasuredTable, width: int) -> str:
    """What to know when reading the table: notes, what was scaled, how claims are judged."""
    lines = notes(measured)
    if measured.is_run:
        lines += [f"scaled: {text}" for text in measured.paper.scales[measured.scale].says]
        lines.append(
            f"here: the last round, mean ± spread over seeds; below it {CHOSEN[measured.paper.chosen]}"
        )
    if measured.judgements:
        lines.append(RULE)
    return "\n".join(
        textwrap.fill(line, width - 1, initial_indent="• ", subsequent_indent="  ") for line in lines
    )


def notes(measured: MeasuredTable) -> list[str]:
    """The notes on single rows, and what was not measured."""
    rows: dict[str, list[str]] = {}
    for row in measured.rows:
        rows.setdefault(row.note, []).append(row.name)
    lines = [f"{'; '.join(names)}: {note}" for note, names in rows.items() if note]
    missing = [f"{row.name} ({column.key})" for row, column in measured.unmeasured()]
    return lines + ([f"not measured: {', '.join(missing)}"] if missing else [])


def plural(number: int, word: str) -> str:
    return f"{number} {word}" if number == 1 else f"{number} {word}s"
