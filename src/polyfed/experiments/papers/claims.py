"""A paper's claims, judged on numbers.

Everything is compared seed by seed: run A with seed 3 beside run B with seed 3, over the same data. A claim is *shown*
if the mean of these differences is beyond the claim's margin by more than their spread over seeds (sample standard
deviation; with a single seed, if it is beyond the margin at all). Otherwise it is *not shown*, which is not the
same as refuted. It is *not measured* if any of its numbers is missing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from polyfed.experiments.papers.paper import Claim, Paper
from polyfed.experiments.papers.terms import Term, columns_judged, terms_of
from polyfed.runs.metrics import mean_and_spread

Mark = Literal["shown", "not shown", "not measured"]
BySeed = Mapping[int, float]
FindValues = Callable[[str, str, str], BySeed]
"""(table, row, column) → the cell's values by seed; none where it was not measured."""


@dataclass(frozen=True)
class Comparison:
    """Two numbers of a claim beside each other, seed by seed.

    mean, spread: of the differences (or ratios) over seeds.
    held: the number of seeds, out of `seeds`, in which the claim is true.
    slack: how far the mean is beyond the margin, less the spread; above 0 is shown.
    """

    what: str
    mean: float
    spread: float | None
    held: int
    seeds: int
    slack: float


@dataclass(frozen=True)
class Verdict:
    """A claim in one column: its mark, and the comparisons that it rests on; none if it was not measured."""

    mark: Mark
    comparisons: tuple[Comparison, ...] = ()

    @property
    def weakest(self) -> Comparison | None:
        """The comparison with the least slack: it decides."""
        return min(self.comparisons, key=lambda comparison: comparison.slack, default=None)


@dataclass(frozen=True)
class Judgement:
    """A claim in one column (None: its terms name their own), on the numbers measured and on the paper's."""

    claim: Claim
    column: str | None
    last: Verdict
    chosen: Verdict
    paper: Verdict


def judge_all(
    paper: Paper, table: str, last: FindValues, chosen: FindValues, printed: FindValues
) -> tuple[Judgement, ...]:
    """Every claim of a table, in every column in which it is to be judged."""
    return tuple(
        Judgement(claim, column, *(judge(claim, table, column, find) for find in (last, chosen, printed)))
        for claim in paper.tables[table].claims
        for column in columns_judged(claim, table, paper)
    )


def judge(claim: Claim, table: str, column: str | None, find: FindValues) -> Verdict:
    """A claim in one column, on the numbers that `find` finds."""
    terms = terms_of(claim, table)
    values = [find(term.table, term.row, term.column or column or "") for term in terms]
    comparisons = []
    for (term, first), (other, second) in pairwise(zip(terms, values, strict=True)):
        comparison = _compare(
            claim, f"{_said(term, table)} {'/' if claim.ratio else '−'} {_said(other, table)}", first, second
        )
        if comparison is None:
            return Verdict("not measured")
        comparisons.append(comparison)
    return Verdict(
        "shown" if all(comparison.slack > 0 for comparison in comparisons) else "not shown",
        tuple(comparisons),
    )


def _compare(claim: Claim, what: str, first: BySeed, second: BySeed) -> Comparison | None:
    pairs = [(first[seed], second[seed]) for seed in sorted(first) if seed in second]
    if not pairs or (claim.ratio and any(below == 0 for _, below in pairs)):
        return None
    numbers = [a / b if claim.ratio else a - b for a, b in pairs]
    mean, spread = mean_and_spread(numbers)
    return Comparison(
        what,
        mean,
        spread,
        held=sum(_beyond(claim, number) > 0 for number in numbers),
        seeds=len(numbers),
        slack=_beyond(claim, mean) - (spread or 0.0),
    )


def _beyond(claim: Claim, number: float) -> float:
    """How far a difference or ratio is on the right side of the claim's margin; below 0 on the wrong one."""
    if claim.at_least is not None:
        return number - claim.at_least
    if claim.at_most is not None:
        return claim.at_most - number
    if claim.within is not None:
        return claim.within - abs(number)
    return number - claim.margin


def _said(term: Term, table: str) -> str:
    """A term as it is written in the paper's file."""
    home = "" if term.table == table else f"{term.table}."
    return f"{home}{term.row}" + (f"@{term.column}" if term.column else "")
