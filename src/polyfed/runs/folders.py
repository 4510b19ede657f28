"""What a run's folder holds already: nothing, a run that was begun, one that is finished, or something else."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from polyfed import disk
from polyfed.disk import Folder
from polyfed.errors import CheckpointError, ConfigError
from polyfed.plug_ins import REFERENCE
from polyfed.runs.config import RunConfig, read_config
from polyfed.runs.keys import flatten
from polyfed.runs.manifest import CLIENTS, MANIFEST, RunFiles, read_manifest
from polyfed.runs.remains import first_strange, is_unused, remove_all, was_killed_before_a_checkpoint

State = Literal["new", "begun", "finished"]

RUNS_FOLDER = Path("polyfed-runs")
"""Where runs are written by default."""


def unused_folder(path: Path) -> Path:
    """This folder if it is empty or not there, else the first of `NAME-2`, `NAME-3` … that is.

    One in which a run was killed before its first checkpoint is as good as empty, unless a run is beginning there.
    """
    candidate, number = path, 1
    while not is_unused(candidate) and not _can_be_cleared(candidate):
        number += 1
        candidate = path.with_name(f"{path.name}-{number}")
    return candidate


def _can_be_cleared(path: Path) -> bool:
    if not was_killed_before_a_checkpoint(path):
        return False
    if not os.path.lexists(path / disk.LOCK):
        return True
    try:
        disk.lock(path).close()
    except CheckpointError:
        return False
    return True


def state_of_folder(path: Path, config: RunConfig) -> State:
    """Whether a run of this config is new, begun or finished there; a `ConfigError` if it holds something else."""
    if not os.path.lexists(path / MANIFEST):
        if is_unused(path) or was_killed_before_a_checkpoint(path):
            return "new"
        raise ConfigError(f"{path} is not empty and holds no run: choose another --out")
    files = RunFiles(path, read_manifest(path))
    files.config()  # one that was edited is a damaged run, not one with another config
    there, here = _values_of(read_config(path / "config.yaml")), _values_of(config)
    decided = {key: there.get(key) if value == "auto" else value for key, value in here.items()}
    if not config.models.own:  # decided by a trial when the run began
        decided = {key: value for key, value in decided.items() if not _is_of_own_models(key)}
        there = {key: value for key, value in there.items() if not _is_of_own_models(key)}
    for name in config.make_task().left_open():  # decided when the run began
        decided, there = _without(f"task.{name}", decided), _without(f"task.{name}", there)
    difference = first_difference(there, decided)
    if difference is not None:
        raise ConfigError(f"{path} holds a run with another config, {difference}: choose another --out")
    return "finished" if files.finished else "begun"


def delete_run(path: Path) -> None:
    """Delete what a run has written into a folder. Where there is anything else, or a process at work, nothing is."""
    if is_unused(path):
        return
    begun = os.path.lexists(path / MANIFEST)
    models: set[str] | None = None
    if begun:
        models = _known_models(RunFiles(path, read_manifest(path)))
    elif not was_killed_before_a_checkpoint(path):
        raise ConfigError(f"{path} is not empty: choose another --out")
    with disk.lock(path):
        folder = Folder(path)
        strange = first_strange(folder, models) if begun or was_killed_before_a_checkpoint(path) else path
        if strange is not None:
            raise ConfigError(
                f"{strange} is no part of a run, and would be deleted too: choose another --out"
            )
        # The manifest and the lock go last: should this process be killed here, it is still known to be a run.
        remove_all(folder, last=(MANIFEST, disk.LOCK))


def _known_models(files: RunFiles) -> set[str] | None:
    """The files that a run wrote into `models/`; None where that cannot be known."""
    try:
        known = files.clients()["files"]
    except CheckpointError:  # not finished, or damaged
        return None
    return {*known, CLIENTS}


def first_difference(there: Mapping[str, Any], here: Mapping[str, Any]) -> str | None:
    """The first key in which two files differ, in words; None if there is none."""
    for key in dict.fromkeys([*here, *there]):
        old, new = there.get(key), here.get(key)
        if old != new:
            return f"{key} is {json.dumps(old)} there and {json.dumps(new)} here"
    return None


def _is_of_own_models(key: str) -> bool:
    return key == "models.own" or key.startswith("models.own.")


def _without(section: str, values: Mapping[str, Any]) -> dict[str, Any]:
    return {
        key: value for key, value in values.items() if key != section and not key.startswith(f"{section}.")
    }


def _values_of(config: RunConfig) -> dict[str, Any]:
    """Every dotted key of a run file with its value, the defaults of method and task written out."""
    content = config.as_file()
    method = config.method_settings().model_dump(mode="json")
    content["method"] = {"name": config.method.name, **method}
    if not REFERENCE.fullmatch(config.task.name):  # else as it stands: it may be anybody's code
        content["task"] = {"name": config.task.name, **config.make_task().model_dump(mode="json")}
    return flatten(content)
