"""Which optimiser settings name: one of four in a fast form, or any class of `torch.optim` with settings of its own.

Everything is checked when settings are read, but a class is only looked into once it is named: to make one of them for
the first time takes a second.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from pydantic import BaseModel, ConfigDict
from torch import Tensor, nn

from polyfed.errors import nearest
from polyfed.schema import SECTION, as_yaml

FUSED = ("sgd", "adam", "amsgrad", "adamw")
CLASSES = {"sgd": "SGD", "adam": "Adam", "amsgrad": "Adam", "adamw": "AdamW"}
"""The class that one of the four is where it is given settings."""
UNFIT = {
    "LBFGS": "it computes the loss several times in each step",
    "SparseAdam": "it is for sparse gradients alone",
    "Muon": "it steps on matrices alone, and models have biases",
}
ELEMENT_WISE = frozenset(
    {"ASGD", "Adadelta", "Adagrad", "Adam", "AdamW", "Adamax", "NAdam", "RAdam", "RMSprop", "Rprop", "SGD"}
)
"""Classes that treat every weight alike, whatever tensor it is part of."""
SHARED = ("lr", "momentum", "weight_decay")
"""What has a key of its own beside `optimiser`."""
HIDDEN = ("params", "foreach", "maximize", "capturable", "differentiable", "fused", *SHARED)


class OptimiserChoice(BaseModel):
    """An optimiser with settings of its own, those of its class in torch.optim: {name: RMSprop, alpha: 0.9}."""

    model_config = ConfigDict(**{**SECTION, "extra": "allow"})

    name: str
    """sgd, adam, amsgrad, adamw, or the name of another class of torch.optim."""

    @property
    def settings(self) -> dict[str, Any]:
        return self.model_extra or {}

    def __str__(self) -> str:
        return as_yaml({"name": self.name, **self.settings})


def read_choice(given: Any) -> Any:
    """A name as it is spelt, or a choice whose settings its class takes; a `ValueError` says what is wrong."""
    if isinstance(given, OptimiserChoice):
        return given
    if isinstance(given, str):
        return _spelt(given)
    if not isinstance(given, Mapping):
        raise ValueError("must be a name such as RMSprop, or a section such as {name: RMSprop, alpha: 0.9}")  # noqa: TRY004
    if not isinstance(given.get("name"), str):
        raise ValueError("a section needs `name`, such as {name: RMSprop, alpha: 0.9}")  # noqa: TRY004
    name = _spelt(given["name"])
    settings = {str(key): value for key, value in given.items() if key != "name"}
    return OptimiserChoice(name=name, **_checked(name, settings)) if settings else name


def _spelt(name: str) -> str:
    """A name as torch.optim or polyfed spells it."""
    known = {each.lower(): each for each in _classes()} | {each: each for each in FUSED}
    found = known.get(name.lower())
    if found in UNFIT:
        raise ValueError(f"with {found} no model can be trained here: {UNFIT[found]}")
    if found is None:
        usable = [each for each in known.values() if each not in UNFIT]
        raise ValueError(f"unknown optimiser '{name:.60}', {nearest(name, usable)}")
    return found


def _classes() -> dict[str, type[torch.optim.Optimizer]]:
    base = torch.optim.Optimizer
    return {
        name: kind
        for name, kind in vars(torch.optim).items()
        if isinstance(kind, type) and issubclass(kind, base) and kind is not base
    }


def _checked(name: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings as the class takes them, judged by its defaults; a `ValueError` names those that it takes."""
    parameters = _parameters(name)
    hidden = {*HIDDEN, *(["amsgrad"] if name == "amsgrad" else [])}
    taken = [key for key in parameters if key not in hidden]
    found = {}
    for key, value in settings.items():
        if key in SHARED:
            raise ValueError(f"`{key}` is a key beside `optimiser`, not inside it")
        if key not in taken:
            raise ValueError(f"no setting '{key:.60}' of {name}: it takes {', '.join(taken)}")
        try:
            found[key] = _like(value, parameters[key].default)
        except ValueError as error:
            raise ValueError(f"`{key}` of {name} must be {error}, not {as_yaml(value):.60}") from None
    return found


def _like(value: Any, default: Any) -> Any:
    """A value of the kind that a default is; a `ValueError` says what it must be."""
    if isinstance(default, bool):
        if not isinstance(value, bool):
            raise ValueError("true or false")  # noqa: TRY004
    elif isinstance(default, tuple):
        wanted = f"a list of {len(default)} numbers"
        if not isinstance(value, list | tuple) or len(value) != len(default):
            raise ValueError(wanted)
        try:
            return [
                None if one is each is None else _number(one)
                for one, each in zip(value, default, strict=True)
            ]
        except ValueError:
            raise ValueError(wanted) from None
    elif isinstance(default, int | float):
        return _number(value)
    return value


def _number(value: Any) -> float:
    """A finite number, also if it is written as 1e-8, which YAML takes for text."""
    try:
        number = float(value) if isinstance(value, str) else value
    except ValueError:
        number = None
    if not isinstance(number, int | float) or isinstance(number, bool) or not math.isfinite(number):
        raise ValueError("a finite number")
    return number


def _parameters(name: str) -> Mapping[str, inspect.Parameter]:
    return inspect.signature(_classes()[CLASSES.get(name, name)]).parameters


def class_of(choice: str | OptimiserChoice) -> str:
    """The name of the class in torch.optim that a choice is."""
    name = choice if isinstance(choice, str) else choice.name
    return CLASSES.get(name, name)


def make(
    parameters: Iterable[Tensor], choice: str | OptimiserChoice, shared: Mapping[str, float]
) -> torch.optim.Optimizer:
    """An optimiser of the class. shared: its learning rate, momentum and weight decay, those that it takes."""
    settings = {} if isinstance(choice, str) else dict(choice.settings)
    if "amsgrad" in (choice, getattr(choice, "name", None)):
        settings["amsgrad"] = True
    name = class_of(choice)
    taken = _parameters(name)
    settings |= {key: tuple(value) for key, value in settings.items() if isinstance(value, list)}
    settings |= {key: shared[key] for key in SHARED if key in taken}
    return _classes()[name](parameters, **settings)


def check(choice: str | OptimiserChoice, shared: Mapping[str, float]) -> None:
    """Refuse what the class does not take or does not allow, by a step on a weight that nobody needs."""
    if choice in FUSED:
        return
    for key in ("momentum", "weight_decay"):
        if shared[key] and key not in _parameters(class_of(choice)):
            raise ValueError(f"{key} is {shared[key]:g}, but {choice} has none: set it to 0")
    weight = nn.Parameter(torch.zeros(2))
    try:
        optimiser = make([weight], choice, shared)
        weight.grad = torch.ones_like(weight)
        optimiser.step()
    except (ValueError, TypeError, RuntimeError, AssertionError) as error:
        raise ValueError(f"torch.optim.{class_of(choice)}: {' '.join(str(error).split())}") from None
