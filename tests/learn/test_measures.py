from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from sklearn import metrics as reference
from torch import Tensor

from polyfed.learn import METRICS, metrics_of

FIVE = [METRICS[name] for name in ("balanced-accuracy", "macro-f1", "auc", "calibration-error", "confusion")]

# Four rows and three classes: the answers are 0, 0, 1, 1.
PROBABILITIES = torch.tensor([[0.7, 0.2, 0.1], [0.45, 0.35, 0.2], [0.25, 0.61, 0.14], [0.3, 0.65, 0.05]])
LABELS = torch.tensor([0, 0, 1, 2])


def found(probabilities: Tensor, y: Tensor) -> dict[str, Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return metrics_of(probabilities.log(), y, FIVE)


def test_metrics_are_those_worked_out_by_hand() -> None:
    assert found(PROBABILITIES, LABELS) == {
        # recalls 2/2, 1/1, 0/1
        "balanced-accuracy": pytest.approx(2 / 3),
        # class 0: 1; class 1: precision 1/2, recall 1, so 2/3; class 2: 0
        "macro-f1": pytest.approx((1 + 2 / 3 + 0) / 3),
        # 0.7 and 0.45 are above 0.25 and 0.3; 0.61 above 0.2 and 0.35, not above 0.65; 0.05 above nothing
        "auc": pytest.approx((4 / 4 + 2 / 3 + 0 / 3) / 3),
        # 0.7 (bin 11) and 0.45 (bin 7) are right; of bin 10, 0.61 is right and 0.65 wrong: |1.26 - 1|
        "calibration-error": pytest.approx((0.3 + 0.55 + 0.26) / 4),
        "confusion": [[2, 0, 0], [0, 1, 0], [0, 1, 0]],
    }


@pytest.mark.parametrize("classes", [2, 10])
def test_where_every_class_is_there_they_are_scikit_learns(classes: int) -> None:
    generator = torch.Generator().manual_seed(0)
    y = torch.arange(200) % classes
    logits = torch.randn(200, classes, generator=generator)
    logits[torch.arange(200), y] += 1
    values = metrics_of(logits, y, FIVE)
    answers, probabilities = logits.argmax(dim=1), logits.double().softmax(dim=1)
    assert values["balanced-accuracy"] == pytest.approx(reference.balanced_accuracy_score(y, answers))
    assert values["macro-f1"] == pytest.approx(reference.f1_score(y, answers, average="macro"))
    seen = probabilities[:, 1] if classes == 2 else probabilities
    assert values["auc"] == pytest.approx(reference.roc_auc_score(y, seen, multi_class="ovr"))
    assert values["confusion"] == reference.confusion_matrix(y, answers).tolist()


def test_absent_classes_count_only_where_they_are_answered() -> None:
    y = torch.tensor([0, 0, 1, 1])  # class 2 is absent, and the second row's answer
    probabilities = torch.tensor([[0.7, 0.2, 0.1], [0.3, 0.1, 0.6], [0.2, 0.7, 0.1], [0.1, 0.8, 0.1]])
    values = found(probabilities, y)
    assert values["balanced-accuracy"] == pytest.approx((1 / 2 + 1) / 2)
    assert values["macro-f1"] == pytest.approx((2 / 3 + 1 + 0) / 3)  # answered, never right: 0
    assert values["auc"] == 1.0  # over classes 0 and 1
    assert values["confusion"] == [[1, 0, 1], [0, 2, 0], [0, 0, 0]]
    with pytest.warns(UserWarning, match="y_pred contains classes not in y_true"):
        balanced = reference.balanced_accuracy_score(y, probabilities.argmax(dim=1))
    assert values["balanced-accuracy"] == pytest.approx(balanced)


def test_one_class_alone_has_no_auc() -> None:
    values = found(PROBABILITIES[:2], torch.tensor([0, 0]))
    assert "auc" not in values
    assert (values["balanced-accuracy"], values["macro-f1"]) == (1.0, 1.0)
    assert values["calibration-error"] == pytest.approx((0.3 + 0.55) / 2)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_model_that_answers_no_numbers_has_no_probabilities(bad: float) -> None:
    logits = torch.tensor([[bad, 0.0], [0.0, 1.0]])
    values = metrics_of(logits, torch.tensor([0, 1]), FIVE)
    assert set(values) == {"balanced-accuracy", "macro-f1", "confusion"}


def test_sure_answers_keep_their_order() -> None:
    """In single precision both would be 1.0, and the area 0.5."""
    logits = torch.tensor([[20.0, 0.0], [19.0, 0.0]])
    assert metrics_of(logits, torch.tensor([0, 1]), [METRICS["auc"]]) == {"auc": 1.0}


def test_only_what_is_asked_for_is_there() -> None:
    assert set(metrics_of(PROBABILITIES.log(), LABELS, [METRICS["macro-f1"]])) == {"macro-f1"}
