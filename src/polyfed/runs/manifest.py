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

from polyfed.disk import Folder, digest
from polyfed.errors import CheckpointError
from polyfed.runs.assignment import Assignment, read_assignment
from polyfed.runs.summaries import is_summary

FORMAT = 2
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

LARGEST = 1e15  # rounds and seconds of a run: far above any

NOT_JSON = (ValueError, RecursionError)


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
        raise CheckpointError(_edited(file, "put it back as it was, or run it again"))
    if manifest.get("format") != FORMAT:
        raise CheckpointError(
            f"{path} was written by another version of polyfed (format {manifest.get('format')!r:.20})"
        )
    _check_types(manifest, file)
    return manifest


def seal(manifest: Mapping[str, Any]) -> str:
    """The digest of a manifest without it."""
    return digest(json.dumps(manifest, sort_keys=True).encode())


_KINDS: dict[str, type | tuple[type, ...]] = {
    "round": int,
    "prepared": bool,
    "seconds": (int, float),
    "torch": str,
    "data": str,
    "config": str,
    "server": list,
}
_MAY_BE_MISSING: dict[str, type | tuple[type, ...]] = {
    "next_config": str,
    "description": str,
    "assignment": str,
    RESULT: (dict, type(None)),
}


def _check_types(manifest: Mapping[str, Any], file: Path) -> None:
    """Refuse a manifest that is sealed, but not as polyfed would have written it."""
    right = (
        all(isinstance(manifest.get(key), kind) for key, kind in _KINDS.items())
        and all(isinstance(manifest[key], kind) for key, kind in _MAY_BE_MISSING.items() if key in manifest)
        and all(_is_mark(manifest.get(key)) for key in ("history", "ledger", "states"))
    )
    if (
        not right
        or not 0 <= manifest["round"] < LARGEST
        or not 0 <= manifest["seconds"] < LARGEST
        or len(manifest["server"]) != 2
    ):
        raise CheckpointError(_edited(file, "put it back as it was, or run it again"))


def _is_mark(value: Any) -> bool:
    return (
        isinstance(value, list)
        and len(value) == 2
        and isinstance(value[0], int)
        and value[0] >= 0
        and isinstance(value[1], str)
    )


def is_finished(path: Path, manifest: Mapping[str, Any] | None = None) -> bool:
    """Whether there is a run with a result.

    One that was killed after its summary, but before the manifest knew of it, is finished by a resume. A manifest of
    an older polyfed does not know of results: there the summary alone says it.
    """
    try:
        known = read_manifest(path) if manifest is None else manifest
        return Folder(path).has(SUMMARY) and known.get(RESULT, {}) is not None
    except CheckpointError:
        return False


def other_data(there: str, here: str) -> str:
    """Which of the data are others by these fingerprints: `test`, `test and public` …; nothing if all are the same.

    A fingerprint is that of the training rows, and `test=…` and `public=…`; of an older polyfed, the first alone.
    """
    olds, news = there.split(" "), here.split(" ")
    names = ["training", *(part.partition("=")[0] for part in news[1:])]
    parts = list(zip(names, olds, news, strict=False))
    if len(olds) != len(news) and 1 not in (len(olds), len(news)):
        return "all"
    return " and ".join(name for name, old, new in parts if old != new)


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

    def description(self) -> dict[str, Any]:
        """What `data.json` says of the data."""
        if "description" not in self.manifest:
            raise CheckpointError(
                f"{self.path} was begun by an older polyfed, which kept no {DESCRIPTION}: its models cannot be applied"
                " to new data; run it again"
            )
        return self._from_the_start(DESCRIPTION, "description")

    def assignment(self) -> Assignment:
        """What `assignment.json` says of who trains which model."""
        if "assignment" not in self.manifest:
            raise CheckpointError(
                f"{self.path} was begun by an older polyfed, which kept no {ASSIGNMENT}: run it again to see who trains"
                " what and why"
            )
        found = read_assignment(self._from_the_start(ASSIGNMENT, "assignment"))
        if found is None:
            raise CheckpointError(_edited(self.path / ASSIGNMENT, "run it again"))
        return found

    def _from_the_start(self, name: str, key: str) -> dict[str, Any]:
        """A file that is written before the first commit and does not change."""
        data = self._read(self.folder, name)
        return self._json(
            self.path / name, data, self.manifest[key], "put it back as it was, or run it again"
        )

    def summary(self) -> dict[str, Any]:
        """The result of a finished run."""
        data = self._read(self.folder, SUMMARY)
        expected = self._of_result(SUMMARY)
        content = self._json(self.path / SUMMARY, data, expected, self._again())
        if expected is None and not is_summary(content):
            raise CheckpointError(_edited(self.path / SUMMARY, self._again()))
        return content

    def clients(self) -> dict[str, Any]:
        """What `models/clients.json` says: who has which architecture; the digests of the models, if it is not old."""
        data = self._read(self.folder.folder(MODELS), CLIENTS)
        name = f"{MODELS}/{CLIENTS}"
        return self._json(self.path / name, data, self._of_result(name), self._again())

    def model(self, name: str) -> bytes:
        """A final model's file."""
        data = self._read(self.folder.folder(MODELS), name)
        known = self.clients().get("files")
        if known is not None and (not isinstance(known, dict) or known.get(name) != digest(data)):
            raise CheckpointError(_edited(self.path / MODELS / name, self._again()))
        return data

    def log(self, name: str) -> bytes:
        """The history or ledger; what a run at work has not committed yet is at its end."""
        data = self._read(self.folder, name)
        length, expected = self.manifest[name.removesuffix(".jsonl")]
        if digest(data[:length]) != expected or (self.finished and len(data) > length):
            remedy = "put it back as it was, or run it again"
            raise CheckpointError(_edited(self.path / name, remedy))
        return data

    def lines(self, name: str) -> Iterator[dict[str, Any]]:
        """The lines of the history or ledger."""
        try:
            yield from _whole_lines(self.log(name))
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

    def _of_result(self, name: str) -> str | None:
        found = (self.manifest.get(RESULT) or {}).get(name)
        return None if found is None else str(found)

    def _again(self) -> str:
        return f"remove {self.path / SUMMARY}, then `polyfed resume {self.path}` writes it again"

    def _json(self, file: Path, data: bytes, expected: str | None, remedy: str) -> dict[str, Any]:
        try:
            content = json.loads(data)
        except NOT_JSON:
            content = None
        if not isinstance(content, dict) or (expected is not None and digest(data) != expected):
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
