"""Several small models of one architecture trained at once, stacked in one tensor.

A tiny MLP's step is mostly overhead; one step for ten clients at once measured 1.5–2.4× faster on one core, while
small convolutions lose by it. The arithmetic differs in the last bits from training one by one, so stacking is part
of a run's resolved config.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias
from weakref import WeakKeyDictionary

import torch
import torch.fx
from torch import Tensor, nn
from torch.nn import functional as F

from polyfed.learn.proximal import Proximal
from polyfed.learn.supervision import LocalLoss
from polyfed.learn.training import Training

StackedForward: TypeAlias = Callable[[Mapping[str, Tensor], Tensor], Tensor]
"""forward(values, x): the logits (models × rows × outputs) of every model on rows of its own (models × rows × …).

`values` are the parameters under their names, stacked (models × …)."""

ELEMENT_WISE = (
    nn.ELU,
    nn.GELU,
    nn.Hardsigmoid,
    nn.Hardswish,
    nn.Hardtanh,
    nn.Identity,
    nn.LeakyReLU,
    nn.LogSigmoid,
    nn.Mish,
    nn.ReLU,
    nn.ReLU6,
    nn.SELU,
    nn.SiLU,
    nn.Sigmoid,
    nn.Softplus,
    nn.Softsign,
    nn.Tanh,
)
FUNCTIONS = ("relu", "tanh", "sigmoid", torch.relu, torch.tanh, torch.sigmoid, F.relu, F.tanh, F.sigmoid)


def can_stack(training: Training) -> bool:
    """Whether these settings can be followed for stacked models: plain SGD without what needs a whole model."""
    plain = training.optimiser == "sgd" and training.clip is None
    return plain and not training.augment and not training.keep_optimiser


def can_stack_loss(extra: LocalLoss | None) -> bool:
    """Whether an extra loss has a form for stacked models: only `Proximal` has one."""
    return extra is None or isinstance(extra, Proximal)


def supervised_together(
    models: Sequence[nn.Module],
    examples: Sequence[tuple[Tensor, Tensor]],
    training: Training,
    generators: Sequence[torch.Generator],
    *,
    extras: Sequence[LocalLoss | None] | None = None,
) -> None:
    """What `supervised` does, for every model on its own examples, in one stack.

    Models must be of one architecture without buffers. Clients may hold different numbers of samples: the ones with
    more batches come first in the stack, so those still training are always its head.

    extras: one extra loss per model, or none at all; `can_stack_loss` says which ones can be used.
    """
    counts = [len(y) for _, y in examples]
    order = sorted(range(len(models)), key=lambda place: -training.batches(counts[place]))
    counts = [counts[place] for place in order]
    total_steps = [training.batches(count) for count in counts]
    skeleton = models[order[0]]
    skeleton.train()
    device = examples[0][0].device
    parameters = [dict(model.named_parameters()) for model in models]
    stack = {
        name: _laid_out(torch.stack([parameters[place][name].detach() for place in order]))
        for name in parameters[0]
    }
    trained = [name for name, parameter in skeleton.named_parameters() if parameter.requires_grad]
    proximal, anchor = _pull([extras[place] for place in order] if extras else [], trained, device)
    velocity = {name: torch.zeros_like(stack[name]) for name in trained} if training.momentum else {}
    batches = _Batches(
        [examples[place] for place in order], training.batch, [generators[place] for place in order]
    )

    forward = stacked_forward(skeleton)
    for step in range(total_steps[0]):
        active = sum(total > step for total in total_steps)
        x, y, share = batches.next(active)
        head = {name: tensor[:active].detach() for name, tensor in stack.items()}
        leaves = [head[name].requires_grad_() for name in trained]
        logits = forward(head, x)
        losses = F.cross_entropy(logits.flatten(0, 1), y.flatten(), reduction="none").view_as(y)
        gradients = torch.autograd.grad((losses * share).sum(), leaves, allow_unused=True)
        with torch.no_grad():
            for name, gradient in zip(trained, gradients, strict=True):
                direction = gradient
                if proximal:
                    pull = proximal * (head[name] - anchor[name][:active])
                    direction = pull if direction is None else direction + pull
                if direction is None:
                    continue  # as an optimiser passes over a parameter without a gradient
                if training.weight_decay:
                    direction = direction + training.weight_decay * head[name]
                if velocity:
                    direction = velocity[name][:active].mul_(training.momentum).add_(direction)
                stack[name][:active].sub_(direction, alpha=training.lr)
    with torch.no_grad():
        for row, place in enumerate(order):
            for name in trained:
                parameters[place][name].copy_(stack[name][row])


def _pull(
    extras: Sequence[LocalLoss | None], names: Sequence[str], device: torch.device
) -> tuple[float, dict[str, Tensor]]:
    """The strength of the pull of every model in the stack, and where to: its weights, stacked."""
    if all(extra is None for extra in extras):
        return 0.0, {}
    pulls = [extra for extra in extras if isinstance(extra, Proximal)]
    if len(pulls) < len(extras) or len({pull.mu for pull in pulls}) > 1:
        raise ValueError(
            "models with this extra loss cannot be trained in one stack: only a Proximal of one strength for all can;"
            " train them one by one (see learn.can_stack_loss)"
        )
    anchor = {name: torch.stack([pull.weights[name].to(device) for pull in pulls]) for name in names}
    return pulls[0].mu, {name: _laid_out(tensor) for name, tensor in anchor.items()}


# -- the forward pass of a stack -----------------------------------------------------------------------------------


def stacked_forward(model: nn.Module) -> StackedForward:
    """The forward pass of several models of this architecture at once, each on rows of its own.

    A plain chain of linear and element-wise layers, however it is written, is done in as few operations as for one
    model; everything else by `torch.func.vmap`.
    """
    chain = _chain(model)
    if chain is not None:

        def forward(values: Mapping[str, Tensor], x: Tensor) -> Tensor:
            for link in chain:
                x = link(values, x)
            return x

        return forward

    def one(values: Mapping[str, Tensor], x: Tensor) -> Tensor:
        logits: Tensor = torch.func.functional_call(model, dict(values), (x,))
        return logits

    return torch.func.vmap(one)


_Link: TypeAlias = Callable[[Mapping[str, Tensor], Tensor], Tensor]
_chains: WeakKeyDictionary[nn.Module, list[_Link] | None] = WeakKeyDictionary()


def _chain(model: nn.Module) -> list[_Link] | None:
    """What a model does to its inputs, one thing after the other; None if it may do more than `_link` knows.

    Found out once for each model, by `torch.fx`: it takes as long as a step.
    """
    if model not in _chains:
        _chains[model] = _traced(model)
    return _chains[model]


def _traced(model: nn.Module) -> list[_Link] | None:
    # A hook may do anything, and a parameter in two places has the name of one.
    hooked = any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
    every_name = dict(model.named_parameters(remove_duplicate=False))
    if hooked or len(every_name) > len(dict(model.named_parameters())):
        return None
    try:
        nodes = list(torch.fx.Tracer().trace(model).nodes)
    except Exception:
        return None  # it decides by values, say
    links: list[_Link] = []
    before = nodes[0]
    for node in nodes[1:]:
        if _is_row_count(node):
            continue  # used in `view`, if at all
        if node.args[:1] != (before,):
            return None
        if node.op == "output":
            return links
        link = _link(model, node)
        if link is None:
            return None
        links.append(link)
        before = node
    return None


def _link(model: nn.Module, node: torch.fx.Node) -> _Link | None:
    """One thing that a model does to the value before, for a stack; None if it is not known."""
    rest, target = node.args[1:], node.target
    if node.op == "call_module":
        layer = model.get_submodule(str(target))
        if type(layer) is nn.Linear:
            weight, bias = f"{target}.weight", f"{target}.bias"
            return lambda values, x: _linear(values[weight], values.get(bias), x)
        if type(layer) in ELEMENT_WISE:
            return lambda _values, x: layer(x)
        flattens = type(layer) is nn.Flatten and layer.extra_repr() == nn.Flatten().extra_repr()
    elif node.op == "call_method" and target in ("view", "reshape"):
        flattens = len(rest) == 2 and _is_row_count(rest[0]) and bool(rest[1] == -1)
    else:
        if target in FUNCTIONS and not rest and node.kwargs in ({}, {"inplace": False}):
            function = getattr(torch, target if isinstance(target, str) else target.__name__)
            return lambda _values, x: function(x)
        from_first = (rest, node.kwargs) in (((1,), {}), ((), {"start_dim": 1}))
        flattens = target in ("flatten", torch.flatten) and from_first
    return (lambda _values, x: x.flatten(2)) if flattens else None


def _is_row_count(node: object) -> bool:
    """Whether this is `x.size(0)`."""
    size = isinstance(node, torch.fx.Node) and (node.op, node.target) == ("call_method", "size")
    return size and node.args[1:] == (0,)  # type: ignore[attr-defined]


def _linear(weight: Tensor, bias: Tensor | None, x: Tensor) -> Tensor:
    rows = x.flatten(1, -2)  # models × rows × inputs
    if bias is None:
        out = torch.bmm(rows, weight.transpose(1, 2))
    else:
        out = torch.baddbmm(bias.unsqueeze(1), rows, weight.transpose(1, 2))
    return out if x.dim() == 3 else out.unflatten(1, x.shape[1:-1])


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
        # Of its own type: inputs may be token ids.
        self.share = first_x.new_zeros(
            (len(examples), width), dtype=torch.float32
        )  # 1 / rows of the batch, 0 where padded

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
