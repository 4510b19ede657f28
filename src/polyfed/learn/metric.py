"""What a metric is: how it is made of outputs and labels, what it may be, and whether it adds up over parts.

A metric that *adds up* is made of a short list of sums over rows, such as [Σ|error|, rows]: rows may lie in several
places, sums are added, and the value is made of them anywhere. Any other is computed where the rows are.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
from torch import Tensor

from polyfed.schema import LARGEST
from polyfed.tasks import Binary, Task, Trait

Array: TypeAlias = np.ndarray[Any, Any]
Value: TypeAlias = float | list[list[int]]
"""A number; or, of the metric `confusion`, a square of counts."""
SumList: TypeAlias = list[Any]
"""Sums over rows: numbers, or lists of as many."""

LARGEST_SUM = 1e40  # of squared errors
CONFUSION = "confusion"
SHARE, LABELS, NUMBER = "%", "labels", ""
"""Units: a share, shown in per cent; the unit of the labels; none."""


class Family(StrEnum):
    """The tasks that metrics are made for."""

    CLASSES = "classification"
    TWO = "binary"
    SEVERAL = "multilabel"
    NUMBERS = "regression"


def family_of(task: Task) -> Family | None:
    """The family of a task, one's own included; None if there is none, and functions of one's own alone suit it."""
    if Trait.ONE_CLASS in task.traits:
        return Family.CLASSES if Trait.MANY_CLASSES in task.traits else Family.TWO
    if task.targets.kind == "numbers":
        return Family.NUMBERS
    return Family.SEVERAL if task.targets.kind == "several" and Trait.PROBABILITIES in task.traits else None


@dataclass(frozen=True)
class Seen:
    """What a model says of some rows, at least one, beside their labels."""

    task: Task
    outputs: Tensor
    labels: Tensor

    @cached_property
    def truth(self) -> Array:
        """The labels: class numbers, numbers, or rows × classes of 0 and 1."""
        return self.labels.cpu().numpy()

    @cached_property
    def said(self) -> Array:
        """The answers, in the form of labels."""
        return self.task.decided(self.outputs.cpu()).numpy()

    @cached_property
    def readable(self) -> Array:
        """Outputs as the task reads them: probabilities, or numbers in their unit."""
        # In double precision: a large network's sure answers would all be 1.0 otherwise, and their order lost.
        outputs = self.outputs.cpu()
        return self.task.readable(outputs.double() if outputs.is_floating_point() else outputs).numpy()

    @cached_property
    def probabilities(self) -> Array | None:
        """Of each class, rows × classes; None if a model answers with NaN or infinity."""
        return self.readable if np.isfinite(self.readable).all() else None

    @cached_property
    def classes(self) -> Array:
        """Those among the labels."""
        return np.unique(self.truth)

    @property
    def positive(self) -> int:
        return positive_place(self.task)


def positive_place(task: Task) -> int:
    """The number of the class that is looked for, of two."""
    return task.positive_place if isinstance(task, Binary) else 1


@dataclass(frozen=True)
class Sums:
    """Sums over rows of which metrics are made."""

    name: str
    of: Callable[[Seen], SumList | None]
    """None where they have no value."""
    admits: Callable[[Any, int, int], bool]
    """Whether this can be such sums, over so many rows, of models with so many outputs: it may come from anybody."""


@dataclass(frozen=True)
class Added:
    """Made of sums over rows."""

    sums: Sums
    value: Callable[[SumList, Task], Value | None]


@dataclass(frozen=True)
class InPlace:
    """Computed where the rows are."""

    value: Callable[[Seen], Value | None]


@dataclass(frozen=True)
class Metric:
    """A metric. Its value is a number from `least` to `most`, or there is none on these rows."""

    name: str
    title: str
    how: Mapping[Family, Added | InPlace] = field(default_factory=dict)
    """For each family of tasks that it is for."""
    least: float = 0.0
    most: float = 1.0
    smaller_is_better: bool = False
    unit: str = SHARE

    def how_for(self, task: Task) -> Added | InPlace | None:
        """How it is computed for a task; None if it is not for this one."""
        family = family_of(task)
        return None if family is None else self.how.get(family)

    def sums_for(self, task: Task) -> Sums | None:
        """The sums that it is made of; None if it is computed where the rows are."""
        how = self.how_for(task)
        return how.sums if isinstance(how, Added) else None

    def of(self, seen: Seen) -> Value | None:
        """Its value on some rows; None if it has none there."""
        how = self.how_for(seen.task)
        if isinstance(how, Added):
            sums = how.sums.of(seen)
            return None if sums is None else self.of_sums(sums, seen.task)
        return None if how is None else self._in_range(how.value(seen))

    def of_sums(self, sums: SumList, task: Task) -> Value | None:
        """Its value on all the rows that were summed."""
        how = self.how_for(task)
        return self._in_range(how.value(sums, task)) if isinstance(how, Added) else None

    def _in_range(self, value: Value | None) -> Value | None:
        """What is rounded to just outside of the range is put back into it."""
        if value is None or isinstance(value, list):
            return value
        number = float(value)
        return None if math.isnan(number) else min(max(number, self.least), self.most)

    def admits(self, value: Any, rows: int, outputs: int) -> bool:
        """Whether this can be its value on so many rows, with so many outputs: it may come from anybody."""
        if self.name == CONFUSION:
            return is_square(value, rows, outputs)
        return type(value) in (int, float) and self.least <= value <= self.most

    def unit_for(self, task: Task) -> str:
        """The unit in which it is shown; none if it is a plain number, or labels have none."""
        return task.shown_unit if self.unit == LABELS else self.unit

    def titled(self, task: Task) -> str:
        """What it is called beside a task's scores: with its unit, unless both are in per cent."""
        if self.unit == SHARE:
            return self.title if task.unit == SHARE else f"{self.title} in %"
        unit = self.unit_for(task)
        return f"{self.title} in {unit}" if unit else f"{self.title} (a number)"

    def shown(self, value: float | None) -> str:
        """Its value for people, in its unit but without it; a dash where there is none."""
        return shown_in(self.unit, value)


def shown_in(unit: str, value: float | None) -> str:
    """A number for people: a share in per cent, anything else as it is; a dash where there is none."""
    if value is None:
        return "–"
    return f"{100 * value:.1f}" if unit == SHARE else f"{value:.4g}"


def is_square(value: Any, rows: int, outputs: int) -> bool:
    """Whether this is a confusion matrix of so many rows."""
    return (
        isinstance(value, list)
        and len(value) <= outputs
        and all(isinstance(row, list) and len(row) == len(value) for row in value)
        and all(type(count) is int and count >= 0 for row in value for count in row)
        and sum(map(sum, value)) == rows
    )


def totals(name: str, of: Callable[[Seen], Array | None], most: float = LARGEST) -> Sums:
    """[Σ of a number of each row, rows]; each from 0 to `most`."""
    return Sums(name, _Total(of), _Totals(most))


@dataclass(frozen=True)
class _Total:
    of: Callable[[Seen], Array | None]

    def __call__(self, seen: Seen) -> SumList | None:
        each = self.of(seen)
        return None if each is None else [float(each.sum()), len(each)]


@dataclass(frozen=True)
class _Totals:
    most: float

    def __call__(self, value: Any, rows: int, outputs: int) -> bool:
        return are_numbers(value, 2) and value[1] == rows and 0 <= value[0] <= rows * self.most * (1 + 1e-9)


def are_numbers(value: Any, count: int) -> bool:
    """Whether this is a list of so many numbers that sums can be, of which the last is a count of rows."""
    return (
        isinstance(value, list)
        and len(value) == count
        and all(type(number) in (int, float) and abs(number) <= LARGEST_SUM for number in value)
        and type(value[-1]) is int
    )


def mean_of(sums: SumList, task: Task) -> float:
    """Of [Σ, rows]: the mean over rows."""
    return float(sums[0] / sums[1])


def add(parts: list[SumList]) -> SumList:
    """Sums of several places, added entry by entry; of what is shorter, as if zeros came behind."""
    if isinstance(parts[0], list) and parts[0] and isinstance(parts[0][0], list):
        width = max(len(row) for part in parts for row in part)
        length = max(map(len, parts))
        filled = [
            [[*row, *[0] * (width - len(row))] for row in [*part, *[[]] * (length - len(part))]]
            for part in parts
        ]
        return [[sum(numbers) for numbers in zip(*rows, strict=True)] for rows in zip(*filled, strict=True)]
    return [sum(numbers) for numbers in zip(*parts, strict=True)]
