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
MERGE = "tag:yaml.org,2002:merge"  # the key << of YAML, which takes the keys of another map


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
        content = parse_yaml(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(missing) from None
    except IsADirectoryError:
        raise ConfigError(f"cannot read {file}: it is a folder; name a file") from None
    except OSError as error:
        raise ConfigError(f"cannot read {file}: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"cannot read {file}: it is not text in UTF-8; save it as that") from None
    except KeyGivenTwice as error:
        raise ConfigError(f"{file}: {error}") from None
    except yaml.YAMLError as error:
        raise ConfigError(f"{file} is not YAML: {_yaml_trouble(error)}") from None
    if content is None:
        return {}
    if not isinstance(content, dict):
        is_a = "a list" if isinstance(content, list) else "a single value"
        raise ConfigError(f"{file} must hold keys and values, such as `rounds: 20`, but it is {is_a}")
    return content


def parse_yaml(text: str) -> Any:
    """The value that a YAML text stands for. A key that is given twice is an error: YAML would let the last one win."""
    return yaml.load(text, _Loader)


class KeyGivenTwice(yaml.YAMLError):
    """A key that is there twice in one section."""


class _Loader(yaml.SafeLoader):
    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        # Here, and not where the map is made: by then the keys of `<<` are among its own.
        node: yaml.MappingNode = super().compose_mapping_node(anchor)
        lines: dict[tuple[str, str], int] = {}
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode) or key.tag == MERGE:
                continue
            line = key.start_mark.line + 1
            first = lines.get((key.tag, key.value))
            if first is not None:
                where = f"lines {first} and {line}" if line > first else f"line {line}"
                raise KeyGivenTwice(f"'{key.value}' is there twice, in {where}: leave one out")
            lines[key.tag, key.value] = line
        return node


def _yaml_trouble(error: yaml.YAMLError) -> str:
    """What is wrong and in which line, in one line."""
    mark = getattr(error, "problem_mark", None)
    if mark is None:
        return " ".join(str(error).split())
    problem = getattr(error, "problem", None) or "this cannot be read"
    if "\\t" in problem:
        problem = "there is a tab: indent with spaces"
    return f"line {mark.line + 1}: {problem}"
