"""Whether a module that a file names may be imported: only if the user has said so.

A run directory, a model's file and a run file may come from anybody. `my_models:small_net` in one of them is text
until the user trusts the module by its name (`--trust my_models`, `trust=["my_models"]`), or the module is that of an
installed package's entry point. That a program has imported a module is no trust: it has imported `os`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from importlib.metadata import entry_points

from polyfed.errors import ConfigError, ModelError
from polyfed.models.outside import PLUG_INS
from polyfed.plug_ins import REFERENCE

GROUPS = (PLUG_INS, "polyfed.methods", "polyfed.tasks")
MODULE = re.compile(r"[a-z_]\w*(\.[a-z_]\w*)*", re.ASCII | re.IGNORECASE)

NAMING = ("models", "data.partition", "training", "method", "task", "evaluate")
"""Where keys begin whose values may name functions."""

Trust = str | Iterable[str]
"""Names of modules; a package's is for all that is in it."""


def modules_to_trust(names: Iterable[str]) -> list[str]:
    """The modules that these names of functions stand for, each once; but for those of installed packages."""
    installed = {
        entry.value.partition(":")[0].strip() for group in GROUPS for entry in entry_points(group=group)
    }
    named = [match["module"] for name in names if (match := REFERENCE.fullmatch(name))]
    return [module for module in dict.fromkeys(named) if module not in installed]


def check_trusted(names: Iterable[str], trust: Trust, where: object) -> None:
    """A `ModelError` that says what to add, if `where` names functions of modules that the user does not trust."""
    trusted = [trust] if isinstance(trust, str) else list(trust)
    for each in trusted:
        if not isinstance(each, str) or not MODULE.fullmatch(each):
            raise ConfigError(f"--trust {each!s:.60}: give the name of a module, such as my_models")
    left = [
        module
        for module in modules_to_trust(names)
        if not any(module == each or module.startswith(f"{each}.") for each in trusted)
    ]
    if left:
        word, them = ("module", "it") if len(left) == 1 else ("modules", "them")
        raise ModelError(
            f"{where} names the {word} {', '.join(left)}, whose code would be run: if you trust {them}, add"
            f"{trust_flags(left)} (from Python: trust={left!r})"
        )


def trust_flags(modules: Iterable[str]) -> str:
    """What to add to a command so that these modules are trusted: ` --trust my_models`."""
    return "".join(f" --trust {module}" for module in modules)


def named_on_the_command_line(overrides: Iterable[str]) -> list[str]:
    """The modules that `--set models.names=my_models:small_net` and the like name: who types it has said so."""
    typed = " ".join(override for override in overrides if override.startswith(NAMING))
    return [match["module"] for match in REFERENCE.finditer(typed)]
