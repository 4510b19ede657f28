"""What a run's folder holds already: nothing, a run that was begun, one that is finished, or something else."""

from __future__ import annotations

import fcntl
import json
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

from polyfed.errors import CheckpointError, ConfigError
from polyfed.runs.checkpoint import read_manifest
from polyfed.runs.config import RunConfig, read_config

State = Literal["new", "begun", "finished"]

LOCK = ".lock"
MADE_FIRST = frozenset({"states", "models"})
MADE_BEFORE_A_CHECKPOINT = MADE_FIRST | {
    LOCK,
    "scratch",
    "config.yaml",
    "history.jsonl",
    "ledger.jsonl",
    "states.jsonl",
    "manifest.json.tmp",
}


def state_of_folder(path: Path, config: RunConfig) -> State:
    """Whether a run of this config is new, begun or finished there; a `ConfigError` if it holds something else."""
    if not (path / "manifest.json").exists():
        if not path.exists() or not any(path.iterdir()) or _is_stillborn(path):
            return "new"
        raise ConfigError(f"{path} is not empty and holds no run: choose another --out")
    read_manifest(path)
    there, here = _keys(read_config(path / "config.yaml")), _keys(config)
    decided = {key: there.get(key) if value == "auto" else value for key, value in here.items()}
    difference = first_difference(there, decided)
    if difference is not None:
        raise ConfigError(f"{path} holds a run with another config, {difference}: choose another --out")
    return "finished" if (path / "summary.json").exists() else "begun"


def clear(path: Path) -> None:
    """Make a folder empty again in which a run was killed before its first checkpoint; nothing else is touched."""
    if not path.exists() or not any(path.iterdir()):
        return
    if not _is_stillborn(path):
        raise ConfigError(f"{path} is not empty: choose another --out")
    lock = path / LOCK
    if lock.exists():
        with lock.open("a") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise CheckpointError(
                    f"another process is at work in {path}: wait for it or stop it"
                ) from None
            _empty(path)
    else:
        _empty(path)


def _empty(path: Path) -> None:
    # The lock goes last: should this process be killed here, the folder can still be told to be ours.
    for part in sorted(path.iterdir(), key=lambda part: part.name == LOCK):
        if part.is_dir():
            shutil.rmtree(part)
        else:
            part.unlink()


def _is_stillborn(path: Path) -> bool:
    """Whether all that is there is what a run leaves that was killed before its first checkpoint.

    That is its lock and a few files without content of value; or two empty folders, before there is a lock.
    """
    names = {part.name for part in path.iterdir()}
    if LOCK not in names:
        return names <= MADE_FIRST and not any(any((path / name).iterdir()) for name in names)
    logs = [path / name for name in names if name.endswith(".jsonl")]
    models = path / "models"
    states = path / "states"
    return (
        names <= MADE_BEFORE_A_CHECKPOINT
        and not any(log.stat().st_size for log in logs)
        and not (models.exists() and any(models.iterdir()))
        and not (states.exists() and any(not file.name.startswith("server.") for file in states.iterdir()))
    )


def first_difference(there: Mapping[str, Any], here: Mapping[str, Any]) -> str | None:
    """The first key in which two files differ, in words."""
    for key in dict.fromkeys([*here, *there]):
        old, new = there.get(key), here.get(key)
        if old != new:
            return f"{key} is {json.dumps(old)} there and {json.dumps(new)} here"
    return None


def _keys(config: RunConfig) -> dict[str, Any]:
    """Every key of a run file with its value, the method's defaults written out."""
    settings = config.make_method().settings.model_dump(mode="json")
    return dict(flat({**config.as_file(), "method": {"name": config.method.name, **settings}}))


def flat(content: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Nested keys as `a.b`."""
    for key, value in content.items():
        if isinstance(value, Mapping) and value:
            yield from flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value
