"""A paper's table as measured, beside what the paper prints: as Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from polyfed.experiments.papers.results import Outcome
from polyfed.experiments.reproduce.tables import (
    CHOSEN,
    RULE,
    SIGNS,
    by_group,
    claims_by_text,
    heading,
    notes,
    texts,
)


def markdown(outcome: Outcome, command: str, picture: str) -> str:
    """The whole report: table, claims, what was scaled, and the command that repeats it."""
    paper = outcome.paper
    parts = [
        f"# {heading(outcome)}",
        f"{paper.title} ({paper.cite}). In each cell: the paper's number → the one measured here"
        + (", at the last round, mean ± spread over seeds." if outcome.is_run else "."),
        _values(outcome, chosen=False),
    ]
    if outcome.has_chosen:
        when = CHOSEN[paper.chosen]
        parts += [f"At {when} (never on test data):", _values(outcome, chosen=True)]
    parts.append(f"![measured values beside the paper's]({picture})")
    if notes(outcome):
        parts.append(_bullets(notes(outcome)))
    if outcome.judgements:
        parts += ["## Claims", _claims(outcome), RULE]
    if outcome.is_run:
        says = paper.scales[outcome.scale].says or ("nothing: this is the paper's scale",)
        parts += ["## What was scaled", _bullets(says)]
    for title, lines in (
        ("Where the paper is open, it is read thus", paper.readings),
        ("Slips", paper.slips),
    ):
        if lines:
            parts += [f"## {title}", _bullets(lines)]
    parts.append(f"Repeat it: `{command}`")
    return "\n\n".join(parts) + "\n"


def _values(outcome: Outcome, *, chosen: bool) -> str:
    """A table; one for each group of columns where there are groups."""
    groups = by_group(outcome.columns) if outcome.table.groups else [list(outcome.columns)]
    parts = []
    for group in groups:
        if outcome.table.groups:
            parts.append(f"**{group[0].group}**")
        lines = []
        for row in outcome.rows:
            cells = [texts(outcome, row, column) for column in group]
            found = [cell.chosen or "–" if chosen else cell.last for cell in cells]
            lines.append(
                [row.name, *(f"{cell.paper} → **{here}**" for cell, here in zip(cells, found, strict=True))]
            )
        parts.append(_table(["", *(outcome.paper.short_name(column) for column in group)], lines))
    return "\n\n".join(parts)


def _claims(outcome: Outcome) -> str:
    lines = []
    for text, judged in claims_by_text(outcome):
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
