"""What can be reproduced, and what a plan would run: for the terminal."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from polyfed.experiments.papers.paper import CurvesFigure, Paper, PaperFigure, PaperTable
from polyfed.experiments.papers.terms import runs_for
from polyfed.experiments.reproduce.formats import MISSING, filled, plural
from polyfed.experiments.reproduce.plan import ReproductionPlan, settings_of, states_of


def papers_overview(papers: Sequence[Paper]) -> Group:
    """The papers, and which of their tables and figures can be reproduced."""
    table = Table(
        box=box.SIMPLE_HEAD,
        title_justify="left",
        title="tables and figures of the papers: polyfed reproduce PAPER/TABLE",
    )
    for name in ("what", "title", "runs per seed", "claims", "scales"):
        number = name in ("runs per seed", "claims")
        table.add_column(name, justify="right" if number else "left", no_wrap=name == "what")
    for paper in papers:
        items = {**paper.tables, **paper.figures}
        for place, (key, item) in enumerate(items.items(), start=1):
            claims = len(item.claims) if isinstance(item, PaperTable) else 0
            table.add_row(
                f"{paper.id}/{key}",
                Text(item.title),
                str(len(_runs(paper, key, item)) or MISSING),
                str(claims or MISSING),
                ", ".join(paper.scales_of(item)),
                end_section=place == len(items),
            )
    return Group(*(Text.assemble(_reference(paper), "\n") for paper in papers), table)


def _reference(paper: Paper) -> Text:
    """What it takes to find a paper: title, authors, year, links; each link on a line of its own, to be copied."""
    return Text.assemble(
        (f"{paper.id}: {paper.title}", "bold"), *(f"\n{line}" for line in (paper.cite, *paper.links))
    )


def _runs(paper: Paper, key: str, item: PaperTable | PaperFigure) -> set[tuple[str, str]]:
    if not isinstance(item, PaperTable | CurvesFigure):
        return set(item.needed)
    home = key if isinstance(item, PaperTable) else item.table
    table = paper.tables[home]
    rows = table.rows if isinstance(item, PaperTable) else [table.row(name) for name in item.rows]
    return {run for row in rows for column in table.columns for run in runs_for(paper, home, row, column.key)}


def paper_details(paper: Paper, width: int) -> Group:
    """A paper in full: its tables with their rows and columns, what it leaves open, its contradictions."""
    parts: list[RenderableType] = [_reference(paper)]
    for key, item in [*paper.tables.items(), *paper.figures.items()]:
        parts.append(Text(f"\n{paper.id}/{key}  {item.title}"))
        if isinstance(item, PaperTable):
            parts += _items("rows", [", ".join(row.key for row in item.rows)], width)
            parts += _items("columns", [", ".join(column.key for column in item.columns)], width)
            parts += _items("claim", [claim.text for claim in item.claims], width)
    for title, lines in (("open points, as read here", paper.readings), ("contradictions", paper.slips)):
        parts.append(Text(f"\n{title}"))
        parts += _items("", lines, width)
    for name, scale in paper.scales.items():
        parts.append(Text(f"\nscale {name}, {plural(scale.seeds, 'seed')}"))
        parts += _items("", scale.says or ["as in the paper"], width)
    return Group(*parts)


def _items(title: str, lines: Iterable[str], width: int) -> list[Text]:
    lead = f"{title}: " if title else "• "
    return [Text(filled(line, width, f"  {lead}", "    "), style="dim") for line in lines]


def plan_tables(plan: ReproductionPlan) -> Group:
    """What a plan would run: what its runs set, and how far each of them is."""
    states = states_of(plan)
    sets = Table(box=box.SIMPLE_HEAD)
    for name in ("", "sets"):
        sets.add_column(name, overflow="fold")
    for name, content in settings_of(plan).items():
        said = ", ".join(f"{key}={_value(value)}" for key, value in content.items())
        sets.add_row(name, Text(said or MISSING))
    runs = Table(box=box.SIMPLE_HEAD)
    runs.add_column("run")
    for column in dict.fromkeys(setting for found in states.values() for setting in found):
        runs.add_column(column)
    for name, found in states.items():
        runs.add_row(name, *found.values())
    return Group(sets, runs)


def _value(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
