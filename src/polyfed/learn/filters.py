"""Some filters of a model instead of all: choose them, take them out, average them where they were told.

A filter is one output of a convolution or a linear layer: a row of its weights, and its entry of the bias. Rows are
given by layer, as `{"body.conv1": tensor([0, 3])}`; entries of layers that are not named there are whole.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from polyfed.learn.weights import WeightedMean, named_tensors

FILTERED = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.Linear)


def layer_of(name: str) -> str:
    """The layer that an entry of a state dict belongs to."""
    return name.rpartition(".")[0]


def filter_counts(model: nn.Module, keep: float) -> dict[str, int]:
    """How many filters of each convolution and linear layer that trains a share of them is, rounded up."""
    travelling = named_tensors(model)
    return {
        name: math.ceil(keep * len(layer.weight))
        for name, layer in model.named_modules()
        if type(layer) in FILTERED and isinstance(layer.weight, Tensor) and f"{name}.weight" in travelling
    }


def largest_filters(
    weights: Mapping[str, Tensor], counts: Mapping[str, int], *, since: Mapping[str, Tensor] | None = None
) -> dict[str, Tensor]:
    """The numbers, in their order, of the so many filters of each layer whose weights have the largest L2 norm.

    since: earlier weights; it is then the norm of the change since these.
    """
    found: dict[str, Tensor] = {}
    for layer, count in counts.items():
        name = f"{layer}.weight"
        compared = weights[name] if since is None else weights[name] - since[name].to(weights[name].device)
        norms = compared.flatten(1).norm(dim=1)
        order = norms.argsort(descending=True, stable=True)  # of equals the first, on every machine
        found[layer] = order[:count].sort().values.int().cpu()
    return found


def take_rows(weights: Mapping[str, Tensor], rows: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """These rows alone of the layers that are named."""
    return {
        name: tensor[rows[layer_of(name)].to(tensor.device)] if layer_of(name) in rows else tensor
        for name, tensor in weights.items()
    }


def spread_rows(
    taken: Mapping[str, Tensor], rows: Mapping[str, Tensor], like: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """What `take_rows` took, back in its places; zero everywhere else."""
    return {
        name: torch.zeros_like(like[name]).index_copy_(0, rows[layer_of(name)].long(), tensor)
        if layer_of(name) in rows
        else tensor
        for name, tensor in taken.items()
    }


class RowMean:
    """The mean of weights of which some rows come, each over those who sent it. Rows that nobody sent stay.

    start: the weights as they are now.
    """

    def __init__(self, start: Mapping[str, Tensor]) -> None:
        self._start = start
        self._sums: dict[str, Tensor] = {}
        self._shares: dict[str, Tensor] = {}
        self._whole = WeightedMean()
        self.total = 0.0

    def add(self, weights: Mapping[str, Tensor], rows: Mapping[str, Tensor], share: float) -> None:
        """Add what one client sent, with its share."""
        self.total += share
        for name, tensor in weights.items():
            if layer_of(name) not in rows:
                continue
            chosen = rows[layer_of(name)].long()
            like = self._start[name]
            sums = self._sums.setdefault(name, torch.zeros(like.shape, dtype=torch.float64))
            shares = self._shares.setdefault(name, torch.zeros(len(like), dtype=torch.float64))
            sums.index_add_(0, chosen, tensor.double(), alpha=share)
            shares[chosen] += share
        whole = {name: tensor for name, tensor in weights.items() if layer_of(name) not in rows}
        if whole:
            self._whole.add(whole, share)

    def result(self) -> dict[str, Tensor]:
        """The mean, in the weights' own precision."""
        mean = self._whole.result()
        for name, sums in self._sums.items():
            told = self._shares[name] > 0
            over = self._shares[name][told].view(-1, *[1] * (sums.dim() - 1))
            mean[name] = self._start[name].clone()
            mean[name][told] = (sums[told] / over).to(mean[name].dtype)
        return mean
