"""Files: writes that reach the disk, digests that tell whether one was changed, locks, and YAML."""

from __future__ import annotations

import fcntl
import hashlib
import os
import weakref
from dataclasses import dataclass
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any, TextIO

import yaml

from polyfed.errors import CheckpointError, ConfigError

LOCK = ".lock"


@dataclass(frozen=True)
class SavedState:
    """Where a state was written, and the digest of the file; no file where the state was deleted.

    owner: a client's name such as `client-3`, or `shelf/KEY` for a slot of the server's shelf.
    """

    owner: str
    file: str | None
    digest: str | None


def write_through(path: Path, data: bytes) -> None:
    """Write a file and wait until it is on the disk."""
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def replace(path: Path, data: bytes) -> None:
    """Replace a file in one move: whoever looks sees the old one or the new one, whole."""
    beside = path.with_name(f"{path.name}.tmp")
    write_through(beside, data)
    beside.replace(path)


def digest(data: bytes) -> str:
    """A digest of a file's content, as the manifest of a run keeps it."""
    return hashlib.blake2b(data, digest_size=16).hexdigest()


_locks: weakref.WeakSet[TextIO] = weakref.WeakSet()


def lock(folder: Path) -> TextIO:
    """Keep other processes out of a folder until the file that is returned is closed.

    A process that is forked off does not hold the lock: it may outlive this one.
    """
    file = (folder / LOCK).open("a")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        file.close()
        raise CheckpointError(f"another process is at work in {folder}: wait for it or stop it") from None
    _locks.add(file)
    return file


def _let_go_of_locks() -> None:
    for file in list(_locks):
        file.close()


os.register_at_fork(after_in_child=_let_go_of_locks)


def read_yaml(file: Traversable, missing: str) -> dict[str, Any]:
    """The keys and values of a YAML file; an empty file has none.

    missing: the message of the `ConfigError` if there is no such file.
    """
    try:
        content = yaml.safe_load(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(missing) from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read {file}: {error}") from None
    except yaml.YAMLError as error:
        raise ConfigError(f"{file} is not YAML: {' '.join(str(error).split())}") from None
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise ConfigError(f"{file} must hold keys and values, such as `key: value`")
    return content
