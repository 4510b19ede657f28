"""Probabilities of classes, and how far one says something else than another: means over rows, sums over classes."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F


def soften(logits: Tensor, temperature: float = 1.0) -> Tensor:
    """Probabilities at a temperature: softmax(z / T)."""
    return F.softmax(logits / temperature, dim=1)


def are_in_range(table: Tensor) -> bool:
    """Whether no number is below 0 or above 1, as exactly as its precision allows. NaN is neither."""
    rows = table.float().numpy(force=True)  # numpy takes a quarter of torch's time for a few numbers
    return bool((rows >= 0).all() and (rows <= 1 + _exactness(table)).all())


def are_probabilities(table: Tensor) -> bool:
    """Whether no number is below 0 and every row adds up to 1, as exactly as its precision allows."""
    rows = table.float().numpy(force=True)
    # NaN is neither above nor below anything; what is above 2 might add up to infinity.
    return bool(
        (rows >= 0).all() and (rows <= 2).all() and (abs(rows.sum(axis=1) - 1) <= _exactness(table)).all()
    )


def _exactness(table: Tensor) -> float:
    # Half precision is right to 1 in 2048, and what is in 32 bits now may have travelled in it.
    return 1e-3 if table.dtype == torch.float32 else 1e-2


def cross_entropy(logits: Tensor, probabilities: Tensor, temperature: float = 1.0) -> Tensor:
    """−Σ p log softmax(z / T), a mean over rows (LwF; Shi, Radu and Yang 2022, Eq. 3: no factor T²)."""
    return -(probabilities.detach() * F.log_softmax(logits / temperature, dim=1)).sum(dim=1).mean()


def kl(logits: Tensor, probabilities: Tensor, temperature: float = 1.0) -> Tensor:
    """KL(teacher ‖ student) = Σ p (log p − log softmax(z / T)), a mean over rows."""
    target = probabilities.detach()
    return F.kl_div(F.log_softmax(logits / temperature, dim=1), target, reduction="batchmean")


def entropy(probabilities: Tensor) -> Tensor:
    """−Σ p log p of every row, in nats; 0 log 0 is 0."""
    each: Tensor = torch.special.entr(probabilities)
    return each.sum(dim=1)
