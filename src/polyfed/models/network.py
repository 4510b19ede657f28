"""What every built-in model is: a body that turns inputs into features, a head that turns features into logits."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from polyfed.errors import ModelError


class Network(nn.Module):
    """A classifier in two parts, so that methods which share features can use any of them.

    body: maps a batch of inputs to features (rows × features).
    head: maps features to logits (rows × outputs); an `nn.Linear` in every model but `lenet5-fedkf`.
    """

    #: The memory format that measured faster on a CPU (a training step, one thread); an instance may differ.
    channels_last: bool = False
    #: Clients of one architecture can be trained together by `torch.func.vmap`; needs a model without buffers.
    stackable: bool = False
    #: The name under which the registry built it.
    name: str = ""

    head: nn.Module

    def __init__(self, body: nn.Module, head: nn.Module) -> None:
        super().__init__()
        self.body = body
        self.head = head

    def features(self, x: Tensor) -> Tensor:
        """What the head sees: rows × features."""
        features: Tensor = self.body(x)
        return features

    def forward(self, x: Tensor) -> Tensor:
        """The logits: rows × outputs."""
        logits: Tensor = self.head(self.features(x))
        return logits


def project(model: Network, features: int) -> None:
    """Give a model so many features: a linear layer and a ReLU at the end of its body, and a head that takes them.

    Every model gets it, also one that has so many already, so that a projection never depends on what else there is.
    With the ReLU features are what they are in all built-in models, not below 0, and body and head do not become two
    linear layers in a row.
    """
    if features < 1:
        raise ModelError(f"model '{model.name}' cannot have {features} features: at least 1 is needed")
    name, first = next(
        ((name, part) for name, part in model.head.named_modules() if isinstance(part, nn.Linear)), ("", None)
    )
    if first is None:
        raise ModelError(f"model '{model.name}' has a head without an nn.Linear: it cannot be given features")
    model.body = nn.Sequential(model.body, nn.Linear(first.in_features, features), nn.ReLU())
    head = nn.Linear(features, first.out_features, bias=first.bias is not None)
    if first is model.head:
        model.head = head
    else:
        model.head.set_submodule(name, head)


def memory_format(model: nn.Module) -> torch.memory_format:
    """The memory format for a model's images: channels-last if the module's attribute `channels_last` is True."""
    return torch.channels_last if getattr(model, "channels_last", False) is True else torch.contiguous_format


def laid_out(x: torch.Tensor, model: nn.Module) -> torch.Tensor:
    """Inputs in the layout that a model is fastest with; only images have one."""
    return x.contiguous(memory_format=memory_format(model)) if x.dim() == 4 else x
