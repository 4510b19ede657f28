"""Code that is not polyfed's: what other packages add through entry points, and functions that a run file names.

All of it is loaded on demand, so that what is broken costs nobody else anything.
"""

from __future__ import annotations

import importlib
import inspect
import logging
import re
import sys
from collections.abc import Callable, Mapping
from functools import lru_cache
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

from polyfed.errors import UserError, describe

logger = logging.getLogger(__name__)

REFERENCE = re.compile(
    r"(?P<module>[a-z_][\w.]{0,99}):(?P<function>[a-z_]\w{0,99})", re.ASCII | re.IGNORECASE
)


def load(entry: EntryPoint, what: str, error: type[UserError]) -> Any:
    """What an entry point leads to; otherwise an error of this kind, which says what cannot be loaded and why."""
    try:
        return entry.load()
    except Exception as reason:
        raise error(
            f"the plug-in {what} '{entry.name}' ({entry.value}) cannot be loaded: {describe(reason)}"
        ) from reason


_warned: set[str] = set()


def warn_once(text: str) -> None:
    """A warning of a plug-in that is left out: one line, however often it is met."""
    if text not in _warned:
        _warned.add(text)
        logger.warning("%s", text)


@lru_cache(maxsize=256)
def named_function(name: str, what: str, error: type[UserError], does: str = "") -> Callable[..., Any]:
    """The function that `my_module:small_net` stands for; its module may lie in the current directory.

    what: what the function is for, for messages. error: raised, in one line, where it cannot be loaded. does: what the
        function must do, for the message.
    """
    match = REFERENCE.fullmatch(name)
    if match is None:
        raise error(f"{what} '{name:.60}' does not name a function: write my_module:my_function")
    module, function = match["module"], match["function"]
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.append(here)  # for good: workers that are spawned import it too
    importlib.invalidate_caches()
    try:
        found = getattr(importlib.import_module(module), function)
    except Exception as reason:
        absent = isinstance(reason, ModuleNotFoundError) and reason.name == module.partition(".")[0]
        hint = f"; start polyfed where {module}.py is" if absent else ""
        raise error(f"{what} '{name}' cannot be loaded: {describe(reason)}{hint}") from reason
    if not callable(found):
        raise error(f"{what} '{name}' is a {type(found).__name__}: name a function{does}")
    return found  # type: ignore[no-any-return]


def taken_of(
    function: Callable[..., Any], known: Mapping[str, Any], called: str, error: type[UserError]
) -> dict[str, Any]:
    """What a function takes, by name, of what is known; an error of this kind if it wants anything else."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # of something written in C
        return {}
    for parameter in parameters:
        optional = parameter.default is not parameter.empty or parameter.kind in (
            parameter.VAR_POSITIONAL,
            parameter.VAR_KEYWORD,
        )
        if not optional and (parameter.name not in known or parameter.kind is parameter.POSITIONAL_ONLY):
            *most, last = known
            raise error(
                f"{called} wants '{parameter.name}': its arguments may be called {', '.join(most)} and {last}, others"
                " need a default"
            )
    return {parameter.name: known[parameter.name] for parameter in parameters if parameter.name in known}


def importable_name(function: Any, instead: str = "") -> Any:
    """`my_module:deal` for a function that others can import; whatever is not a function stays as it is.

    instead: what else can be done, for the message.
    """
    if not callable(function):
        return function
    name = f"{getattr(function, '__module__', None)}:{getattr(function, '__qualname__', None)}"
    if not REFERENCE.fullmatch(name) or name.startswith("__main__:"):
        raise ValueError(
            "a function must be in a module of its own, so that a run can be resumed: write my_module:my_function"
            f"{instead}"
        )
    return name
