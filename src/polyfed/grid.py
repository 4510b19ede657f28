"""Many runs, several at a time: what is finished is skipped, what was begun goes on, the rest is started.

A grid keeps no books of its own. Every run has its directory and its checkpoints, so whatever is killed costs at most
the rounds since the last checkpoint, and the same grid given again goes on where it was.

Each run has a process of its own, not one of a shared executor: when one dies, an executor ends all the others too.
"""

from __future__ import annotations

import gc
import logging
import multiprocessing
import os
import re
import signal
import sys
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import FrameType
from typing import Any

import torch

from polyfed import api
from polyfed.checkpoint import read_manifest
from polyfed.config import RunConfig, pick_device
from polyfed.engines.host import describe
from polyfed.engines.machine import cores
from polyfed.engines.warm import warm_up
from polyfed.errors import CheckpointError, PolyfedError
from polyfed.folders import State, clear, state_of_folder
from polyfed.run import Run

logger = logging.getLogger(__name__)

LOOK_SECONDS = 0.5  # between two looks at the runs under way
TAIL_BYTES = 64 * 1024  # of a history, in which its last round is looked up
DEATHS_ALLOWED = 1

_ROUND = re.compile(rb'^\{"round": (\d+)', re.MULTILINE)


@dataclass(frozen=True)
class Job:
    """One run of a grid: where it goes and what it is."""

    path: Path
    config: RunConfig


@dataclass(frozen=True)
class JobFailure:
    """A run that could not be finished, and why."""

    job: Job
    reason: str


@dataclass(frozen=True)
class UnderWay:
    """A run that is being done: its name and how far it is."""

    name: str
    round: int
    rounds: int


@dataclass(frozen=True)
class Snapshot:
    """How a grid is getting on."""

    jobs: int
    finished: tuple[str, ...]
    """The names of the runs that are done, those that were done before first."""
    under_way: tuple[UnderWay, ...]
    failures: tuple[JobFailure, ...]
    stopping: bool
    """Ctrl-C or SIGTERM came: the runs under way finish their round, no others are started."""

    @property
    def share(self) -> float:
        """How much of the work is behind us, from 0 to 1; all runs count the same."""
        ended = len(self.finished) + len(self.failures)
        return (ended + sum(each.round / each.rounds for each in self.under_way)) / max(self.jobs, 1)


Listener = Callable[[Snapshot], None]


def state_of(job: Job) -> State:
    """Whether a job is new, begun or finished; a `ConfigError` if its folder holds something else."""
    return state_of_folder(job.path, job.config)


def carry_out(
    jobs: Sequence[Job], workers: int | None = None, listener: Listener | None = None
) -> list[JobFailure]:
    """Do all that is left of these jobs, as many at a time as there are workers.

    Results do not depend on `workers` (one a core unless told): if there are fewer jobs than workers, each run has
    several. A run that fails is in the list that comes back; the others go on. A process that dies is replaced once
    and its run goes on from its last checkpoint.

    On Ctrl-C or SIGTERM the runs under way finish their round and are saved, no others are started, and then
    `KeyboardInterrupt` is raised; a second one ends everything at once. `listener` is told twice a second how things
    are, and, out of the signal's handler, when they are to stop.
    """
    count = workers or cores()
    board = _Board(jobs, listener)
    at_a_time = min(count, len(board.left))
    board.tell()
    with _stopping_well(board):
        if at_a_time == 1:
            _one_by_one(board, count)
        elif at_a_time > 1:
            _side_by_side(board, at_a_time, count // at_a_time)
    board.tell()
    if board.asked and board.unfinished:
        raise KeyboardInterrupt
    return board.failures


class _Board:
    """What is known of the jobs, and who is told."""

    def __init__(self, jobs: Sequence[Job], listener: Listener | None) -> None:
        self.jobs = jobs
        self.listener = listener
        self.names = _names(jobs)
        self.left: deque[Job] = deque()
        self.under_way: list[Job] = []
        self.finished: list[str] = []
        self.failures: list[JobFailure] = []
        self.asked = 0
        self.run: Run | None = None
        """The run under way in this process, if it is done here."""
        self._told = 0.0
        for job in jobs:
            self._look_at(job)
        self._last = self.snapshot()

    def _look_at(self, job: Job) -> None:
        try:
            if state_of(job) == "finished":
                self.finished.append(self.names[job.path])
            else:
                self.left.append(job)
        except CheckpointError as error:
            self.failures.append(JobFailure(job, str(error)))

    @property
    def unfinished(self) -> bool:
        return len(self.finished) + len(self.failures) < len(self.jobs)

    def end(self, job: Job, reason: str) -> bool:
        """A run is not under way any more. Whether that was its end: finished, or failed for a reason."""
        self.under_way.remove(job)
        if reason:
            self.failures.append(JobFailure(job, reason))
        elif (job.path / "summary.json").exists():
            self.finished.append(self.names[job.path])
        else:
            return False
        return True

    def ask_to_stop(self) -> None:
        self.asked += 1
        if self.asked > 1:
            raise KeyboardInterrupt
        if self.run is not None:
            self.run.stop()
        if self.listener is not None:
            self.listener(replace(self._last, stopping=True))

    def hold(self, run: Run) -> None:
        self.run = run
        if self.asked:
            run.stop()

    def glance(self, _run: Run) -> None:
        """After a round of a run in this process: tell how things are, if it is time."""
        if time.monotonic() - self._told >= LOOK_SECONDS:
            self.tell()

    def tell(self) -> None:
        self._told = time.monotonic()
        self._last = self.snapshot()
        if self.listener is not None:
            self.listener(self._last)

    def snapshot(self) -> Snapshot:
        under_way = tuple(
            UnderWay(
                self.names[job.path],
                self.run.round if self.run is not None else round_of(job.path),
                job.config.rounds,
            )
            for job in self.under_way
        )
        return Snapshot(
            len(self.jobs), tuple(self.finished), under_way, tuple(self.failures), bool(self.asked)
        )


def _names(jobs: Sequence[Job]) -> dict[Path, str]:
    """A short name a job: its path below the folder that they all share."""
    absolute = {job.path: job.path.absolute() for job in jobs}
    root = os.path.commonpath([path.parent for path in absolute.values()]) if jobs else ""
    return {path: str(whole.relative_to(root)) for path, whole in absolute.items()}


def round_of(path: Path) -> int:
    """The last round that a run's files tell of. Rounds that are not evaluated show at the next checkpoint."""
    known = [0]
    try:
        with (path / "history.jsonl").open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - TAIL_BYTES))
            known += map(int, _ROUND.findall(file.read()))
        known.append(read_manifest(path)["round"])
    except (FileNotFoundError, CheckpointError):
        pass  # it has only just begun
    return max(known)


@contextmanager
def handling(stop: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """Ctrl-C and SIGTERM call this; afterwards they do what they did before."""
    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _stopping_well(board: _Board) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield  # signals are the main thread's business
        return
    here = os.getpid()

    def stop(_signal: int, _frame: FrameType | None) -> None:
        if os.getpid() == here:  # processes that were forked from this one have inherited the handler
            board.ask_to_stop()

    with handling(stop):
        yield


# -- one run -------------------------------------------------------------------------------------------------


def _do(job: Job, workers: int, hold: Callable[[Run], None], listener: Callable[[Run], None]) -> str:
    """Do what is left of a run until it is finished or told to stop; why it failed, or nothing."""
    try:
        state = state_of(job)
        if state == "finished":
            return ""
        if state == "new":
            clear(job.path)
            run = api.prepare_checked(job.config, job.path, workers)
        else:
            run = api.reopen(job.path, workers=workers)
        try:
            hold(run)
            run.go(listener)
        finally:
            run.close()
    except PolyfedError as error:
        return str(error) or type(error).__name__
    except Exception as error:
        logger.debug("%s failed", job.path, exc_info=True)
        return describe(error)
    return ""


def _one_by_one(board: _Board, workers: int) -> None:
    while board.left and not board.asked:
        job = board.left.popleft()
        board.under_way.append(job)
        board.tell()
        reason = _do(job, workers, board.hold, board.glance)
        board.run = None
        board.end(job, reason)


# -- several at a time ---------------------------------------------------------------------------------------


@dataclass
class _Child:
    job: Job
    process: BaseProcess
    answer: Connection


def _side_by_side(board: _Board, at_a_time: int, workers: int) -> None:
    warm_up()
    context = multiprocessing.get_context(_start_method(board.left))
    deaths: Counter[Path] = Counter()
    children: list[_Child] = []
    try:
        while children or (board.left and not board.asked):
            while board.left and len(children) < at_a_time and not board.asked:
                job = board.left.popleft()
                board.under_way.append(job)
                children.append(_start(context, job, board.names[job.path], workers))
            # A process's sentinel also waits for the workers that it forked, which hold its directory's lock.
            ended = wait([child.process.sentinel for child in children], LOOK_SECONDS)
            for child in [child for child in children if child.process.sentinel in ended]:
                children.remove(child)
                _bury(board, child, deaths)
            if board.asked:
                for child in children:  # at each look: one that had only just begun may not have heard it
                    child.process.terminate()
            board.tell()
    finally:
        for child in children:
            child.process.kill()
            child.process.join()
            child.answer.close()


def _start_method(jobs: Iterable[Job]) -> str:
    """As for a pool's workers: forked where that is safe. It is not for runs that will use several threads."""
    alone = all(
        job.config.server_threads == 1 and pick_device(job.config.device).type == "cpu" for job in jobs
    )
    return "fork" if alone and sys.platform == "linux" else "spawn"


def _start(context: Any, job: Job, name: str, workers: int) -> _Child:
    ours, theirs = context.Pipe(duplex=False)
    # Not daemonic: a run may have workers of its own.
    process = context.Process(target=_work, args=(job, workers, theirs, os.getpid()), name=name, daemon=False)
    gc.freeze()  # else the child's first collection would copy every page it shares with this process
    process.start()
    gc.unfreeze()
    theirs.close()
    return _Child(job, process, ours)


def _work(job: Job, workers: int, answer: Connection, parent: int) -> None:
    """A run's process. It ends well on SIGTERM, and when the process that started it is gone."""
    torch.set_num_threads(1)  # first of all: a fork of a process with threads hangs at its first threaded op
    asked = threading.Event()
    held: list[Run] = []

    def stop(_signal: int, _frame: FrameType | None) -> None:
        asked.set()
        for run in held:
            run.stop()

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's business: it passes it on
    signal.signal(signal.SIGTERM, stop)

    def hold(run: Run) -> None:
        held.append(run)
        if asked.is_set():
            run.stop()

    def look(run: Run) -> None:
        if os.getppid() != parent:
            run.stop()

    answer.send_bytes(_do(job, workers, hold, look).encode())


def _bury(board: _Board, child: _Child, deaths: Counter[Path]) -> None:
    """A process has ended: its run is finished or failed; or it was stopped or killed, and is to go on."""
    child.process.join()
    try:
        reason = child.answer.recv_bytes().decode()
    except (EOFError, OSError):
        reason = ""
    child.answer.close()
    job, name = child.job, board.names[child.job.path]
    if board.end(job, reason) or board.asked:
        return
    deaths[job.path] += 1
    how = _ending(child.process.exitcode)
    if deaths[job.path] > DEATHS_ALLOWED:
        board.failures.append(JobFailure(job, f"its process died twice ({how})"))
    else:
        logger.warning("%s: its process died (%s); going on from its last checkpoint", name, how)
        board.left.append(job)


def _ending(code: int | None) -> str:
    return f"signal {signal.Signals(-code).name}" if code is not None and code < 0 else f"exit code {code}"
