"""What is the same for models of one architecture: their parts, with types, settings and shapes, in their order."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Hashable, Iterator, Mapping
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from polyfed.disk import digest

_OF_EVERY_MODULE = frozenset({*vars(nn.Module()), "channels_last"})  # how it is laid out changes nothing
_OURS = "_polyfed_"  # begins the names of what polyfed notes at a module
_MOST = 10_000  # settings of one part that are compared; what is beyond is told apart by its type alone


def structure(model: nn.Module) -> Hashable:
    """What two models have alike that are made alike, whatever their weights and whatever they are called.

    Two models of the same structure compute the same with the same weights: settings and functions that their parts
    hold are compared too, such as `activation=F.relu`.
    """
    seen: dict[int, int] = {}  # a tensor in two places is one
    parts = []
    for name, part in model.named_modules(remove_duplicate=False):
        tensors = [
            (
                key,
                tuple(tensor.shape),
                str(tensor.dtype),
                tensor.requires_grad,
                seen.setdefault(id(tensor), len(seen)),
            )
            for key, tensor in _own_tensors(part)
        ]
        parts.append((name, _kind(type(part)), _extra(part), _settings(part), tuple(tensors)))
    return tuple(parts)


def _own_tensors(part: nn.Module) -> Iterator[tuple[str, Tensor]]:
    for held in (part._parameters, part._buffers):
        yield from ((key, tensor) for key, tensor in held.items() if tensor is not None)


def _extra(part: nn.Module) -> str:
    return re.sub(r" at 0x[0-9a-f]+", "", part.extra_repr())


def _settings(part: nn.Module) -> Hashable:
    """What a module holds beside its parts and tensors."""
    own = {
        key: value
        for key, value in vars(part).items()
        if key not in _OF_EVERY_MODULE and not key.startswith(_OURS)
    }
    return _value([*part._forward_pre_hooks.values(), *part._forward_hooks.values(), own], {})


def _value(value: Any, seen: dict[int, Any]) -> Hashable:
    """A setting as something that can be compared."""
    if value is None or isinstance(
        value, bool | int | float | complex | str | bytes | torch.dtype | torch.device
    ):
        return (type(value).__name__, str(value))
    if isinstance(value, type):
        return _kind(value)
    if isinstance(value, Tensor | np.ndarray):
        return _numbers(value)
    # Modules are parts of their own; objects may hold each other.
    if isinstance(value, nn.Module) or id(value) in seen or len(seen) > _MOST:
        return _kind(type(value))
    seen[id(value)] = value
    return _called(value, seen) if callable(value) else _held(value, functools.partial(_value, seen=seen))


def _held(value: Any, deeper: Callable[[Any], Hashable]) -> Hashable:
    """What an object that is no function holds."""
    if isinstance(value, Mapping):
        return ("map", tuple((deeper(key), deeper(item)) for key, item in value.items()))
    if isinstance(value, list | tuple):
        return (type(value).__name__, tuple(map(deeper, value)))
    if isinstance(value, set | frozenset):
        return ("set", tuple(sorted(map(str, map(deeper, value)))))
    return (_kind(type(value)), deeper(getattr(value, "__dict__", {})))


def _called(value: Any, seen: dict[int, Any]) -> Hashable:
    """What a function does."""
    deeper = functools.partial(_value, seen=seen)
    if isinstance(value, functools.partial):
        return ("partial", deeper(value.func), deeper(value.args), deeper(value.keywords))
    if isinstance(value, MethodType):
        return ("method", deeper(value.__func__), _kind(type(value.__self__)))
    if isinstance(value, FunctionType):
        return _function(value, seen)
    if isinstance(value, BuiltinFunctionType):
        return ("function", value.__module__, value.__qualname__)
    return (_kind(type(value)), deeper(getattr(value, "__dict__", {})))


def _numbers(value: Tensor | np.ndarray[Any, Any]) -> Hashable:
    array = value.detach().float().cpu().numpy() if isinstance(value, Tensor) else value
    content = (
        repr(array.tolist()) if array.dtype.kind == "O" else digest(np.ascontiguousarray(array).tobytes())
    )
    return (type(value).__name__, tuple(value.shape), str(value.dtype), content)


def _kind(kind: type) -> Hashable:
    """A class; one that is made within a function, which is another each time, by its name and its forward."""
    if "<locals>" not in kind.__qualname__:
        return (kind.__module__, kind.__qualname__, id(kind))
    functions = (item for item in vars(kind).values() if isinstance(item, FunctionType))
    written = tuple(sorted(str(_function(each, {})) for each in functions))
    return (kind.__module__, kind.__qualname__, written, tuple(map(_kind, kind.__bases__)))


def _function(function: FunctionType, seen: dict[int, Any]) -> Hashable:
    """A function by what it does: two that were written alike are alike."""
    cells = [_cell(cell, seen) for cell in function.__closure__ or ()]
    defaults = _value(function.__defaults__, seen)
    return ("function", function.__module__, _code(function.__code__), tuple(cells), defaults)


def _cell(cell: Any, seen: dict[int, Any]) -> Hashable:
    try:
        content = cell.cell_contents
    except ValueError:  # empty
        return None
    # `super()` makes of a class a variable of its own methods.
    return content.__qualname__ if isinstance(content, type) else _value(content, seen)


def _code(code: CodeType) -> Hashable:
    constants = (_code(each) if isinstance(each, CodeType) else repr(each) for each in code.co_consts)
    return (code.co_code, tuple(constants), code.co_names)
