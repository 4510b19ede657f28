"""Metrics of numbers, in the unit of the labels. An answer that is no finite number is as wrong as numbers can be."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from polyfed.data import LARGEST_NUMBER
from polyfed.learn.metric import (
    LABELS,
    NUMBER,
    Added,
    Array,
    Family,
    InPlace,
    Metric,
    Seen,
    SumList,
    Sums,
    are_numbers,
    mean_of,
    totals,
)
from polyfed.schema import LARGEST
from polyfed.tasks import Regression, Task

FURTHEST = 2 * LARGEST_NUMBER  # that an answer can be from its label
LEAST_SPREAD = 1e-12  # of labels, as a share of their size: below it is rounding


def _errors(seen: Seen) -> Array:
    found: Array = seen.said.astype(np.float64) - seen.truth.astype(np.float64)
    return found


def _absolute(seen: Seen) -> Array:
    return np.abs(_errors(seen))


def _squared(seen: Seen) -> Array:
    return np.square(_errors(seen))


def _relative(seen: Seen) -> Array | None:
    """Of what is 0, nothing is a share."""
    truth = np.abs(seen.truth.astype(np.float64))
    return np.abs(_errors(seen)) / truth if truth.all() else None


def _spread(seen: Seen) -> SumList:
    """[Σ error², Σ d, Σ d², rows], d: how far a label is from the mean that all have agreed on.

    From that mean, since of labels that are large beside their spread a sum of squares says nothing any more.
    """
    mean = seen.task.agreed().mean if isinstance(seen.task, Regression) else 0.0
    distance = seen.truth.astype(np.float64) - mean
    sums = (_squared(seen), distance, np.square(distance))
    return [*(float(each.sum()) for each in sums), len(distance)]


def _is_spread(value: Any, rows: int, outputs: int) -> bool:
    return are_numbers(value, 4) and value[-1] == rows and value[0] >= 0 and value[2] >= 0


def _root(sums: SumList, task: Task) -> float:
    return math.sqrt(sums[0] / sums[1])


def _explained(sums: SumList, task: Task) -> float | None:
    """1 − Σ error² / Σ (y − mean)²; none where all labels are alike."""
    wrong, distance, squares, rows = sums
    spread = squares - distance**2 / rows
    return 1 - wrong / spread if spread > LEAST_SPREAD * squares else None


def _median(seen: Seen) -> float:
    return float(np.median(_absolute(seen)))


_N = Family.NUMBERS

NUMBER_METRICS = (
    Metric(
        "mae",
        "MAE",
        {_N: Added(totals("absolute", _absolute, FURTHEST), mean_of)},
        most=FURTHEST,
        smaller_is_better=True,
        unit=LABELS,
    ),
    Metric(
        "rmse",
        "RMSE",
        {_N: Added(totals("squared", _squared, FURTHEST**2), _root)},
        most=FURTHEST,
        smaller_is_better=True,
        unit=LABELS,
    ),
    Metric("r2", "R²", {_N: Added(Sums("spread", _spread, _is_spread), _explained)}, -LARGEST, unit=NUMBER),
    Metric(
        "median-absolute-error",
        "median absolute error",
        {_N: InPlace(_median)},
        most=FURTHEST,
        smaller_is_better=True,
        unit=LABELS,
    ),
    Metric(
        "mape",
        "mean absolute percentage error",
        {_N: Added(totals("relative", _relative), mean_of)},
        most=LARGEST,
        smaller_is_better=True,
    ),
)
