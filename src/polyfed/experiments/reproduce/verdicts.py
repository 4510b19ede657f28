"""A paper's claims with their verdicts: for the terminal, and as texts for Markdown."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import groupby
from typing import NamedTuple

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from polyfed.experiments.papers.claims import JUDGED, Judgement, Mark, Verdict, tally, what_of
from polyfed.experiments.papers.paper import Unit
from polyfed.experiments.papers.results import MeasuredTable
from polyfed.experiments.papers.significance import LEAST_SEEDS, LEVEL
from polyfed.experiments.papers.terms import terms_of
from polyfed.experiments.reproduce.formats import format_mean, format_number, plural

SIGNS: dict[Mark, str] = {
    "shown": "✓",
    "not shown": "✗",
    "contradicted": "‼",
    "not judged": "?",
    "not measured": "·",
}
STYLES: dict[Mark, str] = {
    "shown": "green",
    "not shown": "yellow",
    "contradicted": "red",
    "not judged": "dim",
    "not measured": "dim",
}
RULE = (
    f"A claim is judged seed by seed, by a one-sided paired t-test at level {LEVEL}: shown if the difference (or ratio,"
    " or number) is beyond the claim's margin by the test; for a band (within 3 points) inside both its ends by two"
    " such tests, which is a test of equivalence; contradicted if the opposite is; otherwise not shown, which is not"
    f" the same as refuted. It is not judged with fewer than {LEAST_SEEDS} seeds, nor where all the models that it is"
    " about are within noise of chance (1 / classes, by the spread over seeds and the number of test rows)."
    " Each claim is tested by itself: of many, some are shown by chance."
    " Here: mean ± spread over seeds. 90 %: half the width of the mean's 90 % interval, the smallest difference that so"
    " many seeds with this spread can show; where it is not below what a claim allows, even equals could not have been"
    " shown: no power."
    " p: of the test that decides, which for contradicted is that of the opposite."
    " Seeds: in how many the claim is true, of how many. Paper: its own number, and whether the claim holds in it."
    " The chosen round is judged too, and named where its mark is another."
)
EXACTLY = "What was counted, and not measured by runs, needs no test: it is compared exactly."
HEAD = ("", "", "here", "90 %", "p", "seeds", "paper")
HEAD_OF_COUNTED = ("", "", "here", "", "", "", "paper")
WHERE = 1  # the place of the table's column in a line


class VerdictTexts(NamedTuple):
    """What is printed of a verdict."""

    mark: Mark
    here: str = ""
    resolved: str = ""
    """Half of the 90 % interval: what the seeds can tell apart."""
    p: str = ""
    seeds: str = ""
    """In how many it is true, of how many."""
    why: str = ""
    """Why it was not judged, or could not be shown."""


class ClaimLine(NamedTuple):
    """What is printed of a claim in one column."""

    where: str
    last: VerdictTexts
    chosen: VerdictTexts | None
    """At the chosen round, if the mark is another one there."""
    paper: str
    holds: bool | None
    """Whether the claim holds in the paper's own numbers."""


class ClaimTexts(NamedTuple):
    """A claim, its formula (`a − b > 1`), and a line for each column in which it was judged."""

    text: str
    formula: str
    lines: list[ClaimLine]


def claims_by_text(measured: MeasuredTable) -> list[ClaimTexts]:
    """All claims; of a part of a table those that there are numbers for, the others are only counted."""
    listed = [
        judged
        for judged in measured.judgements
        if not (measured.is_part and judged.last.mark == judged.chosen.mark == "not measured")
    ]
    grouped = groupby(listed, key=lambda judged: id(judged.claim))
    return [_claim_texts(measured, list(members)) for _, members in grouped]


def _claim_texts(measured: MeasuredTable, members: Sequence[Judgement]) -> ClaimTexts:
    claim = members[0].claim
    return ClaimTexts(
        claim.text,
        formula(what_of(claim, measured.key), *claim.interval),
        [claim_line(measured, each) for each in members],
    )


def formula(what: str, low: float, high: float) -> str:
    """What has to be true for a claim to be."""
    if math.isinf(high):
        return f"{what} > {low:g}"
    return f"{what} < {high:g}" if math.isinf(low) else f"{low:g} < {what} < {high:g}"


def claim_line(measured: MeasuredTable, judged: Judgement) -> ClaimLine:
    unit, sign = _unit(measured, judged), len(judged.claim.terms) > 1 and judged.claim.ratio is None
    several = judged.column is not None and len(measured.table.columns) > 1
    where = (
        measured.paper.column_name(measured.table.column(judged.column)) if several and judged.column else ""
    )
    number = judged.paper.number
    paper = "" if number is None else format_number(number, unit, sign=sign)
    differs = judged.chosen.mark not in (judged.last.mark, "not measured")
    chosen = _verdict_texts(judged.chosen, unit, sign=sign) if differs else None
    last = _verdict_texts(judged.last, unit, sign=sign)
    return ClaimLine(where, last, chosen, paper, judged.paper.holds)


def _verdict_texts(verdict: Verdict, unit: Unit, *, sign: bool) -> VerdictTexts:
    found = verdict.comparison
    if found is None:
        return VerdictTexts(verdict.mark)
    p = ""
    if found.p is not None and found.p_opposite is not None:
        p = format_p(found.p_opposite if verdict.mark == "contradicted" else found.p)
    resolved = "" if found.half_width is None else f"± {format_number(found.half_width, unit)}"
    powerless = f"no power: these seeds can show {resolved} at best" if verdict.powerless else ""
    return VerdictTexts(
        verdict.mark,
        f"{found.bound} {format_number(found.mean, unit, sign=sign)}"
        if found.bound
        else format_mean(found.mean, found.spread, unit, sign=sign),
        resolved,
        p,
        f"{found.held}/{found.seeds}" if found.seeds else "",
        verdict.why or powerless,
    )


def format_p(p: float) -> str:
    return "<0.001" if 0 < p < 0.001 else f"{p:.2g}" if p < 0.1 else f"{p:.2f}"


def _unit(measured: MeasuredTable, judged: Judgement) -> Unit:
    """The unit of what a claim is about: that of the rows compared. A ratio has none."""
    if judged.claim.ratio is not None:
        return "number"
    term = terms_of(judged.claim, measured.key)[0]
    table = measured.paper.tables[term.table]
    return table.unit_of(table.row(term.row), table.column(term.column or judged.column or ""))


def tally_lines(measured: MeasuredTable) -> list[str]:
    """How many claims were judged and how many have which mark, at the last round and at the chosen one."""
    rounds = {"last round": [judged.last for judged in measured.judgements]}
    if measured.has_chosen:
        rounds["chosen round"] = [judged.chosen for judged in measured.judgements]
    return [
        f"{f'{name}: ' if measured.is_run else ''}{_tally_text(verdicts)}"
        for name, verdicts in rounds.items()
        if any(verdict.mark != "not measured" for verdict in verdicts) or name == "last round"
    ]


def _tally_text(verdicts: Sequence[Verdict]) -> str:
    marks = tally(verdicts)
    judged, tested = sum(marks[mark] for mark in JUDGED), sum(verdict.is_tested for verdict in verdicts)
    powerless = sum(verdict.powerless for verdict in verdicts)
    found = ", ".join(
        f"{marks[mark]} {mark}"
        + (f" ({powerless} without power)" if mark == "not shown" and powerless else "")
        for mark in SIGNS
        if marks[mark]
    )
    chance = (
        f" (level {LEVEL}: if none were true, up to {LEVEL * tested:.2g} of {tested} would be shown by chance)"
        if tested
        else ""
    )
    return f"{judged} of {plural(len(verdicts), 'claim')} judged: {found}{chance}"


def claims_list(measured: MeasuredTable, width: int) -> Group:
    """The paper's claims, each with its formula and its mark in every column in which it was judged."""
    parts: list[RenderableType] = [
        Text(
            "what the paper claims, judged on the numbers measured here (a claim counts in each of its columns)",
            style="italic",
        ),
        *(Text(line) for line in tally_lines(measured)),
    ]
    claims = claims_by_text(measured)
    rows = [[row for line in claim.lines for row in _claim_rows(line)] for claim in claims]
    flat = [cells for lines in rows for cells, _ in lines]
    head = HEAD if measured.is_run else HEAD_OF_COUNTED
    widths = [max(map(len, cells)) for cells in zip(head, *flat, strict=True)]
    widths[WHERE] = min(widths[WHERE], max(12, width - 2 - sum(widths) - 2 * len(widths) + widths[WHERE]))
    parts.append(_claim_grid([head], widths))
    for (text, said, _), lines in zip(claims, rows, strict=True):
        parts.append(Text(f"\n{text}", style="bold"))
        parts.append(Padding(Text(said, style="dim"), (0, 0, 0, 2)))
        for why, alike in groupby(lines, key=lambda row: row[1]):
            parts.append(_claim_grid([cells for cells, _ in alike], widths))
            if why:
                parts.append(Padding(Text(why, style="dim"), (0, 0, 0, 4)))
    return Group(*parts)


def _claim_rows(line: ClaimLine) -> list[tuple[Sequence[str], str]]:
    """A line for the last round, and one for the chosen round if its mark is another; each with its reason."""
    paper = f"{line.paper} {'✓' if line.holds else '✗'}" if line.paper else ""
    rows = [(_verdict_cells(line.last, line.where, paper), line.last.why)]
    if line.chosen is not None:
        rows.append((_verdict_cells(line.chosen, "chosen round", ""), line.chosen.why))
    return list(rows)


def _verdict_cells(verdict: VerdictTexts, where: str, paper: str) -> Sequence[str]:
    mark = f"{SIGNS[verdict.mark]} {verdict.mark}"
    return mark, where, verdict.here, verdict.resolved, verdict.p, verdict.seeds, paper


def _claim_grid(rows: Sequence[Sequence[str]], widths: Sequence[int]) -> Padding:
    """Rows whose columns are below those of all other claims; a long name of a table's column is folded."""
    grid = Table.grid(padding=(0, 2, 0, 0))
    for place, width in enumerate(widths):
        grid.add_column(
            width=width, no_wrap=place != WHERE, overflow="fold", justify="right" if place > WHERE else "left"
        )
    for mark, *others in rows:
        style = next((STYLES[name] for name in STYLES if mark.endswith(f" {name}")), "dim")
        grid.add_row(Text(mark, style=style), *(Text(cell) for cell in others))
    return Padding(grid, (0, 0, 0, 2))


def rules(measured: MeasuredTable) -> list[str]:
    """How the table's claims are judged."""
    if not measured.judgements:
        return []
    return [RULE] if measured.is_run else [EXACTLY]
