"""Learning from answers instead of labels."""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

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
    labels: Tensor | None = None,
) -> int:
    """Fit a model to a teacher's answers on `x`; returns the steps made. The answers stay as they are meanwhile.

    answers: rows × outputs, as logits or as probabilities. A model with more outputs than the answers have is
        fitted in the first ones.
    labels: of the rows; half of the loss is then the cross-entropy to them.
    """
    loss = knowledge_loss(settings, given=given)
    width = answers.shape[1]
    learner = Learner(model, settings, memory, total=batch_count(len(x), settings, model))
    for rows, batch in batches(x, settings, generator, model):
        logits = model(batch)
        value = loss(logits[:, :width], answers[rows])
        learner.step(value if labels is None else (F.cross_entropy(logits, labels[rows]) + value) / 2)
    return learner.finish()
