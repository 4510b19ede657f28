"""Pieces of run files, laid over each other."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

Fragment = Mapping[str, Any]


def merged(*fragments: Fragment) -> dict[str, Any]:
    """One run file's content out of fragments, later ones on top.

    A map goes into the map that is there, key by key. A dotted key sets what it names, whole, as `--set a.b=c` does:
    `models.clients: {0-4: cnn}` leaves nothing of the clients that stood there.
    """
    content: dict[str, Any] = {}
    for fragment in fragments:
        for key, value in fragment.items():
            *parents, last = key.split(".")
            place = content
            for parent in parents:
                place = _inner(place, parent)
            if parents:
                place[last] = copy.deepcopy(value)
            else:
                _lay(place, last, value)
    return content


def _inner(place: dict[str, Any], key: str) -> dict[str, Any]:
    """The map under a key, made if need be; `method: fedmd` is short for a map with a name."""
    found = place.get(key)
    if not isinstance(found, dict):
        place[key] = {"name": found} if key == "method" and isinstance(found, str) else {}
    inner: dict[str, Any] = place[key]
    return inner


def _lay(place: dict[str, Any], key: str, value: Any) -> None:
    if isinstance(value, Mapping):
        inner = _inner(place, key)
        for name, item in value.items():
            _lay(inner, str(name), item)
    else:
        place[key] = copy.deepcopy(value)
