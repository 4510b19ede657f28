"""Training with labels."""

from __future__ import annotations

from collections.abc import Callable, MutableMapping
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from polyfed.learn.learner import Learner, batches
from polyfed.learn.training import Training

ExtraLoss: TypeAlias = Callable[[nn.Module, Tensor, Tensor, Tensor], Tensor]
"""extra(model, rows, x, logits): what is added to the cross-entropy of a batch (`rows`: its row numbers)."""


def supervised(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    training: Training,
    generator: torch.Generator,
    *,
    extra: ExtraLoss | None = None,
    memory: MutableMapping[str, Any] | None = None,
) -> int:
    """Minimise cross-entropy (plus `extra`) over shuffled batches; returns the steps made.

    `memory` is where the optimiser's moments are kept between calls if the settings say so. The model is left
    in training mode. Without samples nothing is done.
    """
    learner = Learner(model, training, memory)
    for rows, batch in batches(x, training, generator, model):
        logits = model(batch)
        loss = F.cross_entropy(logits, y[rows])
        learner.step(loss if extra is None else loss + extra(model, rows, batch, logits))
    return learner.finish()
