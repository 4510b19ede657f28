"""The inner loop of nearly everything: shuffled batches, a loss, a step."""

from __future__ import annotations

import math
from collections.abc import Callable, MutableMapping
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from polyfed.data import augment
from polyfed.learn.training import (
    Training,
    freeze_norms,
    has_batch_norm,
    make_optimiser,
    recall,
    remember,
    shuffled_batches,
    take,
)

BatchLoss: TypeAlias = Callable[[Tensor, Tensor, Tensor], Tensor]
"""loss(rows, x, logits): the row numbers of the batch, its inputs (augmented, if so set), the model's logits."""


def descend(
    model: nn.Module,
    x: Tensor,
    training: Training,
    generator: torch.Generator,
    loss: BatchLoss,
    *,
    memory: MutableMapping[str, Any] | None = None,
    cosine: bool = False,
) -> int:
    """Minimise a loss over shuffled batches of `x`; returns the steps made.

    memory: where the optimiser's moments are kept between calls if the settings say so.
    cosine: the learning rate falls to zero along a cosine over the steps of this call.
    The model is left in training mode. Without samples nothing is done.
    """
    model.train()
    samples = len(x)
    if samples == 0:
        return 0
    if samples == 1 or training.batch == 1:
        freeze_norms(model)
    optimiser = make_optimiser(model.parameters(), training)
    if training.keep_optimiser:
        recall(optimiser, memory)
    merge_single = has_batch_norm(model)
    wanted = training.batches(samples, merge_single=merge_single)
    steps = 0
    for rows in shuffled_batches(samples, training, generator, merge_single=merge_single):
        if cosine:
            for group in optimiser.param_groups:
                group["lr"] = training.lr * (1 + math.cos(math.pi * steps / wanted)) / 2
        batch = take(x, rows)
        if training.augment and batch.dim() == 4:
            batch = augment.standard(batch, generator)
        loss(rows, batch, model(batch)).backward()
        if training.clip is not None:
            nn.utils.clip_grad_norm_(model.parameters(), training.clip)
        optimiser.step()
        optimiser.zero_grad()
        steps += 1
    if training.keep_optimiser:
        remember(optimiser, memory)
    return steps
