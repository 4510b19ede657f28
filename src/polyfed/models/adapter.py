"""One adapter for models that answer with more than a tensor of logits, or take their inputs by name.

A module may return a tuple, a dict or an object (as transformers' `ModelOutput`), and its forward may take its input
under a name. Hooks make of it what all others are, a function from a batch to logits: so the names in its state dict
stay, and it can be copied and pickled.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from polyfed.errors import ModelError, nearest
from polyfed.models.layers import Shape
from polyfed.models.probe import display_name, input_type, materialise, unchecked_probe

_Hook: TypeAlias = Any
Output: TypeAlias = str | int
"""Where the logits are in what a model answers: a key, the name of an attribute, or a place in a tuple."""

_LOGITS = "logits"  # what the field calls them, and so is taken where there is more


@dataclass(frozen=True)
class _Answer:
    """A forward hook that gives the logits alone."""

    output: Output

    def __call__(self, model: nn.Module, _args: tuple[Any, ...], given: Any) -> Tensor:
        if isinstance(given, Tensor):
            return given
        entries = {
            str(key): entry for key, entry in _entries(given).items()
        }  # a place may be given as a text
        if str(self.output) not in entries:
            raise ModelError(
                f"model '{display_name(model)}' gives {_kind(given)} without '{self.output}':"
                f" {nearest(str(self.output), list(entries))}"
            )
        found = entries[str(self.output)]
        if not isinstance(found, Tensor):
            raise ModelError(
                f"model '{display_name(model)}' gives a {type(found).__name__} as '{self.output}', not logits"
            )
        return found


@dataclass(frozen=True)
class _ByName:
    """A forward pre-hook that gives the input under its name."""

    input: str

    def __call__(
        self, _model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        return (args[1:], {self.input: args[0], **kwargs}) if args else (args, kwargs)


def adapt(
    model: nn.Module,
    shape: Shape,
    outputs: int,
    *,
    output: Output | None = None,
    input: str | None = None,
    is_tensor: bool = False,
    is_known: bool = False,
) -> Output | None:
    """Let a new model be used as all others are, and give its lazy layers their sizes.

    output, input: where the logits are in what it answers, and the name under which it takes its input; where the first
        is not given it is found out, unless it is known that the model answers with a tensor (is_tensor); where it is
        given it is checked, unless that was done for another one like it (is_known).
    Returns where the logits are; None for a model that answers with a tensor.
    """
    if input is not None:
        _hook_once(
            _ByName(input),
            model._forward_pre_hooks,
            lambda hook: model.register_forward_pre_hook(hook, with_kwargs=True),
        )
    materialise(model, shape)
    if output is None and not is_tensor:
        output = find_output(model, shape, outputs)
    elif output is not None and not is_known:
        check_output(model, shape, output)
    if output is not None:
        # First of all: other hooks of the model expect what everybody else will see.
        _hook_once(
            _Answer(output),
            model._forward_hooks,
            lambda hook: model.register_forward_hook(hook, prepend=True),
        )
    return output


def _hook_once(hook: _Hook, there: Mapping[int, Any], register: Callable[[_Hook], object]) -> None:
    """Register a hook on a module that has none like it: a maker may give one object again and again."""
    if hook not in there.values():
        register(hook)


def find_output(model: nn.Module, shape: Shape, outputs: int) -> Output | None:
    """Where the logits are in what a model answers; None of one that answers with a tensor.

    It is `logits` if something is called so, else the only tensor of rows × outputs. A `ModelError` lists what there is
    where that does not tell.
    """
    try:
        with torch.no_grad():
            given = unchecked_probe(model, shape, 2, input_type(model, shape))
    except ModelError:
        return None  # it is told, or helped, where types are fitted
    if isinstance(given, Tensor):
        given = _in_training(model, shape)
    if given is None or isinstance(given, Tensor):
        return None
    entries = _entries(given)
    if isinstance(entries.get(_LOGITS), Tensor):
        return _LOGITS
    tables = [key for key, entry in entries.items() if isinstance(entry, Tensor) and entry.dim() == 2]
    fitting = [key for key in tables if entries[key].shape == (2, outputs)]
    for found in (fitting, tables):
        if len(found) == 1:
            return found[0]
    name = display_name(model)
    if not entries:
        raise ModelError(f"model '{name}' returns {_kind(given)} and not a tensor of logits")
    told = ", ".join(f"{key} ({_told(entry)})" for key, entry in entries.items())
    raise ModelError(
        f"model '{name}' gives {_kind(given)} of {told}: say which are the logits, such as"
        f" models.adapt: {{{name}: {{output: {(fitting or tables or [*entries])[0]}}}}}"
    )


def check_output(model: nn.Module, shape: Shape, output: Output) -> None:
    """Refuse to look for the logits in what a new model answers where it answers with nothing else."""
    with torch.no_grad():
        given = unchecked_probe(model, shape, 2, input_type(model, shape))
    if isinstance(given, Tensor) and isinstance(_in_training(model, shape), Tensor | None):
        raise ModelError(
            f"model '{display_name(model)}' answers with a tensor, in which there is no '{output}': leave"
            " models.adapt out for it"
        )


def _in_training(model: nn.Module, shape: Shape) -> Any:
    """What a model answers in training, which may be more (auxiliary heads); None if two rows are too few for it."""
    try:
        given = unchecked_probe(model, shape, 2, input_type(model, shape), training=True)
    except ModelError:
        return None
    trains = any(parameter.requires_grad for parameter in model.parameters())
    if trains and isinstance(given, Tensor) and not given.requires_grad:
        raise ModelError(
            f"model '{display_name(model)}' cannot be trained: what it answers is detached from its parameters"
        )
    return given


def _entries(given: Any) -> dict[Output, Any]:
    """What a model's answer consists of, by key, attribute or place."""
    if isinstance(given, Mapping):
        return {key: value for key, value in given.items() if isinstance(key, str)}
    if isinstance(given, tuple | list):
        return dict(zip(getattr(given, "_fields", range(len(given))), given, strict=True))
    slots = {name: getattr(given, name, None) for name in getattr(type(given), "__slots__", ())}
    return {**slots, **getattr(given, "__dict__", {})}


def _kind(given: Any) -> str:
    if isinstance(given, Mapping):
        return "a dict" if type(given) is dict else f"a {type(given).__name__}"
    return f"a {type(given).__name__}"


def _told(entry: Any) -> str:
    if not isinstance(entry, Tensor):
        return type(entry).__name__
    return "×".join(["rows", *map(str, entry.shape[1:])]) if entry.dim() else "one number"
