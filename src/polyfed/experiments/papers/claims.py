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
from polyfed.experiments.papers.terms import Term, places_of, terms_of
from polyfed.runs.metrics import mean_and_spread

Mark = Literal["shown", "not shown", "not measured"]
BySeed = Mapping[int, float]
Look = Callable[[str, str, str], BySeed]
"""(table, row, column) → its values by seed; none where it was not measured."""


@dataclass(frozen=True)
class Link:
    """One comparison of a claim.

    mean, spread: of the differences (of the ratios) over seeds.
    held: the number of seeds in which it is so, of `seeds`.
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
    """A claim at one place: its mark, and the comparisons that it rests on; none if it was not measured."""

    mark: Mark
    links: tuple[Link, ...] = ()

    @property
    def weakest(self) -> Link | None:
        """The link of which least can be said: it decides."""
        return min(self.links, key=lambda link: link.slack, default=None)


@dataclass(frozen=True)
class Judgement:
    """A claim in one column (None: its terms name their own), on the numbers measured and on the paper's."""

    claim: Claim
    place: str | None
    last: Verdict
    chosen: Verdict
    paper: Verdict


def judge_all(paper: Paper, table: str, last: Look, chosen: Look, printed: Look) -> tuple[Judgement, ...]:
    """Every claim of a table, in every place where it is to be judged."""
    return tuple(
        Judgement(claim, place, *(judge(claim, table, place, look) for look in (last, chosen, printed)))
        for claim in paper.tables[table].claims
        for place in places_of(claim, table, paper)
    )


def judge(claim: Claim, table: str, place: str | None, look: Look) -> Verdict:
    """A claim at one place, on the numbers that `look` finds."""
    terms = terms_of(claim, table)
    values = [look(term.table, term.row, term.column or place or "") for term in terms]
    links = []
    for (term, first), (other, second) in pairwise(zip(terms, values, strict=True)):
        link = _link(
            claim, f"{_said(term, table)} {'/' if claim.ratio else '−'} {_said(other, table)}", first, second
        )
        if link is None:
            return Verdict("not measured")
        links.append(link)
    return Verdict("shown" if all(link.slack > 0 for link in links) else "not shown", tuple(links))


def _link(claim: Claim, what: str, first: BySeed, second: BySeed) -> Link | None:
    pairs = [(first[seed], second[seed]) for seed in sorted(first) if seed in second]
    if not pairs or (claim.ratio and any(below == 0 for _, below in pairs)):
        return None
    numbers = [a / b if claim.ratio else a - b for a, b in pairs]
    mean, spread = mean_and_spread(numbers)
    return Link(
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
    """A term as it stands in the paper's file."""
    home = "" if term.table == table else f"{term.table}."
    return f"{home}{term.row}" + (f"@{term.column}" if term.column else "")
