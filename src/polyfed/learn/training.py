"""How a model is trained: the settings, and the batches that are cut."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal, Self

import torch
from pydantic import BaseModel, Field
from torch import Tensor, nn

from polyfed.schema import SECTION

BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)


class Training(BaseModel):
    """Supervised training on one client's data."""

    model_config = SECTION

    epochs: Annotated[int, Field(ge=1)] = 5
    """Passes over the client's training data in each round; typically 1 to 10."""
    steps: Annotated[int, Field(ge=1)] | None = None
    """Exactly so many batches instead of whole epochs, the same for every client (as in FedKF's code)."""
    batch: Annotated[int, Field(ge=1, le=10**6)] = 32
    """Samples per batch; a client with fewer trains on one batch of what it has."""
    optimiser: Literal["sgd", "adam", "amsgrad", "adamw"] = "sgd"
    """How a step is taken."""
    lr: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 0.05
    """Learning rate; typically 0.01 to 0.1 for sgd, 1e-4 to 1e-3 for the others."""
    decay: Annotated[float, Field(gt=0, le=1)] = 1.0
    """The learning rate is multiplied by this after every round; typically 0.99 to 1."""
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Of sgd; typically 0 or 0.9."""
    weight_decay: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    """Pull of all weights towards zero; typically 0 to 5e-4."""
    clip: Annotated[float, Field(gt=0)] | None = None
    """Largest norm of the whole gradient, or no limit."""
    augment: bool = False
    """Flip and pad-crop each batch (images only)."""
    keep_optimiser: bool = False
    """Carry the optimiser's moments over to the client's next round (needs a method whose clients keep memory)."""

    def in_round(self, number: int) -> Self:
        """These settings as they are in a round (from 1): with the learning rate that is left by then."""
        if self.decay == 1.0 or number <= 1:
            return self
        return self.model_copy(update={"lr": self.lr * self.decay ** (number - 1)})

    def batches(self, samples: int, *, merge_single: bool = False) -> int:
        """How many batches a client with so many samples trains on (see `shuffled_batches`)."""
        if samples == 0:
            return 0
        per_epoch = -(-samples // self.batch)
        if merge_single and per_epoch > 1 and samples - (per_epoch - 1) * self.batch == 1:
            per_epoch -= 1
        return self.steps if self.steps is not None else self.epochs * per_epoch


def has_batch_norm(model: nn.Module) -> bool:
    return any(isinstance(module, BATCH_NORMS) for module in model.modules())


def freeze_norms(model: nn.Module) -> None:
    """A batch of one has no statistics: let BatchNorm layers use their running ones."""
    for module in model.modules():
        if isinstance(module, BATCH_NORMS):
            module.eval()


def logits_of(model: nn.Module, x: Tensor) -> Tensor:
    """A model's logits of a batch in training, which may be a single row."""
    if len(x) == 1:
        freeze_norms(model)
    logits: Tensor = model(x)
    return logits


def take(x: Tensor, rows: Tensor) -> Tensor:
    """Rows (a vector of row numbers) of a batch, laid out as the batch is.

    Plain indexing would turn channels-last into the default, and take six times as long.
    """
    rows = rows.to(x.device)
    if x.dim() == 4 and not x.is_contiguous():
        return x.permute(0, 2, 3, 1).index_select(0, rows).permute(0, 3, 1, 2)
    return x.index_select(0, rows)


def shuffled_batches(
    samples: int, training: Training, generator: torch.Generator, *, merge_single: bool
) -> Iterator[Tensor]:
    """Row numbers of each batch: a new permutation every epoch, nothing dropped.

    With `merge_single` a last batch of one sample joins the batch before it: BatchNorm has no variance of one.
    """
    wanted = training.steps
    given = 0
    epoch = 0
    while wanted is not None or epoch < training.epochs:
        order = torch.randperm(samples, generator=generator)
        cuts = list(order.split(training.batch))
        if merge_single and len(cuts) > 1 and len(cuts[-1]) == 1:
            cuts[-2:] = [torch.cat(cuts[-2:])]
        for rows in cuts:
            if given == wanted:
                return
            yield rows
            given += 1
        epoch += 1
