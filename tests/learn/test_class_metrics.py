from __future__ import annotations

import math
import warnings
from typing import Any

import numpy as np
import pytest
import torch
from sklearn import metrics as reference
from torch import Tensor

from polyfed.learn import METRICS, metrics_for, metrics_of
from polyfed.tasks import CLASSIFICATION, Binary, MultiLabel, Task

BINARY = Binary(positive="ill", threshold=0.3).for_classes(["ill", "well"])  # the first class is looked for
SEVERAL = MultiLabel(threshold=0.4)


def found(outputs: Tensor, labels: Tensor, task: Task = CLASSIFICATION) -> dict[str, Any]:
    """All metrics of a task, without a warning."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return metrics_of(outputs, labels, metrics_for(["all"], task), task)


def drawn(rows: int, columns: int, seed: int) -> Tensor:
    return 2 * torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize(("seed", "classes", "among"), [(0, 3, 3), (1, 10, 10), (2, 6, 4), (3, 2, 2)])
def test_of_one_of_several_classes_they_are_scikit_learns(seed: int, classes: int, among: int) -> None:
    """Also where labels are of the first `among` classes alone."""
    outputs = drawn(150, classes, seed)
    y = torch.arange(150) % among
    values = found(outputs, y)
    said, shares = outputs.argmax(dim=1), outputs.double().softmax(dim=1).numpy()
    macro: dict[str, Any] = {"average": "macro", "zero_division": 0}
    assert values["recall"] == pytest.approx(reference.recall_score(y, said, **macro))
    assert values["precision"] == pytest.approx(reference.precision_score(y, said, **macro))
    assert values["f1"] == values["macro-f1"] == pytest.approx(reference.f1_score(y, said, **macro))
    assert values["mcc"] == pytest.approx(reference.matthews_corrcoef(y, said))
    every = list(range(classes))
    assert values["log-loss"] == pytest.approx(reference.log_loss(y, shares, labels=every))
    assert values["brier"] == pytest.approx(np.square(shares - np.eye(classes)[y]).sum(axis=1).mean())
    assert values["pr-auc"] == pytest.approx(
        np.mean([reference.average_precision_score(y == kind, shares[:, kind]) for kind in range(among)])
    )
    present = sorted(set(y.tolist()) | set(said.tolist()))
    negatives = [reference.recall_score(y != kind, said != kind) for kind in present]
    assert values["specificity"] == pytest.approx(np.mean(negatives))


@pytest.mark.parametrize("seed", range(4))
def test_of_two_classes_they_are_those_of_the_class_that_is_looked_for(seed: int) -> None:
    outputs = drawn(80, 2, seed)
    y = torch.randint(2, (80,), generator=torch.Generator().manual_seed(seed))
    values = found(outputs, y, BINARY)
    shares = outputs.double().softmax(dim=1)[:, 0].numpy()
    true, said = (y == 0).numpy(), shares >= 0.3
    assert values["recall"] == pytest.approx(reference.recall_score(true, said))
    assert values["precision"] == pytest.approx(reference.precision_score(true, said))
    assert values["f1"] == pytest.approx(reference.f1_score(true, said))
    assert values["specificity"] == pytest.approx(reference.recall_score(~true, ~said))
    assert values["mcc"] == pytest.approx(reference.matthews_corrcoef(true, said))
    assert values["pr-auc"] == pytest.approx(reference.average_precision_score(true, shares))
    assert values["auc"] == pytest.approx(reference.roc_auc_score(true, shares))
    assert values["log-loss"] == pytest.approx(reference.log_loss(true, shares))
    assert values["brier"] == pytest.approx(reference.brier_score_loss(true, shares))
    assert values["balanced-accuracy"] == pytest.approx(reference.balanced_accuracy_score(true, said))
    assert values["macro-f1"] == pytest.approx(reference.f1_score(true, said, average="macro"))


@pytest.mark.parametrize("seed", range(4))
def test_of_several_classes_at_once_they_are_scikit_learns(seed: int) -> None:
    outputs = drawn(60, 4, seed)
    y = (drawn(60, 4, seed + 100) > 1).float()
    if seed == 3:  # a class that no row has, and none is said to have
        y[:, 2], outputs[:, 2] = 0.0, -5.0
    values = found(outputs, y, SEVERAL)
    shares = outputs.double().sigmoid().numpy()
    true, said = y.numpy(), shares >= 0.4
    macro: dict[str, Any] = {"average": "macro", "zero_division": 0}
    assert values["recall"] == pytest.approx(reference.recall_score(true, said, **macro))
    assert values["precision"] == pytest.approx(reference.precision_score(true, said, **macro))
    assert values["f1"] == values["macro-f1"] == pytest.approx(reference.f1_score(true, said, **macro))
    assert values["micro-f1"] == pytest.approx(reference.f1_score(true, said, average="micro"))
    assert values["hamming-loss"] == pytest.approx(reference.hamming_loss(true, said))
    assert values["exact-match"] == pytest.approx(reference.accuracy_score(true, said))
    had = true.any(axis=0)
    true, shares = true[:, had], shares[:, had]
    assert values["auc"] == pytest.approx(reference.roc_auc_score(true, shares, average="macro"))
    assert values["pr-auc"] == pytest.approx(reference.average_precision_score(true, shares, average="macro"))


def test_binary_metrics_are_those_worked_out_by_hand() -> None:
    # p(ill) = 0.9, 0.35, 0.1, 0.2 with a threshold of 0.3: ill, ill, well, well
    outputs = torch.tensor([[0.9, 0.1], [0.35, 0.65], [0.1, 0.9], [0.2, 0.8]]).log()
    values = found(outputs, torch.tensor([0, 1, 1, 0]), BINARY)
    assert values["recall"] == 1 / 2  # of two who are ill, one
    assert values["precision"] == 1 / 2
    assert values["specificity"] == 1 / 2
    assert values["f1"] == 1 / 2
    assert values["mcc"] == 0
    assert values["brier"] == pytest.approx((0.1**2 + 0.35**2 + 0.1**2 + 0.8**2) / 4)
    assert values["log-loss"] == pytest.approx(-math.log(0.9 * 0.65 * 0.9 * 0.2) / 4)
    assert values["pr-auc"] == pytest.approx((1 + 2 / 3) / 2)  # found as first, and as second of three
    assert values["confusion"] == [[1, 1], [1, 1]]


@pytest.mark.parametrize("rows", [1, 7])
def test_of_rows_of_one_class_that_are_all_right_only_what_can_be_said_is_said(rows: int) -> None:
    outputs = torch.tensor([[0.0, 4.0]]).expand(rows, 2)
    y = torch.ones(rows, dtype=torch.int64)  # nobody is ill, and nobody is said to be
    values = found(outputs, y, BINARY)
    assert not {"recall", "precision", "f1", "mcc", "auc", "pr-auc"} & values.keys()
    assert values["specificity"] == 1.0
    values = found(outputs, y)
    assert not {"mcc", "auc", "pr-auc", "specificity"} & values.keys()
    assert (values["recall"], values["precision"], values["f1"]) == (1.0, 1.0, 1.0)


def test_where_no_row_has_a_class_there_is_no_recall() -> None:
    values = found(torch.full((3, 2), -5.0), torch.zeros(3, 2), SEVERAL)
    assert values == {"hamming-loss": 0.0, "exact-match": 1.0}
    half = found(torch.tensor([[5.0, -5.0], [-5.0, -5.0]]), torch.tensor([[1.0, 0.0], [0.0, 0.0]]), SEVERAL)
    assert half["auc"] == 1.0  # of the class that somebody has
    assert half["recall"] == half["f1"] == half["precision"] == 0.5  # of all classes, as scikit-learn's


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_what_is_no_number_counts_as_wrong_as_can_be(bad: float) -> None:
    values = found(torch.tensor([[bad, 0.0], [0.0, 40.0]]), torch.tensor([1, 1]))
    assert values["log-loss"] == pytest.approx(-math.log(np.finfo(float).eps) / 2)
    assert values["brier"] == pytest.approx(2 / 2)
    assert not {"auc", "pr-auc", "calibration-error"} & values.keys()


def test_a_large_networks_sure_answers_stay_in_range() -> None:
    outputs = torch.tensor([[1e4, 0.0], [0.0, 1e4]])
    for y in (torch.tensor([0, 1]), torch.tensor([1, 0])):
        for name, value in found(outputs, y).items():
            assert METRICS[name].admits(value, 2, 2), name
