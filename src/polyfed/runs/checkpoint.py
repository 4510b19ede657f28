"""A run directory: what is in it, and how it stays whole whatever happens.

    config.yaml       the resolved config                       manifest.json   its rename is the commit
    history.jsonl     one line an evaluation, and failures      ledger.jsonl    bytes, one line a round
    states/           clients' and server's states              states.jsonl    which file is whose
    models/           every final model, plain safetensors      summary.json    the result
    scratch/          states that do not fit in memory, messages between processes: of no value afterwards

New files are written first; then the manifest is replaced in one rename. It says how long each log was and which
digest every file had, so a run killed at any moment goes on from its last commit, and what was truncated or edited
since is noticed. A commit writes only the states that changed since the last one.
"""

from __future__ import annotations

import fcntl
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
from polyfed.disk import digest
from polyfed.errors import CheckpointError, MessageError, RunError
from polyfed.federation.engine import SavedState
from polyfed.federation.message import decode, encode

FORMAT = 1


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
                raise CheckpointError(
                    f"{path} is not empty: choose another --out, or `polyfed resume {path}`"
                )
            for part in ("states", "models"):
                (path / part).mkdir(parents=True, exist_ok=True)
        else:
            read_manifest(path)  # first of all: what is no run is left as it is, without a lock
        self._lock = self._locked()
        # Only now: up to here another process may have written.
        self.manifest: dict[str, Any] = {} if new else read_manifest(path)
        self.scratch = path / "scratch"
        shutil.rmtree(self.scratch, ignore_errors=True)
        self.scratch.mkdir()
        self.states: dict[int, SavedState] = {}
        self.history = Log(path / "history.jsonl")
        self.ledger = Log(path / "ledger.jsonl")
        self.index = Log(path / "states.jsonl")

    def _locked(self) -> Any:
        lock = (self.path / ".lock").open("w")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            lock.close()
            raise CheckpointError(
                f"another process is at work in {self.path}: wait for it or stop it"
            ) from None
        return lock

    def write_config(self, content: Mapping[str, Any]) -> None:
        disk.write_through(self.path / "config.yaml", yaml.safe_dump(dict(content), sort_keys=False).encode())

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
        replaced = [self.states[state.client].file for state in saved if state.client in self.states]
        for state in saved:
            self.index.append({"client": state.client, "file": state.file, "digest": state.digest})
            self.states[state.client] = state
        data = encode(server_state)
        server_file = f"server.{label}.safetensors"
        if "server" in self.manifest and self.manifest["server"][0] != server_file:
            replaced.append(self.manifest["server"][0])
        disk.write_through(self.path / "states" / server_file, data)
        manifest = {
            "format": FORMAT,
            "torch": torch.__version__,
            "round": number,
            "config": digest((self.path / "config.yaml").read_bytes()),
            "server": [server_file, digest(data)],
            "history": self.history.mark(),
            "ledger": self.ledger.mark(),
            "states": self.index.mark(),
            **facts,
        }
        content = json.dumps({**manifest, "digest": _seal(manifest)}, indent=1).encode()
        disk.replace(self.path / "manifest.json", content)
        self.manifest = manifest
        kept = {state.file for state in saved}
        for file in replaced:
            if file not in kept:
                (self.path / "states" / file).unlink(missing_ok=True)

    def rewind(self) -> dict[str, Any]:
        """Go back to the last commit and give back the server's state."""
        manifest = self.manifest
        config = self.path / "config.yaml"
        if not config.exists() or digest(config.read_bytes()) != manifest["config"]:
            raise CheckpointError(
                f"{config} was edited since the run began: start a new run with the new settings"
            )
        self.history.rewind(manifest["history"])
        self.ledger.rewind(manifest["ledger"])
        self.index.rewind(manifest["states"])
        self.states = {line["client"]: SavedState(**line) for line in self.index.lines()}
        for state in self.states.values():
            self._verified(state.file, state.digest)
        server_file, expected = manifest["server"]
        data = self._verified(server_file, expected)
        known = {server_file, *(state.file for state in self.states.values())}
        for path in (self.path / "states").iterdir():
            if path.name not in known:
                path.unlink()
        try:
            return decode(data)
        except MessageError as error:
            raise CheckpointError(f"{server_file}: {error}") from None

    def _verified(self, file: str, expected: str) -> bytes:
        path = self.path / "states" / file
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            raise CheckpointError(f"{path} is missing: the run cannot be resumed") from None
        if digest(data) != expected:
            raise CheckpointError(f"{path} was truncated or edited since it was saved")
        return data

    def state_files(self) -> dict[int, Path]:
        return {client: self.path / "states" / state.file for client, state in self.states.items()}

    def close(self) -> None:
        for log in (self.history, self.ledger, self.index):
            log.close()
        shutil.rmtree(self.scratch, ignore_errors=True)
        self._lock.close()


def read_manifest(path: Path) -> dict[str, Any]:
    """A run's manifest, checked against its own digest."""
    try:
        manifest = json.loads((path / "manifest.json").read_text())
        seal = manifest.pop("digest")
    except FileNotFoundError:
        raise CheckpointError(f"{path} is no run directory: there is no manifest.json") from None
    except (ValueError, AttributeError, KeyError):
        raise CheckpointError(f"{path / 'manifest.json'} was truncated or edited") from None
    if seal != _seal(manifest):
        raise CheckpointError(f"{path / 'manifest.json'} was edited since it was written")
    if manifest["format"] != FORMAT:
        raise CheckpointError(
            f"{path} was written by another version of polyfed (format {manifest['format']})"
        )
    return dict(manifest)


def read_lines(path: Path) -> Iterator[dict[str, Any]]:
    """The lines of a history or ledger; one cut off in the middle (a run still writing, or killed) is left out."""
    with path.open("rb") as file:
        for line in file:
            if line.endswith(b"\n"):
                yield json.loads(line)


def disk_trouble(error: OSError, path: Path) -> RunError:
    """A full disk and its like, in one line that says how to go on."""
    return RunError(
        f"cannot write to {path}: {error.strerror or error}; make room, then `polyfed resume {path}`"
        " goes on from the last checkpoint"
    )


def _seal(manifest: Mapping[str, Any]) -> str:
    return digest(json.dumps(manifest, sort_keys=True).encode())
