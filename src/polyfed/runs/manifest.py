"""What a run's manifest says of its files, and reading each file against it, so that damage is noticed.

A manifest is sealed by a digest of itself. It has the digests of `config.yaml`, `data.json`, `assignment.json` and
of the server's state, length and digest of the logs, and, once a run has concluded, the digests of `summary.json` and
`models/clients.json`; the latter has those of the final models.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from polyfed.disk import Folder, digest
from polyfed.errors import CheckpointError
from polyfed.runs.assignment import Assignment
from polyfed.runs.contents import (
    Clients,
    Description,
    Form,
    HistoryLine,
    LedgerLine,
    Manifest,
    Summary,
    read_as,
)

FORMAT = 3
MANIFEST = "manifest.json"
CONFIG = "config.yaml"
DESCRIPTION = "data.json"
ASSIGNMENT = "assignment.json"
SUMMARY = "summary.json"
HISTORY = "history.jsonl"
LEDGER = "ledger.jsonl"
MODELS = "models"
CLIENTS = "clients.json"
RESULT = "result"

LINES: dict[str, type[BaseModel]] = {HISTORY: HistoryLine, LEDGER: LedgerLine}

NOT_JSON = (ValueError, RecursionError)

AS_IT_WAS = "put it back as it was, or run it again"


def read_manifest(path: Path) -> dict[str, Any]:
    """A run's manifest, checked against its own digest."""
    file = path / MANIFEST
    try:
        content = json.loads(Folder(path).read(MANIFEST))
    except NotADirectoryError:
        raise CheckpointError(f"{path} is a file, not a folder") from None
    except FileNotFoundError:
        raise CheckpointError(f"{path} is not a run directory: there is no {MANIFEST}") from None
    except OSError as error:
        raise CheckpointError(f"cannot read {file}: {error.strerror or error}") from None
    except NOT_JSON:
        raise CheckpointError(_edited(file, "it is lost with it, run it again")) from None
    manifest = {**content} if isinstance(content, dict) else {}
    if manifest.pop("digest", None) != seal(manifest):
        raise CheckpointError(_edited(file, AS_IT_WAS))
    if manifest.get("format") != FORMAT:
        raise CheckpointError(
            f"{path} was written by another version of polyfed (format {manifest.get('format')!r:.20})"
        )
    if read_as(Manifest, manifest) is None:
        raise CheckpointError(_edited(file, AS_IT_WAS))
    return manifest


def seal(manifest: Mapping[str, Any]) -> str:
    """The digest of a manifest without it."""
    return digest(json.dumps(manifest, sort_keys=True).encode())


def is_finished(path: Path, manifest: Mapping[str, Any] | None = None) -> bool:
    """Whether there is a run with a result.

    One that was killed after its summary, but before the manifest knew of it, is finished by a resume.
    """
    try:
        known = read_manifest(path) if manifest is None else manifest
        return Folder(path).has(SUMMARY) and known[RESULT] is not None
    except CheckpointError:
        return False


FEW_NAMES = 8  # in a message


def data_digest(fingerprints: Mapping[str, str]) -> str:
    """One digest of all data; whose they are is in `data.json`, so that the manifest does not grow with the clients."""
    return digest(json.dumps(fingerprints, sort_keys=True).encode())


def other_data(there: Mapping[str, str], here: Mapping[str, str]) -> str:
    """Whose data are others by these fingerprints: `test`, `north and south` …; nothing if all are the same."""
    names = [name for name in {**there, **here} if there.get(name) != here.get(name)]
    more = len(names) - FEW_NAMES
    return " and ".join([*names[:FEW_NAMES], *([f"{more} more"] if more > 0 else [])])


@dataclass(frozen=True)
class RunFiles:
    """A run directory's files, each checked against the manifest when it is read."""

    path: Path
    manifest: Mapping[str, Any]

    @property
    def folder(self) -> Folder:
        return Folder(self.path)

    @property
    def finished(self) -> bool:
        return is_finished(self.path, self.manifest)

    def config(self) -> bytes:
        data = self._read(self.folder, CONFIG)
        if digest(data) not in {self.manifest["config"], self.manifest.get("next_config")}:
            raise CheckpointError(
                f"{self.path / CONFIG} was truncated or edited since the run began: put it back as it was, or start a"
                " new run with the new settings"
            )
        return data

    def description(self) -> Description:
        """What `data.json` says of the data."""
        content = self.from_the_start(DESCRIPTION, "description")
        return self._read_as(Description, content, DESCRIPTION, AS_IT_WAS)

    def assignment(self) -> Assignment:
        """What `assignment.json` says of who trains which model."""
        content = self.from_the_start(ASSIGNMENT, "assignment")
        return self._read_as(Assignment, content, ASSIGNMENT, AS_IT_WAS)

    def from_the_start(self, name: str, key: str) -> dict[str, Any]:
        """A file that is written before the first commit and does not change."""
        data = self._read(self.folder, name)
        return self._json(self.path / name, data, self.manifest[key], AS_IT_WAS)

    def summary(self) -> dict[str, Any]:
        """The result of a finished run."""
        content = self._result(self.folder, SUMMARY, SUMMARY)
        self._read_as(Summary, content, SUMMARY, self._again())
        return content

    def clients(self) -> dict[str, Any]:
        """What `models/clients.json` says: who has which architecture, and the digests of the models."""
        name = f"{MODELS}/{CLIENTS}"
        content = self._result(self.folder.folder(MODELS), CLIENTS, name)
        self._read_as(Clients, content, name, self._again())
        return content

    def model(self, name: str) -> bytes:
        """A final model's file."""
        data = self._read(self.folder.folder(MODELS), name)
        if self.clients()["files"].get(name) != digest(data):
            raise CheckpointError(_edited(self.path / MODELS / name, self._again()))
        return data

    def log(self, name: str) -> bytes:
        """The history, the ledger or the list of states; what a run at work has not committed yet is at its end."""
        data = self._read(self.folder, name)
        length, expected = self.manifest[name.removesuffix(".jsonl")]
        if digest(data[:length]) != expected or (self.finished and len(data) > length):
            raise CheckpointError(_edited(self.path / name, AS_IT_WAS))
        return data

    def lines(self, name: str) -> Iterator[dict[str, Any]]:
        """The lines of the history or ledger."""
        schema = LINES[name]
        try:
            for line in _whole_lines(self.log(name)):
                self._read_as(schema, line, name, "run it again")
                yield line
        except NOT_JSON:  # of lines that are not committed: one whose text is not whole
            raise CheckpointError(_edited(self.path / name, "run it again")) from None

    def _read(self, folder: Folder, name: str) -> bytes:
        try:
            return folder.read(name)
        except (FileNotFoundError, NotADirectoryError):
            raise CheckpointError(
                f"{folder.path / name} is missing: {self.path} is not a whole run directory"
            ) from None
        except OSError as error:
            raise CheckpointError(f"cannot read {folder.path / name}: {error.strerror or error}") from None

    def _result(self, folder: Folder, file: str, name: str) -> dict[str, Any]:
        """A file that is written when a run has concluded."""
        if self.manifest[RESULT] is None:
            raise CheckpointError(
                f"{self.path} has not finished: `polyfed resume {self.path}` goes on with it"
            )
        expected = self.manifest[RESULT].get(name, "")
        return self._json(self.path / name, self._read(folder, file), expected, self._again())

    def _read_as(self, schema: type[Form], content: dict[str, Any], name: str, remedy: str) -> Form:
        """What a file says, if it is as a run writes it: whoever forges a file can forge its digest too."""
        found = read_as(schema, content)
        if found is None:
            raise CheckpointError(_edited(self.path / name, remedy))
        return found

    def _again(self) -> str:
        return f"remove {self.path / SUMMARY}, then `polyfed resume {self.path}` writes it again"

    def _json(self, file: Path, data: bytes, expected: str, remedy: str) -> dict[str, Any]:
        try:
            content = json.loads(data)
        except NOT_JSON:
            content = None
        if not isinstance(content, dict) or digest(data) != expected:
            raise CheckpointError(_edited(file, remedy))
        return content


def read_lines(path: Path) -> Iterator[dict[str, Any]]:
    """The lines of a history or ledger as they are; one cut off in the middle (a run still writing) is left out."""
    yield from _whole_lines(Folder(path.parent).read(path.name))


def _whole_lines(data: bytes) -> Iterator[dict[str, Any]]:
    for line in io.BytesIO(data):
        if line.endswith(b"\n"):
            content = json.loads(line)
            if not isinstance(content, dict):
                raise ValueError("a line is not a map")
            yield content


def _edited(file: Path, remedy: str) -> str:
    return f"{file} was truncated or edited since it was written: {remedy}"
