"""SGD, Adam, AMSGrad and AdamW over a list of parameters, and what is kept of them between rounds."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, MutableMapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.adam import adam
from torch.optim.adamw import adamw
from torch.optim.sgd import sgd

from polyfed.learn.training import Training

BETAS = (0.9, 0.999)
EPSILON = 1e-8


class Optimiser:
    """What `torch.optim.SGD(…, fused=True)` and its relatives do, bit for bit, by their functional forms.

    The classes themselves import `torch._dynamo` when they are first used, which takes a second and more of every
    launch and has no use here; and their wrappers take a tenth of a small model's step.
    """

    def __init__(self, parameters: Iterable[nn.Parameter], training: Training) -> None:
        self.parameters = [parameter for parameter in parameters if parameter.requires_grad]
        self.training = training
        self.lr = training.lr
        self.state: defaultdict[nn.Parameter, dict[str, Tensor]] = defaultdict(dict)
        """The moments of each parameter, by the names that torch.optim gives them."""

    @torch.no_grad()
    def step(self) -> None:
        """Change every parameter that has a gradient."""
        moved = [parameter for parameter in self.parameters if parameter.grad is not None]
        gradients = [parameter.grad for parameter in moved if parameter.grad is not None]
        if self.training.optimiser == "sgd":
            self._sgd(moved, gradients)
        else:
            self._adam(moved, gradients)

    def _sgd(self, moved: list[nn.Parameter], gradients: list[Tensor]) -> None:
        momentum = self.training.momentum
        buffers = [self.state[parameter].get("momentum_buffer") if momentum else None for parameter in moved]
        sgd(
            list[Tensor](moved),
            gradients,
            buffers,
            fused=True,
            weight_decay=self.training.weight_decay,
            momentum=momentum,
            lr=self.lr,
            dampening=0.0,
            nesterov=False,
            maximize=False,
        )
        for parameter, buffer in zip(moved, buffers, strict=True):
            if buffer is not None:  # made by the first step
                self.state[parameter]["momentum_buffer"] = buffer

    def _adam(self, moved: list[nn.Parameter], gradients: list[Tensor]) -> None:
        amsgrad = self.training.optimiser == "amsgrad"
        moments = [self._moments(parameter, amsgrad) for parameter in moved]
        update = adamw if self.training.optimiser == "adamw" else adam
        update(
            list[Tensor](moved),
            gradients,
            [moment["exp_avg"] for moment in moments],
            [moment["exp_avg_sq"] for moment in moments],
            [moment["max_exp_avg_sq"] for moment in moments] if amsgrad else [],
            [moment["step"] for moment in moments],
            fused=True,
            amsgrad=amsgrad,
            beta1=BETAS[0],
            beta2=BETAS[1],
            lr=self.lr,
            weight_decay=self.training.weight_decay,
            eps=EPSILON,
            maximize=False,
        )

    def _moments(self, parameter: nn.Parameter, amsgrad: bool) -> dict[str, Tensor]:
        moments = self.state[parameter]
        if not moments:
            moments["step"] = torch.zeros((), device=parameter.device)
            for name in ("exp_avg", "exp_avg_sq", *(["max_exp_avg_sq"] if amsgrad else [])):
                moments[name] = torch.zeros_like(parameter)
        return moments

    def zero_grad(self) -> None:
        for parameter in self.parameters:
            parameter.grad = None


def recall(optimiser: Optimiser, memory: MutableMapping[str, Any] | None) -> None:
    """Give an optimiser back the moments that `remember` kept."""
    for index, moments in ((memory or {}).get("optimiser") or {}).items():
        parameter = optimiser.parameters[int(index)]
        optimiser.state[parameter] = {
            name: _laid_out_as(moment, parameter) for name, moment in moments.items()
        }


def _laid_out_as(moment: Tensor, parameter: Tensor) -> Tensor:
    """Fused kernels walk through memory: a moment must be laid out as its parameter is (channels-last, say)."""
    if moment.shape == parameter.shape:
        return torch.empty_like(parameter, dtype=moment.dtype).copy_(moment)
    return moment.to(parameter.device)


def remember(optimiser: Optimiser, memory: MutableMapping[str, Any] | None) -> None:
    """Keep an optimiser's moments in a client's memory."""
    if memory is not None:
        memory["optimiser"] = {
            str(index): optimiser.state[parameter]
            for index, parameter in enumerate(optimiser.parameters)
            if optimiser.state[parameter]
        }
