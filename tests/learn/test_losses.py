"""Losses between answers, worked out by hand: what is summed, what is averaged, what has a gradient."""

from __future__ import annotations

from math import log
from typing import Any

import pytest
import torch
from pydantic import ValidationError
from torch import Tensor

from polyfed.learn import AnswerForm, Distillation, cross_entropy, entropy, kl, knowledge_loss, soften

Answers = AnswerForm
LOSSES = ["l1", "l2", "ce", "kl"]

# Logits that are logarithms of whole numbers have probabilities that are fractions.
STUDENT = torch.tensor([[1.0, 2.0, 1.0], [1.0, 1.0, 1.0]]).log()  # q = ¼ ½ ¼ and ⅓ ⅓ ⅓
TEACHER = torch.tensor([[2.0, 1.0, 1.0], [1.0, 1.0, 2.0]]).log()  # p = ½ ¼ ¼ and ¼ ¼ ½
P = torch.tensor([[0.5, 0.25, 0.25], [0.25, 0.25, 0.5]])
Q = torch.tensor([[0.25, 0.5, 0.25], [1 / 3, 1 / 3, 1 / 3]])

BY_HAND = {
    # |0 - ln 2| + |ln 2 - 0| + 0 = 2 ln 2 and 0 + 0 + |0 - ln 2| = ln 2
    "l1": (2 * log(2) + log(2)) / 2,
    # the squares of the same
    "l2": (2 * log(2) ** 2 + log(2) ** 2) / 2,
    # ½ ln 4 + ¼ ln 2 + ¼ ln 4 = 7/4 ln 2 and (¼ + ¼ + ½) ln 3
    "ce": (7 / 4 * log(2) + log(3)) / 2,
    # less the teacher's entropy ½ ln 2 + ¼ ln 4 + ¼ ln 4 = 3/2 ln 2 in either row
    "kl": (7 / 4 * log(2) + log(3)) / 2 - 3 / 2 * log(2),
}
BETWEEN_PROBABILITIES = {
    # |¼ - ½| + |½ - ¼| + 0 = ½ and 1/12 + 1/12 + 1/6 = ⅓
    "l1": (1 / 2 + 1 / 3) / 2,
    # 1/16 + 1/16 + 0 = 1/8 and 1/144 + 1/144 + 1/36 = 1/24
    "l2": (1 / 8 + 1 / 24) / 2,
    "ce": BY_HAND["ce"],
    "kl": BY_HAND["kl"],
}


def loss_of(
    student: Tensor, answer: Tensor, loss: Any, *, answers: Answers = "outputs", **settings: Any
) -> Tensor:
    return knowledge_loss(Distillation(epochs=1, loss=loss, **settings), given=answers)(student, answer)


@pytest.mark.parametrize("reduce", ["sum", "mean"])
@pytest.mark.parametrize("temperature", [1.0, 2.0, 10.0])
@pytest.mark.parametrize("name", LOSSES)
def test_every_loss_between_logits_by_hand(name: str, temperature: float, reduce: str) -> None:
    """T times the logits, softened by T, are the probabilities above; distances of logits know no temperature."""
    power = {"l1": 1, "l2": 2, "ce": 0, "kl": 0}[name]
    expected = BY_HAND[name] * temperature**power / (3 if reduce == "mean" else 1)
    found = loss_of(
        temperature * STUDENT, temperature * TEACHER, name, temperature=temperature, reduce=reduce
    )
    assert found.item() == pytest.approx(expected, abs=1e-6, rel=1e-6)


@pytest.mark.parametrize("reduce", ["sum", "mean"])
@pytest.mark.parametrize("temperature", [1.0, 2.0, 10.0])
@pytest.mark.parametrize("name", LOSSES)
def test_every_loss_to_probabilities_by_hand(name: str, temperature: float, reduce: str) -> None:
    """The student is softened; the teacher has been, and is taken as it is."""
    expected = BETWEEN_PROBABILITIES[name] / (3 if reduce == "mean" else 1)
    found = loss_of(temperature * STUDENT, P, name, answers="answers", temperature=temperature, reduce=reduce)
    assert found.item() == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("answers", ["outputs", "answers"])
@pytest.mark.parametrize("reduce", ["sum", "mean"])
@pytest.mark.parametrize("name", LOSSES)
def test_a_loss_is_a_mean_over_rows(name: str, reduce: str, answers: Answers) -> None:
    answer = TEACHER if answers == "outputs" else P
    once = loss_of(STUDENT, answer, name, answers=answers, reduce=reduce)
    twice = loss_of(STUDENT.repeat(2, 1), answer.repeat(2, 1), name, answers=answers, reduce=reduce)
    assert twice.item() == pytest.approx(once.item(), abs=1e-6)


@pytest.mark.parametrize("outputs", [2, 30])
@pytest.mark.parametrize("name", LOSSES)
def test_the_sum_over_outputs_is_so_many_times_the_mean(name: str, outputs: int) -> None:
    stream = torch.Generator().manual_seed(0)
    student, teacher = torch.randn(2, 4, outputs, generator=stream)
    total = loss_of(student, teacher, name, reduce="sum")
    assert total.item() == pytest.approx(
        outputs * loss_of(student, teacher, name, reduce="mean").item(), rel=1e-5
    )


def test_the_mean_of_distances_is_that_of_the_framework() -> None:
    """FedMD's code minimises the mean absolute error over all entries."""
    found = loss_of(STUDENT, TEACHER, "l1", reduce="mean")
    assert found.item() == pytest.approx(torch.nn.functional.l1_loss(STUDENT, TEACHER).item(), abs=1e-7)
    found = loss_of(STUDENT, TEACHER, "l2", reduce="mean")
    assert found.item() == pytest.approx(torch.nn.functional.mse_loss(STUDENT, TEACHER).item(), abs=1e-7)


# -- gradients -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("answers", ["outputs", "answers"])
@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0, 10.0])
@pytest.mark.parametrize("name", ["ce", "kl"])
def test_the_gradient_is_the_difference_of_probabilities_over_the_temperature(
    name: str, temperature: float, answers: Answers
) -> None:
    """(q - p) / T of each row, over the number of rows. With the factor T² of some papers it would be T (q - p)."""
    student = (temperature * STUDENT).requires_grad_()
    answer = temperature * TEACHER if answers == "outputs" else P
    loss_of(student, answer, name, answers=answers, temperature=temperature).backward()
    assert student.grad is not None
    assert torch.allclose(student.grad, (Q - P) / temperature / 2, atol=1e-6)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        # the sign of each difference, over two rows
        ("l1", torch.tensor([[-1.0, 1, 0], [0, 0, -1]]) / 2),
        # twice each difference, over two rows
        ("l2", 2 * log(2) * torch.tensor([[-1.0, 1, 0], [0, 0, -1]]) / 2),
    ],
)
@pytest.mark.parametrize("reduce", ["sum", "mean"])
def test_the_gradients_of_distances_by_hand(name: str, reduce: str, expected: Tensor) -> None:
    student = STUDENT.clone().requires_grad_()
    loss_of(student, TEACHER, name, reduce=reduce).backward()
    assert student.grad is not None
    assert torch.allclose(student.grad, expected / (3 if reduce == "mean" else 1), atol=1e-6)


@pytest.mark.parametrize("answers", ["outputs", "answers"])
@pytest.mark.parametrize("name", LOSSES)
def test_no_gradient_reaches_the_teacher(name: str, answers: Answers) -> None:
    student = STUDENT.clone().requires_grad_()
    teacher = (TEACHER if answers == "outputs" else P).clone().requires_grad_()
    loss_of(student, teacher, name, answers=answers).backward()
    assert teacher.grad is None
    assert student.grad is not None and bool(student.grad.abs().sum() > 0)


@pytest.mark.parametrize("divergence", [cross_entropy, kl])
def test_the_divergences_themselves_leave_the_teacher_alone(divergence: Any) -> None:
    student, teacher = STUDENT.clone().requires_grad_(), P.clone().requires_grad_()
    value = divergence(student, teacher)
    assert value.item() == pytest.approx(BY_HAND["ce" if divergence is cross_entropy else "kl"], abs=1e-6)
    value.backward()
    assert teacher.grad is None


# -- probabilities -------------------------------------------------------------------------------------------


def test_softening_flattens_and_sharpens_by_hand() -> None:
    logits = torch.tensor([[0.0, log(4), log(4)]])
    assert torch.allclose(soften(logits), torch.tensor([[1.0, 4, 4]]) / 9)
    assert torch.allclose(soften(logits, 2.0), torch.tensor([[1.0, 2, 2]]) / 5)
    assert torch.allclose(soften(logits, 0.5), torch.tensor([[1.0, 16, 16]]) / 33)


def test_a_sure_teacher_gives_no_nan() -> None:
    """0 log 0 is 0: KL to a one-hot answer is the cross-entropy, -ln ½ and -ln ⅓."""
    sure = torch.tensor([[0.0, 1.0, 0.0], [0.0, 0.0, 1.0]])
    expected = (log(2) + log(3)) / 2
    assert kl(STUDENT, sure).item() == pytest.approx(expected, abs=1e-6)
    assert cross_entropy(STUDENT, sure).item() == pytest.approx(expected, abs=1e-6)


def test_the_entropy_of_every_row_by_hand() -> None:
    rows = torch.tensor([[0.5, 0.25, 0.25], [1.0, 0.0, 0.0], [1 / 3, 1 / 3, 1 / 3]])
    assert torch.allclose(entropy(rows), torch.tensor([1.5 * log(2), 0.0, log(3)]), atol=1e-6)


@pytest.mark.parametrize(
    "wrong", [{"temperature": 0}, {"temperature": float("inf")}, {"loss": "mse"}, {"reduce": "none"}]
)
def test_settings_are_checked(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        Distillation(**{"epochs": 1, **wrong})
