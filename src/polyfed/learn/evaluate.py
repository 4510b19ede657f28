"""Looking at a model without changing it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

EVALUATION_BATCH = 256  # small enough to stay in a core's cache with the models of this field


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Evaluation mode; afterwards every layer is in the mode it was in."""
    trained = [module for module in model.modules() if module.training]
    for module in trained:
        module.training = False
    try:
        yield
    finally:
        for module in trained:
            module.training = True


class Ensemble(nn.Module):
    """Several models that answer as one, with the mean of their logits."""

    def __init__(self, members: Sequence[nn.Module]) -> None:
        super().__init__()
        self.members = nn.ModuleList(members)

    def forward(self, x: Tensor) -> Tensor:
        return torch.stack([member(x) for member in self.members]).mean(dim=0)


def predict(model: nn.Module, x: Tensor, batch: int = EVALUATION_BATCH) -> Tensor:
    """Logits of every row, in evaluation mode and without gradients; the model's mode is put back."""
    with evaluating(model), torch.no_grad():
        return torch.cat([model(part) for part in x.split(batch)])


def score(model: nn.Module, x: Tensor, y: Tensor, answers: int | None = None) -> list[int]:
    """[right, of]: how many rows the model classifies correctly, of how many.

    answers: choose among so many of the first outputs only.
    """
    right = int((predict(model, x)[:, :answers].argmax(dim=1) == y).sum())
    return [right, len(y)]
