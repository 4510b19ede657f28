"""Which rows come next: each once, or drawn so that every class comes alike often."""

from __future__ import annotations

import torch
from torch import Tensor

from polyfed.errors import ConfigError


def random_order(samples: int, generator: torch.Generator, weights: Tensor | None = None) -> Tensor:
    """All rows in a random order; or as many, drawn with replacement, each as often as its weight says."""
    if weights is None:
        return torch.randperm(samples, generator=generator)
    ends = weights.cumsum(0)
    places = torch.rand(samples, generator=generator, dtype=torch.float64) * ends[-1]
    return torch.searchsorted(ends, places, right=True).clamp_(max=samples - 1)


def balancing_weights(labels: Tensor) -> Tensor:
    """How much each row counts so that all classes are drawn alike often: 1 over how many rows its class has.

    labels: class numbers; or rows × labels of 0 and 1, where a row has the largest weight among its labels, and rows
        without any are a class of their own.
    """
    check_balancing(labels)
    labels = labels.cpu()
    if labels.dim() == 1:
        _, which, counts = labels.unique(return_inverse=True, return_counts=True)
        per_class: Tensor = 1 / counts.double()
        return per_class[which]
    held = torch.cat([labels != 0, ~(labels != 0).any(dim=1, keepdim=True)], dim=1).double()
    return (held / held.sum(dim=0).clamp(min=1)).amax(dim=1)


def check_balancing(labels: Tensor) -> None:
    """Refuse labels that are neither class numbers nor rows × labels of 0 and 1."""
    classes = labels.dim() == 1 and not labels.is_floating_point()
    if not classes and not (labels.dim() == 2 and bool(((labels == 0) | (labels == 1)).all())):
        raise ConfigError(
            "training.sampling: balanced draws classes alike often, and these labels are no classes: set"
            " training.sampling=all"
        )
