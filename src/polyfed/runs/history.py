"""Reading runs back: what came out of each, and how one compares with another."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from polyfed.disk import digest, read_yaml
from polyfed.errors import CheckpointError
from polyfed.federation.ledger import Entry, entries
from polyfed.runs.checkpoint import read_description, read_lines, read_manifest


@dataclass(frozen=True)
class RunRecord:
    """A run directory, read only."""

    path: Path

    def __post_init__(self) -> None:
        read_manifest(self.path)

    @cached_property
    def config(self) -> dict[str, Any]:
        file = self.path / "config.yaml"
        return read_yaml(file, f"{file} is missing: {self.path} is not a whole run directory")

    @cached_property
    def manifest(self) -> dict[str, Any]:
        return read_manifest(self.path)

    @property
    def finished(self) -> bool:
        return (self.path / "summary.json").exists()

    @cached_property
    def summary(self) -> dict[str, Any]:
        if not self.finished:
            raise CheckpointError(
                f"{self.path} has not finished: `polyfed resume {self.path}` goes on from"
                f" round {self.manifest['round']}"
            )
        try:
            return dict(json.loads((self.path / "summary.json").read_text()))
        except ValueError:
            raise CheckpointError(f"{self.path / 'summary.json'} was edited: remove it and resume") from None

    @cached_property
    def client_names(self) -> list[str] | None:
        """The clients' names; None where they are client-0, client-1 …, or the run does not say it."""
        if "description" not in self.manifest:
            return None
        names: list[str] | None = read_description(self.path, self.manifest)["clients"]
        return names

    @property
    def evaluations(self) -> list[dict[str, Any]]:
        """The history's lines that hold an evaluation."""
        return [line for line in read_lines(self.path / "history.jsonl") if "summary" in line]

    @property
    def preparation(self) -> dict[str, Any]:
        """The history's line on what was done before the first round; empty if the method does nothing then."""
        first = next(read_lines(self.path / "history.jsonl"), {})
        return first if first.get("round") == 0 else {}

    @property
    def ledger(self) -> list[Entry]:
        return [entry for line in read_lines(self.path / "ledger.jsonl") for entry in entries(line)]

    @cached_property
    def federation(self) -> str:
        """Equal for runs over the same clients, data, models and seed: those whose results can be compared."""
        parts = [self.config[key] for key in ("data", "models", "seed")] + [self.manifest["data"]]
        return digest(json.dumps(parts, sort_keys=True).encode())

    def gain_over(self, local: RunRecord) -> dict[str, float]:
        """By how much this run's last round is above another's, on own and whole test data (mean over clients)."""
        mine, theirs = self.summary["last"], local.summary["last"]
        return {
            part: mine[part]["mean"] - theirs[part]["mean"]
            for part in ("own", "whole")
            if part in mine and part in theirs
        }


def local_run_for(record: RunRecord, among: list[RunRecord]) -> RunRecord | None:
    """A finished `local` run of the same federation, to measure gain against."""
    for other in among:
        if (
            other.finished
            and other.config["method"]["name"] == "local"
            and other.federation == record.federation
        ):
            return other
    return None


def siblings(path: Path) -> list[RunRecord]:
    """The finished runs beside this one."""
    found = []
    for manifest in sorted(path.resolve().parent.glob("*/manifest.json")):
        try:
            record = RunRecord(manifest.parent)
        except CheckpointError:
            continue
        if record.finished:
            found.append(record)
    return found
