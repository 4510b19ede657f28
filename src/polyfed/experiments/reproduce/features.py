"""A model's features of data, in two dimensions."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from polyfed import learn, models
from polyfed.data import Rows


def features_of(model: nn.Module, rows: Rows) -> Tensor:
    """The input of the last linear layer for every row, in evaluation mode: rows × features."""
    x = rows.inputs(models.memory_format(model))
    return learn.features_of(model, x).flatten(1)


def principal_components(features: Tensor) -> tuple[Tensor, list[float]]:
    """Principal components: every row's place along the two directions of most variance, and their shares of it.

    A direction has no sign of its own; here its largest entry is positive, so that the same features always give the
    same picture.
    """
    centred = (features - features.mean(dim=0)).double()
    _, lengths, directions = torch.linalg.svd(centred, full_matrices=False)
    kept = directions[:2]
    largest = kept.gather(1, kept.abs().argmax(dim=1, keepdim=True))
    total = lengths.square().sum()
    return centred @ (kept * largest.sign()).T, (lengths[:2].square() / total).tolist()
