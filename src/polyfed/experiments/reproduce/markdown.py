"""A paper's table as measured, beside what the paper prints: as Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from polyfed.experiments.papers.results import MeasuredTable
from polyfed.experiments.reproduce.tables import (
    CHOSEN,
    RULE,
    SIGNS,
    by_group,
    cell_texts,
    claims_by_text,
    heading,
    notes,
)


def markdown(measured: MeasuredTable, command: str, picture: str) -> str:
    """The whole report: table, claims, what was scaled, and the command that repeats it."""
    paper = measured.paper
    parts = [
        f"# {heading(measured)}",
        f"{paper.title} ({paper.cite}). In each cell: the paper's number → the one measured here"
        + (", at the last round, mean ± spread over seeds." if measured.is_run else "."),
        _values(measured, chosen=False),
    ]
    if measured.has_chosen:
        when = CHOSEN[paper.chosen]
        parts += [f"At {when} (never on test data):", _values(measured, chosen=True)]
    parts.append(f"![measured values beside the paper's]({picture})")
    if notes(measured):
        parts.append(_bullets(notes(measured)))
    if measured.judgements:
        parts += ["## Claims", _claims(measured), RULE]
    if measured.is_run:
        says = paper.scales[measured.scale].says or ("nothing: this is the paper's scale",)
        parts += ["## What was scaled", _bullets(says)]
    for title, lines in (
        ("What the paper leaves open, as read here", paper.readings),
        ("Contradictions in the paper", paper.slips),
    ):
        if lines:
            parts += [f"## {title}", _bullets(lines)]
    parts.append(f"Repeat it: `{command}`")
    return "\n\n".join(parts) + "\n"


def _values(measured: MeasuredTable, *, chosen: bool) -> str:
    """The table; if its columns come in groups, one table for each group."""
    groups = by_group(measured.columns) if measured.table.groups else [list(measured.columns)]
    parts = []
    for group in groups:
        if measured.table.groups:
            parts.append(f"**{group[0].group}**")
        lines = []
        for row in measured.rows:
            cells = [cell_texts(measured, row, column) for column in group]
            found = [cell.chosen or "–" if chosen else cell.last for cell in cells]
            lines.append(
                [row.name, *(f"{cell.paper} → **{here}**" for cell, here in zip(cells, found, strict=True))]
            )
        parts.append(_table(["", *(measured.paper.short_name(column) for column in group)], lines))
    return "\n\n".join(parts)


def _claims(measured: MeasuredTable) -> str:
    lines = []
    for text, judged in claims_by_text(measured):
        for number, line in enumerate(judged):
            lines.append(
                [
                    "" if number else text,
                    line.where,
                    f"{SIGNS[line.mark]} {line.mark}",
                    line.weakest,
                    line.here,
                    line.seeds,
                    line.paper,
                    line.otherwise,
                ]
            )
    head = ["claim", "where", "mark", "weakest comparison", "here", "seeds", "paper", "at the chosen round"]
    return _table(head, lines)


def _table(head: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    escaped = [[cell.replace("|", "\\|") for cell in row] for row in (head, *lines)]
    escaped.insert(1, ["---"] * len(head))
    return "\n".join(f"| {' | '.join(row)} |" for row in escaped)


def _bullets(lines: Iterable[str]) -> str:
    return "\n".join(f"- {line}" for line in lines)
