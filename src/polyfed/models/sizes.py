"""How big a model is: parameters, multiply-accumulates, bytes of a training step."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from polyfed import plug_ins
from polyfed.errors import ModelError, describe
from polyfed.models.adapter import adapt
from polyfed.models.features import feature_count
from polyfed.models.frozen import frozen_names, note_frozen
from polyfed.models.layers import Norm, Shape
from polyfed.models.network import memory_format
from polyfed.models.outside import is_outside, is_reference, plug_in_names
from polyfed.models.precision import fit_types
from polyfed.models.probe import input_type, probe
from polyfed.models.registry import construct, names, own_maker, registered, seeded

MOST_ROWS = 4096  # that a module with numbers in it is tried with; activations grow with the rows


@dataclass(frozen=True)
class Size:
    """How big a model is.

    parameters: trainable or not.
    macs: multiply-accumulates of one forward pass of one input.
    memory_bytes: what one training step holds (see `size`).
    weights_bytes: parameters and buffers, as they travel where weights are sent: without what is frozen.
    """

    parameters: int
    macs: int
    memory_bytes: int
    weights_bytes: int


class ListedModel(NamedTuple):
    """A registered model as `table` lists it."""

    name: str
    size: Size
    channels_last: bool
    features: int | None
    """None for a module without a linear layer."""


def size(
    model: str | nn.Module,
    shape: Shape,
    outputs: int = 10,
    norm: Norm = "batch",
    batch: int = 1,
    features: int | None = None,
) -> Size:
    """The size of a model, by name or as a module (then `outputs`, `norm` and `features` are ignored).

    MACs are those of convolutions and matrix products, without biases. Memory, in bytes, is

        parameters + their gradients + buffers + activations

    where activations are the tensors that autograd keeps for the backward pass of a batch of `batch` inputs,
    each storage counted once. Not in it: the state of the optimiser, the workspace of single operations and,
    for a name, the copy that flattening a channels_last map makes.
    """
    if batch < 1:
        raise ModelError(f"batch must be at least 1, not {batch}")
    if isinstance(model, str):
        return _listed(model, tuple(shape), outputs, norm, batch, features).size
    return _measure(model, shape, batch)


def table(
    pattern: str = "*", shape: Shape = (3, 32, 32), outputs: int = 10, norm: Norm = "batch"
) -> list[ListedModel]:
    """Every model that matches the wildcard and takes the shape, plug-ins' last; memory for one input.

    A plug-in that cannot be used is left out, with one line in the log. `my_models:small_net` is listed by itself.
    """
    if is_reference(pattern):
        return [_listed(pattern, tuple(shape), outputs, norm, 1, None)]
    taken = (name for name in names(pattern) if len(shape) == 3 or registered(name).vectors)
    rows = [_listed(name, tuple(shape), outputs, norm, 1, None) for name in taken]
    for name in plug_in_names(pattern):
        if name.lower() in names():
            plug_ins.warn_once(
                f"the plug-in model '{name}' is not used: there is a model of that name already"
            )
            continue
        try:
            rows.append(_listed(name, tuple(shape), outputs, norm, 1, None))
        except Exception as error:
            reason = str(error) if isinstance(error, ModelError) else f"'{name}': {describe(error)}"
            plug_ins.warn_once(f"a plug-in's model cannot be listed: {reason}")
    return rows


def listed(name: str, shape: Shape = (3, 32, 32), outputs: int = 10, norm: Norm = "batch") -> ListedModel:
    """One model by its name, as `table` lists it; also one of a family that is not listed, such as wrn-34-1."""
    known = name.lower() in names() or not is_outside(name)
    return _listed(name.lower() if known else name, tuple(shape), outputs, norm, 1, None)


@lru_cache(maxsize=4096)
def _listed(
    name: str, shape: Shape, outputs: int, norm: Norm, batch: int, features: int | None
) -> ListedModel:
    maker = own_maker(name, shape, outputs, norm)
    if maker is not None:
        with seeded(0):
            own = maker()
            adapt(own, shape, outputs)
            fit_types(own, shape)
            note_frozen(own)
        last = memory_format(own) is torch.channels_last
        return ListedModel(name, _measure(own, shape, batch), last, _feature_count(own, shape))
    # On the meta device nothing is allocated, drawn or computed: only shapes pass through the model.
    with torch.device("meta"):
        model = construct(name, shape, outputs, norm, features)
    for parent in list(model.modules()):
        for key, child in parent.named_children():
            if isinstance(child, nn.BatchNorm2d | nn.GroupNorm):
                setattr(parent, key, NormStandIn(child))
    count = feature_count(model, shape)
    return ListedModel(name, _measure(model, shape, batch), model.channels_last, count)


def _feature_count(model: nn.Module, shape: Shape) -> int | None:
    try:
        return feature_count(model, shape)
    except ModelError:
        return None


class Keep(torch.autograd.Function):
    """Something of the shape of x that keeps x and statistics for the backward pass and computes nothing."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, statistics: Tensor) -> Tensor:
        ctx.save_for_backward(x, statistics)
        return torch.empty_like(x)


class NormStandIn(nn.Module):
    """Holds and keeps what a norm does; PyTorch's own norms take milliseconds each on the meta device."""

    def __init__(self, norm: nn.BatchNorm2d | nn.GroupNorm) -> None:
        super().__init__()
        self.norm = norm

    def forward(self, x: Tensor) -> Tensor:
        # Mean and deviation: of each channel over the batch, or of each group of each row.
        norm = self.norm
        count = norm.num_features if isinstance(norm, nn.BatchNorm2d) else x.shape[0] * norm.num_groups
        kept: Tensor = Keep.apply(x, x.new_empty(2 * count))  # type: ignore[no-untyped-call]
        return kept


def _measure(model: nn.Module, shape: Shape, batch: int) -> Size:
    parameters = list(model.parameters())
    real = any(not parameter.is_meta for parameter in parameters)
    rows = max(
        min(batch, MOST_ROWS) if real else batch, 2
    )  # BatchNorm refuses to train on one value per channel
    buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
    fixed = _bytes(parameters) + _bytes(p for p in parameters if p.requires_grad) + _bytes(buffers.values())
    dtype = input_type(model, shape)  # may take passes that are not to be counted
    # It counts what is computed, whichever way a model calls it: by layers, or by functions such as `F.linear`.
    counter = FlopCounterMode(display=False)
    with counter, _keeping([*parameters, *buffers.values()]) as kept:
        probe(model, shape, rows=rows, training=True, buffers=buffers, dtype=dtype)
    return Size(
        parameters=sum(p.numel() for p in parameters),
        macs=counter.get_total_flops() // 2 // rows,  # a multiply-accumulate is two operations
        memory_bytes=fixed + sum(storage.nbytes() for storage in kept.values()) * batch // rows,
        weights_bytes=_bytes(_travelling(model)),
    )


def _travelling(model: nn.Module) -> Iterator[Tensor]:
    """What of a model is exchanged: no frozen parts, and tied weights once."""
    parameters = dict(model.named_parameters(remove_duplicate=False))
    first = {name for name, _ in model.named_parameters()}
    for name, tensor in model.state_dict().items():
        if name not in frozen_names(model) and (name in first or name not in parameters):
            yield tensor


def _bytes(tensors: Iterable[Tensor]) -> int:
    return sum(t.numel() * t.element_size() for t in tensors)


@contextmanager
def _keeping(own_tensors: Iterable[Tensor]) -> Iterator[dict[int, torch.UntypedStorage]]:
    """Collects each storage that autograd saves for the backward pass, except the model's own."""
    own = {tensor.untyped_storage()._cdata for tensor in own_tensors}
    kept: dict[int, torch.UntypedStorage] = {}

    def save(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage._cdata not in own:
            kept[storage._cdata] = storage
        return tensor

    with torch.enable_grad(), torch.autograd.graph.saved_tensors_hooks(save, lambda tensor: tensor):
        yield kept
