"""Whether the models behind a number are better than chance: those that are not have learned nothing to compare.

Chance is 1 / classes of the clients' data. A measure is traced to the accuracy of the models behind it: that of a
fairness variance or of a worst client is their mean accuracy; bytes, rounds and losses have none. Accuracies over seeds
are above chance if a one-sided t-test over the seeds says so, and their mean is above it by more than the noise of so
many test rows (1.645 binomial deviations, the same level). What is below chance has not learned either. A bound on a
single accuracy ("fails to reach 50 %", "as good as chance") is not a comparison of models, and is judged.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from polyfed.experiments.papers.significance import LEVEL, p_inside
from polyfed.runs.metrics import mean_and_spread

AREA = "area."  # before a measure: its mean over the whole run
FALLS = "falls."  # before a measure: its mean fall from one evaluation to the next

_NO_ACCURACY = ("rounds_to", "bytes_to", "bytes", "sent", "noted")
_ABOUT_A_MEAN = {"fm": "amp", "wlp": "amp", "worst": "mean", "best": "mean", "spread": "mean"}
_ONE_SIDED = 1.6449  # the standard normal's 95 % quantile: LEVEL on one side


@dataclass(frozen=True)
class Accuracies:
    """The accuracies of the models behind a cell, by seed, as shares.

    chance: what guessing would have. rows: the test rows of one seed; None if the run does not say.
    """

    values: Sequence[float]
    chance: float
    rows: int | None = None

    @property
    def above_chance(self) -> bool:
        noise = _ONE_SIDED * math.sqrt(self.chance * (1 - self.chance) / self.rows) if self.rows else 0.0
        mean, _ = mean_and_spread(self.values)
        return mean > self.chance + noise and p_inside(self.values, (self.chance, math.inf)) < LEVEL


def why_not_judged(compared: Sequence[Accuracies | None]) -> str:
    """Why these models cannot be compared; empty if one is above chance, or is not known (None), or is alone."""
    known = [each for each in compared if each is not None]
    if len(known) < max(2, len(compared)) or any(each.above_chance for each in known):
        return ""
    sides = "both" if len(known) == 2 else "all"
    levels = " and ".join(f"{100 * chance:.3g} %" for chance in sorted({each.chance for each in known}))
    return f"{sides} within noise of chance ({levels})"


def accuracy_behind(measure: str) -> str | None:
    """The measure that says how accurate the models behind a measure are; None if it is of something else."""
    if measure.startswith(FALLS):
        return accuracy_behind(measure.removeprefix(FALLS))
    if measure.startswith(AREA):
        found = accuracy_behind(measure.removeprefix(AREA))
        return found and f"{AREA}{found}"
    *path, last = measure.split(".")
    if (path or [last])[0] in _NO_ACCURACY:
        return None
    return ".".join([*path, _ABOUT_A_MEAN.get(last, last)])


def rows_behind(line: Mapping[str, Any], measure: str) -> int | None:
    """How many test rows an accuracy in a line of a history is over; None if the line does not say.

    Of the whole test set its rows, whoever looks at them; of the clients' own parts the rows of all of them together.
    """
    words = measure.removeprefix(AREA).split(".")
    place: Any = line
    for word in words:
        place = place.get(word) if isinstance(place, Mapping) else None
    if isinstance(place, list):
        return int(place[1])
    part = next((word for word in words if word in ("whole", "others", "validation")), "own")
    if words[0] == "server":
        part = "whole"
    totals = [int(score[part][1]) for score in line.get("clients", {}).values() if part in score]
    if not totals:
        return None
    return max(totals) if part in ("whole", "others") else sum(totals)
