"""Learning from answers instead of labels."""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import Any

import torch
from torch import Tensor, nn

from polyfed.learn.learner import Learner, batch_count, batches
from polyfed.learn.losses import AnswerForm, Distillation, knowledge_loss
from polyfed.tasks import CLASSIFICATION, Task


def distil(
    model: nn.Module,
    x: Tensor,
    answers: Tensor,
    settings: Distillation,
    generator: torch.Generator,
    *,
    given: AnswerForm = "outputs",
    memory: MutableMapping[str, Any] | None = None,
    labels: Tensor | None = None,
    task: Task = CLASSIFICATION,
) -> int:
    """Fit a model to a teacher's answers on `x`; returns the steps made. The answers stay as they are meanwhile.

    answers: rows × outputs, a teacher's outputs or its answers. A model with more outputs than the answers have is
        fitted in the first ones.
    labels: of the rows; half of the loss is then that to them.
    """
    loss = knowledge_loss(settings, given=given, task=task)
    width = answers.shape[1]
    learner = Learner(model, settings, memory, total=batch_count(len(x), settings, model))
    for rows, batch in batches(x, settings, generator, model):
        logits = model(batch)
        value = loss(logits[:, :width], answers[rows])
        learner.step(value if labels is None else (task.loss(logits, labels[rows]) + value) / 2)
    return learner.finish()
