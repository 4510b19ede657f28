"""What every model of ours is: a body that makes features of inputs, a head that makes logits of features."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Network(nn.Module):
    """A classifier in two parts, so that methods which share features can use any of them.

    body: maps a batch of inputs to features (rows × feature_count).
    head: maps features to logits (rows × outputs); an `nn.Linear` in every model but `lenet5-fedkf`.
    """

    #: The memory format that measured faster on a CPU (a training step, one thread); an instance may differ.
    channels_last: bool = False
    #: Clients of one architecture can be trained as one by `torch.func.vmap`; needs a model without buffers.
    stackable: bool = False
    #: The name under which the registry built it.
    name: str = ""

    head: nn.Module

    def __init__(self, body: nn.Module, head: nn.Module) -> None:
        super().__init__()
        self.body = body
        self.head = head

    def features(self, x: Tensor) -> Tensor:
        """What the head sees: rows × feature_count."""
        features: Tensor = self.body(x)
        return features

    def forward(self, x: Tensor) -> Tensor:
        """The logits: rows × outputs."""
        logits: Tensor = self.head(self.features(x))
        return logits

    @property
    def feature_count(self) -> int:
        """The number of features per row: the inputs of the head's first linear layer."""
        return next(layer.in_features for layer in self.head.modules() if isinstance(layer, nn.Linear))


def memory_format(model: nn.Module) -> torch.memory_format:
    """The memory format for a model's images; any module may set `channels_last = True` to ask for it."""
    return torch.channels_last if getattr(model, "channels_last", False) is True else torch.contiguous_format
