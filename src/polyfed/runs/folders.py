"""What a run's folder holds already: nothing, a run that was begun, one that is finished, or something else."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from polyfed import disk
from polyfed.errors import ConfigError
from polyfed.runs.checkpoint import DESCRIPTION, read_manifest
from polyfed.runs.config import RunConfig, read_config
from polyfed.runs.keys import flatten

State = Literal["new", "begun", "finished"]

RUNS_FOLDER = Path("polyfed-runs")
"""Where runs are written by default."""

MADE_FIRST = frozenset({"states", "models"})
MADE_BEFORE_A_CHECKPOINT = MADE_FIRST | {
    disk.LOCK,
    "scratch",
    "config.yaml",
    DESCRIPTION,
    "history.jsonl",
    "ledger.jsonl",
    "states.jsonl",
    "manifest.json.tmp",
}

MADE_BY_A_RUN = MADE_BEFORE_A_CHECKPOINT | {
    "manifest.json",
    "summary.json",
    "summary.json.tmp",
    "failures.log",
    "curves.png",
    "curves.png.tmp",
}


def unused_folder(path: Path) -> Path:
    """This folder if it is empty or not there, else the first of `NAME-2`, `NAME-3` … that is."""
    candidate, number = path, 1
    while not _is_unused(candidate):
        number += 1
        candidate = path.with_name(f"{path.name}-{number}")
    return candidate


def state_of_folder(path: Path, config: RunConfig) -> State:
    """Whether a run of this config is new, begun or finished there; a `ConfigError` if it holds something else."""
    if not (path / "manifest.json").exists():
        if _is_unused(path) or _was_killed_before_a_checkpoint(path):
            return "new"
        raise ConfigError(f"{path} is not empty and holds no run: choose another --out")
    read_manifest(path)
    there, here = _values_of(read_config(path / "config.yaml")), _values_of(config)
    decided = {key: there.get(key) if value == "auto" else value for key, value in here.items()}
    if not config.models.own:  # decided by a trial when the run began
        decided = {key: value for key, value in decided.items() if not _is_of_own_models(key)}
        there = {key: value for key, value in there.items() if not _is_of_own_models(key)}
    difference = first_difference(there, decided)
    if difference is not None:
        raise ConfigError(f"{path} holds a run with another config, {difference}: choose another --out")
    return "finished" if (path / "summary.json").exists() else "begun"


def clear(path: Path) -> None:
    """Empty a folder in which a run was killed before its first checkpoint; any other is left as it is."""
    if _is_unused(path):
        return
    if not _was_killed_before_a_checkpoint(path):
        raise ConfigError(f"{path} is not empty: choose another --out")
    with disk.lock(path):
        # The lock is removed last: should this process be killed here, the folder can still be told to be ours.
        for part in sorted(path.iterdir(), key=lambda part: part.name == disk.LOCK):
            if part.is_dir():
                shutil.rmtree(part)
            else:
                part.unlink()


def delete_run(path: Path) -> None:
    """Delete what a run has written into a folder. Where there is anything else, or a process at work, nothing is."""
    if _is_unused(path):
        return
    if not (path / "manifest.json").exists():
        clear(path)
        return
    read_manifest(path)
    with disk.lock(path):
        strange = [part for part in sorted(path.rglob("*")) if not _is_of_a_run(part.relative_to(path), part)]
        if strange:
            raise ConfigError(
                f"{strange[0]} is no part of a run, and would be deleted too: choose another --out"
            )
        # The manifest and the lock go last: should this process be killed here, it is still known to be a run.
        for part in sorted(path.iterdir(), key=lambda part: part.name in ("manifest.json", disk.LOCK)):
            if part.is_dir():
                shutil.rmtree(part)
            else:
                part.unlink()


def _is_of_a_run(name: Path, part: Path) -> bool:
    """Whether a run writes a file or folder of this name: only what is known to be ours may be deleted."""
    if part.is_symlink():
        return False
    folder, *inside = name.parts
    if inside:
        return folder == "scratch" or (folder in MADE_FIRST and name.suffix in (".safetensors", ".json"))
    return folder in MADE_BY_A_RUN


def _is_unused(path: Path) -> bool:
    return not path.exists() or (path.is_dir() and not any(path.iterdir()))


def _was_killed_before_a_checkpoint(path: Path) -> bool:
    """Whether all that is there is what a run leaves that was killed before its first checkpoint.

    That is its lock and a few files without content of value; or two empty folders, before there is a lock.
    """
    names = {part.name for part in path.iterdir()}
    if disk.LOCK not in names:
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
    """The first key in which two files differ, in words; None if there is none."""
    for key in dict.fromkeys([*here, *there]):
        old, new = there.get(key), here.get(key)
        if old != new:
            return f"{key} is {json.dumps(old)} there and {json.dumps(new)} here"
    return None


def _is_of_own_models(key: str) -> bool:
    return key == "models.own" or key.startswith("models.own.")


def _values_of(config: RunConfig) -> dict[str, Any]:
    """Every dotted key of a run file with its value, the method's defaults written out."""
    settings = config.method_settings().model_dump(mode="json")
    return flatten({**config.as_file(), "method": {"name": config.method.name, **settings}})
