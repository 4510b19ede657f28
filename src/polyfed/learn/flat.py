"""A model's gradient as one vector, and a single optimiser step along such a vector."""

from __future__ import annotations

from collections.abc import MutableMapping, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from polyfed.learn.optimiser import Optimiser
from polyfed.learn.optimiser_choice import ELEMENT_WISE, class_of
from polyfed.learn.training import Training, clip_gradient
from polyfed.learn.weights import parameters_of
from polyfed.models import HALF, has_half


def flat_gradient(loss: Tensor, model: nn.Module) -> Tensor:
    """The gradient of a loss in all of a model's trained parameters, one after the other, in 32 bits at least."""
    parameters = trained(model)
    slopes = torch.autograd.grad(loss, parameters, allow_unused=True)
    parts = [
        torch.zeros_like(parameter) if slope is None else slope
        for parameter, slope in zip(parameters, slopes, strict=True)
    ]
    return _flat(parts)


def flat_step(
    model: nn.Module, gradient: Tensor, training: Training, memory: MutableMapping[str, Any]
) -> None:
    """One step of the optimiser that the settings name, along a given gradient.

    It must be one that treats every weight alike, whatever tensor it is part of (see `steps_alike`).

    The optimiser's moments are in `memory["moments"]`, as single vectors: cheap to keep, to copy and to save. So is, in
    `memory["rest"]`, what the last step lost where weights of 16 bits were rounded: a step is often smaller than that.
    """
    parameters = trained(model)
    with torch.no_grad():
        weights = _flat(parameters)
        if "rest" in memory:
            weights += memory["rest"].to(weights.device)
        if training.clips:
            gradient = gradient.clone()  # clipping is in place, and the caller's gradient is not ours
        whole, optimiser = _optimiser(model, weights, training)
        whole.data, whole.grad = weights, gradient
        if training.clips:
            clip_gradient([whole], training)
        optimiser.forget()
        if "moments" in memory:
            # A memory that comes from a file is on the CPU.
            optimiser.state[whole] = {
                name: value.to(weights.device) for name, value in memory["moments"].items()
            }
        optimiser.step()
        whole.grad = None
        memory["moments"] = dict(optimiser.state[whole])
        pieces = weights.split([parameter.numel() for parameter in parameters])
        for parameter, piece in zip(parameters, pieces, strict=True):
            parameter.copy_(piece.view(parameter.shape))
        if has_half(model):
            memory["rest"] = weights - _flat(parameters)


def steps_alike(training: Training) -> bool:
    """Whether the optimiser that settings name treats every weight alike, so that it can step along one vector."""
    return class_of(training.optimiser) in ELEMENT_WISE


_Ready = tuple[Training, nn.Parameter, Optimiser]
_ready: WeakKeyDictionary[nn.Module, _Ready] = WeakKeyDictionary()


def _optimiser(model: nn.Module, weights: Tensor, training: Training) -> tuple[nn.Parameter, Optimiser]:
    """A model's optimiser over one vector, made once: to make one takes as long as a small model's step."""
    ready = _ready.get(model)
    if (
        ready is None
        or ready[0] is not training
        or (ready[1].shape, ready[1].dtype) != (weights.shape, weights.dtype)
    ):
        whole = nn.Parameter(weights)
        ready = _ready[model] = training, whole, Optimiser([whole], training)
    return ready[1], ready[2]


def _flat(tensors: Sequence[Tensor]) -> Tensor:
    return torch.cat([(tensor.float() if tensor.dtype in HALF else tensor).reshape(-1) for tensor in tensors])


def trained(model: nn.Module) -> list[nn.Parameter]:
    return [parameter for parameter in parameters_of(model) if parameter.requires_grad]
