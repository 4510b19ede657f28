"""Dotted keys: `training.lr` is the key `lr` inside `training`, in `--set`, in papers' files and in messages."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from polyfed.errors import ConfigError
from polyfed.runs.choices import CHOOSING, left_behind


def parse_assignment(text: str) -> tuple[str, str] | None:
    """`training.lr=0.1` as its dotted key and the text of its value; None if it is not written that way."""
    key, equals, value = text.partition("=")
    return (key, value) if equals and all(key.split(".")) else None


def outer_first(keys: Iterable[str]) -> list[str]:
    """Keys in an order in which each can be set: a section before what is inside it, its choice first."""
    return sorted(keys, key=lambda key: (key.count("."), not _chooses(key)))


def set_key(content: dict[str, Any], key: str, value: Any) -> None:
    """Set what a dotted key names, whole, and make the maps around it where they are missing.

    Where it chooses something else, such as another `data.partition.kind`, keys of the old choice go (see `choices`).
    Maps inside `content` are replaced by changed copies, so that others who hold them see no change.
    """
    *parents, last = key.split(".")
    for parent in parents:
        inner = content.get(parent)
        if inner is not None and not _is_map(parent, inner):
            raise ConfigError(f"'{parent}' is a value, nothing can be set inside it")
        content = _copy_inner(content, parent)
    if _chooses(key):
        _choose(content, ".".join(parents), value)
    content[last] = value


def merge(*contents: Mapping[str, Any]) -> dict[str, Any]:
    """Contents laid over each other, later ones on top.

    A map is merged into the map that is there, key by key. A dotted key sets what it names, whole, as `--set a.b=c`
    does: `models.clients: {0-4: cnn}` leaves nothing of the clients that were there.
    """
    merged: dict[str, Any] = {}
    for content in contents:
        for key in outer_first(content):
            value = content[key]
            if "." in key:
                try:
                    set_key(merged, key, copy.deepcopy(value))
                except ConfigError as error:
                    raise ConfigError(f"{key}: {error}") from None
            else:
                _merge_value(merged, key, value, key)
    return merged


def flatten(content: Mapping[str, Any]) -> dict[str, Any]:
    """Every value of nested maps under its dotted key."""
    return dict(_flat_items(content, ""))


def _merge_value(content: dict[str, Any], key: str, value: Any, path: str) -> None:
    if isinstance(value, Mapping):
        inner = _copy_inner(content, key)
        chosen = value.get(CHOOSING[path]) if path in CHOOSING else None
        if chosen is not None:
            _choose(inner, path, chosen)
        for name, item in value.items():
            _merge_value(inner, str(name), item, f"{path}.{name}")
    else:
        content[key] = copy.deepcopy(value)


def _chooses(key: str) -> bool:
    section, _, last = key.rpartition(".")
    return CHOOSING.get(section) == last


def _choose(inner: dict[str, Any], section: str, chosen: Any) -> None:
    for key in left_behind(section, inner, chosen):
        del inner[key]


SHORT = {"method": "name", "task": "name", "optimiser": "name", "schedule": "kind", "within": "kind"}
"""Keys whose value may be a word, short for a map with this key: `method: fedmd` is `{name: fedmd}`."""


def _is_map(key: str, value: Any) -> bool:
    """Whether further keys can be set inside."""
    return isinstance(value, Mapping) or (key in SHORT and isinstance(value, str))


def _copy_inner(content: dict[str, Any], key: str) -> dict[str, Any]:
    """Put a copy of the map under a key in its place, an empty one where there is no map."""
    inner = content.get(key)
    if isinstance(inner, Mapping):
        content[key] = dict(inner)
    else:
        content[key] = {SHORT[key]: inner} if _is_map(key, inner) else {}
    copied: dict[str, Any] = content[key]
    return copied


def _flat_items(content: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for key, value in content.items():
        if isinstance(value, Mapping) and value:
            yield from _flat_items(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value
