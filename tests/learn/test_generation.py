"""The generator's losses in numbers, and that a teacher stays what it is."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from polyfed import learn


def logits_of(*rows: list[float]) -> torch.Tensor:
    """Logits whose softmax is these rows."""
    return torch.tensor(rows).log().requires_grad_()


def test_the_one_hot_loss_is_minus_the_log_of_the_best_class_by_hand() -> None:
    """Rows (0.7, 0.2, 0.1) and (0.1, 0.5, 0.4): -(log 0.7 + log 0.5) / 2.

    Gradient of a row: (p - one-hot of its best class) / 2 rows.
    """
    logits = logits_of([0.7, 0.2, 0.1], [0.1, 0.5, 0.4])
    loss = learn.one_hot_loss(logits)
    loss.backward()
    assert loss.item() == pytest.approx(-(math.log(0.7) + math.log(0.5)) / 2)
    assert logits.grad is not None
    assert torch.allclose(logits.grad, torch.tensor([[-0.15, 0.1, 0.05], [0.05, -0.25, 0.2]]))


def test_the_balance_loss_is_the_negative_entropy_of_the_mean_answer_by_hand() -> None:
    """Rows (0.7, 0.3) and (0.1, 0.9): the mean is (0.4, 0.6), so 0.4 log 0.4 + 0.6 log 0.6, whatever each row says."""
    logits = logits_of([0.7, 0.3], [0.1, 0.9])
    expected = 0.4 * math.log(0.4) + 0.6 * math.log(0.6)
    assert learn.balance_loss(logits).item() == pytest.approx(expected)
    assert learn.balance_loss(logits, normalised=True).item() == pytest.approx(1 + expected / math.log(2))


def test_the_balance_loss_goes_from_one_class_to_all_alike() -> None:
    """One class alone: 0, normalised 1. Four alike, each row sure of its own: -log 4, normalised 0."""
    alone = torch.tensor([[50.0, 0.0, 0.0, 0.0]] * 4)
    assert learn.balance_loss(alone).item() == pytest.approx(0, abs=1e-6)
    assert learn.balance_loss(alone, normalised=True).item() == pytest.approx(1)
    alike = 50 * torch.eye(4)
    assert learn.balance_loss(alike).item() == pytest.approx(-math.log(4))
    assert learn.balance_loss(alike, normalised=True).item() == pytest.approx(0, abs=1e-6)


def test_a_class_that_nobody_names_has_a_gradient() -> None:
    """At logits 300 apart a probability is 0 in 32 bits; 0 · log 0 must be 0, and its gradient a number."""
    logits = torch.tensor([[300.0, 0.0, -300.0], [310.0, 5.0, -290.0]], requires_grad=True)
    loss = learn.balance_loss(logits)
    loss.backward()
    assert loss.item() == 0
    assert logits.grad is not None and bool(logits.grad.isfinite().all())


def test_the_activation_loss_is_minus_the_l1_norm_by_hand() -> None:
    """Rows (1, -2, 3) and (0, 4, 0): norms 6 and 4, mean 5; over 2 × 3 numbers the mean is 10 / 6."""
    features = torch.tensor([[1.0, -2.0, 3.0], [0.0, 4.0, 0.0]])
    assert learn.activation_loss(features).item() == pytest.approx(-5)
    assert learn.activation_loss(features, mean=True).item() == pytest.approx(-10 / 6)


def test_gradients_pass_through_a_frozen_model_and_leave_it_as_it_was() -> None:
    model = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 2))
    model[1].weight.requires_grad_(False)
    x = torch.randn(4, 3, requires_grad=True)
    with learn.frozen(model):
        model(x).square().sum().backward()
    assert x.grad is not None and bool((x.grad != 0).any())
    assert all(parameter.grad is None for parameter in model.parameters())
    assert [parameter.requires_grad for parameter in model.parameters()] == [True, True, False, True]
