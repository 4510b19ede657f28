"""Sections of a run file in which one key says which others there are: another method has other settings.

| section          | key that chooses | further keys                                  |
|------------------|------------------|-----------------------------------------------|
| `method`         | `name`           | the method's own settings                     |
| `data.partition` | `kind`           | those of the kind                             |
| `data.public`    | `source`         | `share` for `share`, `kind` for `noise`, rest |

Where a file is changed by `--set`, by a sweep or by a paper's layers, and the change chooses something else, the keys
that only the old choice has go with it. A key that neither has, or that the change itself gives, stays: it is an error.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from polyfed.data import PARTITIONS, PublicSettings
from polyfed.errors import MethodError
from polyfed.federation.method import find

CHOOSING = {"method": "name", "data.partition": "kind", "data.public": "source"}


def left_behind(section: str, there: Mapping[str, Any], chosen: Any) -> set[str]:
    """The keys of a section, as it is there, that only what was chosen there before has."""
    before = there.get(CHOOSING[section], DEFAULTS[section])
    if before == chosen or not isinstance(before, str) or not isinstance(chosen, str):
        return set()
    old, new = KEYS[section](before), KEYS[section](chosen)
    return set() if old is None or new is None else (old - new) & there.keys()


def _keys_of_method(name: str) -> set[str] | None:
    try:
        fields = find(name).Settings.model_fields
    except MethodError:
        return None  # it is said where the file is checked
    return {key for field, info in fields.items() for key in (field, info.alias) if key}


def _keys_of_partition(kind: str) -> set[str] | None:
    return set(PARTITIONS[kind].model_fields) if kind in PARTITIONS else None


def _keys_of_public(source: str) -> set[str] | None:
    only = {"share": "share", "kind": "noise"}  # keys that one source alone has
    return {key for key in PublicSettings.model_fields if only.get(key, source) == source}


KEYS: Mapping[str, Callable[[str], set[str] | None]] = {
    "method": _keys_of_method,
    "data.partition": _keys_of_partition,
    "data.public": _keys_of_public,
}
DEFAULTS = {"method": "fedavg", "data.partition": "dirichlet", "data.public": PublicSettings().source}
