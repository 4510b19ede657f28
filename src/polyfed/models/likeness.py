"""What is the same for models of one architecture: their parts, with types, settings and shapes, in their order."""

from __future__ import annotations

import io
import pickle
import sys
from collections.abc import Callable, Hashable, Iterator
from types import BuiltinFunctionType, CodeType, FunctionType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from polyfed.disk import digest

_OF_EVERY_MODULE = frozenset({*vars(nn.Module()), "channels_last"})  # how it is laid out changes nothing
_HOOKS = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")
_OURS = "_polyfed_"  # begins the names of what polyfed notes at a module


def structure(model: nn.Module) -> Hashable:
    """What two models have alike that are made alike, whatever their weights and whatever they are called.

    Two models of the same structure compute the same with the same weights: settings and functions that their parts
    hold are compared too, such as `activation=F.relu`. A model that holds what cannot be compared is like no other.
    """
    described = _Description()
    try:
        described.dump(model)
    except Exception:  # whatever somebody's object does when it is asked for its content
        return object()
    return digest(described.file.getvalue())


class _Description(pickle._Pickler):  # the one in Python: the other remembers texts by who they are
    """Pickles a model without its weights. What is like something that came before is told by its place there."""

    def __init__(self) -> None:
        self.file = io.BytesIO()
        super().__init__(self.file, 4)
        self._seen: dict[int, int] = {}  # a tensor in two places is one

    def memoize(self, obj: Any) -> None:
        """Equal texts are the same, whether they are one object or two."""
        if not isinstance(obj, str | bytes):
            super().memoize(obj)  # type: ignore[misc]

    def reducer_override(self, obj: Any) -> Any:
        if obj is _Made:
            return NotImplemented
        if isinstance(obj, nn.Module):
            return _Made, ("module", type(obj)), self._content(obj)
        if isinstance(obj, type):
            return self._class(obj)
        found = next((describe for kinds, describe in _KINDS.items() if isinstance(obj, kinds)), None)
        return NotImplemented if found is None else (_Made, *found(obj))

    def _class(self, kind: type) -> Any:
        """A class; one that is made within a function, which is another each time, by what is written in it.

        So are those that PyTorch makes for each module with parametrizations.
        """
        name = ("class", kind.__module__, kind.__qualname__)
        if _is_importable(kind):
            return _Made, (*name, id(kind))
        written = {
            key: value for key, value in vars(kind).items() if not key.startswith("__") or callable(value)
        }
        return _Made, name, (written, kind.__bases__)

    def _content(self, part: nn.Module) -> Any:
        own = {
            key: value
            for key, value in vars(part).items()
            if key not in _OF_EVERY_MODULE and not key.startswith(_OURS)
        }
        hooks = [list(vars(part)[kind].values()) for kind in _HOOKS]
        return list(self._tensors(part)), own, hooks, list(part._modules.items())

    def _tensors(self, part: nn.Module) -> Iterator[tuple[Any, ...]]:
        """The tensors of a module alone; of those that its weights do not have, the numbers too."""
        for held in (part._parameters, part._buffers):
            for key, tensor in held.items():
                if tensor is None:
                    continue
                place = self._seen.setdefault(id(tensor), len(self._seen))
                facts = (key, place, tuple(tensor.shape), str(tensor.dtype), tensor.requires_grad)
                yield (*facts, *(_numbers(tensor) if key in part._non_persistent_buffers_set else ()))


class _Made:
    """Stands in a description for whatever is described in its own way."""

    def __init__(self, *facts: Any) -> None:
        raise TypeError("a description is compared, never read")


def _numbers(value: Tensor | np.ndarray[Any, Any]) -> tuple[Any, ...]:
    if isinstance(value, Tensor):
        content = value.detach().cpu().contiguous().flatten().view(torch.uint8).numpy()
    else:
        content = value
    numbers = repr(content.tolist()) if content.dtype.kind == "O" else np.ascontiguousarray(content).tobytes()
    return tuple(value.shape), str(value.dtype), numbers if isinstance(numbers, str) else digest(numbers)


def _is_importable(kind: type) -> bool:
    """Whether a class is the one that its module has under its name."""
    found: Any = sys.modules.get(kind.__module__)
    for part in kind.__qualname__.split("."):
        found = getattr(found, part, None)
    return found is kind


def _owner(function: BuiltinFunctionType) -> Any:
    """The object whose method a built-in function is; nothing of a module's."""
    owner = function.__self__
    return owner if not isinstance(owner, type) and type(owner).__name__ != "module" else None


def _cell(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # empty
        return None


def _code(code: CodeType) -> tuple[Any, ...]:
    constants = tuple(_code(each) if isinstance(each, CodeType) else repr(each) for each in code.co_consts)
    return code.co_code, constants, code.co_names


def _function(function: FunctionType) -> tuple[Any, ...]:
    facts = ("function", function.__module__, _code(function.__code__))
    held = [_cell(cell) for cell in function.__closure__ or ()]
    return facts, (held, function.__defaults__, function.__kwdefaults__)


_KINDS: dict[Any, Callable[[Any], tuple[Any, ...]]] = {
    (Tensor, np.ndarray): lambda value: (("numbers", type(value), *_numbers(value)),),
    FunctionType: _function,
    BuiltinFunctionType: lambda value: (("function", value.__module__, value.__qualname__), _owner(value)),
    property: lambda value: (("property",), (value.fget, value.fset, value.fdel)),
    (staticmethod, classmethod): lambda value: (("method", type(value).__name__), value.__func__),
    (set, frozenset): lambda value: (("set", tuple(sorted(map(repr, value)))),),
}
"""How what is not pickled as usual is described: facts, and what else it holds, which may lead back to it."""
