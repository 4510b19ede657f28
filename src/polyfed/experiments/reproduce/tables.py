"""A paper's table as measured, beside what the paper prints: for the terminal."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import Any, NamedTuple

from rich import box
from rich.console import Group, RenderableType
from rich.markup import escape
from rich.padding import Padding
from rich.table import Table as Grid
from rich.text import Text

from polyfed.experiments.papers.claims import Judgement, Mark
from polyfed.experiments.papers.paper import Chosen, Column, Curves, Figure, Paper, Row, Table, Unit
from polyfed.experiments.papers.results import Outcome
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
AROUND = 3  # of a cell: a space on each side, and one between columns
SECOND = "  chosen round"  # a row's second line
CHOSEN: dict[Chosen, str] = {
    "round": "the round chosen on validation",
    "each": "the round chosen on validation for each client",
}


def shown(value: float, unit: Unit, *, sign: bool = False) -> str:
    """A number in its unit."""
    if unit == "percent":
        return f"{value:+.1f}" if sign else f"{value:.1f}"
    if unit == "count":
        return f"{value:+,.0f}" if sign else f"{value:,.0f}"
    if unit == "bytes":
        return ("-" if value < 0 else "+" if sign else "") + amount(abs(value))
    return f"{value:+.4g}" if sign else f"{value:.4g}"


def with_spread(mean: float, spread: float | None, unit: Unit, *, sign: bool = False) -> str:
    return shown(mean, unit, sign=sign) + ("" if spread is None else f" ± {shown(spread, unit)}")


def over_seeds(values: Mapping[int, float], unit: Unit) -> str:
    """Mean and spread of what the seeds gave."""
    return with_spread(*mean_and_spread(list(values.values())), unit) if values else MISSING


class Texts(NamedTuple):
    """What is printed of one cell."""

    paper: str
    last: str
    chosen: str


def texts(outcome: Outcome, row: Row, column: Column) -> Texts:
    cell = outcome.cells[row.key, column.key]
    unit = outcome.table.unit_of(row, column)
    printed = row.paper.get(column.key)
    chosen = over_seeds(cell.chosen, unit) if cell.chosen else ""
    return Texts(printed.text if printed else MISSING, over_seeds(cell.last, unit), chosen)


def heading(outcome: Outcome) -> str:
    """What a table is, in a line."""
    unit = UNIT_NAMES[outcome.table.unit]
    scale = f" at scale {outcome.scale}, {_plural(outcome.seeds, 'seed')}" if outcome.is_run else ""
    return f"{outcome.paper.id}/{outcome.key}{scale}: {outcome.table.title}{f' ({unit})' if unit else ''}"


def whole(outcome: Outcome, width: int) -> Group:
    """Everything that is printed of a table: its numbers, its claims, what to know when reading them."""
    parts: list[RenderableType] = [Text(heading(outcome)), *outcome_tables(outcome, width)]
    if outcome.judgements:
        parts.append(claims_list(outcome))
    return Group(*parts, Text(f"\n{foot(outcome, width)}"))


def outcome_tables(outcome: Outcome, width: int) -> list[Grid]:
    """Rows × columns, in each cell the paper's number and the one measured; several tables if one would be too wide.

    The second, dim line of a row is the round chosen on validation. A group of columns has its name above it.
    """
    named = max(len(name) for name in (SECOND, *(row.name for row in outcome.rows))) + 4
    cells = {column.key: _cells(outcome, column) for column in outcome.columns}
    widths = {key: max(len(line) for pair in lines for line in pair) + AROUND for key, lines in cells.items()}
    if outcome.table.groups:
        for group in by_group(outcome.columns):
            middle = group[len(group) // 2]
            widths[middle.key] = max(widths[middle.key], len(middle.group) + AROUND)
    else:
        widths = dict.fromkeys(widths, max(widths.values()))
    parts = side_by_side(outcome.columns, widths, width - named)
    return [_grid(outcome, part, cells) for part in parts]


def side_by_side(columns: Sequence[Column], widths: Mapping[str, int], room: int) -> list[list[Column]]:
    """Columns in parts that fit into a room; a group is only torn apart if it alone is too wide."""

    def fits(part: Sequence[Column]) -> bool:
        gaps = len(GAP) * (len(by_group(part)) - 1)
        return sum(widths[column.key] for column in part) + gaps <= room

    def filled(pieces: Iterable[list[Column]]) -> list[list[Column]]:
        parts: list[list[Column]] = []
        for piece in pieces:
            if parts and fits([*parts[-1], *piece]):
                parts[-1] += piece
            else:
                parts.append(piece)
        return parts

    return filled(piece for group in by_group(columns) for piece in filled([column] for column in group))


def by_group(columns: Sequence[Column]) -> list[list[Column]]:
    return [list(members) for _, members in groupby(columns, key=lambda column: column.group)]


Cells = Mapping[str, Sequence[tuple[str, str]]]


def _grid(outcome: Outcome, part: Sequence[Column], cells: Cells) -> Grid:
    table = Grid(box=box.SIMPLE_HEAD)
    table.add_column("", no_wrap=True)
    for number, group in enumerate(by_group(part)):
        for place, column in enumerate(group):
            gap = GAP if number and not place else ""
            title = f"{outcome.paper.short_name(column)}\n{gap}{cells[column.key][0][0]}"
            if outcome.table.groups:
                title = f"{column.group if place == len(group) // 2 else ''}\n{title}"
            table.add_column(escape(title), justify="right", no_wrap=True)
    for place, row in enumerate(outcome.rows, start=1):
        pairs = [cells[column.key][place] for column in part]
        second = any(lower.strip() for _, lower in pairs)
        name = escape(row.name) + (f"\n[dim]{SECOND}[/dim]" if second else "")
        table.add_row(name, *(f"{upper}\n[dim]{lower}[/dim]" if second else upper for upper, lower in pairs))
    return table


def _cells(outcome: Outcome, column: Column) -> list[tuple[str, str]]:
    """A column's heading and cells, two lines each, the paper's numbers and ours below each other."""
    found = [texts(outcome, row, column) for row in outcome.rows]
    left = max(len("paper"), *(len(each.paper) for each in found))
    right = max(len("here"), *(len(text) for each in found for text in (each.last, each.chosen)))
    lines = [("paper", "here", ""), *found]
    return [
        (f"{paper:>{left}}  {last:>{right}}", f"{'':>{left}}  {chosen:>{right}}")
        for paper, last, chosen in lines
    ]


# -- claims ------------------------------------------------------------------------------------------------------


class ClaimLine(NamedTuple):
    """What is printed of a claim at one place."""

    where: str
    mark: Mark
    weakest: str
    here: str
    seeds: str
    paper: str
    otherwise: str
    """The mark at the chosen round, where it is another one."""


def claim_line(outcome: Outcome, judged: Judgement) -> ClaimLine:
    unit, sign = _unit(outcome, judged), judged.claim.ratio is None
    several = judged.place is not None and len(outcome.columns) > 1
    where = outcome.paper.column_name(outcome.table.column(judged.place)) if several and judged.place else ""
    link, chosen = judged.last.weakest, judged.chosen.mark
    otherwise = chosen if chosen not in (judged.last.mark, "not measured") else ""
    if link is None:
        return ClaimLine(where, judged.last.mark, "", "", "", "", otherwise)
    printed = [other.mean for other in judged.paper.links if other.what == link.what]
    return ClaimLine(
        where,
        judged.last.mark,
        link.what,
        with_spread(link.mean, link.spread, unit, sign=sign),
        f"{link.held}/{link.seeds}" if outcome.is_run else "",
        shown(printed[0], unit, sign=sign) if printed else "",
        otherwise,
    )


def _unit(outcome: Outcome, judged: Judgement) -> Unit:
    """Of a difference: that of the rows which are compared. A ratio has none."""
    if judged.claim.ratio is not None:
        return "number"
    term = terms_of(judged.claim, outcome.key)[0]
    table = outcome.paper.tables[term.table]
    return table.unit_of(table.row(term.row), table.column(term.column or judged.place or ""))


def claims_by_text(outcome: Outcome) -> list[tuple[str, list[ClaimLine]]]:
    """Each claim with its lines, a line for each place where it was judged."""
    grouped = groupby(outcome.judgements, key=lambda judged: id(judged.claim))
    found = [list(members) for _, members in grouped]
    return [(members[0].claim.text, [claim_line(outcome, each) for each in members]) for members in found]


def claims_list(outcome: Outcome) -> Group:
    """The paper's claims, each with its mark wherever it was judged."""
    parts: list[RenderableType] = [
        Text("what the paper claims, judged on the numbers measured here", style="italic")
    ]
    for text, lines in claims_by_text(outcome):
        good = sum(line.mark == "shown" for line in lines)
        tally = "" if len(lines) == 1 else f"  ({good} of {len(lines)})"
        parts.append(Text(f"\n{text}{tally}", style="bold"))
        grid = Grid.grid(padding=(0, 2))
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


def foot(outcome: Outcome, width: int) -> str:
    """What to know when reading the table: notes, what was scaled, how claims are judged."""
    lines = notes(outcome)
    if outcome.is_run:
        lines += [f"scaled: {text}" for text in outcome.paper.scales[outcome.scale].says]
        lines.append(
            f"here: the last round, mean ± spread over seeds; below it {CHOSEN[outcome.paper.chosen]}"
        )
    if outcome.judgements:
        lines.append(RULE)
    return "\n".join(
        textwrap.fill(line, width - 1, initial_indent="• ", subsequent_indent="  ") for line in lines
    )


def notes(outcome: Outcome) -> list[str]:
    """What there is to say of single rows, and what was not measured."""
    rows: dict[str, list[str]] = {}
    for row in outcome.rows:
        rows.setdefault(row.note, []).append(row.name)
    lines = [f"{'; '.join(names)}: {note}" for note, names in rows.items() if note]
    missing = [f"{row.name} ({column.key})" for row, column in outcome.unmeasured()]
    return lines + ([f"not measured: {', '.join(missing)}"] if missing else [])


# -- what there is -----------------------------------------------------------------------------------------------


def listing(papers: Sequence[Paper]) -> Grid:
    """The tables and figures that can be reproduced."""
    table = Grid(
        box=box.SIMPLE_HEAD,
        title_justify="left",
        title="tables and figures of the papers: polyfed reproduce PAPER/TABLE",
    )
    for name in ("what", "title", "runs a seed", "claims", "scales"):
        table.add_column(name, justify="right" if name in ("runs a seed", "claims") else "left")
    for paper in papers:
        table.add_row(
            f"[bold]{paper.id}[/bold]", f"[bold]{escape(paper.title)}[/bold] ({escape(paper.cite)})"
        )
        for key, item in [*paper.tables.items(), *paper.figures.items()]:
            claims = len(item.claims) if isinstance(item, Table) else 0
            table.add_row(
                f"{paper.id}/{key}",
                escape(item.title),
                str(len(_runs(paper, item)) or MISSING),
                str(claims or MISSING),
                ", ".join(paper.scales_of(item)),
            )
    return table


def _runs(paper: Paper, item: Table | Figure) -> set[tuple[str, str]]:
    if not isinstance(item, Table | Curves):
        return set(item.needed)
    table = item if isinstance(item, Table) else paper.tables[item.table]
    rows = table.rows if isinstance(item, Table) else [table.row(key) for key in item.rows]
    return {run for row in rows for column in table.columns for run in table.runs_for(row, column)}


def about(paper: Paper, width: int) -> Group:
    """A paper in full: its tables with their rows and columns, what it leaves open, where it slips."""
    parts: list[RenderableType] = [Text(f"{paper.id}: {paper.title}\n{paper.cite}", style="bold")]
    for key, item in [*paper.tables.items(), *paper.figures.items()]:
        parts.append(Text(f"\n{paper.id}/{key}  {item.title}"))
        if isinstance(item, Table):
            parts += _items("rows", [", ".join(row.key for row in item.rows)], width)
            parts += _items("columns", [", ".join(column.key for column in item.columns)], width)
            parts += _items("claim", [claim.text for claim in item.claims], width)
    for title, lines in (("read as", paper.readings), ("slips", paper.slips)):
        parts.append(Text(f"\n{title}"))
        parts += _items("", lines, width)
    for name, scale in paper.scales.items():
        parts.append(Text(f"\nscale {name}, {_plural(scale.seeds, 'seed')}"))
        parts += _items("", scale.says or ["as in the paper"], width)
    return Group(*parts)


def _items(title: str, lines: Iterable[str], width: int) -> list[Text]:
    lead = f"{title}: " if title else "• "
    return [
        Text(
            textwrap.fill(line, width - 1, initial_indent=f"  {lead}", subsequent_indent="    "), style="dim"
        )
        for line in lines
    ]


def plan_tables(settings: Mapping[str, Mapping[str, Any]], states: Mapping[str, Mapping[str, str]]) -> Group:
    """What would be run.

    settings: what all runs set, what each run sets, what each setting sets.
    states: by run and setting, how far its seeds are.
    """
    sets = Grid(box=box.SIMPLE_HEAD)
    for name in ("", "sets"):
        sets.add_column(name, overflow="fold")
    for name, content in settings.items():
        said = ", ".join(f"{key}={_value(value)}" for key, value in content.items())
        sets.add_row(name, escape(said or MISSING))
    runs = Grid(box=box.SIMPLE_HEAD)
    runs.add_column("run")
    for column in dict.fromkeys(setting for found in states.values() for setting in found):
        runs.add_column(column)
    for name, found in states.items():
        runs.add_row(name, *found.values())
    return Group(sets, runs)


def _value(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _plural(number: int, word: str) -> str:
    return f"{number} {word}" if number == 1 else f"{number} {word}s"
