"""Several small models of one architecture trained at once, stacked in one tensor.

A tiny MLP's step is mostly overhead; one `torch.func.vmap` over ten clients measured 1.5–2.4× faster on one core,
while small convolutions lose by it. The arithmetic differs in the last bits from training one by one, so stacking
is part of a run's resolved config.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from polyfed.learn.training import Training


def can_stack(training: Training) -> bool:
    """Whether these settings can be followed for stacked models: plain SGD without what needs a whole model."""
    plain = training.optimiser == "sgd" and training.clip is None
    return plain and not training.augment and not training.keep_optimiser


def supervised_together(
    models: Sequence[nn.Module],
    examples: Sequence[tuple[Tensor, Tensor]],
    training: Training,
    generators: Sequence[torch.Generator],
    *,
    proximal: float = 0.0,
) -> None:
    """What `supervised` does, for every model on its own examples, in one stack.

    Models must be of one architecture without buffers. `proximal` pulls each model towards where it started
    (FedProx's µ). Clients may hold different numbers of samples: the ones with more batches come first in the
    stack, so those still training are always its head.
    """
    counts = [len(y) for _, y in examples]
    order = sorted(range(len(models)), key=lambda place: -training.batches(counts[place]))
    counts = [counts[place] for place in order]
    total_steps = [training.batches(count) for count in counts]
    names = [name for name, _ in models[0].named_parameters()]
    parameters = [dict(model.named_parameters()) for model in models]
    stack = [_laid_out(torch.stack([parameters[place][name].detach() for place in order])) for name in names]
    anchor = [tensor.clone() for tensor in stack] if proximal else []
    velocity = [torch.zeros_like(tensor) for tensor in stack] if training.momentum else []
    batches = _Batches(
        [examples[place] for place in order], training.batch, [generators[place] for place in order]
    )

    skeleton = models[order[0]]
    skeleton.train()
    forward = getattr(skeleton, "stacked", None) or _vmapped(skeleton)
    for step in range(total_steps[0]):
        active = sum(total > step for total in total_steps)
        x, y, share = batches.next(active)
        head = [tensor[:active].detach().requires_grad_() for tensor in stack]
        logits = forward(dict(zip(names, head, strict=True)), x)
        losses = F.cross_entropy(logits.flatten(0, 1), y.flatten(), reduction="none").view_as(y)
        gradients = torch.autograd.grad((losses * share).sum(), head)
        with torch.no_grad():
            for place, (values, gradient) in enumerate(zip(head, gradients, strict=True)):
                direction = gradient
                if proximal:
                    direction = direction + proximal * (values - anchor[place][:active])
                if training.weight_decay:
                    direction = direction + training.weight_decay * values
                if velocity:
                    direction = velocity[place][:active].mul_(training.momentum).add_(direction)
                stack[place][:active].sub_(direction, alpha=training.lr)
    with torch.no_grad():
        for row, place in enumerate(order):
            for name, tensor in zip(names, stack, strict=True):
                parameters[place][name].copy_(tensor[row])


def _vmapped(skeleton: nn.Module) -> Callable[[dict[str, Tensor], Tensor], Tensor]:
    """Any module's forward over a stack; a model that can do it in fewer operations has `stacked` of its own."""

    def one(values: dict[str, Tensor], x: Tensor) -> Tensor:
        logits: Tensor = torch.func.functional_call(skeleton, values, (x,))
        return logits

    return torch.func.vmap(one)


def _laid_out(stack: Tensor) -> Tensor:
    """Matrices stored transposed, as their gradients come: an update of another layout takes a quarter of a step."""
    return stack.transpose(1, 2).contiguous().transpose(1, 2) if stack.dim() == 3 else stack


class _Batches:
    """The next batch of every client side by side (clients × rows × …), in buffers small enough for a core's cache."""

    def __init__(
        self, examples: Sequence[tuple[Tensor, Tensor]], size: int, generators: Sequence[torch.Generator]
    ) -> None:
        self.examples = examples
        self.size = size
        self.generators = generators
        self.counts = [len(y) for _, y in examples]
        self.left: list[list[tuple[Tensor, Tensor]]] = [
            [] for _ in examples
        ]  # (row numbers, labels) of batches
        self.widths = [0] * len(examples)
        first_x, first_y = examples[0]
        width = min(size, max(self.counts))
        self.x = first_x.new_zeros((len(examples), width, *first_x.shape[1:]))
        self.y = first_y.new_zeros((len(examples), width))
        self.share = first_x.new_zeros((len(examples), width))  # 1 / rows of the batch, 0 where padded

    def next(self, active: int) -> tuple[Tensor, Tensor, Tensor]:
        """The next batch of the first `active` clients; a client's rows are shuffled anew when it is through.

        A client whose batch is short is padded with rows of its last one, which do not count.
        """
        for client in range(active):
            rows, labels = self._rows(client)
            width = len(rows)
            torch.index_select(self.examples[client][0], 0, rows, out=self.x[client, :width])
            self.y[client, :width] = labels
            if width != self.widths[client]:
                self.widths[client] = width
                self.share[client, :width] = 1 / width
                self.share[client, width:] = 0
        widest = max(self.widths[:active])
        return self.x[:active, :widest], self.y[:active, :widest], self.share[:active, :widest]

    def _rows(self, client: int) -> tuple[Tensor, Tensor]:
        if not self.left[client]:
            y = self.examples[client][1]
            order = torch.randperm(self.counts[client], generator=self.generators[client]).to(y.device)
            self.left[client] = list(zip(order.split(self.size), y[order].split(self.size), strict=True))
        return self.left[client].pop(0)
