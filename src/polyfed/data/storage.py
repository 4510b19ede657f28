"""The cache of decoded data sets: folders of .npy arrays, each either complete or absent.

A set is written into a temporary folder and then renamed, so that a process that is killed, or two that
decode the same set, never leave half of one. `set.json` is written last, sealed by a digest of itself, and lists every
array with its size and time of change; a folder that does not match its list is built again. Where only times differ
(a copy, or a change), the contents are compared with the fingerprint. What changes without a trace in size or time,
such as bits on a failing disk, is only found by `check_cache` and where a run is resumed (`verify`): to read gigabytes
at every start would cost more than it tells.

Files and folders have the permissions that the umask gives, so that several users can share a cache.
"""

from __future__ import annotations

import errno
import hashlib
import json
import logging
import os
import secrets
import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from polyfed import disk
from polyfed.data.arrays import Array, Ints
from polyfed.data.dataset import DataSet
from polyfed.data.normalisation import normalisation
from polyfed.errors import DataError, describe_os_error, system_reason

log = logging.getLogger(__name__)

_VERSION = 5  # part of every key: raise it when the same source would be decoded or kept differently
_MAKING = "making-"  # begins the name of a folder that is not finished
_FINGERPRINTED = ("classes", "column_names", "mean", "std", "features")
_DAY = 24 * 3600.0
_CHUNK = 4096  # rows looked at together, so that a set larger than memory passes through
_SMALL = 2**18  # bytes of an array that is read at once
_UNREADABLE = (OSError, ValueError, KeyError, TypeError, EOFError)


class BrokenSet(DataError):
    """A cached set that is not what was written, and can be made again."""


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class StoredDataSet(DataSet):
    """A data set whose arrays are those of a folder of the cache, or a view of one.

    Another process that it is sent to gets the folder instead of the arrays that were read from it, and whatever is not
    as it was read: labels, classes, constants.
    """

    folder: Path
    as_read: Mapping[str, Any] = field(default_factory=dict)
    """The arrays as they were read, the very objects: what is another one is a view's own."""

    def __reduce__(self) -> tuple[Any, ...]:
        own = {each.name: getattr(self, each.name) for each in fields(self)}
        own = {name: value for name, value in own.items() if value is not self.as_read.get(name, self)}
        del own["folder"], own["as_read"]
        return (_reopen, (self.folder, own))


def _reopen(folder: Path, own: dict[str, Any]) -> StoredDataSet:
    return replace(open_stored(folder), **own)


@dataclass
class Draft:
    """A data set before it is stored. Without `mean` and `std` they are computed from its inputs."""

    name: str
    inputs: Array
    labels: Array | None
    classes: tuple[str, ...]
    columns: dict[str, Ints] = field(default_factory=dict)
    column_names: dict[str, tuple[str, ...]] = field(default_factory=dict)
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    features: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    label_columns: tuple[str, ...] = ()


def cache_root(cache_dir: Path | str | None = None) -> Path:
    """Where decoded sets are kept: the argument, else $POLYFED_CACHE, else ~/.cache/polyfed."""
    if cache_dir is not None:
        return Path(cache_dir)
    named = os.environ.get("POLYFED_CACHE")
    return Path(named) if named else Path.home() / ".cache" / "polyfed"


def stored(
    key: dict[str, Any], build: Callable[[Path], Draft], cache_dir: Path | str | None = None
) -> StoredDataSet:
    """The set kept under this key; it is built first when it is not there or is broken.

    key: all that the result depends on, as plain JSON values.
    build: makes the draft; it gets a folder in which it may map `inputs.npy` and fill it row by row.
    """
    text = json.dumps([_VERSION, key], sort_keys=True)
    folder = cache_root(cache_dir) / "data" / hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
    if folder.exists():
        try:
            found = open_stored(folder)
        except BrokenSet as error:
            log.warning("%s; it is decoded again", error)
            _discard(folder)
        else:
            log.debug("%s: %d rows, from the cache %s", found.name, len(found), folder)
            return found
    try:
        _build(folder, build)
    except OSError as error:
        if error.filename is not None and not Path(os.fsdecode(error.filename)).is_relative_to(folder.parent):
            raise DataError(describe_os_error(error)) from error  # of the source
        told = (
            f"the data cache cannot be written: {error.filename or folder.parent}: {error.strerror or error}"
        )
        if error.errno in (errno.EMFILE, errno.ENFILE):
            raise DataError(told) from error
        raise DataError(f"{told}; make room, or set POLYFED_CACHE to another folder") from error
    made = open_stored(folder)
    log.debug("%s: %d rows, now in the cache %s", made.name, len(made), folder)
    return made


def stored_rows(
    data: DataSet, rows: Ints, key: dict[str, Any], cache_dir: Path | str | None = None
) -> StoredDataSet:
    """Some rows of a data set as a set of its own, kept under this key; constants and classes stay the same."""

    def build(_: Path) -> Draft:
        return Draft(
            data.name,
            data.inputs[rows],
            None if data.labels is None else data.labels[rows],
            data.classes,
            {name: codes[rows] for name, codes in data.columns.items()},
            data.column_names,
            data.mean,
            data.std,
            data.features,
            data.notes,
            data.label_columns,
        )

    same = {"of": data.fingerprint, "name": data.name, "notes": data.notes}
    return stored(same | key, build, cache_dir)


def open_stored(folder: Path) -> StoredDataSet:
    """Map a stored set into memory; a `BrokenSet` when it is broken."""
    try:
        facts = _read_facts(folder)
        arrays: dict[str, Any] = {
            "inputs": _map(folder / "inputs.npy"),
            "labels": _map(folder / "labels.npy") if facts["labelled"] else None,
            "columns": {name: _map(folder / file) for name, file in facts["columns"].items()},
        }
        return StoredDataSet(
            **arrays,
            as_read=arrays,
            name=facts["name"],
            classes=tuple(facts["classes"]),
            mean=tuple(facts["mean"]),
            std=tuple(facts["std"]),
            fingerprint=facts["fingerprint"],
            column_names={name: tuple(words) for name, words in facts["column_names"].items()},
            features=tuple(facts["features"]),
            notes=tuple(facts["notes"]),
            label_columns=tuple(facts["label_columns"]),
            folder=folder,
        )
    except _UNREADABLE as error:
        raise _told(error, folder) from error


def _told(error: Exception, folder: Path) -> DataError:
    """What is wrong with a cached set. One that the system does not let us read now is not broken."""
    reason = system_reason(error)
    if reason:
        named = getattr(error, "filename", None) or folder
        return DataError(f"the data cache cannot be read: {named}: {reason}")
    return BrokenSet(f"the cached data set {folder} is broken: {str(error).splitlines()[0]}")


def _read_facts(folder: Path) -> dict[str, Any]:
    """What `set.json` says, if the arrays are those that it lists."""
    facts: dict[str, Any] = json.loads((folder / "set.json").read_text(encoding="utf-8"))
    if facts.pop("seal") != _seal(facts):
        raise BrokenSet(f"the cached data set {folder} is broken: set.json was changed")
    moved = False
    for name, (size, changed) in facts["files"].items():
        found = (folder / name).stat()
        if found.st_size != size:
            raise BrokenSet(f"the cached data set {folder} is broken: {name} has the wrong size")
        moved = moved or found.st_mtime_ns != changed
    if moved:
        _check_contents(folder, facts)
        _note_times(folder, facts)
    return facts


def _seal(facts: dict[str, Any]) -> str:
    return hashlib.blake2b(json.dumps(facts, sort_keys=True).encode(), digest_size=16).hexdigest()


def _check_contents(folder: Path, facts: dict[str, Any]) -> None:
    """Raise a `BrokenSet` unless the arrays are, bit for bit, those that the fingerprint was made of."""
    digest = _fingerprint(
        {key: facts[key] for key in _FINGERPRINTED if facts.get(key) or key != "features"},
        {
            "inputs": _map(folder / "inputs.npy"),
            "labels": _map(folder / "labels.npy") if facts["labelled"] else None,
            **{name: _map(folder / file) for name, file in facts["columns"].items()},
        },
    )
    if digest != facts["fingerprint"]:
        raise BrokenSet(f"the cached data set {folder} is broken: its contents were changed")


def _note_times(folder: Path, facts: dict[str, Any]) -> None:
    """Keep the times of files whose contents were found to be right, so that they are not read again."""
    times = {name: [size, (folder / name).stat().st_mtime_ns] for name, (size, _) in facts["files"].items()}
    noted = facts | {"files": times}
    try:
        disk.replace(folder / "set.json", json.dumps(noted | {"seal": _seal(noted)}).encode())
    except OSError:
        log.info("%s belongs to somebody else: it is compared again next time", folder)


def verify(data: DataSet) -> None:
    """Compare the contents of a set from the cache with its fingerprint, a second for each gigabyte."""
    if isinstance(data, StoredDataSet):
        try:
            _compare(data.folder)
        except BrokenSet as error:
            check_cache(data.folder.parents[1])  # others may be damaged too, of which this one was drawn
            raise DataError(f"{error}; it was removed, and the same command decodes it again") from error


def check_cache(cache_dir: Path | str | None = None) -> list[str]:
    """Read every cached set and compare it with its fingerprint; those that are broken, in words, are removed."""
    broken = []
    root = cache_root(cache_dir) / "data"
    for folder in sorted(root.iterdir()) if root.is_dir() else ():
        if folder.name.startswith(_MAKING):
            continue
        try:
            _compare(folder)
        except BrokenSet as error:
            broken.append(str(error))
            _discard(folder)
    return broken


def _compare(folder: Path) -> None:
    try:
        _check_contents(folder, _read_facts(folder))
    except _UNREADABLE as error:
        raise _told(error, folder) from error


def new_inputs(folder: Path, shape: tuple[int, ...], dtype: npt.DTypeLike) -> Array:
    """An empty `inputs.npy` in the folder, mapped, with its room on the disk taken."""
    path = folder / "inputs.npy"
    with disk.naming(path):
        mapped = np.lib.format.open_memmap(path, mode="w+", dtype=np.dtype(dtype), shape=shape)
        if hasattr(os, "posix_fallocate"):  # a full disk is an error here; later it would be a SIGBUS
            with path.open("r+b") as file:
                os.posix_fallocate(file.fileno(), 0, path.stat().st_size)
    return mapped


def in_memory(draft: Draft) -> DataSet:
    """A data set that is not written anywhere (small ones, tests)."""
    facts = _facts(draft)
    return DataSet(
        name=draft.name,
        inputs=draft.inputs,
        labels=draft.labels,
        classes=draft.classes,
        mean=tuple(facts["mean"]),
        std=tuple(facts["std"]),
        fingerprint=facts["fingerprint"],
        columns=draft.columns,
        column_names=draft.column_names,
        features=draft.features,
        notes=draft.notes,
        label_columns=draft.label_columns,
    )


def _save(path: Path, array: Array) -> None:
    with disk.naming(path):
        np.save(path, array, allow_pickle=False)


def _map(path: Path) -> Array:
    """An array of the cache, mapped. A small one is read: every mapping is an open file, and clients may be many."""
    with disk.naming(path):
        if path.stat().st_size > _SMALL:
            return np.load(path, mmap_mode="r", allow_pickle=False)  # type: ignore[no-any-return]
        array: Array = np.load(path, allow_pickle=False)
    array.setflags(write=False)
    return array


def _build(folder: Path, build: Callable[[Path], Draft]) -> None:
    folder.parent.mkdir(parents=True, exist_ok=True)
    _remove_leftovers(folder.parent)
    work = _new_folder(folder.parent)
    try:
        draft = build(work)
        _write(draft, work)
        try:
            work.rename(folder)
        except OSError:
            if not folder.exists():
                raise
            log.info("%s was decoded by another process meanwhile", draft.name)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _new_folder(parent: Path) -> Path:
    """A folder of a name that nobody else has. Python's own temporary folders are closed to other users."""
    folder = parent / f"{_MAKING}{secrets.token_hex(8)}"
    folder.mkdir()
    return folder


def _write(draft: Draft, folder: Path) -> None:
    facts = _facts(draft)
    if isinstance(draft.inputs, np.memmap):
        draft.inputs.flush()
    if not (folder / "inputs.npy").exists():
        _save(folder / "inputs.npy", draft.inputs)
    if draft.labels is not None:
        _save(folder / "labels.npy", draft.labels)
    facts["columns"] = {name: f"column-{place}.npy" for place, name in enumerate(draft.columns)}
    for name, file in facts["columns"].items():
        _save(folder / file, draft.columns[name])
    for path in folder.glob("*.npy"):
        _to_disk(path)
    found = {path.name: path.stat() for path in sorted(folder.glob("*.npy"))}
    facts["files"] = {name: [stat.st_size, stat.st_mtime_ns] for name, stat in found.items()}
    sealed = facts | {"seal": _seal(facts)}
    disk.write_through(folder / "set.json", json.dumps(sealed).encode())


def _facts(draft: Draft) -> dict[str, Any]:
    mean, std = draft.mean, draft.std
    if mean is None or std is None:
        mean, std = normalisation(draft.inputs)
    facts: dict[str, Any] = {
        "classes": list(draft.classes),
        "column_names": {name: list(words) for name, words in draft.column_names.items()},
        "mean": list(mean),
        "std": list(std),
    }
    if draft.features:
        facts["features"] = list(draft.features)
    arrays = {"inputs": draft.inputs, "labels": draft.labels} | draft.columns
    fingerprint = _fingerprint(facts, arrays)
    return facts | {
        "name": draft.name,
        "labelled": draft.labels is not None,
        "features": list(draft.features),
        "notes": list(draft.notes),
        "label_columns": draft.label_columns,
        "fingerprint": fingerprint,
    }


def _fingerprint(facts: Mapping[str, Any], arrays: Mapping[str, Array | None]) -> str:
    digest = hashlib.blake2b(json.dumps(facts, sort_keys=True).encode(), digest_size=16)
    for name, array in arrays.items():
        if array is None:
            continue
        digest.update(f"{name}:{array.dtype.str}:{array.shape}".encode())
        for start in range(0, len(array), _CHUNK):
            digest.update(np.ascontiguousarray(array[start : start + _CHUNK]).data)
    return digest.hexdigest()


def _to_disk(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())


def _discard(folder: Path) -> None:
    """Remove a folder in one step, so that no other process sees half of it."""
    aside = _new_folder(folder.parent)
    try:
        folder.rename(aside / "broken")
    except FileNotFoundError:
        log.info("%s was removed by another process meanwhile", folder)
    shutil.rmtree(aside, ignore_errors=True)


def _remove_leftovers(root: Path) -> None:
    """Remove what killed processes left behind more than a day ago."""
    for left in root.glob(f"{_MAKING}*"):
        try:
            old = time.time() - left.stat().st_mtime > _DAY
        except FileNotFoundError:
            continue
        if old:
            shutil.rmtree(left, ignore_errors=True)
