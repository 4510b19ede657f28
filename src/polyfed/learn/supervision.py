"""Training with labels."""

from __future__ import annotations

from collections.abc import Callable, Mapping, MutableMapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from polyfed.learn.learner import Learner, batch_count, batches, row_weights
from polyfed.learn.training import Training
from polyfed.models import features_and_logits
from polyfed.tasks import CLASSIFICATION, Task

ExtraLoss: TypeAlias = Callable[[nn.Module, Tensor, Tensor, Tensor], Tensor]
"""extra(model, rows, x, logits): what is added to the task's loss of a batch (`rows`: its row numbers)."""


@dataclass(frozen=True)
class FeatureLoss:
    """An extra loss that also sees the features of the batch; they come of the same forward pass as the logits.

    loss: a function (model, rows, x, logits, features) -> loss.
    """

    loss: Callable[[nn.Module, Tensor, Tensor, Tensor, Tensor], Tensor]


LocalLoss: TypeAlias = ExtraLoss | FeatureLoss
"""What can be added to the task's loss."""


def supervised(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    training: Training,
    generator: torch.Generator,
    *,
    extra: LocalLoss | None = None,
    memory: MutableMapping[str, Any] | None = None,
    correction: Mapping[str, Tensor] | None = None,
    task: Task = CLASSIFICATION,
) -> int:
    """Minimise the task's loss (plus `extra`) over shuffled batches; returns the steps made.

    `memory` is where the optimiser's moments are kept between calls if the settings say so. The model is left
    in training mode. Without samples nothing is done. `correction` is added to every gradient (see `Learner`).
    """
    total = batch_count(len(x), training, model)
    learner = Learner(model, training, memory, total=total, correction=correction)
    for rows, batch in batches(x, training, generator, model, weights=row_weights(y, training)):
        if isinstance(extra, FeatureLoss):
            features, logits = features_and_logits(model, batch)
            loss = task.loss(logits, y[rows]) + extra.loss(model, rows, batch, logits, features)
        else:
            logits = model(batch)
            loss = task.loss(logits, y[rows])
            loss = loss if extra is None else loss + extra(model, rows, batch, logits)
        learner.step(loss)
    return learner.finish()
