"""A paper's claims, judged on numbers.

Everything is compared seed by seed: run A with seed 3 beside run B with seed 3, over the same data. Every claim says in
which interval a difference, a ratio or a number lies (see `Claim.interval`). It is *shown* if a one-sided paired t-test
says so at level 0.05, *contradicted* if the test of the opposite does, and otherwise *not shown*. "Within 3 points" has
two finite ends, so it takes two tests: both have to say so (equivalence, TOST). "Not 3 points below" has one end, below
0 (non-inferiority). Neither is shown because a difference was not found.

Power is shown beside each verdict: the half width of the 90 % interval, which is what so many seeds with this spread
can resolve. Where it is not below what a claim allows, the claim could not be shown even of runs that are on average
alike.

With fewer than three seeds a claim is *not judged*, and neither is one on models that are all within noise of chance
(`chance`). It is *not measured* if any of its numbers is missing.

A run that did not reach a target takes more rounds and bytes than it had. That is enough to show that another took
fewer, and never that it took fewer itself: see `numbers.Bounded`.

Numbers that were counted and not measured by runs, such as parameters, need no test: they are compared as they are.
What the paper prints is a single number too: a claim holds in it or does not.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Literal, TypeVar

from polyfed.experiments.papers.chance import Accuracies, why_not_judged
from polyfed.experiments.papers.numbers import Number, difference, is_exact, ratio, sign_of, values_of
from polyfed.experiments.papers.paper import Claim, Paper
from polyfed.experiments.papers.significance import (
    LEAST_SEEDS,
    LEVEL,
    half_width,
    p_inside,
    p_outside,
    place_of,
)
from polyfed.experiments.papers.terms import Term, columns_judged, terms_of
from polyfed.runs.metrics import ReportedRound, mean_and_spread

Mark = Literal["shown", "not shown", "contradicted", "not judged", "not measured"]
JUDGED: tuple[Mark, ...] = ("shown", "not shown", "contradicted")
T = TypeVar("T")
FindNumber = Callable[[str, str, str], Number]
"""(table, row, column) → the cell's number; empty where there is none."""
FindAccuracies = Callable[[str, str, str], Sequence[Accuracies | None]]
"""(table, row, column) → the accuracies of each of the models behind the cell; None where that is not known."""


@dataclass(frozen=True)
class Comparison:
    """The difference, ratio or number that a claim is about.

    mean, spread: over seeds; no spread where there is a single number.
    held: the number of seeds, out of `seeds`, in which the claim is true; both 0 for what was counted.
    p, p_opposite: of the test of the claim, and of its opposite; None if there was no test.
    half_width: of the mean's 90 % interval, see `significance.half_width`; None where there is no spread.
    bound: `>` if the mean is only known to be above this, `<` below it, `?` neither: a run did not reach a target.
    """

    mean: float
    spread: float | None
    held: int
    seeds: int
    p: float | None = None
    p_opposite: float | None = None
    bound: str = ""
    half_width: float | None = None


@dataclass(frozen=True)
class Verdict:
    """A claim in one column: its mark, and what it rests on; None if it was not measured.

    why: why it was not judged, in words.
    powerless: it was not shown, and could not have been even without any difference: the seeds vary too much.
    """

    mark: Mark
    comparison: Comparison | None = None
    why: str = ""
    powerless: bool = False

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
    paper: Paper,
    table: str,
    last: FindNumber,
    chosen: FindNumber,
    printed: FindNumber,
    accuracies: Mapping[ReportedRound, FindAccuracies] = MappingProxyType({}),
) -> tuple[Judgement, ...]:
    """Every claim of a table, in every column in which it is to be judged.

    accuracies: of the models behind the numbers, at each of the two rounds; without them chance is not looked at.
    """
    return tuple(
        Judgement(
            claim,
            column,
            judge(claim, table, column, last, accuracies.get("last")),
            judge(claim, table, column, chosen, accuracies.get("chosen")),
            check_printed(claim, table, column, printed),
        )
        for claim in paper.tables[table].claims
        for column in columns_judged(claim, table, paper)
    )


def judge(
    claim: Claim, table: str, column: str | None, find: FindNumber, behind: FindAccuracies | None = None
) -> Verdict:
    """A claim in one column, on the numbers that `find` finds and the models behind them."""
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
    width = half_width(numbers)
    found = Comparison(mean, spread, held, len(numbers), bound=sign_of(numbers), half_width=width)
    if len(numbers) < LEAST_SEEDS:
        return Verdict("not judged", found, why=f"{len(numbers)} of at least {LEAST_SEEDS} seeds")
    models = _found(claim, table, column, behind) if behind else []
    why = why_not_judged([each for side in models for each in side])
    if why:
        return Verdict("not judged", found, why)
    p, opposite = p_inside(numbers, interval), p_outside(numbers, interval)
    mark = _mark(p < LEVEL, opposite < LEVEL)
    allows = claim.allows
    powerless = mark == "not shown" and allows is not None and width is not None and width >= allows
    return Verdict(mark, replace(found, p=p, p_opposite=opposite), powerless=powerless)


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
    found = _found(claim, table, column, find)
    if len(found) == 1:
        return found[0]
    return (ratio if claim.ratio is not None else difference)(found[0], found[1])


def _found(claim: Claim, table: str, column: str | None, find: Callable[[str, str, str], T]) -> list[T]:
    """What there is of each of a claim's terms."""
    return [find(term.table, term.row, term.column or column or "") for term in terms_of(claim, table)]


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
