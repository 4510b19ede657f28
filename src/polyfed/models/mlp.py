"""Multi-layer perceptrons.

The fully connected nets of the federated literature (McMahan et al., AISTATS 2017, "2NN", and its
relatives). ReLU between layers, PyTorch's own initialisation, no normalisation and no dropout: no buffers,
so clients can be stacked. Images are flattened; feature vectors, shape (F,), are taken as they are.

Parameters with 1×28×28 inputs and 10 outputs: mlp-small (64) 50,890 · mlp (128-128) 118,282 · mlp-large
(256-256) 269,322.
"""

from __future__ import annotations

import math

from torch import nn

from polyfed.models.layers import Norm, Shape
from polyfed.models.network import Network
from polyfed.models.registry import register


class MLP(Network):
    """Linear layers with ReLU between them."""

    stackable = True

    def __init__(self, shape: Shape, outputs: int, hidden: tuple[int, ...]) -> None:
        layers: list[nn.Module] = [nn.Flatten()]
        inputs = math.prod(shape)
        for width in hidden:
            layers += [nn.Linear(inputs, width), nn.ReLU()]
            inputs = width
        super().__init__(nn.Sequential(*layers), nn.Linear(inputs, outputs))


@register("mlp-small", vectors=True)
def mlp_small(shape: Shape, outputs: int, _norm: Norm) -> Network:
    """One hidden layer of 64."""
    return MLP(shape, outputs, hidden=(64,))


@register("mlp", vectors=True)
def mlp(shape: Shape, outputs: int, _norm: Norm) -> Network:
    """Two hidden layers of 128."""
    return MLP(shape, outputs, hidden=(128, 128))


@register("mlp-large", vectors=True)
def mlp_large(shape: Shape, outputs: int, _norm: Norm) -> Network:
    """Two hidden layers of 256."""
    return MLP(shape, outputs, hidden=(256, 256))
