"""A model's weights as plain tensors: take them out, put them in, average them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor, nn

from polyfed.errors import ModelError
from polyfed.learn.training import BATCH_NORMS
from polyfed.models import display_name, frozen_names


def named_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Every parameter and lasting buffer but frozen ones, under its name in the state dict: what travels and lasts.

    A parameter that is in several places (tied weights) is there once, under the first of its names.
    """
    found: dict[str, Tensor] = {}
    _collect(model, "", found, set())
    for name in frozen_names(model):
        found.pop(name, None)
    return found


def other_names(model: nn.Module) -> dict[str, str]:
    """Of parameters that are in several places, every name but the first, with the first one."""
    firsts: dict[int, str] = {}
    parameters = model.named_parameters(remove_duplicate=False)
    found = {name: firsts.setdefault(id(parameter), name) for name, parameter in parameters}
    return {name: first for name, first in found.items() if name != first}


def all_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Every parameter and lasting buffer, frozen or not, under all its names; a tenth of `state_dict`'s overhead."""
    found: dict[str, Tensor] = {}
    _collect(model, "", found, None)
    return found


def _collect(module: nn.Module, prefix: str, found: dict[str, Tensor], seen: set[int] | None) -> None:
    """seen: the parameters that were found before, which are left out."""
    for name, parameter in module._parameters.items():
        if parameter is None or (seen is not None and id(parameter) in seen):
            continue
        found[prefix + name] = parameter.data
        if seen is not None:
            seen.add(id(parameter))
    for name, buffer in module._buffers.items():
        if buffer is not None and name not in module._non_persistent_buffers_set:
            found[prefix + name] = buffer
    for name, child in module._modules.items():
        if child is not None:
            _collect(child, f"{prefix}{name}.", found, seen)


def parameters_of(model: nn.Module) -> list[nn.Parameter]:
    """As `model.parameters()`, each once and in the same order; a third of its overhead."""
    found: dict[nn.Parameter, None] = {}
    _collect_parameters(model, found)
    return list(found)


def _collect_parameters(module: nn.Module, found: dict[nn.Parameter, None]) -> None:
    for parameter in module._parameters.values():
        if parameter is not None:
            found[parameter] = None
    for child in module._modules.values():
        if child is not None:
            _collect_parameters(child, found)


def make_ready(model: nn.Module) -> None:
    """Training mode and no gradients: what a step may rely on. (`train()` and `parameters()` cost ten times more.)"""
    if not model.training:
        model.training = True
    for parameter in model._parameters.values():
        if parameter is not None and parameter.grad is not None:
            parameter.grad = None
    for child in model._modules.values():
        if child is not None:
            make_ready(child)


def weights_of(model: nn.Module) -> dict[str, Tensor]:
    """A copy of every parameter and buffer that is not frozen."""
    return {name: tensor.clone() for name, tensor in named_tensors(model).items()}


def frozen_weights_of(model: nn.Module) -> dict[str, Tensor]:
    """A copy of what is frozen: what `weights_of` lacks of the whole model."""
    frozen = frozen_names(model)
    return {name: tensor.clone() for name, tensor in all_tensors(model).items() if name in frozen}


def load_weights(model: nn.Module, weights: Mapping[str, Tensor], *, partly: bool = False) -> None:
    """Copy weights into a model. Names and shapes must agree; `partly` allows some names to be absent.

    They are what `weights_of` gives: a model's frozen parts are never changed.
    """
    if not isinstance(weights, Mapping):
        raise ModelError("no weights at all")
    own = named_tensors(model)
    unknown = weights.keys() - own.keys()
    absent = set() if partly else own.keys() - weights.keys()
    if unknown or absent:
        name = sorted(unknown or absent)[0]
        where = "not in" if unknown else "only in"
        raise ModelError(f"weights of another architecture: '{name}' is {where} {display_name(model)}")
    with torch.no_grad():
        for name, tensor in weights.items():
            if not isinstance(tensor, Tensor):
                raise ModelError(f"weights '{name}' are not a tensor")
            if own[name].shape != tensor.shape:
                raise ModelError(
                    f"weights of another size: '{name}' is {tuple(tensor.shape)},"
                    f" the model's is {tuple(own[name].shape)}"
                )
            own[name].copy_(tensor)


def load_frozen(model: nn.Module, weights: Mapping[str, Tensor]) -> None:
    """Copy what is frozen into a model, of weights of the whole of it or of a part."""
    own = all_tensors(model)
    with torch.no_grad():
        for name in frozen_names(model) & weights.keys():
            own[name].copy_(weights[name])


def trained_tensors(model: nn.Module) -> list[Tensor]:
    """Everything that training changes: parameters and running statistics.

    Other buffers may hold what they like, such as a mask of -inf.
    """
    if frozen_names(model):
        buffers = dict(model.named_buffers())
        kept = named_tensors(model).items()
        return [tensor for name, tensor in kept if name not in buffers or is_statistic(name)]
    found: list[Tensor] = []
    _collect_trained(model, found)
    return found


def _collect_trained(module: nn.Module, found: list[Tensor]) -> None:
    found += [parameter.data for parameter in module._parameters.values() if parameter is not None]
    for name, buffer in module._buffers.items():
        if buffer is not None and is_statistic(name):
            found.append(buffer)
    for child in module._modules.values():
        if child is not None:
            _collect_trained(child, found)


def all_finite(tensors: Iterable[Tensor]) -> bool:
    """Whether no entry of these tensors is NaN or infinite."""
    known = list(tensors)
    # One pass instead of three: NaN and infinity show in the sum. A sum can also overflow by itself.
    quick = math.isfinite(sum(float(each.sum()) for each in known))
    return quick or all(bool(torch.isfinite(each).all()) for each in known)


def root_mean_square(tensors: Sequence[Tensor]) -> float:
    """Of all entries of these tensors, 0 where there are none; infinity where they are too large to be squared."""
    entries = sum(tensor.numel() for tensor in tensors)
    flat = (tensor.reshape(-1) for tensor in tensors)  # a norm is refused to tensors of over 64 dimensions
    norms = (torch.linalg.vector_norm(each.float() if each.itemsize < 4 else each) for each in flat)
    return math.hypot(*map(float, norms)) / math.sqrt(entries or 1)


def norm_entries(model: nn.Module) -> frozenset[str]:
    """Names of everything that belongs to a BatchNorm layer and is not frozen: scale, shift, running statistics."""
    found = frozenset(
        f"{prefix}.{name}" if prefix else name
        for prefix, module in model.named_modules()
        if isinstance(module, BATCH_NORMS)
        for name in module.state_dict()
    )
    return found - frozen_names(model)


def is_statistic(name: str) -> bool:
    """Whether this entry of a state dict is a running statistic rather than something trained."""
    return name.endswith(("running_mean", "running_var", "num_batches_tracked"))


class WeightedMean:
    """The mean of weights as they come, one at a time: a cohort need never be in memory at once.

    Sums are kept in double precision. Whole numbers (BatchNorm's batch counter) are not averaged: the largest
    is taken.
    """

    def __init__(self) -> None:
        self._sums: dict[str, Tensor] = {}
        self._dtypes: dict[str, torch.dtype] = {}
        self.total = 0.0

    def add(self, weights: Mapping[str, Tensor], share: float) -> None:
        """Add one model with its share (its number of samples, or 1 for a plain mean).

        What has other names or shapes than the ones before it is refused with `ModelError`, and nothing is added.
        """
        self._check(weights)
        self.total += share
        for name, tensor in weights.items():
            if name not in self._sums:
                self._dtypes[name] = tensor.dtype
                summed = tensor.is_floating_point()
                self._sums[name] = (
                    torch.zeros(tensor.shape, dtype=torch.float64) if summed else tensor.clone()
                )
            if tensor.is_floating_point():
                self._sums[name].add_(tensor, alpha=share)
            else:
                torch.maximum(self._sums[name], tensor, out=self._sums[name])

    def _check(self, weights: Mapping[str, Tensor]) -> None:
        if not isinstance(weights, Mapping) or not weights:
            raise ModelError("no weights at all")
        expected = self._sums
        if not expected:
            return
        if weights.keys() != expected.keys():
            raise ModelError("weights with other names than the model's")
        for name, tensor in weights.items():
            if not isinstance(tensor, Tensor) or tensor.shape != expected[name].shape:
                raise ModelError(f"weights '{name}' of another size than the model's")

    def result(self) -> dict[str, Tensor]:
        """The mean, in the weights' own precision; nothing if nothing was added."""
        return {
            name: (total / self.total if total.is_floating_point() else total).to(self._dtypes[name])
            for name, total in self._sums.items()
        }


class TableMean:
    """The mean of tables as they come: logits, probabilities. Sums are kept in double precision."""

    def __init__(self) -> None:
        self._sum: Tensor | None = None
        self._dtype = torch.float32
        self.total = 0.0

    def add(self, table: Tensor, share: float) -> None:
        """Add one table with its share."""
        self.total += share
        self._dtype = torch.promote_types(self._dtype, table.dtype)
        if self._sum is None:
            self._sum = torch.zeros_like(table, dtype=torch.float64)
        self._sum.add_(table, alpha=share)

    def result(self) -> Tensor:
        """The mean of what was added: in 32 bits, or in 64 where a table was."""
        assert self._sum is not None
        return (self._sum / self.total).to(self._dtype)


class TableMax:
    """The element-wise maximum of tables as they come, with the interface of `TableMean`: shares only count."""

    def __init__(self) -> None:
        self._largest: Tensor | None = None
        self.total = 0.0

    def add(self, table: Tensor, share: float) -> None:
        """Add one table."""
        self.total += share
        self._largest = table if self._largest is None else torch.maximum(self._largest, table)

    def result(self) -> Tensor:
        """The largest number that was added at each place."""
        assert self._largest is not None
        return self._largest
