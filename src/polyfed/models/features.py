"""Features and logits of any model, built in or not."""

from __future__ import annotations

import threading
from typing import Any

import torch
from torch import Tensor, nn

from polyfed.errors import ModelError
from polyfed.models.layers import Shape
from polyfed.models.network import Network
from polyfed.models.probe import display_name, expect_tokens, largest_id, probe


def features_and_logits(model: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
    """What the last linear layer sees, and the logits, in one pass through which gradients flow.

    A `Network` says what its features are. For any other module they are the input of the `nn.Linear` that
    its forward calls last; the module itself is not changed. Features are in float32, whatever the model computes in.
    """
    if isinstance(model, Network):
        features = model.features(x)
        return features.float(), model.head(features)
    features, logits = _hooked(model, x)
    return features.float(), logits


def feature_count(model: nn.Module, shape: Shape) -> int:
    """How many features a model has for inputs of this shape, found by a forward pass of zeros in evaluation mode."""
    with torch.no_grad():
        features = probe(_Features(model), shape)
    if features.dim() != 2:
        raise ModelError(
            f"model '{display_name(model)}' has features of shape {tuple(features.shape[1:])}; they must be rows ×"
            " features: end it with an nn.Linear on rows"
        )
    return features.shape[1]


class _Features(nn.Module):
    """A model that answers with its features."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.name = display_name(model)
        expect_tokens(self, largest_id(model))

    def forward(self, x: Tensor) -> Tensor:
        return features_and_logits(self.model, x)[0]


def _hooked(model: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
    seen: list[Tensor] = []
    thread = threading.get_ident()

    def note(_layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        # Another thread may run the same module meanwhile: its calls are not ours.
        if threading.get_ident() == thread:
            seen[:] = [args[0] if args else kwargs["input"]]

    handles = []
    try:
        for layer in model.modules():
            if isinstance(layer, nn.Linear):
                handles.append(layer.register_forward_pre_hook(note, with_kwargs=True))
        logits: Tensor = model(x)
    finally:
        for handle in handles:
            handle.remove()
    if not seen:
        raise ModelError(
            f"model '{display_name(model)}' calls no nn.Linear, so it has no features; end it with one"
        )
    return seen[0], logits
