"""Metrics beyond accuracy, for who has unbalanced classes: computed by scikit-learn from logits and labels.

Each is defined over the classes that are there, and left out where it has no value:

    balanced-accuracy   mean recall over the classes among the labels
    macro-f1            mean F1 over the classes among the labels or the answers
    auc                 mean area under the ROC curve, one class against the rest, over the classes among the labels;
                        none if all labels are of one class
    calibration-error   expected calibration error: how far confidence is from accuracy, in 15 bins of equal width
    confusion           how many rows of each class (down) were taken for each class (across)

A model that answers with NaN or infinity has no probabilities, so neither AUC nor calibration error.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
import torch
from torch import Tensor

MetricName = Literal["balanced-accuracy", "macro-f1", "auc", "calibration-error", "confusion"]
METRICS: tuple[MetricName, ...] = get_args(MetricName)
CONFUSION: MetricName = "confusion"
CALIBRATION_BINS = 15

Metrics: TypeAlias = dict[str, Any]
"""By name a share from 0 to 1; under `confusion` a square of counts."""


def load_metrics() -> Any:
    """scikit-learn's metrics. A second of importing: paid where they are wanted, best before processes are forked."""
    return importlib.import_module("sklearn.metrics")


@dataclass(frozen=True)
class _Answers:
    """What a model says of some rows, at least one: logits are rows × classes."""

    logits: Tensor
    y: Tensor

    @cached_property
    def labels(self) -> np.ndarray[Any, Any]:
        return self.y.cpu().numpy()

    @cached_property
    def classes(self) -> np.ndarray[Any, Any]:
        """Those that are there."""
        return np.unique(self.labels)

    @cached_property
    def chosen(self) -> np.ndarray[Any, Any]:
        return self.logits.argmax(dim=1).cpu().numpy()

    @cached_property
    def probabilities(self) -> np.ndarray[Any, Any] | None:
        # In double precision: a large network's sure answers would all be 1.0 otherwise, and their order lost.
        found = torch.softmax(self.logits.cpu().double(), dim=1)
        return found.numpy() if found.isfinite().all() else None


def metrics_of(logits: Tensor, y: Tensor, names: Sequence[MetricName]) -> Metrics:
    """These metrics of logits (rows × classes, at least one row); those that have no value here are left out."""
    answers = _Answers(logits, y)
    found = {name: _HOW[name](answers) for name in names}
    return {name: value for name, value in found.items() if value is not None}


def _balanced_accuracy(found: _Answers) -> float:
    """As scikit-learn's `balanced_accuracy_score`, which would warn of answers that are nobody's label."""
    how = {"labels": found.classes, "average": "macro", "zero_division": 0}
    return float(load_metrics().recall_score(found.labels, found.chosen, **how))


def _macro_f1(found: _Answers) -> float:
    return float(load_metrics().f1_score(found.labels, found.chosen, average="macro", zero_division=0))


def _auc(found: _Answers) -> float | None:
    """Not scikit-learn's `multi_class="ovr"`, which refuses rows where a class is missing; else equal to it."""
    if len(found.classes) < 2 or found.probabilities is None:
        return None
    area = load_metrics().roc_auc_score
    return float(
        np.mean([area(found.labels == kind, found.probabilities[:, kind]) for kind in found.classes])
    )


def _calibration_error(found: _Answers) -> float | None:
    """The gap of mean confidence and accuracy in bins (0, 1/15], (1/15, 2/15] …, each counting by its rows."""
    if found.probabilities is None:
        return None
    confidence = found.probabilities.max(axis=1)
    bins = np.ceil(confidence * CALIBRATION_BINS).astype(int) - 1
    gaps = np.bincount(bins, weights=confidence - (found.chosen == found.labels))
    return float(np.abs(gaps).sum() / len(confidence))


def _confusion(found: _Answers) -> list[list[int]]:
    every = range(found.logits.shape[1])
    table: list[list[int]] = (
        load_metrics().confusion_matrix(found.labels, found.chosen, labels=every).tolist()
    )
    return table


_HOW: dict[MetricName, Callable[[_Answers], float | list[list[int]] | None]] = {
    "balanced-accuracy": _balanced_accuracy,
    "macro-f1": _macro_f1,
    "auc": _auc,
    "calibration-error": _calibration_error,
    "confusion": _confusion,
}
