"""Training with labels: the inner loop of nearly everything."""

from __future__ import annotations

from collections.abc import Callable, MutableMapping
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from polyfed.data import augment
from polyfed.learn.training import (
    BATCH_NORMS,
    Training,
    has_batch_norm,
    make_optimiser,
    recall,
    remember,
    shuffled_batches,
    take,
)

ExtraLoss: TypeAlias = Callable[[nn.Module, Tensor, Tensor], Tensor]


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
    """Minimise cross-entropy (plus `extra(model, x, logits)`) over shuffled batches; returns the steps made.

    `memory` is where the optimiser's moments are kept between calls if the settings say so. The model is left
    in training mode. Without samples nothing is done.
    """
    model.train()
    samples = len(y)
    if samples == 0:
        return 0
    if samples == 1 or training.batch == 1:
        _freeze_norms(model)
    optimiser = make_optimiser(model.parameters(), training)
    if training.keep_optimiser:
        recall(optimiser, memory)
    steps = 0
    for rows in shuffled_batches(samples, training, generator, merge_single=has_batch_norm(model)):
        batch = take(x, rows)
        if training.augment and batch.dim() == 4:
            batch = augment.standard(batch, generator)
        logits = model(batch)
        loss = F.cross_entropy(logits, y[rows])
        if extra is not None:
            loss = loss + extra(model, batch, logits)
        loss.backward()
        if training.clip is not None:
            nn.utils.clip_grad_norm_(model.parameters(), training.clip)
        optimiser.step()
        optimiser.zero_grad()
        steps += 1
    if training.keep_optimiser:
        remember(optimiser, memory)
    return steps


def _freeze_norms(model: nn.Module) -> None:
    """A batch of one has no statistics: BatchNorm layers use their running ones."""
    for module in model.modules():
        if isinstance(module, BATCH_NORMS):
            module.eval()
