"""The server's shelf: a mapping for many states, each in a file of its own, of which few are in memory at a time.

`server.memory` is one file that every checkpoint writes whole. A method that keeps every client's last model on the
server would hold and rewrite them all; on the shelf a checkpoint writes only the slots that changed.
"""

from __future__ import annotations

import re
import shutil
from collections import OrderedDict
from collections.abc import Iterator, Mapping, MutableMapping
from pathlib import Path
from typing import Any

from polyfed import disk
from polyfed.disk import SavedState
from polyfed.errors import CheckpointError, MessageError
from polyfed.federation.message import Fields, decode, encode

CACHE_BYTES = 64 * 2**20
OWNER = "shelf/"  # no client's name has a slash
_PLAIN_KEY = re.compile(r"[A-Za-z0-9._-]{1,100}")


class Shelf(MutableMapping[str, dict[str, Any]]):
    """States by name: `server.shelf["client-3"] = {"weights": weights, "round": 7}`.

    A value is a dictionary of what a message may hold: tensors, numbers, texts, nothing, lists and dictionaries of
    these. Assign to store. What is read is a copy that the caller may keep: changing it in place does not change
    the slot. Keys come in the order in which they were first set, also after a resume, as those of a dictionary.

    scratch: a folder for changed slots that do not fit in memory until the next checkpoint; made when needed.
        Without one everything stays in memory.
    cache_bytes: how much is kept in memory, the last used first.
    """

    def __init__(self, scratch: Path | None = None, cache_bytes: int = CACHE_BYTES) -> None:
        self.scratch = scratch
        self.cache_bytes = cache_bytes
        self._slots: dict[str, Path | None] = {}  # where each slot's bytes are; None while only in the cache
        # Encoded, not as they were given: so nobody else can change them, and they read the same from a file.
        self._cache: OrderedDict[str, bytes] = OrderedDict()
        self._cached_bytes = 0
        # What the next save has to tell. Dictionaries for their order: sets of texts have another in each process.
        self._changed: dict[str, None] = {}
        self._new: dict[str, None] = {}
        self._deleted: dict[str, None] = {}

    def __getitem__(self, key: str) -> dict[str, Any]:
        data = self._data(key)
        self._put_in_cache(key, data)
        try:
            return decode(data)
        except MessageError as error:
            raise CheckpointError(f"slot '{key}' in {self._slots.get(key)} cannot be read: {error}") from None

    def __setitem__(self, key: str, value: Fields) -> None:
        if not isinstance(key, str):
            raise TypeError(f"a key of the shelf is a text, not {type(key).__name__}: {key!r:.50}")
        if not isinstance(value, Mapping):
            raise TypeError(f"slot '{key}' of the shelf holds a dictionary, not {type(value).__name__}")
        try:
            data = encode(value)
        except TypeError as error:
            raise TypeError(f"slot '{key}' of the shelf: {error}") from None
        if key not in self._slots:
            self._new[key] = None
        self._drop_scratch_file(key)
        self._slots[key] = None
        self._changed[key] = None
        self._put_in_cache(key, data)

    def __delitem__(self, key: str) -> None:
        if key not in self._slots:
            raise KeyError(key)
        self._drop_scratch_file(key)
        self._drop_from_cache(key)
        del self._slots[key]
        self._changed.pop(key, None)
        if key in self._new:
            del self._new[key]
        else:
            self._deleted[key] = None

    def __iter__(self) -> Iterator[str]:
        return iter(self._slots)

    def __len__(self) -> int:
        return len(self._slots)

    def __contains__(self, key: object) -> bool:
        return key in self._slots  # the inherited one reads the slot

    def clear(self) -> None:
        """Delete every slot."""
        for key in list(self._slots):
            del self[key]

    # -- checkpoints -----------------------------------------------------------------------------------------

    def save(self, directory: Path, label: str) -> list[SavedState]:
        """Write every slot that changed since the last save into `directory`; deleted ones are told first."""
        saved = [SavedState(OWNER + key, None, None) for key in self._deleted]
        for key in self._changed:
            data = self._data(key)
            path = directory / _file_name(key, label)
            disk.write_through(path, data)
            self._drop_scratch_file(key)
            self._slots[key] = path
            saved.append(SavedState(OWNER + key, path.name, disk.digest(data)))
        self._changed.clear()
        self._new.clear()
        self._deleted.clear()
        return saved

    def restore(self, files: Mapping[str, Path]) -> None:
        """Be what is in these files, by key; each is read when it is asked for."""
        self._cache.clear()
        self._cached_bytes = 0
        self._changed.clear()
        self._new.clear()
        self._deleted.clear()
        self._slots = dict(files)
        if self.scratch is not None:
            shutil.rmtree(self.scratch, ignore_errors=True)

    # -- where the bytes are ---------------------------------------------------------------------------------

    def _data(self, key: str) -> bytes:
        if key in self._cache:
            return self._cache[key]
        path = self._slots[key]
        assert path is not None, "a slot without a file is in the cache"
        try:
            return disk.read_file(path)
        except FileNotFoundError:
            raise CheckpointError(f"slot '{key}' of the shelf is gone: {path} is missing") from None

    def _put_in_cache(self, key: str, data: bytes) -> None:
        """The last used at the end; the longest unused leave where there is too much."""
        self._drop_from_cache(key)
        self._cache[key] = data
        self._cached_bytes += len(data)
        while self.scratch is not None and self._cached_bytes > self.cache_bytes:
            self._evict(next(iter(self._cache)), self.scratch)

    def _evict(self, key: str, scratch: Path) -> None:
        if self._slots[key] is None:
            scratch.mkdir(parents=True, exist_ok=True)
            path = scratch / _file_name(key, "now")
            path.write_bytes(self._cache[key])
            self._slots[key] = path
        self._drop_from_cache(key)

    def _drop_from_cache(self, key: str) -> None:
        self._cached_bytes -= len(self._cache.pop(key, b""))

    def _drop_scratch_file(self, key: str) -> None:
        path = self._slots.get(key)
        if path is not None and path.parent == self.scratch:
            path.unlink(missing_ok=True)


def _file_name(key: str, label: str) -> str:
    """A file for a key that no other key and no client has: theirs end in `LABEL.safetensors`."""
    if _PLAIN_KEY.fullmatch(key):
        return f"{key}.{label}.slot.safetensors"
    return f"{disk.digest(key.encode('utf-8', 'surrogatepass'))}.{label}.hashed-slot.safetensors"


__all__ = ["Shelf"]
