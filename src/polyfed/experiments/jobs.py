"""What is known of a grid's runs: which are done, how far the others are, and how much time is left."""

from __future__ import annotations

import os
import statistics
from collections import defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from polyfed.errors import CheckpointError
from polyfed.runs.architectures import ModelMaker
from polyfed.runs.config import RunConfig
from polyfed.runs.folders import State, state_of_folder
from polyfed.runs.history import RunRecord
from polyfed.runs.manifest import is_finished, read_manifest


@dataclass(frozen=True)
class Job:
    """One run of a grid: where it goes and what it is; the user's own data and models, where there are any."""

    path: Path
    config: RunConfig
    data: Any = field(default=None, repr=False, compare=False)
    models: Mapping[str, ModelMaker] | None = field(default=None, repr=False, compare=False)


@dataclass(frozen=True)
class JobFailure:
    """A run that could not be finished, and why."""

    job: Job
    reason: str


@dataclass(frozen=True)
class RunProgress:
    """How far a run is, and how long it took to get there."""

    round: int = 0
    seconds: float = 0.0


@dataclass(frozen=True)
class UnderWay:
    """A run that is being done: its name and how far it is."""

    name: str
    round: int
    rounds: int


@dataclass(frozen=True)
class Snapshot:
    """How far a grid is, at one moment."""

    jobs: int
    finished: tuple[str, ...]
    """The names of the finished runs, beginning with those that had finished before."""
    under_way: tuple[UnderWay, ...]
    failures: tuple[JobFailure, ...]
    stopping: bool
    """Ctrl-C or SIGTERM came: the runs under way finish their round, no others are started."""
    share: float
    """How much of the work is done, from 0 to 1."""
    seconds_left: float | None
    """None as long as no run has ended a round."""


class JobTracker:
    """Which jobs are left, under way, finished and failed, and how much time the others will take."""

    def __init__(self, jobs: Sequence[Job]) -> None:
        self.jobs = jobs
        self.names = _names(jobs)
        self.left: deque[Job] = deque()
        self.finished: list[str] = []
        self.failures: list[JobFailure] = []
        self.stopping = False
        self._under_way: dict[Path, Callable[[], RunProgress]] = {}
        self._progress: dict[Path, RunProgress] = {}
        self._failed: set[Path] = set()
        self._but_for_seed = {job.path: _but_for_seed(job.config) for job in jobs}
        for job in jobs:
            self._read_folder(job)

    def _read_folder(self, job: Job) -> None:
        try:
            state = state_of(job)
            if state != "new":
                manifest = read_manifest(job.path)
                self._progress[job.path] = RunProgress(manifest["round"], manifest["seconds"])
            if state == "finished":
                RunRecord(job.path).verify(states=False)
                self.finished.append(self.names[job.path])
            else:
                self.left.append(job)
        except CheckpointError as error:
            self.fail(job, str(error))

    @property
    def unfinished(self) -> bool:
        return len(self.finished) + len(self.failures) < len(self.jobs)

    def begin(self, job: Job, progress: Callable[[], RunProgress]) -> None:
        """A run is under way; `progress` tells how far it is."""
        self._under_way[job.path] = progress

    def end(self, job: Job, reason: str) -> bool:
        """A run is not under way any more; whether it is finished, or failed for a reason, rather than to go on."""
        self._update(job.path)
        del self._under_way[job.path]
        if reason:
            self.fail(job, reason)
        elif is_finished(job.path):
            self.finished.append(self.names[job.path])
        else:
            return False
        return True

    def fail(self, job: Job, reason: str) -> None:
        self.failures.append(JobFailure(job, reason))
        self._failed.add(job.path)

    def snapshot(self) -> Snapshot:
        for path in self._under_way:
            self._update(path)
        under_way = tuple(
            UnderWay(self.names[job.path], self._progress_of(job).round, job.config.rounds)
            for job in self.jobs
            if job.path in self._under_way
        )
        behind = sum(progress.seconds for progress in self._progress.values())
        ahead = self._seconds_ahead()
        left = None
        if ahead is not None:
            # Several at a time, but a single run is not divided.
            left = max(sum(ahead) / max(1, len(under_way)), max(ahead, default=0.0))
        return Snapshot(
            len(self.jobs),
            tuple(self.finished),
            under_way,
            tuple(self.failures),
            self.stopping,
            behind / max(behind + sum(ahead), 1e-9) if ahead is not None else 0.0,
            left,
        )

    def _update(self, path: Path) -> None:
        progress = self._under_way[path]()
        if progress.round:  # else it is still being opened
            self._progress[path] = progress

    def _progress_of(self, job: Job) -> RunProgress:
        return self._progress.get(job.path, RunProgress())

    def _seconds_ahead(self) -> list[float] | None:
        """What each unfinished run will still take, by its own pace, or that of its other seeds, or of all runs."""
        whole = {
            job.path: at.seconds / at.round * job.config.rounds
            for job in self.jobs
            if (at := self._progress_of(job)).round
        }
        of_other_seeds: defaultdict[str, list[float]] = defaultdict(list)
        for path, seconds in whole.items():
            of_other_seeds[self._but_for_seed[path]].append(seconds)
        ahead = []
        for job in self.jobs:
            share = 1 - self._progress_of(job).round / job.config.rounds
            if share == 0 or job.path in self._failed:
                continue
            if not whole:
                return None
            known = of_other_seeds[self._but_for_seed[job.path]] or list(whole.values())
            ahead.append(share * whole.get(job.path, statistics.fmean(known)))
        return ahead


def state_of(job: Job) -> State:
    """Whether a job is new, begun or finished; a `ConfigError` if its folder holds something else."""
    return state_of_folder(job.path, job.config)


def finished_record(path: Path) -> RunRecord | None:
    """A finished run; None if it has not finished, or is damaged: then its job is among the failures."""
    try:
        record = RunRecord(path)
        if not record.finished:
            return None
        record.verify(states=False)
    except CheckpointError:
        return None
    return record


def _but_for_seed(config: RunConfig) -> str:
    """The same for runs that differ in nothing but name and seed: they take about the same time."""
    return config.model_copy(update={"name": "", "seed": 0}).model_dump_json()


def _names(jobs: Sequence[Job]) -> Mapping[Path, str]:
    """A short name for each job: its path below the folder that they all share."""
    absolute = {job.path: job.path.absolute() for job in jobs}
    root = os.path.commonpath([path.parent for path in absolute.values()]) if jobs else ""
    return {path: str(whole.relative_to(root)) for path, whole in absolute.items()}
