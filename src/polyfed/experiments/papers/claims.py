"""A paper's claims, judged on numbers.

Everything is compared seed by seed: run A with seed 3 beside run B with seed 3, over the same data. Every claim says in
which interval a difference, a ratio or a number lies (see `Claim.interval`). It is *shown* if a one-sided paired t-test
says so at level 0.05 (with two finite ends, two tests), *contradicted* if the test of the opposite does, and otherwise
*not shown*. With fewer than three seeds it is *not judged*; it is *not measured* if any of its numbers is missing.

A run that did not reach a target takes more rounds and bytes than it had. That is enough to show that another took
fewer, and never that it took fewer itself: see `numbers.Bounded`.

Numbers that were counted and not measured by runs, such as parameters, need no test: they are compared as they are.
What the paper prints is a single number too: a claim holds in it or does not.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Literal

from polyfed.experiments.papers.numbers import Number, difference, is_exact, ratio, sign_of, values_of
from polyfed.experiments.papers.paper import Claim, Paper
from polyfed.experiments.papers.significance import LEAST_SEEDS, LEVEL, p_inside, p_outside, place_of
from polyfed.experiments.papers.terms import Term, columns_judged, terms_of
from polyfed.runs.metrics import mean_and_spread

Mark = Literal["shown", "not shown", "contradicted", "not judged", "not measured"]
JUDGED: tuple[Mark, ...] = ("shown", "not shown", "contradicted")
FindNumber = Callable[[str, str, str], Number]
"""(table, row, column) → the cell's number; empty where there is none."""


@dataclass(frozen=True)
class Comparison:
    """The difference, ratio or number that a claim is about.

    mean, spread: over seeds; no spread where there is a single number.
    held: the number of seeds, out of `seeds`, in which the claim is true; both 0 for what was counted.
    p, p_opposite: of the test of the claim, and of its opposite; None if there was no test.
    bound: `>` if the mean is only known to be above this, `<` below it, `?` neither: a run did not reach a target.
    """

    mean: float
    spread: float | None
    held: int
    seeds: int
    p: float | None = None
    p_opposite: float | None = None
    bound: str = ""


@dataclass(frozen=True)
class Verdict:
    """A claim in one column: its mark, and what it rests on; None if it was not measured."""

    mark: Mark
    comparison: Comparison | None = None

    @property
    def is_tested(self) -> bool:
        return self.comparison is not None and self.comparison.p is not None


@dataclass(frozen=True)
class PaperCheck:
    """Whether a claim holds in the numbers that the paper prints, and the number itself; None if it prints none."""

    holds: bool | None = None
    number: float | None = None


@dataclass(frozen=True)
class Judgement:
    """A claim in one column (None: its terms name their own), on the numbers measured and on the paper's."""

    claim: Claim
    column: str | None
    last: Verdict
    chosen: Verdict
    paper: PaperCheck


def judge_all(
    paper: Paper, table: str, last: FindNumber, chosen: FindNumber, printed: FindNumber
) -> tuple[Judgement, ...]:
    """Every claim of a table, in every column in which it is to be judged."""
    return tuple(
        Judgement(
            claim,
            column,
            judge(claim, table, column, last),
            judge(claim, table, column, chosen),
            check_printed(claim, table, column, printed),
        )
        for claim in paper.tables[table].claims
        for column in columns_judged(claim, table, paper)
    )


def judge(claim: Claim, table: str, column: str | None, find: FindNumber) -> Verdict:
    """A claim in one column, on the numbers that `find` finds."""
    number = _number(claim, table, column, find)
    numbers = values_of(number)
    if not numbers:
        return Verdict("not measured")
    interval = claim.interval
    mean, spread = mean_and_spread(numbers)
    if is_exact(number):
        place = place_of(mean, interval)
        return Verdict(_mark(place > 0, place < 0), Comparison(mean, None, held=0, seeds=0))
    held = sum(place_of(each, interval) > 0 for each in numbers)
    found = Comparison(mean, spread, held, len(numbers), bound=sign_of(numbers))
    if len(numbers) < LEAST_SEEDS:
        return Verdict("not judged", found)
    p, opposite = p_inside(numbers, interval), p_outside(numbers, interval)
    return Verdict(_mark(p < LEVEL, opposite < LEVEL), replace(found, p=p, p_opposite=opposite))


def check_printed(claim: Claim, table: str, column: str | None, find: FindNumber) -> PaperCheck:
    """Whether a claim holds in the printed numbers.

    A margin that the text names comes from these numbers ("by 7.28 %"), so they may lie on it; where nothing but an
    order is claimed, equal numbers do not hold.
    """
    found = values_of(_number(claim, table, column, find))
    if not found:
        return PaperCheck()
    place = place_of(found[0], claim.interval)
    named = claim.order is None or claim.margin != 0
    return PaperCheck(place > 0 or (named and place == 0), found[0])


def _number(claim: Claim, table: str, column: str | None, find: FindNumber) -> Number:
    """What a claim is about: the difference or ratio of its two terms, or its only one."""
    found = [find(term.table, term.row, term.column or column or "") for term in terms_of(claim, table)]
    if len(found) == 1:
        return found[0]
    return (ratio if claim.ratio is not None else difference)(found[0], found[1])


def _mark(is_shown: bool, is_contradicted: bool) -> Mark:
    return "shown" if is_shown else "contradicted" if is_contradicted else "not shown"


def tally(verdicts: Iterable[Verdict]) -> Counter[Mark]:
    """How many there are of each mark."""
    return Counter(verdict.mark for verdict in verdicts)


def what_of(claim: Claim, table: str) -> str:
    """What a claim is about, in the words of the paper's file: `a − b`, `a / b` or `a`."""
    sign = " / " if claim.ratio is not None else " − "
    return sign.join(_said(term, table) for term in terms_of(claim, table))


def _said(term: Term, table: str) -> str:
    home = "" if term.table == table else f"{term.table}."
    return f"{home}{term.row}" + (f"@{term.column}" if term.column else "")
