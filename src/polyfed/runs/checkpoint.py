"""A run directory: what is in it, and how it stays whole whatever happens.

    config.yaml       the resolved config                       manifest.json   its rename is the commit
    data.json         clients, classes, columns, normalisation
    history.jsonl     one line per evaluation, failures         ledger.jsonl    bytes, one line per round
    states/           clients', server's and shelf's states     states.jsonl    which file is whose
    models/           every final model, plain safetensors      summary.json    the result
    failures.log      tracebacks of steps that failed, if any   curves.png      a figure, if the command line ran it
    scratch/          states that do not fit in memory, messages between processes: of no value afterwards

New files are written first; then the manifest is replaced in one rename. It says how long each log was and which
digest every file had, so a run killed at any moment goes on from its last commit, and what was truncated or edited
since is noticed. A commit writes only the states that changed since the last one.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import yaml

from polyfed import disk
from polyfed.disk import SavedState, digest
from polyfed.errors import CheckpointError, ConfigError, MessageError, RunError
from polyfed.federation import shelf
from polyfed.federation.message import decode, encode

FORMAT = 2
DESCRIPTION = "data.json"


class Log:
    """A file of JSON lines that only grows, and can be set back to what was committed."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._hash = hashlib.blake2b(digest_size=16)
        self._file = path.open("ab")
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
        content = self.path.read_bytes()[:length]
        if len(content) < length or digest(content) != expected:
            raise CheckpointError(f"{self.path} was truncated or edited since its last checkpoint")
        self._file.truncate(length)
        self._hash = hashlib.blake2b(content, digest_size=16)
        self.length = length

    def lines(self) -> Iterator[dict[str, Any]]:
        self._file.flush()
        yield from read_lines(self.path)

    def close(self) -> None:
        self._file.close()


class RunDirectory:
    """One run's directory, open for writing by this process alone."""

    def __init__(self, path: Path, *, new: bool) -> None:
        self.path = path
        if new:
            if path.exists() and any(path.iterdir()):
                raise CheckpointError(_taken(path))
            for part in ("states", "models"):
                (path / part).mkdir(parents=True, exist_ok=True)
        else:
            read_manifest(path)  # first of all: what is not a run is left as it is, without a lock
            for part in ("states", "models"):
                _check_plain(path / part)
        self._lock = disk.lock(path)
        # Only now: up to here another process may have written.
        self.manifest: dict[str, Any] = {} if new else read_manifest(path)
        self._description: str | None = self.manifest.get("description")
        self.scratch = path / "scratch"
        shutil.rmtree(self.scratch, ignore_errors=True)
        self.scratch.mkdir()
        self.states: dict[str, SavedState] = {}
        self.history = Log(path / "history.jsonl")
        self.ledger = Log(path / "ledger.jsonl")
        self.index = Log(path / "states.jsonl")

    def write_config(self, content: Mapping[str, Any]) -> None:
        disk.write_through(self.path / "config.yaml", _as_yaml(content))

    def write_description(self, content: Mapping[str, Any]) -> None:
        """What the data are: all that is needed to apply a model of this run to others."""
        lines = [
            f"{json.dumps(key)}: {json.dumps(value, ensure_ascii=False)}" for key, value in content.items()
        ]
        data = ("{" + ",\n ".join(lines) + "}\n").encode()
        disk.write_through(self.path / DESCRIPTION, data)
        self._description = digest(data)

    def set_rounds(self, rounds: int) -> None:
        """Let the run go on to so many rounds.

        Whenever this is killed, the run is a whole one of as many rounds as `config.yaml` says. The manifest first
        allows the new config beside the old; the result goes before the config, since it is not that of more rounds.
        """
        file = self.path / "config.yaml"
        old = file.read_bytes()
        content = yaml.safe_load(old)
        if content["rounds"] == rounds:
            return
        new = _as_yaml({**content, "rounds": rounds})
        self._write_manifest({**self.manifest, "config": digest(old), "next_config": digest(new)})
        (self.path / "summary.json").unlink(missing_ok=True)
        for model in (self.path / "models").iterdir():
            model.unlink()
        disk.replace(file, new)

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
            _note(self.states, state)
        data = encode(server_state)
        server_file = f"server.{label}.safetensors"
        if "server" in self.manifest:
            replaced.append(self.manifest["server"][0])
        disk.write_through(self.path / "states" / server_file, data)
        manifest = {
            "format": FORMAT,
            "torch": torch.__version__,
            "round": number,
            "config": digest((self.path / "config.yaml").read_bytes()),
            **({"description": self._description} if self._description else {}),
            "server": [server_file, digest(data)],
            "history": self.history.mark(),
            "ledger": self.ledger.mark(),
            "states": self.index.mark(),
            **facts,
        }
        self._write_manifest(manifest)
        kept = {server_file, *(state.file for state in saved)}
        for file in replaced:
            if file is not None and file not in kept:
                (self.path / "states" / file).unlink(missing_ok=True)

    def _write_manifest(self, manifest: dict[str, Any]) -> None:
        content = json.dumps({**manifest, "digest": _seal(manifest)}, indent=1).encode()
        disk.replace(self.path / "manifest.json", content)
        self.manifest = manifest

    def rewind(self) -> dict[str, Any]:
        """Go back to the last commit and give back the server's state."""
        manifest = self.manifest
        config = self.path / "config.yaml"
        allowed = {manifest["config"], manifest.get("next_config")}
        if not config.exists() or digest(config.read_bytes()) not in allowed:
            raise CheckpointError(
                f"{config} was edited since the run began: start a new run with the new settings"
            )
        if "description" in manifest:  # not in runs of older versions
            read_description(self.path, manifest)
        self.history.rewind(manifest["history"])
        self.ledger.rewind(manifest["ledger"])
        self.index.rewind(manifest["states"])
        self.states = read_states(self.path)
        for state in self.states.values():
            self._verified(state)
        server_file, expected = manifest["server"]
        data = self._verified(_checked(SavedState("server", server_file, expected), self.path))
        known = {server_file, *(state.file for state in self.states.values())}
        for path in (self.path / "states").iterdir():
            if path.name not in known:
                path.unlink()
        try:
            return decode(data)
        except MessageError as error:
            raise CheckpointError(f"{server_file}: {error}") from None

    def _verified(self, state: SavedState) -> bytes:
        path = self._file(state)
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            raise CheckpointError(f"{path} is missing: the run cannot be resumed") from None
        if digest(data) != state.digest:
            raise CheckpointError(f"{path} was truncated or edited since it was saved")
        return data

    def _file(self, state: SavedState) -> Path:
        assert state.file is not None, "a deleted state is not among the states"
        return self.path / "states" / state.file

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
        for log in (self.history, self.ledger, self.index):
            log.close()
        shutil.rmtree(self.scratch, ignore_errors=True)
        self._lock.close()


def read_manifest(path: Path) -> dict[str, Any]:
    """A run's manifest, checked against its own digest. Nothing beside it leads out of the run directory."""
    _check_plain(path)
    try:
        manifest = json.loads((path / "manifest.json").read_text())
        seal = manifest.pop("digest")
    except FileNotFoundError:
        raise CheckpointError(f"{path} is not a run directory: there is no manifest.json") from None
    except (ValueError, AttributeError, KeyError):
        raise CheckpointError(f"{path / 'manifest.json'} was truncated or edited") from None
    if seal != _seal(manifest):
        raise CheckpointError(f"{path / 'manifest.json'} was edited since it was written")
    if manifest["format"] != FORMAT:
        raise CheckpointError(
            f"{path} was written by another version of polyfed (format {manifest['format']})"
        )
    return dict(manifest)


def _check_plain(folder: Path) -> None:
    """Refuse links, pipes and the like in a run directory: what is written there must not land elsewhere, or wait."""
    try:
        disk.check_plain_folder(folder)
    except FileNotFoundError:
        return  # said by who needs what is there
    except NotADirectoryError:
        raise CheckpointError(f"{folder} is a file, not a folder") from None
    except OSError as error:
        raise CheckpointError(f"{error.filename or folder}: {error.strerror}") from None


def _taken(path: Path) -> str:
    """What to do where a new run finds something in its folder."""
    if (path / "manifest.json").exists():
        return (
            f"{path} holds a run: choose another --out, `polyfed resume {path}`, or delete it by --overwrite"
        )
    return f"{path} is not empty and holds no run: choose another --out"


def read_description(path: Path, manifest: Mapping[str, Any]) -> dict[str, Any]:
    """What `data.json` of a run says of its data, checked against the manifest."""
    file = path / DESCRIPTION
    if "description" not in manifest:
        raise CheckpointError(
            f"{path} was begun by an older polyfed, which kept no {DESCRIPTION}: its models cannot be applied to new"
            " data; run it again"
        )
    try:
        data = file.read_bytes()
    except FileNotFoundError:
        raise CheckpointError(f"{file} is missing: {path} is not a whole run directory") from None
    if digest(data) != manifest["description"]:
        raise CheckpointError(f"{file} was edited since the run began")
    return dict(json.loads(data))


def read_lines(path: Path) -> Iterator[dict[str, Any]]:
    """The lines of a history or ledger; one cut off in the middle (a run still writing, or killed) is left out."""
    with path.open("rb") as file:
        for line in file:
            if line.endswith(b"\n"):
                yield json.loads(line)


def read_states(path: Path) -> dict[str, SavedState]:
    """Every owner's last state by `states.jsonl` of a run directory, each in a plain file inside `states/`."""
    states: dict[str, SavedState] = {}
    try:
        for line in read_lines(path / "states.jsonl"):
            state = SavedState(**line)
            _note(states, state if state.file is None else _checked(state, path))
    except (TypeError, ValueError):
        raise CheckpointError(f"{path / 'states.jsonl'} was edited: it is not a list of states") from None
    return states


def _note(states: dict[str, SavedState], state: SavedState) -> None:
    if state.file is None:
        states.pop(state.owner, None)
    else:
        states[state.owner] = state


def _checked(state: SavedState, path: Path) -> SavedState:
    """The state, if its file cannot lead out of the run directory: files that were replaced are deleted."""
    name = state.file
    plain = isinstance(name, str) and name not in {"", ".", ".."} and not set(name) & set("/\\\0")
    if not plain or not isinstance(state.owner, str):
        raise CheckpointError(
            f"{path} was edited: the state of {state.owner!r:.100} is in {name!r:.100},"
            " which is not a file inside states/"
        )
    return state


def disk_trouble(error: OSError, path: Path) -> RunError:
    """A full disk and its like, in one line that says how to go on."""
    return RunError(
        f"cannot write to {path}: {error.strerror or error}; make room, then `polyfed resume {path}`"
        " goes on from the last checkpoint"
    )


def _as_yaml(content: Mapping[str, Any]) -> bytes:
    data: bytes = yaml.safe_dump(dict(content), sort_keys=False).encode()
    if len(data) > disk.MOST_YAML_BYTES:
        raise ConfigError(
            f"the config takes {len(data) / 1e6:.1f} MB, more than the {disk.MOST_YAML_BYTES / 1e6:g} MB that are read:"
            " name fewer clients one by one"
        )
    return data


def _seal(manifest: Mapping[str, Any]) -> str:
    return digest(json.dumps(manifest, sort_keys=True).encode())
