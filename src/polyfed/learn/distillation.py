"""Learning from answers instead of labels."""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import Any, Literal

import torch
from torch import Tensor, nn

from polyfed.learn.learner import Learner, batch_count, batches
from polyfed.learn.losses import Distillation, knowledge_loss


def distil(
    model: nn.Module,
    x: Tensor,
    answers: Tensor,
    settings: Distillation,
    generator: torch.Generator,
    *,
    given: Literal["logits", "probabilities"] = "logits",
    memory: MutableMapping[str, Any] | None = None,
) -> int:
    """Fit a model to a teacher's answers on `x`; returns the steps made. The answers stay as they are meanwhile.

    answers: rows × outputs, as logits or as probabilities. A model with more outputs than the answers have is
        fitted in the first ones.
    """
    loss = knowledge_loss(settings, given=given)
    width = answers.shape[1]
    cosine_steps = batch_count(len(x), settings, model) if settings.cosine else None
    learner = Learner(model, settings, memory, cosine_steps=cosine_steps)
    for rows, batch in batches(x, settings, generator, model):
        learner.step(loss(model(batch)[:, :width], answers[rows]))
    return learner.finish()
