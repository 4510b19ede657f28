"""Looking at a model without changing it."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager

import torch
from torch import Tensor, nn

from polyfed.models import features_and_logits, in_mode
from polyfed.tasks import CLASSIFICATION, Tally, Task

EVALUATION_BATCH = 256  # small enough to stay in a core's cache with the models of this field


def evaluating(model: nn.Module) -> AbstractContextManager[None]:
    """Evaluation mode; afterwards every layer is in the mode it was in."""
    return in_mode(model, training=False)


class Ensemble(nn.Module):
    """Several models as one, whose logits are the mean of theirs."""

    def __init__(self, members: Sequence[nn.Module]) -> None:
        super().__init__()
        self.members = nn.ModuleList(members)

    def forward(self, x: Tensor) -> Tensor:
        return torch.stack([member(x) for member in self.members]).mean(dim=0)


def predict(model: nn.Module, x: Tensor, batch: int = EVALUATION_BATCH) -> Tensor:
    """Logits of every row, in evaluation mode and without gradients; the model's mode is put back."""
    with evaluating(model), torch.no_grad():
        return torch.cat([model(part) for part in x.split(batch)])


def features_of(model: nn.Module, x: Tensor, batch: int = EVALUATION_BATCH) -> Tensor:
    """Features of every row (see `models.features_and_logits`), as `predict` gives the logits."""
    with evaluating(model), torch.no_grad():
        return torch.cat([features_and_logits(model, part)[0] for part in x.split(batch)])


def score(
    model: nn.Module, x: Tensor, y: Tensor, among: int | None = None, task: Task = CLASSIFICATION
) -> Tally:
    """[sum, rows] of what the task measures.

    among: how many of the first outputs the model may choose among; None is all.
    """
    return task.tally(predict(model, x)[:, :among], y)
