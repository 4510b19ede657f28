"""Several small models of one architecture trained at once, stacked in one tensor.

A tiny MLP's step is mostly overhead; one `torch.func.vmap` over ten clients measured 1.5–2.4× faster on one core,
while small convolutions lose by it. The arithmetic differs in the last bits from training one by one, so stacking
is part of a run's resolved config.
"""

from __future__ import annotations

from collections.abc import Sequence

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
    epoch = _Epoch(
        [examples[place] for place in order], training.batch, [generators[place] for place in order]
    )

    skeleton = models[order[0]]
    skeleton.train()
    forward = torch.func.vmap(
        lambda values, x: torch.func.functional_call(skeleton, dict(zip(names, values, strict=True)), (x,))
    )
    for step in range(total_steps[0]):
        active = sum(total > step for total in total_steps)
        x, y, share = epoch.batch(active)
        head = [tensor[:active].detach().requires_grad_() for tensor in stack]
        logits = forward(head, x)
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


def _laid_out(stack: Tensor) -> Tensor:
    """Matrices stored transposed, as their gradients come: an update of another layout takes a quarter of a step."""
    return stack.transpose(1, 2).contiguous().transpose(1, 2) if stack.dim() == 3 else stack


class _Epoch:
    """Batches of every client side by side (clients × rows × …), padded where a client's last one is short."""

    def __init__(
        self, examples: Sequence[tuple[Tensor, Tensor]], batch: int, generators: Sequence[torch.Generator]
    ) -> None:
        self.examples = examples
        self.size = batch
        self.generators = generators
        self.counts = [len(y) for _, y in examples]
        clients, longest = len(examples), max(self.counts)
        first_x, first_y = examples[0]
        self.x = first_x.new_empty((clients, longest, *first_x.shape[1:]))
        self.y = first_y.new_zeros((clients, longest))
        self.share = first_x.new_zeros((clients, longest))  # 1 / rows of the batch, 0 where padded
        self.places = [0] * clients
        for client, count in enumerate(self.counts):
            self.x[client, count:] = 0
            self._shuffle(client)

    def _shuffle(self, client: int) -> None:
        x, y = self.examples[client]
        count = self.counts[client]
        order = torch.randperm(count, generator=self.generators[client])
        self.x[client, :count] = x[order]
        self.y[client, :count] = y[order]
        for start in range(0, count, self.size):
            rows = min(self.size, count - start)
            self.share[client, start : start + rows] = 1 / rows

    def batch(self, active: int) -> tuple[Tensor, Tensor, Tensor]:
        """The next batch of the first `active` clients; each client's epoch begins anew when it is through."""
        for client in range(active):
            if self.places[client] >= self.counts[client]:
                self.places[client] = 0
                self._shuffle(client)
        starts = self.places[:active]
        widths = [min(self.size, self.counts[client] - start) for client, start in enumerate(starts)]
        self.places[:active] = [start + self.size for start in starts]
        width = max(widths)
        if len(set(starts)) == 1 and len(set(widths)) == 1:
            window = slice(starts[0], starts[0] + width)
            return self.x[:active, window], self.y[:active, window], self.share[:active, window]
        device = self.x.device
        offsets = torch.arange(width, device=device)[None]
        real = offsets < torch.tensor(widths, device=device)[:, None]
        rows = torch.where(real, offsets + torch.tensor(starts, device=device)[:, None], 0)
        clients = torch.arange(active, device=device)[:, None]
        return self.x[clients, rows], self.y[clients, rows], self.share[clients, rows] * real
