"""A model's gradient as one vector, and a single optimiser step along such a vector."""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import Any

import torch
from torch import Tensor, nn

from polyfed.learn.training import Training, make_optimiser


def flat_gradient(loss: Tensor, model: nn.Module) -> Tensor:
    """The gradient of a loss in all of a model's trained parameters, one after the other."""
    parameters = trained(model)
    slopes = torch.autograd.grad(loss, parameters, allow_unused=True)
    parts = [
        torch.zeros_like(parameter) if slope is None else slope
        for parameter, slope in zip(parameters, slopes, strict=True)
    ]
    return torch.cat([part.reshape(-1) for part in parts])


def flat_step(
    model: nn.Module, gradient: Tensor, training: Training, memory: MutableMapping[str, Any]
) -> None:
    """One step of the optimiser that the settings name, along a given gradient.

    The optimiser's moments are in `memory["moments"]`, as single vectors: cheap to keep, to copy and to save.
    """
    parameters = trained(model)
    with torch.no_grad():
        whole = nn.Parameter(torch.cat([parameter.reshape(-1) for parameter in parameters]))
        whole.grad = gradient
        if training.clip is not None:
            whole.grad = gradient.clone()  # clipping is in place, and the caller's gradient is not ours
            nn.utils.clip_grad_norm_([whole], training.clip)
        optimiser = make_optimiser([whole], training)
        if "moments" in memory:
            optimiser.state[whole] = memory["moments"]
        optimiser.step()
        memory["moments"] = {
            name: value for name, value in optimiser.state[whole].items() if value is not None
        }
        place = 0
        for parameter in parameters:
            end = place + parameter.numel()
            parameter.copy_(whole[place:end].view(parameter.shape))
            place = end


def trained(model: nn.Module) -> list[nn.Parameter]:
    return [parameter for parameter in model.parameters() if parameter.requires_grad]
