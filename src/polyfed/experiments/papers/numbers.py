"""Numbers of a table: measured by runs, so one for each seed; or counted, so a single one that no seed changes.

A number may be known only to lie above another: the rounds to a target that a run never reached. What is made of such
numbers is known only to lie between two ends (`Bounded`), and claims are judged by the less favourable one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

BySeed = Mapping[int, float]
Number = BySeed | float
"""Measured, by seed (empty where it was not measured); or counted, such as parameters, or printed by the paper."""


class Bounded(float):
    """A number of which only two ends are known; as a float it is what was measured.

    Bounded(20, low=20)  # more than 20: a run of 20 rounds did not get there
    """

    low: float
    high: float

    def __new__(cls, measured: float, low: float = -math.inf, high: float = math.inf) -> Bounded:
        made = super().__new__(cls, measured)
        made.low, made.high = low, high
        return made


def low_of(value: float) -> float:
    """The least that a number can be."""
    return value.low if isinstance(value, Bounded) else value


def high_of(value: float) -> float:
    """The most that a number can be."""
    return value.high if isinstance(value, Bounded) else value


def scaled(factor: float, value: float) -> float:
    """A number in another unit."""
    if isinstance(value, Bounded):
        return Bounded(factor * value, factor * value.low, factor * value.high)
    return factor * value


def sign_of(values: Sequence[float]) -> str:
    """What is known of the mean of some numbers: all of it (""), at least (`>`), at most (`<`), nothing (`?`)."""
    above = any(math.isinf(high_of(value)) for value in values)
    below = any(math.isinf(low_of(value)) for value in values)
    return "?" if above and below else ">" if above else "<" if below else ""


def is_exact(number: Number) -> bool:
    """Whether it was counted or printed, and not measured by runs."""
    return not isinstance(number, Mapping)


def values_of(number: Number) -> list[float]:
    """The values over seeds, or the only one."""
    return [number[seed] for seed in sorted(number)] if isinstance(number, Mapping) else [number]


def difference(first: Number, second: Number) -> Number:
    """Seed by seed, over the seeds that both have."""
    return _combined(_less, first, second)


def ratio(first: Number, second: Number) -> Number:
    """Seed by seed, over the seeds that both have; there is none to 0. Numbers with open ends must not be below 0."""
    if isinstance(second, Mapping):
        second = {seed: value for seed, value in second.items() if value != 0}
    elif second == 0:
        return {}
    return _combined(_over, first, second)


def _less(a: float, b: float) -> float:
    plain = float(a) - float(b)
    if not isinstance(a, Bounded) and not isinstance(b, Bounded):
        return plain
    return Bounded(plain, low_of(a) - high_of(b), high_of(a) - low_of(b))


def _over(a: float, b: float) -> float:
    plain = float(a) / float(b)
    if not isinstance(a, Bounded) and not isinstance(b, Bounded):
        return plain
    low = -math.inf if math.isinf(high_of(b)) else low_of(a) / high_of(b)
    return Bounded(plain, low, math.inf if math.isinf(high_of(a)) else high_of(a) / low_of(b))


def _combined(operation: Callable[[float, float], float], first: Number, second: Number) -> Number:
    if not isinstance(first, Mapping) and not isinstance(second, Mapping):
        return operation(first, second)
    seeds = _seeds([number for number in (first, second) if isinstance(number, Mapping)])
    return {seed: operation(_at(first, seed), _at(second, seed)) for seed in seeds}


def _seeds(measured: Sequence[BySeed]) -> list[int]:
    return sorted(set.intersection(*(set(number) for number in measured)))


def _at(number: Number, seed: int) -> float:
    return number[seed] if isinstance(number, Mapping) else number
