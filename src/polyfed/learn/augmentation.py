"""What is done to every batch before a model sees it: the usual augmentation of images, or a function of the user's."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Annotated, Any, TypeAlias

import torch
from pydantic import BeforeValidator
from torch import Tensor

from polyfed import plug_ins
from polyfed.data import augment
from polyfed.errors import ConfigError


def _read(value: Any) -> Any:
    """A function as the name that others can import; a text that is no function's name must be true or false."""
    name = plug_ins.importable_name(value)
    words = {"true": True, "false": False}
    if isinstance(name, str) and not plug_ins.REFERENCE.fullmatch(name):
        if name.lower() not in words:
            raise ValueError(f"must be true, false, or a function such as my_module:shift, not '{name:.60}'")
        return words[name.lower()]
    return name


Augmentation: TypeAlias = Annotated[bool | str, BeforeValidator(_read)]
Augment: TypeAlias = Callable[[Tensor, torch.Generator], Tensor]


def load_augmentation(setting: bool | str) -> Augment | None:
    """What a setting does to a batch, with numbers from a generator; nothing if it is off.

    A `ConfigError` if it names a function that cannot be used.
    """
    if isinstance(setting, bool):
        return _standard if setting else None
    function = plug_ins.named_function(setting, "augmentation", ConfigError)
    known = dict.fromkeys(("batch", "generator"))
    taken = plug_ins.taken_of(function, known, f"augmentation '{setting}'", ConfigError)
    return partial(_by_function, setting, function, frozenset(taken))


def _standard(batch: Tensor, generator: torch.Generator) -> Tensor:
    return augment.standard(batch, generator) if batch.dim() == 4 else batch


def _by_function(
    name: str,
    function: Callable[..., Any],
    taken: frozenset[str],
    batch: Tensor,
    generator: torch.Generator,
) -> Tensor:
    known = {"batch": batch, "generator": generator}
    made = function(**{key: known[key] for key in taken})
    if not isinstance(made, Tensor):
        raise TypeError(f"augmentation '{name}' gave a {type(made).__name__}: give a batch of the same shape")
    if made.shape != batch.shape or made.is_floating_point() != batch.is_floating_point():
        raise ValueError(
            f"augmentation '{name}' made {_words(made)} of {_words(batch)}: give a batch of the same shape and kind"
        )
    return made.to(batch.device, batch.dtype)


def _words(batch: Tensor) -> str:
    return f"{' × '.join(map(str, batch.shape))} {str(batch.dtype).removeprefix('torch.')}"
