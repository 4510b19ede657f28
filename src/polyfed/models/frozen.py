"""Frozen parts of a model: what does not train is not sent, averaged, kept for each client, or counted.

A parameter without `requires_grad` when a model is made is frozen, as the body that a pre-trained model comes with. Its
names are noted at the module, so that they are not mistaken for what a method switches off for a while, and go with it
when it is copied. A BatchNorm layer all of whose parameters are frozen (or that has none, within a part whose
parameters are) is frozen as a whole: it keeps its running statistics, and normalises by them in training too.

Buffers with `persistent=False` begin every step as they were at first: they are in nobody's state.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from polyfed.errors import ModelError
from polyfed.models.probe import display_name

FrozenMarks: TypeAlias = list[tuple[str, int, int, bytes]]

_FROZEN = "_polyfed_frozen"
_LOOSE = "_polyfed_loose"
_SAMPLES = 64  # numbers of a frozen tensor that are compared
_NORMS = nn.modules.batchnorm._BatchNorm


def note_frozen(model: nn.Module) -> None:
    """Note what of a new model does not train; a `ModelError` if nothing does."""
    vars(model).pop(_FROZEN, None)
    parameters = dict(model.named_parameters(remove_duplicate=False))
    names = {name for name, parameter in parameters.items() if not parameter.requires_grad}
    if not names and parameters:
        return
    if len(names) == len(parameters):
        raise ModelError(
            f"model '{display_name(model)}' has no parameter that trains: leave requires_grad on for some, such as its"
            " head"
        )
    for prefix, norm in _norms(model):
        if _is_frozen(model, prefix):
            names |= {f"{prefix}.{name}" for name in norm.state_dict()}
            if _stay not in norm._forward_pre_hooks.values():  # a maker may give one object again and again
                norm.register_forward_pre_hook(_stay)
    vars(model)[_FROZEN] = frozenset(names)


def frozen_names(model: nn.Module) -> frozenset[str]:
    """The names in its state dict of what does not train; none of a model that trains as a whole."""
    found: frozenset[str] = vars(model).get(_FROZEN, frozenset())
    return found


def is_frozen_norm(layer: nn.Module) -> bool:
    """Whether a BatchNorm layer keeps its running statistics, whatever passes."""
    return _stay in layer._forward_pre_hooks.values()


def frozen_marks(model: nn.Module) -> FrozenMarks:
    """What tells whether frozen tensors were changed: which memory they have, how often it was written to, and some of
    its numbers, since what is written through `.data` is not counted."""
    names = frozen_names(model)
    if not names:
        return []
    return [
        (name, tensor.data_ptr(), tensor._version, _some_of(tensor))
        for name, tensor in _tensors(model)
        if name in names
    ]


def _some_of(tensor: Tensor) -> bytes:
    """Numbers from all over a tensor's memory, whatever its layout."""
    if tensor.layout is not torch.strided or not tensor.numel():
        return b""
    length = 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    count = min(length, _SAMPLES)
    some = tensor.detach().as_strided((count,), (length // count,)).contiguous()
    return some.view(torch.uint8).cpu().numpy().tobytes()


def check_frozen(model: nn.Module, before: FrozenMarks) -> None:
    """Raise a `ModelError` if frozen tensors were changed since: they are one for all, and in nobody's state."""
    if not before:
        return
    now = set(frozen_marks(model))
    changed = next((mark[0] for mark in before if mark not in now), None)
    if changed is not None:
        raise ModelError(
            f"model '{display_name(model)}' changes '{changed}', which is frozen: let it train (requires_grad), or make"
            " it a buffer"
        )


def note_loose(model: nn.Module) -> None:
    """Note the numbers of a new model's buffers that its state dict does not have (`persistent=False`)."""
    vars(model).pop(_LOOSE, None)
    found = {
        (path, name): buffer.detach().clone()
        for path, part in model.named_modules()
        for name in part._non_persistent_buffers_set
        if (buffer := part._buffers.get(name)) is not None
    }
    if found:
        vars(model)[_LOOSE] = found


def reset_loose(model: nn.Module) -> None:
    """Let these buffers be what they were at first: nothing of them lasts, on no engine and in no file."""
    for (path, name), first in vars(model).get(_LOOSE, {}).items():
        buffers = model.get_submodule(path)._buffers
        now = buffers.get(name)
        if now is not None and now.shape == first.shape and now.dtype == first.dtype:
            with torch.no_grad():
                now.copy_(first)
        else:
            buffers[name] = first.clone()


def share_frozen(model: nn.Module, like: nn.Module) -> None:
    """Let a model's frozen tensors be another's of its architecture: the same numbers, in the same memory."""
    there = dict(_tensors(like))
    for name, tensor in _tensors(model):
        if name in frozen_names(model):
            tensor.data = there[name].data


def _tensors(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    yield from model.named_parameters(remove_duplicate=False)
    yield from model.named_buffers(remove_duplicate=False)


def _norms(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    return ((name, part) for name, part in model.named_modules() if isinstance(part, _NORMS) and name)


def _is_frozen(model: nn.Module, path: str) -> bool:
    """Whether a part, or for want of parameters the smallest around it that has some, trains in nothing."""
    while path:
        parameters = list(model.get_submodule(path).parameters())
        if parameters:
            return not any(parameter.requires_grad for parameter in parameters)
        path = path.rpartition(".")[0]
    return False


# Not a closure: a model is copied and pickled.
def _stay(norm: nn.Module, _args: tuple[Any, ...]) -> None:
    norm.training = False
