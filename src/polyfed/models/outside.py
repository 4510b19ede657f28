"""Models that are not registered here: those of other packages, and functions named in a run file.

An entry point of the group `polyfed.models` gives a name to a function (shape, outputs, norm) that makes a `Network` or
any other module. `my_models:small_net` is the function `small_net` of the module `my_models`, which may lie in the
current directory; it is given what it takes by name of `shape`, `outputs` and `norm`. Both are loaded when they are
asked for, and can be asked for again: a run with them is resumed, and its models are loaded, without further ado.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Callable
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from torch import nn

from polyfed import plug_ins
from polyfed.errors import ModelError, describe, place_in_users_code
from polyfed.models.layers import Norm, Shape
from polyfed.models.naming import check_name
from polyfed.models.probe import give_name
from polyfed.plug_ins import REFERENCE

PLUG_INS = "polyfed.models"  # the entry point group

Maker = Callable[[], nn.Module]


def is_reference(name: str) -> bool:
    """Whether a name reads like `my_models:small_net`."""
    return REFERENCE.fullmatch(name) is not None


def plug_in_names(pattern: str = "*") -> list[str]:
    """The names of other packages' models that match a wildcard, in any case; nothing is loaded."""
    named = {entry.name for entry in entry_points(group=PLUG_INS)}
    return sorted(name for name in named if fnmatch.fnmatchcase(name.lower(), pattern.lower()))


def is_plug_in(name: str) -> bool:
    """Whether another package's model is called so."""
    return _entry(name) is not None


def is_outside(name: str) -> bool:
    """Whether a name stands for a function of a module, or for another package's model."""
    return is_reference(name) or is_plug_in(name)


def outside_maker(name: str, shape: Shape, outputs: int, norm: Norm) -> Maker | None:
    """What makes the model of a reference or of a plug-in; None if the name is neither.

    A `ModelError` says in one line what cannot be loaded or made.
    """
    function = outside_function(name)
    if function is None:
        return None
    if is_reference(name):
        known = {"shape": tuple(shape), "outputs": outputs, "norm": norm}
        given = plug_ins.taken_of(function, known, f"model '{name}'", ModelError)
        return lambda: _made(name, lambda: function(**given))
    return lambda: _made(name, lambda: function(tuple(shape), outputs, norm))


def outside_function(name: str) -> Callable[..., Any] | None:
    """The function that a name stands for: of a module, or a plug-in's; None if it is neither."""
    if is_reference(name):
        return _referred(name)
    if name not in _factories:
        entry = _entry(name)
        if entry is None:
            return None
        _factories[name] = _loaded(entry)
    return _factories[name]


_factories: dict[str, Callable[..., Any]] = {}
"""Those of plug-ins that were used: a model is made for every client."""


def _entry(name: str) -> EntryPoint | None:
    found = (entry for entry in entry_points(group=PLUG_INS) if entry.name.lower() == name.lower())
    return next(found, None)


def _loaded(entry: EntryPoint) -> Callable[..., Any]:
    check_name(entry.name)
    factory = plug_ins.load(entry, "model", ModelError)
    if not callable(factory):
        raise ModelError(
            f"the plug-in model '{entry.name}' ({entry.value}) is not a function (shape, outputs, norm)"
        )
    return factory  # type: ignore[no-any-return]


def _referred(name: str) -> Callable[..., Any]:
    does = " that makes a model"
    found = plug_ins.named_function(name, "model", ModelError, does)
    if isinstance(found, nn.Module):
        raise ModelError(f"model '{name}' is a {type(found).__name__}: name a function{does}")
    return found


def _made(name: str, make: Callable[[], Any]) -> nn.Module:
    try:
        model = make()
    except ModelError:
        raise
    except Exception as error:
        place = place_in_users_code(error)
        raise ModelError(
            f"model '{name}' cannot be made: {describe(error)}{f' ({place})' if place else ''}"
        ) from error
    if not isinstance(model, nn.Module):
        raise ModelError(f"model '{name}' gave a {type(model).__name__}, not an nn.Module")
    give_name(model, name)
    return model
