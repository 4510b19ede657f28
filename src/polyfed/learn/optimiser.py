"""An optimiser over a list of parameters, and what is kept of it between rounds."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, MutableMapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.adam import adam
from torch.optim.adamw import adamw
from torch.optim.sgd import sgd

from polyfed.learn.optimiser_choice import FUSED, make
from polyfed.learn.training import Training
from polyfed.models import HALF

BETAS = (0.9, 0.999)
EPSILON = 1e-8


class Optimiser:
    """SGD, Adam, AMSGrad and AdamW as `torch.optim.SGD(…, fused=True)` and its relatives do them, bit for bit, by their
    functional forms; or any other class of torch.optim.

    The classes themselves import `torch._dynamo` when they are first used, which takes a second and more of every
    launch and has no use here; and their wrappers take a tenth of a small model's step. So they are made only where
    settings name another one, or give one of the four settings of its own.

    Weights of 16 bits are stepped in float32: as long as the optimiser lives it has them in full, and what is rounded
    is what the model computes with. Most steps are smaller than half of such a weight's last digit and would be lost
    one by one; and on CPUs the fused kernels of torch 2.13 pass over most of a tensor of 16 bits.
    """

    def __init__(self, parameters: Iterable[nn.Parameter], training: Training) -> None:
        self.parameters = [parameter for parameter in parameters if parameter.requires_grad]
        self.training = training
        self.lr = training.lr
        self.state: defaultdict[nn.Parameter, dict[str, Tensor]] = defaultdict(dict)
        """The moments of each parameter, by the names that torch.optim gives them."""
        self._in_full = {
            parameter: parameter.detach().float() for parameter in self.parameters if parameter.dtype in HALF
        }
        self._made: torch.optim.Optimizer | None = None
        if training.optimiser not in FUSED:
            values = [self._in_full.get(parameter, parameter) for parameter in self.parameters]
            self._made = make(values, training.optimiser, training.shared)
            self._first = {
                parameter: dict(self._made.state[value])
                for parameter, value in zip(self.parameters, values, strict=True)
                if value in self._made.state
            }
            self.forget()

    def forget(self) -> None:
        """Begin with the moments of a new optimiser: most make theirs at the first step, Adagrad at once."""
        self.state.clear()
        if self._made is not None:
            for parameter, moments in self._first.items():
                self.state[parameter] = {name: moment.clone() for name, moment in moments.items()}

    @torch.no_grad()
    def step(self) -> None:
        """Change every parameter that has a gradient."""
        moved = [parameter for parameter in self.parameters if parameter.grad is not None]
        gradients = [parameter.grad for parameter in moved if parameter.grad is not None]
        values = list[Tensor](moved)
        if self._in_full:
            values = [self._full(parameter) for parameter in moved]
            gradients = [slope.to(value.dtype) for slope, value in zip(gradients, values, strict=True)]
        if self.training.optimiser == "sgd":
            self._sgd(moved, values, gradients)
        elif self._made is None:
            self._adam(moved, values, gradients)
        else:
            self._by_class(self._made, moved, values, gradients)
        if self._in_full:
            for parameter, value in zip(moved, values, strict=True):
                parameter.copy_(value)

    def _full(self, parameter: nn.Parameter) -> Tensor:
        """A parameter in 32 bits at least, as the last step left it; or as it is, if somebody has changed it since."""
        value = self._in_full.get(parameter)
        if value is None:
            return parameter
        if not torch.equal(value.to(parameter.dtype), parameter):
            value.copy_(parameter)
        return value

    def _sgd(self, moved: list[nn.Parameter], values: list[Tensor], gradients: list[Tensor]) -> None:
        momentum = self.training.momentum
        buffers = [self.state[parameter].get("momentum_buffer") if momentum else None for parameter in moved]
        sgd(
            values,
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

    def _adam(self, moved: list[nn.Parameter], values: list[Tensor], gradients: list[Tensor]) -> None:
        amsgrad = self.training.optimiser == "amsgrad"
        moments = [
            self._moments(parameter, value, amsgrad) for parameter, value in zip(moved, values, strict=True)
        ]
        update = adamw if self.training.optimiser == "adamw" else adam
        update(
            values,
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

    def _moments(self, parameter: nn.Parameter, value: Tensor, amsgrad: bool) -> dict[str, Tensor]:
        moments = self.state[parameter]
        if not moments:
            moments["step"] = torch.zeros((), device=parameter.device)
            for name in ("exp_avg", "exp_avg_sq", *(["max_exp_avg_sq"] if amsgrad else [])):
                moments[name] = torch.zeros_like(value)
        return moments

    def _by_class(
        self,
        made: torch.optim.Optimizer,
        moved: list[nn.Parameter],
        values: list[Tensor],
        gradients: list[Tensor],
    ) -> None:
        for parameter, value, gradient in zip(moved, values, gradients, strict=True):
            value.grad = gradient
            made.state[value] = self.state[parameter]
        for group in made.param_groups:
            group["lr"] = self.lr
        made.step()
        for value in self._in_full.values():
            value.grad = None

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
