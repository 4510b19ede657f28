"""A run directory: what is in it, and how it stays whole whatever happens.

    config.yaml       the resolved config                       manifest.json   its rename is the commit
    data.json         clients, classes, columns, normalisation  assignment.json  who trains what, and why
    history.jsonl     one line per evaluation, failures         ledger.jsonl    bytes, one line per round
    states/           clients', server's and shelf's states     states.jsonl    which file is whose
    models/           every final model, plain safetensors      summary.json    the result
    failures.log      tracebacks of steps that failed, if any   curves.png      a figure, if the command line ran it
    scratch/          states that do not fit in memory, messages between processes: of no value afterwards

New files are written first; then the manifest is replaced in one rename. It says how long each log was and which
digest every file had, so a run killed at any moment goes on from its last commit, and what was truncated or edited
since is noticed. A commit writes only the states that changed since the last one. When a run has concluded, the
manifest is written once more with the digests of its result.

A run directory may come from anybody: it is reached through `disk.Folder` alone, so nothing in it leads outside.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import yaml

from polyfed import disk, yaml_files
from polyfed.disk import Folder, SavedState, digest
from polyfed.errors import CheckpointError, ConfigError, MessageError, RunError
from polyfed.federation import shelf
from polyfed.federation.message import decode, encode
from polyfed.runs.manifest import (
    ASSIGNMENT,
    CLIENTS,
    CONFIG,
    DESCRIPTION,
    FORMAT,
    HISTORY,
    LEDGER,
    MANIFEST,
    MODELS,
    RESULT,
    SUMMARY,
    RunFiles,
    read_lines,
    read_manifest,
    seal,
)
from polyfed.runs.remains import (
    INDEX,
    SCRATCH,
    STATES,
    check_kinds,
    is_a_state,
    is_unused,
    remove_all,
    was_killed_before_a_checkpoint,
)
from polyfed.runs.states import note, read_state, read_states, server_state

FIXED = {"description": DESCRIPTION, "assignment": ASSIGNMENT}
"""What is written before the first commit and does not change, by its key in the manifest."""


class Log:
    """A file of JSON lines that only grows, and can be set back to what was committed."""

    def __init__(self, folder: Folder, name: str) -> None:
        self.path = folder.file(name)
        self._hash = hashlib.blake2b(digest_size=16)
        self._file = folder.append(name)
        self.length = 0

    def append(self, line: Mapping[str, Any]) -> None:
        data = (json.dumps(line) + "\n").encode()
        self._file.write(data)
        self._hash.update(data)
        self.length += len(data)

    def flush(self) -> None:
        """Let others see what was written."""
        self._file.flush()

    def mark(self) -> list[Any]:
        """Where the log stands, safely on the disk."""
        self._file.flush()
        os.fsync(self._file.fileno())
        return [self.length, self._hash.hexdigest()]

    def rewind(self, mark: Sequence[Any]) -> None:
        """Set the log back to a mark; what was written since is gone."""
        length, expected = mark
        self._file.flush()
        content = disk.read_file(self.path)[:length]
        if len(content) < length or digest(content) != expected:
            raise CheckpointError(
                f"{self.path} was truncated or edited since its last checkpoint: put it back as it was, or run it again"
            )
        self._file.truncate(length)
        self._hash = hashlib.blake2b(content, digest_size=16)
        self.length = length

    def lines(self) -> Iterator[dict[str, Any]]:
        self._file.flush()
        yield from read_lines(self.path)

    def close(self) -> None:
        with contextlib.suppress(OSError):  # what a full disk leaves unwritten is no part of a commit
            self._file.close()


class RunDirectory:
    """One run's directory, open for writing by this process alone."""

    def __init__(self, path: Path, *, new: bool) -> None:
        self.path = path
        self.closed = False
        self.folder = Folder(path)
        self.models = self.folder.folder(MODELS)
        self._states = self.folder.folder(STATES)
        if new:
            _check_free(path)
            try:
                self.folder.make()
            except OSError as error:
                raise CheckpointError(f"cannot make {path}: {error.strerror}; choose another --out") from None
        else:
            read_manifest(path)  # first of all: what is not a run is left as it is, without a lock
        self._lock = disk.lock(path)
        try:
            # Only now: up to here another process may have written.
            if new:
                _check_free(path)
                remove_all(self.folder, but=(disk.LOCK,))
            self.manifest: dict[str, Any] = {} if new else read_manifest(path)
            check_kinds(self.folder)
            self._config: str | None = None
            self._fixed: dict[str, str] = {key: self.manifest[key] for key in FIXED if not new}
            for part in (self._states, self.models):
                part.make()
            self.scratch = path / SCRATCH
            self._remove_scratch()
            self.folder.folder(SCRATCH).make()
            self.states: dict[str, SavedState] = {}
            self.history = Log(self.folder, HISTORY)
            self.ledger = Log(self.folder, LEDGER)
            self.index = Log(self.folder, INDEX)
        except BaseException:
            self._lock.close()
            raise

    @property
    def states_path(self) -> Path:
        """Where engines write states."""
        self._states.check()
        return self._states.path

    @property
    def files(self) -> RunFiles:
        """For reading, checked against the last commit."""
        return RunFiles(self.path, self.manifest)

    def _remove_scratch(self) -> None:
        self.folder.remove_folder(SCRATCH)

    def write_config(self, content: Mapping[str, Any]) -> None:
        data = _as_yaml(content)
        self.folder.write(CONFIG, data)
        self._config = digest(data)

    def write_description(self, content: Mapping[str, Any]) -> None:
        """What the data are: all that is needed to apply a model of this run to others."""
        self._write_fixed("description", content)

    def write_assignment(self, content: Mapping[str, Any]) -> None:
        """Who trains which model, and why."""
        self._write_fixed("assignment", content)

    def _write_fixed(self, key: str, content: Mapping[str, Any]) -> None:
        lines = [
            f"{json.dumps(name)}: {json.dumps(value, ensure_ascii=False)}" for name, value in content.items()
        ]
        data = ("{" + ",\n ".join(lines) + "}\n").encode()
        self.folder.write(FIXED[key], data)
        self._fixed[key] = digest(data)

    def end_here(self) -> None:
        """Make the round of the last commit the last of all. Its evaluation may be new in the logs."""
        logs = {"history": self.history.mark(), "ledger": self.ledger.mark()}
        self._write_manifest({**self.manifest, **logs, "ended": True})

    def set_rounds(self, rounds: int, *, without_patience: bool = False, again: bool = False) -> None:
        """Let the run go on to so many rounds.

        Whenever this is killed, the run is a whole one of as many rounds as `config.yaml` says, or of those after which
        it had ended. The manifest first allows the new config beside the old; the result goes before the config, since
        it is not that of more rounds.

        without_patience: from now on it is a run without `evaluate.patience`.
        again: also if it has ended before that many rounds.
        """
        old = self.files.config()
        content = yaml.safe_load(old)
        changed = {**content, "rounds": rounds}
        if without_patience:
            changed["evaluate"] = {**content["evaluate"], "patience": None}
        ended = again and self.manifest.get("ended", False)
        if changed == content and not ended:
            return
        new = _as_yaml(changed)
        models = self._model_files()
        allowed = {"config": digest(old), "next_config": digest(new)}
        self._write_manifest({**self.manifest, **allowed, RESULT: None})
        self.folder.remove(SUMMARY)
        for name in models:
            self.models.remove(name)
        self.folder.replace(CONFIG, new)
        self._config = digest(new)
        if ended:  # only now: killed before, it would go on to as many rounds as nobody asked for
            self._write_manifest({**self.manifest, "ended": False})

    def _model_files(self) -> list[str]:
        """The files of the result in `models/`."""
        return [*self.files.clients()["files"], CLIENTS] if self.files.finished else []

    @property
    def concluded(self) -> bool:
        """Whether the result is there and the manifest knows of it: then it is checked."""
        if not self.files.finished:
            return False
        self.files.summary()
        for name in self.files.clients()["files"]:
            self.files.model(name)
        return True

    def conclude(
        self, models: Mapping[str, str], clients: Mapping[str, Any], summary: Mapping[str, Any]
    ) -> None:
        """Write the result; then the manifest, with its digests. Killed in between, the run concludes on resume.

        models: the digests of the files in `models/`. clients: who has which.
        """
        who = json.dumps({**clients, "files": models}).encode()
        what = (json.dumps(summary, indent=1) + "\n").encode()
        self.models.replace(CLIENTS, who)
        self.folder.replace(SUMMARY, what)
        result = {SUMMARY: digest(what), f"{MODELS}/{CLIENTS}": digest(who)}
        self._write_manifest({**self.manifest, RESULT: result})

    def commit(
        self,
        number: int,
        label: str,
        server_state: Mapping[str, Any],
        saved: Sequence[SavedState],
        facts: Mapping[str, Any],
    ) -> None:
        """Make this the point from which the run goes on, whatever happens next.

        label: another one at each commit of a run, for the names of its files.
        """
        replaced = [self.states[state.owner].file for state in saved if state.owner in self.states]
        for state in saved:
            self.index.append(dataclasses.asdict(state))
            note(self.states, state)
        data = encode(server_state)
        server_file = f"server.{label}.safetensors"
        if "server" in self.manifest:
            replaced.append(self.manifest["server"][0])
        self._states.write(server_file, data)
        disk.sync_folder(self._states.path)
        manifest = {
            "format": FORMAT,
            "torch": torch.__version__,
            "round": number,
            "config": self._config or digest(self.folder.read(CONFIG)),
            **self._fixed,
            "server": [server_file, digest(data)],
            "history": self.history.mark(),
            "ledger": self.ledger.mark(),
            "states": self.index.mark(),
            RESULT: None,
            **facts,
        }
        self._write_manifest(manifest)
        kept = {server_file, *(state.file for state in saved)}
        for file in replaced:
            if file is not None and file not in kept:
                self._states.remove(file)

    def _write_manifest(self, manifest: dict[str, Any]) -> None:
        content = json.dumps({**manifest, "digest": seal(manifest)}, indent=1).encode()
        self.folder.replace(MANIFEST, content)
        self.manifest = manifest

    def rewind(self) -> dict[str, Any]:
        """Go back to the last commit and give back the server's state."""
        manifest = self.manifest
        self._config = digest(self.files.config())
        for key, name in FIXED.items():
            self.files.from_the_start(name, key)
        self.history.rewind(manifest["history"])
        self.ledger.rewind(manifest["ledger"])
        self.index.rewind(manifest["states"])
        self.states = read_states(self.path)
        for state in self.states.values():
            read_state(self.path, state)
        server = server_state(self.files)
        server_file, data = server.file, read_state(self.path, server)
        known = {server_file, *(state.file for state in self.states.values())}
        for name in self._states.names():
            if name not in known and is_a_state(name):
                self._states.remove(name)
        try:
            return decode(data)
        except MessageError as error:
            raise CheckpointError(f"{server_file}: {error}") from None

    def _file(self, state: SavedState) -> Path:
        assert state.file is not None, "a deleted state is not among the states"
        return self._states.path / state.file

    def state_files(self) -> dict[str, Path]:
        """The clients' state files by the clients' names."""
        return {
            owner: self._file(state)
            for owner, state in self.states.items()
            if not owner.startswith(shelf.OWNER)
        }

    def shelf_files(self) -> dict[str, Path]:
        """The files of the server's shelf by key, in the shelf's order."""
        return {
            owner.removeprefix(shelf.OWNER): self._file(state)
            for owner, state in self.states.items()
            if owner.startswith(shelf.OWNER)
        }

    def close(self) -> None:
        """Let others have it."""
        if self.closed:
            return  # whoever has it by now has scratch of its own
        self.closed = True
        for log in (self.history, self.ledger, self.index):
            log.close()
        with contextlib.suppress(OSError, CheckpointError):  # of no value, and the run is over
            self._remove_scratch()
        self._lock.close()


def _check_free(path: Path) -> None:
    """Refuse a folder for a new run, unless it is empty or holds what is left of one that was killed at its start."""
    if not is_unused(path) and not was_killed_before_a_checkpoint(path):
        raise CheckpointError(_taken(path))


def _taken(path: Path) -> str:
    """What to do where a new run finds something in its folder."""
    if not path.is_dir():
        return f"{path} is a file, not a folder: choose another --out"
    if os.path.lexists(path / MANIFEST):
        return (
            f"{path} holds a run: choose another --out, `polyfed resume {path}`, or delete it by --overwrite"
        )
    return f"{path} is not empty and holds no run: choose another --out"


def disk_trouble(error: OSError, path: Path) -> RunError:
    """A full disk and its like, in one line that says how to go on."""
    return RunError(
        f"cannot write to {path}: {error.strerror or error}; make room, then `polyfed resume {path}`"
        " goes on from the last checkpoint"
    )


def _as_yaml(content: Mapping[str, Any]) -> bytes:
    data: bytes = yaml.safe_dump(dict(content), sort_keys=False).encode()
    if len(data) > yaml_files.MOST_YAML_BYTES:
        raise ConfigError(
            f"the config takes {len(data) / 1e6:.1f} MB, more than the {yaml_files.MOST_YAML_BYTES / 1e6:g} MB"
            " that are read: name fewer clients one by one"
        )
    return data


__all__ = ["DESCRIPTION", "Log", "RunDirectory", "disk_trouble", "read_lines", "read_manifest", "read_states"]
