"""Metrics of classes: of one class for each row, and of several classes at once.

Of a classification, precision, recall, F1 and specificity are means over the classes that are among the labels or the
answers, as scikit-learn's `average="macro"`; of two classes, those of the class that is looked for. Where a model
answers a row with no finite number, log loss and Brier score are the worst that there are.
"""

from __future__ import annotations

import importlib
import math
from functools import partial
from typing import Any

import numpy as np

from polyfed.learn.metric import (
    CONFUSION,
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
    is_square,
    mean_of,
    positive_place,
    totals,
)
from polyfed.tasks import Task

CALIBRATION_BINS = 15
SMALLEST = float(np.finfo(np.float64).eps)  # a probability, in a logarithm: as scikit-learn has it


def load_metrics() -> Any:
    """scikit-learn's metrics. A second of importing: paid where they are wanted, best before processes are forked."""
    return importlib.import_module("sklearn.metrics")


# -- how many rows of each class were taken for each class -------------------------------------------------------


def _square(seen: Seen) -> SumList:
    size = seen.outputs.shape[1]
    places = seen.truth.astype(np.int64) * size + seen.said.astype(np.int64)
    found: SumList = np.bincount(places, minlength=size * size).reshape(size, size).tolist()
    return found


SQUARE = Sums("confusion", _square, is_square)


def _over_present(above: Array, below: Array, present: Array) -> float | None:
    """The mean of above / below over these classes; 0 of one where nothing is below."""
    if not present.any():
        return None
    shares = np.divide(above, below, out=np.zeros(len(above)), where=below > 0)
    return float(np.mean(shares[present]))


def _counts(sums: SumList) -> tuple[Array, Array, Array]:
    """Of each class: rows that were right, rows of it, rows that were taken for it."""
    square = np.array(sums)
    return square.diagonal(), square.sum(axis=1), square.sum(axis=0)


def _macro_recall(sums: SumList, task: Task) -> float | None:
    right, of, said = _counts(sums)
    return _over_present(right, of, of + said > 0)


def _macro_precision(sums: SumList, task: Task) -> float | None:
    right, of, said = _counts(sums)
    return _over_present(right, said, of + said > 0)


def _macro_f1(sums: SumList, task: Task) -> float | None:
    right, of, said = _counts(sums)
    return _over_present(2 * right, of + said, of + said > 0)


def _balanced_accuracy(sums: SumList, task: Task) -> float | None:
    right, of, _ = _counts(sums)
    return _over_present(right, of, of > 0)


def _macro_specificity(sums: SumList, task: Task) -> float | None:
    right, of, said = _counts(sums)
    others = of.sum() - of
    return _over_present(others - (said - right), others, (of + said > 0) & (others > 0))


def _share_of(above: int, below: int) -> float | None:
    return above / below if below else None


def _recall(sums: SumList, task: Task) -> float | None:
    place = positive_place(task)
    return _share_of(sums[place][place], sum(sums[place]))


def _precision(sums: SumList, task: Task) -> float | None:
    place = positive_place(task)
    return _share_of(sums[place][place], sum(row[place] for row in sums))


def _f1(sums: SumList, task: Task) -> float | None:
    place = positive_place(task)
    return _share_of(2 * sums[place][place], sum(sums[place]) + sum(row[place] for row in sums))


def _specificity(sums: SumList, task: Task) -> float | None:
    place = positive_place(task)
    others = sum(map(sum, sums)) - sum(sums[place])
    return _share_of(others - (sum(row[place] for row in sums) - sums[place][place]), others)


def _correlation(sums: SumList, task: Task) -> float | None:
    """Matthews' correlation coefficient (Gorodkin 2004, for any number of classes); none where all rows are alike."""
    right, of, said = _counts(sums)
    rows = int(of.sum())
    spread = (rows * rows - int(of @ of)) * (rows * rows - int(said @ said))
    return (int(right.sum()) * rows - int(of @ said)) / math.sqrt(spread) if spread else None


def _confusion(sums: SumList, task: Task) -> SumList:
    return sums


# -- of probabilities --------------------------------------------------------------------------------------------


def _over_classes(score: str, seen: Seen) -> float | None:
    """The mean over classes, each against the rest; over those among the labels, none if they are all of one.

    Not scikit-learn's `multi_class="ovr"`, which refuses rows where a class is missing; else equal to it.
    """
    if len(seen.classes) < 2 or seen.probabilities is None:
        return None
    measure = getattr(load_metrics(), score)
    return float(np.mean([measure(seen.truth == kind, seen.probabilities[:, kind]) for kind in seen.classes]))


def _of_positive(score: str, seen: Seen) -> float | None:
    if len(seen.classes) < 2 or seen.probabilities is None:
        return None
    measure = getattr(load_metrics(), score)
    return float(measure(seen.truth == seen.positive, seen.probabilities[:, seen.positive]))


def _over_labels(score: str, seen: Seen) -> float | None:
    """Of several classes at once: the mean over those that some rows have and others do not."""
    truth, shares = seen.truth > 0, seen.probabilities
    mixed = truth.any(axis=0) & ~truth.all(axis=0)
    if shares is None or not mixed.any():
        return None
    measure = getattr(load_metrics(), score)
    return float(np.mean([measure(truth[:, kind], shares[:, kind]) for kind in np.flatnonzero(mixed)]))


def _gaps(seen: Seen) -> SumList | None:
    """In bins (0, 1/15], (1/15, 2/15] … of confidence, the sum of what it is above being right; and rows."""
    if seen.probabilities is None:
        return None
    rows = np.arange(len(seen.truth))
    chosen = seen.said.astype(np.int64)
    confidence = seen.probabilities[rows, chosen]
    bins = np.maximum(np.ceil(confidence * CALIBRATION_BINS).astype(int) - 1, 0)
    wrong_by = confidence - (seen.said == seen.truth)
    return [*np.bincount(bins, weights=wrong_by, minlength=CALIBRATION_BINS).tolist(), len(rows)]


def _are_gaps(value: Any, rows: int, outputs: int) -> bool:
    return (
        are_numbers(value, CALIBRATION_BINS + 1)
        and value[-1] == rows
        and all(abs(gap) <= rows for gap in value)
    )


def _calibration_error(sums: SumList, task: Task) -> float:
    gaps = np.trim_zeros(np.array(sums[:-1]), "b")  # numpy adds few numbers in another order than many
    return float(np.abs(gaps).sum() / sums[-1])


def _of_each_label(seen: Seen) -> Array:
    """The probability of each row's own class; 0 where it is none."""
    shares = seen.readable[np.arange(len(seen.truth)), seen.truth.astype(np.int64)]
    known: Array = np.where(np.isfinite(shares), shares, 0.0)
    return known


def _surprise(seen: Seen) -> Array:
    found: Array = -np.log(np.clip(_of_each_label(seen), SMALLEST, 1 - SMALLEST))
    return found


def _distance(seen: Seen) -> Array:
    """Σ (p − y)² over classes."""
    truth = np.zeros_like(seen.readable)
    truth[np.arange(len(seen.truth)), seen.truth.astype(np.int64)] = 1
    each = np.square(seen.readable - truth).sum(axis=1)
    return np.where(np.isfinite(each), each, 2.0)


def _distance_of_positive(seen: Seen) -> Array:
    """(p − y)² of the class that is looked for."""
    return _distance(seen) / 2


LARGEST_SURPRISE = 37.0  # −log SMALLEST is 36.04
SURPRISE = totals("log-loss", _surprise, LARGEST_SURPRISE)
DISTANCE = totals("brier", _distance, 2.0)
DISTANCE_OF_POSITIVE = totals("brier", _distance_of_positive, 1.0)

# -- several classes at once -------------------------------------------------------------------------------------


def _of_labels(seen: Seen) -> SumList:
    """Of each class: rows that have it and are said to, that are only said to, that only have it, and neither."""
    truth, said = seen.truth > 0, seen.said > 0
    each = [truth & said, ~truth & said, truth & ~said, ~truth & ~said]
    found: SumList = np.stack([rows.sum(axis=0) for rows in each], axis=1).tolist()
    return found


def _are_of_labels(value: Any, rows: int, outputs: int) -> bool:
    return (
        isinstance(value, list)
        and 0 < len(value) <= outputs
        and all(isinstance(row, list) and len(row) == 4 for row in value)
        and all(type(count) is int and count >= 0 for row in value for count in row)
        and all(sum(row) == rows for row in value)
    )


OF_LABELS = Sums("labels", _of_labels, _are_of_labels)


def _right(seen: Seen) -> Array:
    right: Array = ((seen.truth > 0) == (seen.said > 0)).all(axis=1).astype(np.float64)
    return right


EXACT = totals("exact", _right, 1.0)


def _share(above: tuple[int, ...], below: tuple[int, ...], sums: SumList, task: Task) -> float | None:
    """The mean over all classes of one weighted sum of their counts over another; none where no row has any class."""
    counts = np.array(sums)
    some = np.full(len(counts), counts[:, :3].any())
    return _over_present(counts @ above, counts @ below, some)


def _micro_f1(sums: SumList, task: Task) -> float | None:
    right, said, has, _ = map(int, np.array(sums).sum(axis=0))
    return _share_of(2 * right, 2 * right + said + has)


def _hamming(sums: SumList, task: Task) -> float:
    counts = np.array(sums)
    return float(counts[:, 1:3].sum() / counts.sum())


_LABELS_RECALL = Added(OF_LABELS, partial(_share, (1, 0, 0, 0), (1, 0, 1, 0)))
_LABELS_PRECISION = Added(OF_LABELS, partial(_share, (1, 0, 0, 0), (1, 1, 0, 0)))
_LABELS_F1 = Added(OF_LABELS, partial(_share, (2, 0, 0, 0), (2, 1, 1, 0)))
_C, _T, _S = Family.CLASSES, Family.TWO, Family.SEVERAL
_MACRO_F1 = Added(SQUARE, _macro_f1)
_BALANCED = Added(SQUARE, _balanced_accuracy)
_CALIBRATION = Added(Sums("calibration", _gaps, _are_gaps), _calibration_error)
_MCC = Added(SQUARE, _correlation)
_CONFUSION = Added(SQUARE, _confusion)
_AUC, _PR = "roc_auc_score", "average_precision_score"

CLASS_METRICS = (
    Metric("balanced-accuracy", "balanced accuracy", {_C: _BALANCED, _T: _BALANCED}),
    Metric("macro-f1", "macro-F1", {_C: _MACRO_F1, _T: _MACRO_F1, _S: _LABELS_F1}),
    Metric(
        "auc",
        "AUC",
        {
            _C: InPlace(partial(_over_classes, _AUC)),
            _T: InPlace(partial(_over_classes, _AUC)),
            _S: InPlace(partial(_over_labels, _AUC)),
        },
    ),
    Metric(
        "calibration-error",
        "calibration error",
        {_C: _CALIBRATION, _T: _CALIBRATION},
        smaller_is_better=True,
    ),
    Metric(CONFUSION, "confusion matrix", {_C: _CONFUSION, _T: _CONFUSION}),
    Metric(
        "recall",
        "recall",
        {_C: Added(SQUARE, _macro_recall), _T: Added(SQUARE, _recall), _S: _LABELS_RECALL},
    ),
    Metric(
        "precision",
        "precision",
        {_C: Added(SQUARE, _macro_precision), _T: Added(SQUARE, _precision), _S: _LABELS_PRECISION},
    ),
    Metric("f1", "F1", {_C: _MACRO_F1, _T: Added(SQUARE, _f1), _S: _LABELS_F1}),
    Metric("micro-f1", "micro-F1", {_S: Added(OF_LABELS, _micro_f1)}),
    Metric(
        "specificity",
        "specificity",
        {_C: Added(SQUARE, _macro_specificity), _T: Added(SQUARE, _specificity)},
    ),
    Metric(
        "pr-auc",
        "PR-AUC",
        {
            _C: InPlace(partial(_over_classes, _PR)),
            _T: InPlace(partial(_of_positive, _PR)),
            _S: InPlace(partial(_over_labels, _PR)),
        },
    ),
    Metric("mcc", "MCC", {_C: _MCC, _T: _MCC}, least=-1.0, unit=NUMBER),
    Metric(
        "log-loss",
        "log loss",
        {_C: Added(SURPRISE, mean_of), _T: Added(SURPRISE, mean_of)},
        most=LARGEST_SURPRISE,
        smaller_is_better=True,
        unit=NUMBER,
    ),
    Metric(
        "brier",
        "Brier score",
        {_C: Added(DISTANCE, mean_of), _T: Added(DISTANCE_OF_POSITIVE, mean_of)},
        most=2.0,
        smaller_is_better=True,
        unit=NUMBER,
    ),
    Metric("hamming-loss", "Hamming loss", {_S: Added(OF_LABELS, _hamming)}, smaller_is_better=True),
    Metric("exact-match", "exact match", {_S: Added(EXACT, mean_of)}),
)
