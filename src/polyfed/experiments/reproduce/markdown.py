"""A paper's table as measured, beside what the paper prints: as Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from polyfed.experiments.papers.results import MeasuredTable
from polyfed.experiments.reproduce.tables import CHOSEN, by_group, cell_texts, heading, notes
from polyfed.experiments.reproduce.verdicts import (
    SIGNS,
    VerdictTexts,
    claims_by_text,
    rules,
    tally_lines,
)


def markdown(measured: MeasuredTable, command: str, picture: str | None) -> str:
    """The whole report: table, claims, what was scaled, and the command that repeats it."""
    paper = measured.paper
    parts = [
        f"# {heading(measured)}",
        f"{paper.title} ({', '.join((paper.cite, *paper.links))}).",
        "In each cell: the paper's number → the one measured here"
        + (", at the last round, mean ± spread over seeds." if measured.is_run else "."),
        _values(measured, chosen=False),
    ]
    if measured.has_chosen:
        when = CHOSEN[paper.chosen]
        parts += [f"At {when} (never on test data):", _values(measured, chosen=True)]
    if picture is not None:
        parts.append(f"![measured values beside the paper's]({picture})")
    if notes(measured):
        parts.append(_bullets(notes(measured)))
    if measured.judgements:
        parts += ["## Claims", _bullets(tally_lines(measured)), _claims(measured), *rules(measured)]
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
    for text, formula, judged in claims_by_text(measured):
        for number, line in enumerate(judged):
            said = ["", ""] if number else [text, formula]
            holds = "" if line.holds is None else " holds" if line.holds else " does not hold"
            lines.append(
                [*said, line.where, *_verdict(line.last), f"{line.paper}{holds}", _at_chosen(line.chosen)]
            )
    head = ["claim", "is", "where", "mark", "here", "90 %", "p", "seeds", "paper", "at the chosen round"]
    return _table(head, lines)


def _verdict(verdict: VerdictTexts) -> list[str]:
    mark = f"{SIGNS[verdict.mark]} {verdict.mark}" + (f": {verdict.why}" if verdict.why else "")
    return [mark, verdict.here, verdict.resolved, verdict.p, verdict.seeds]


def _at_chosen(verdict: VerdictTexts | None) -> str:
    if verdict is None:
        return ""
    p = f"p {verdict.p}" if verdict.p else ""
    return ", ".join(part for part in (verdict.mark, verdict.here, p, verdict.why) if part)


def _table(head: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    escaped = [[cell.replace("|", "\\|") for cell in row] for row in (head, *lines)]
    escaped.insert(1, ["---"] * len(head))
    return "\n".join(f"| {' | '.join(row)} |" for row in escaped)


def _bullets(lines: Iterable[str]) -> str:
    return "\n".join(f"- {line}" for line in lines)
