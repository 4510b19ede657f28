"""Reading runs back: what came out of each, and how one compares with another."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from polyfed.errors import CheckpointError, ConfigError, UserError
from polyfed.federation.ledger import Entry, entries
from polyfed.plug_ins import REFERENCE
from polyfed.runs.assignment import Assignment
from polyfed.runs.config import RunConfig
from polyfed.runs.contents import Description
from polyfed.runs.failures import FailedStep, failed_steps, failure_lines
from polyfed.runs.holdings import WholeTest
from polyfed.runs.manifest import CONFIG, DESCRIPTION, HISTORY, LEDGER, RunFiles, read_manifest
from polyfed.runs.metrics import Criterion
from polyfed.runs.states import verify_states
from polyfed.schema import explain
from polyfed.tasks import Task, ToldTask
from polyfed.yaml_files import read_yaml


@dataclass(frozen=True)
class RunRecord:
    """A run directory, read only. A file that was truncated or edited is a `CheckpointError` when it is read."""

    path: Path

    def __post_init__(self) -> None:
        read_manifest(self.path)

    def verify(self, *, states: bool = True) -> None:
        """Read all that a finished run has, so that damage is noticed now.

        states: also what a resumed run would start from, which may be much more than the result.
        """
        _ = self.config, self.summary, self.client_names, self.assignment
        for name in (HISTORY, LEDGER):
            self._files.log(name)
        if states:
            verify_states(self._files)

    @property
    def _files(self) -> RunFiles:
        return RunFiles(self.path, self.manifest)

    @cached_property
    def config(self) -> dict[str, Any]:
        self._files.config()
        content = read_yaml(self.path / CONFIG, f"{self.path / CONFIG} is missing")
        try:
            return RunConfig.model_validate(content).as_file()
        except ValidationError as error:
            raise CheckpointError(f"{self.path / CONFIG} was edited: {explain(error, RunConfig)}") from None

    @cached_property
    def manifest(self) -> dict[str, Any]:
        return read_manifest(self.path)

    @property
    def finished(self) -> bool:
        return self._files.finished

    @property
    def is_local(self) -> bool:
        """Whether it is a finished run of every client alone: what gains are measured against."""
        return self.finished and bool(self.config["method"]["name"] == "local")

    @property
    def resume_command(self) -> str:
        """What to type so that the run goes on."""
        return self._command("resume")

    @property
    def finish_command(self) -> str:
        """What to type so that the run is given its result where it is."""
        return self._command("finish")

    def _command(self, word: str) -> str:
        return f"polyfed {word} {self.path}{RunConfig.model_validate(self.config).to_trust}"

    @cached_property
    def summary(self) -> dict[str, Any]:
        if not self.finished:
            raise CheckpointError(
                f"{self.path} has not finished: `{self.resume_command}` goes on from"
                f" round {self.manifest['round']}"
            )
        return self._files.summary()

    @property
    def stopped(self) -> str | None:
        """Why a finished run ended before its last round, in words; None if it did not."""
        found: str | None = self.summary.get("stopped")
        return found

    @cached_property
    def client_names(self) -> list[str] | None:
        """The clients' names; None where they are client-0, client-1 …"""
        names = self._description.clients
        if names is not None and len(names) != self.assignment.count:
            raise CheckpointError(f"{self.path / DESCRIPTION} was edited: it does not name every client")
        return names

    @cached_property
    def task(self) -> Task:
        """What was learnt: it says what scores mean, and which are better. Nobody's code is run for that."""
        config = RunConfig.model_validate(self.config)
        if REFERENCE.fullmatch(config.task.name):
            return ToldTask.of(config.task.name, **self._description.measure.model_dump())
        return config.make_task().for_classes(self._description.classes)

    @cached_property
    def criterion(self) -> Criterion:
        """By what its best round was chosen."""
        return Criterion.of(RunConfig.model_validate(self.config).evaluate, self.task)

    @property
    def output_words(self) -> list[str]:
        """The class that each output stands for."""
        return self._description.outputs

    @property
    def whole_test(self) -> WholeTest:
        """What the whole test set is, on which clients' and the server's models are scored."""
        return self._description.whole_test

    @property
    def class_count(self) -> int:
        """How many classes the clients' data have."""
        return len(self._description.classes)

    @cached_property
    def _description(self) -> Description:
        return self._files.description()

    @cached_property
    def assignment(self) -> Assignment:
        """Who trains which model and why."""
        return self._files.assignment()

    @property
    def history(self) -> Iterator[dict[str, Any]]:
        """The history's lines: evaluations and failures by round."""
        return self._files.lines(HISTORY)

    @property
    def evaluations(self) -> list[dict[str, Any]]:
        """The history's lines that hold an evaluation."""
        return [line for line in self.history if "summary" in line]

    @property
    def last_evaluation(self) -> dict[str, Any]:
        """The history's last line that holds an evaluation: every finished run has one."""
        found = self.evaluations
        if not found:
            raise CheckpointError(f"{self.path / HISTORY} was edited: there is no evaluation in it")
        return found[-1]

    @property
    def preparation(self) -> dict[str, Any]:
        """The history's line on what was done before the first round; empty if the method does nothing then."""
        first = next(self.history, {})
        return first if first.get("round") == 0 else {}

    @cached_property
    def failed_steps(self) -> list[FailedStep]:
        """What failed on which clients and why, the most frequent first."""
        return failed_steps(self.history)

    @property
    def failure_lines(self) -> list[str]:
        """The failures of a finished run in words; none if nothing failed."""
        if not self.summary["failures"]:
            return []
        return failure_lines(self.failed_steps, self.summary["clients"], self.path)

    @property
    def ledger(self) -> list[Entry]:
        return [entry for line in self._files.lines(LEDGER) for entry in entries(line)]

    @property
    def _federation(self) -> dict[str, Any]:
        """Equal for runs over the same clients, data, models and seed."""
        return {
            "other data": self.config["data"],
            "other models": self.config["models"],
            "another seed": self.config["seed"],
            "another task": (self.task.name, self.task.shown_unit),
        }

    def differences(self, other: RunRecord) -> list[str]:
        """Why another run's result cannot be subtracted from this one's, in words; nothing if it can."""
        theirs = other._federation
        found = [words for words, part in self._federation.items() if part != theirs[words]]
        if found[:1] != ["other data"] and self.manifest["data"] != other.manifest["data"]:
            found.insert(0, "other data")
        mine, length = self.summary["rounds"], other.summary["rounds"]
        return found if mine == length else [*found, f"{length} rounds instead of {mine}"]

    def gain_over(self, local: RunRecord) -> dict[str, float]:
        """By how much this run's last round is better than another's: own and whole test data, mean over clients."""
        mine, theirs = self.summary["last"], local.summary["last"]
        return {
            part: self.task.gain(mine[part]["mean"], theirs[part]["mean"])
            for part in ("own", "whole")
            if part in mine and part in theirs
        }


def common_task(tasks: Mapping[str, Task]) -> Task:
    """The one task of several runs, by their names; where there are two, a `ConfigError` that says who has which."""
    (first, task), *others = tasks.items()
    for name, other in others:
        if (task.name, task.title) != (other.name, other.title):
            raise ConfigError(
                f"{first} has task={task.name} ({task.title}), {name} task={other.name} ({other.title}): their scores"
                " cannot stand side by side; take runs of one task"
            )
    return task


def local_run_for(record: RunRecord, among: Iterable[RunRecord]) -> RunRecord | None:
    """A finished `local` run of the same federation and as many rounds, to measure gain against."""
    return next((other for other in among if other.is_local and not record.differences(other)), None)


def siblings(path: Path) -> list[RunRecord]:
    """The finished runs beside this one. One that was edited or damaged is no affair of this one: it is left out."""
    found = []
    for manifest in sorted(path.resolve().parent.glob("*/manifest.json")):
        try:
            record = RunRecord(manifest.parent)
            if record.finished and record.config and record.summary:
                found.append(record)
        except UserError:
            continue
    return found
