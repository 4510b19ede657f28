"""Numbers of a table: measured by runs, so one for each seed; or counted, so a single one that no seed changes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

BySeed = Mapping[int, float]
Number = BySeed | float
"""Measured, by seed (empty where it was not measured); or counted, such as parameters, or printed by the paper."""


def is_exact(number: Number) -> bool:
    """Whether it was counted or printed, and not measured by runs."""
    return not isinstance(number, Mapping)


def values_of(number: Number) -> list[float]:
    """The values over seeds, or the only one."""
    return [number[seed] for seed in sorted(number)] if isinstance(number, Mapping) else [number]


def difference(first: Number, second: Number) -> Number:
    """Seed by seed, over the seeds that both have."""
    return _combined(lambda a, b: a - b, first, second)


def ratio(first: Number, second: Number) -> Number:
    """Seed by seed, over the seeds that both have; there is none to 0."""
    if isinstance(second, Mapping):
        second = {seed: value for seed, value in second.items() if value != 0}
    elif second == 0:
        return {}
    return _combined(lambda a, b: a / b, first, second)


def _combined(operation: Callable[[float, float], float], first: Number, second: Number) -> Number:
    if not isinstance(first, Mapping) and not isinstance(second, Mapping):
        return operation(first, second)
    seeds = _seeds([number for number in (first, second) if isinstance(number, Mapping)])
    return {seed: operation(_at(first, seed), _at(second, seed)) for seed in seeds}


def _seeds(measured: Sequence[BySeed]) -> list[int]:
    return sorted(set.intersection(*(set(number) for number in measured)))


def _at(number: Number, seed: int) -> float:
    return number[seed] if isinstance(number, Mapping) else number
