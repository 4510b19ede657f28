"""Whether numbers over seeds show that their mean lies inside an interval, or outside it: one-sided t-tests.

Of numbers that are only known to lie between two ends (`Bounded`), each test takes the ends that are against it: if
their mean is above a bound, so is that of the numbers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from polyfed.experiments.papers.numbers import Bounded, high_of, low_of
from polyfed.runs.metrics import mean_and_spread

LEVEL = 0.05
"""A test is significant if its p is below this."""
LEAST_SEEDS = 3
"""With fewer nothing is judged: two numbers tell next to nothing of their spread."""

Interval = tuple[float, float]
_NOISE = 1e-9  # what is left of equal numbers after floating-point arithmetic, relative to their size


def p_inside(numbers: Sequence[float], interval: Interval) -> float:
    """The p of "the mean is inside the interval": with two finite ends the larger p of two tests (TOST)."""
    low, high = interval
    return max(_p_above(_lows(numbers), low), _p_above(_minus_highs(numbers), -high))


def p_outside(numbers: Sequence[float], interval: Interval) -> float:
    """The p of "the mean is outside the interval", on the side where it is the smaller."""
    low, high = interval
    return min(_p_above(_minus_highs(numbers), -low), _p_above(_lows(numbers), high))


def half_width(numbers: Sequence[float]) -> float | None:
    """Half of the 90 % confidence interval of the mean: t(0.95, n − 1) · deviation / √n.

    What the tests can resolve: a mean is shown to be inside a band if it is this far from both ends. So a band of ± 3
    cannot be shown where this is 3 or more, not even of a mean of 0. None for a single number, or one with open ends.
    """
    _, spread = mean_and_spread(numbers)
    if spread is None or any(isinstance(number, Bounded) for number in numbers):
        return None
    from scipy.special import stdtrit  # noqa: PLC0415

    return float(stdtrit(len(numbers) - 1, 1 - LEVEL)) * spread / math.sqrt(len(numbers))


def _lows(numbers: Sequence[float]) -> list[float]:
    return [low_of(number) for number in numbers]


def _minus_highs(numbers: Sequence[float]) -> list[float]:
    return [-high_of(number) for number in numbers]


def place_of(number: float, interval: Interval) -> float:
    """How far a number is inside an interval, from its nearer end; below 0 outside, 0 on the end itself.

    Of a number with open ends, the end that is less favourable.
    """
    low, high = interval
    inside = min(low_of(number) - low, high - high_of(number))
    size = max(abs(number), *(abs(end) for end in interval if math.isfinite(end)), 1.0)
    return 0.0 if abs(inside) <= _NOISE * size else inside


def _p_above(numbers: Sequence[float], bound: float) -> float:
    """The p of "the mean is above the bound": Student's one-sided t-test, with n − 1 degrees of freedom.

    Numbers that do not vary at all decide it: 0 above the bound, otherwise 1.
    """
    if math.isinf(bound):
        return 0.0 if bound < 0 else 1.0
    if min(numbers) == -math.inf:  # nothing is known of one of them
        return 1.0
    mean, spread = mean_and_spread(numbers)
    beyond = place_of(mean, (bound, math.inf))
    if not spread or spread <= _NOISE * max(abs(mean), abs(bound), 1.0):
        return 0.0 if beyond > 0 else 1.0
    # Imported where it is used: it would take a fifth of a second of every launch.
    from scipy.special import stdtr  # noqa: PLC0415

    return float(stdtr(len(numbers) - 1, -beyond / (spread / math.sqrt(len(numbers)))))
