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
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import FrameType
from typing import Any

import torch

from polyfed.engines.host import describe
from polyfed.engines.machine import cores
from polyfed.engines.process_setup import warm_up
from polyfed.errors import PolyfedError
from polyfed.experiments.jobs import Board, Job, JobFailure, Reached, Snapshot, state_of
from polyfed.runs import api
from polyfed.runs.config import pick_device
from polyfed.runs.folders import clear
from polyfed.runs.rounds import Run

logger = logging.getLogger(__name__)

LOOK_SECONDS = 0.5  # between two looks at the runs under way
DEATHS_ALLOWED = 1

Listener = Callable[[Snapshot], None]


def carry_out(
    jobs: Sequence[Job], workers: int | None = None, listener: Listener | None = None
) -> list[JobFailure]:
    """Do all that is left of these jobs, as many at a time as there are workers.

    Results do not depend on `workers` (one a core unless told): if there are fewer jobs than workers, each run has
    several, and the last one has them all. A run that fails is in the list that comes back; the others go on. A process
    that dies is replaced once and its run goes on from its last checkpoint.

    On Ctrl-C or SIGTERM the runs under way finish their round and are saved, no others are started, and then
    `KeyboardInterrupt` is raised; a second one ends everything at once. `listener` is told twice a second how things
    are, and, out of the signal's handler, when they are to stop.
    """
    count = workers or cores()
    board = Board(jobs)
    reporter = _Reporter(board, listener)
    at_a_time = min(count, len(board.left))
    reporter.tell()
    with _stopping_well(reporter):
        if at_a_time == 1:
            _one_by_one(board, reporter, count)
        elif at_a_time > 1:
            _side_by_side(board, reporter, at_a_time, count)
    reporter.tell()
    if board.stopping and board.unfinished:
        raise KeyboardInterrupt
    return board.failures


class _Reporter:
    """Tells the listener how things are, and hears the signals to stop."""

    def __init__(self, board: Board, listener: Listener | None) -> None:
        self.board = board
        self.listener = listener
        self.run: Run | None = None
        """The run under way in this process, if it is done here."""
        self._told = 0.0
        self._last = board.snapshot()

    def ask_to_stop(self) -> None:
        if self.board.stopping:
            raise KeyboardInterrupt
        self.board.stopping = True
        if self.run is not None:
            self.run.stop()
        if self.listener is not None:
            self.listener(replace(self._last, stopping=True))

    def hold(self, run: Run) -> None:
        self.run = run
        if self.board.stopping:
            run.stop()

    def glance(self, _run: Run) -> None:
        """After a round of a run in this process: tell how things are, if it is time."""
        if time.monotonic() - self._told >= LOOK_SECONDS:
            self.tell()

    def reached(self) -> Reached:
        """How far the run in this process is."""
        return Reached() if self.run is None else Reached(self.run.round, self.run.seconds)

    def tell(self) -> None:
        self._told = time.monotonic()
        self._last = self.board.snapshot()
        if self.listener is not None:
            self.listener(self._last)


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
def _stopping_well(reporter: _Reporter) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield  # signals are the main thread's business
        return
    here = os.getpid()

    def stop(_signal: int, _frame: FrameType | None) -> None:
        if os.getpid() == here:  # processes that were forked from this one have inherited the handler
            reporter.ask_to_stop()

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


def _one_by_one(board: Board, reporter: _Reporter, workers: int) -> None:
    while board.left and not board.stopping:
        job = board.left.popleft()
        board.begin(job, reporter.reached)
        reporter.tell()
        reason = _do(job, workers, reporter.hold, reporter.glance)
        board.end(job, reason)
        reporter.run = None


# -- several at a time ---------------------------------------------------------------------------------------


@dataclass
class _Child:
    job: Job
    process: BaseProcess
    answer: Connection
    reached: Any
    """Shared with the process: the round that it has reached, and the seconds that it took."""

    def look(self) -> Reached:
        number, seconds = self.reached
        return Reached(int(number), seconds)


def _side_by_side(board: Board, reporter: _Reporter, at_a_time: int, count: int) -> None:
    warm_up()
    context = multiprocessing.get_context(_start_method(board.left))
    deaths: Counter[Path] = Counter()
    children: list[_Child] = []
    try:
        while children or (board.left and not board.stopping):
            while board.left and len(children) < at_a_time and not board.stopping:
                job = board.left.popleft()
                # The last one has all workers: soon it will be alone.
                workers = count // at_a_time if board.left else count
                child = _start(context, job, board.names[job.path], workers)
                board.begin(job, child.look)
                children.append(child)
            # A process's sentinel also waits for the workers that it forked, which hold its directory's lock.
            ended = wait([child.process.sentinel for child in children], LOOK_SECONDS)
            for child in [child for child in children if child.process.sentinel in ended]:
                children.remove(child)
                _bury(board, child, deaths)
            if board.stopping:
                for child in children:  # at each look: one that had only just begun may not have heard it
                    child.process.terminate()
            reporter.tell()
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
    reached = context.RawArray("d", 2)
    args = (job, workers, theirs, reached, os.getpid())
    # Not daemonic: a run may have workers of its own.
    process = context.Process(target=_work, args=args, name=name, daemon=False)
    gc.freeze()  # else the child's first collection would copy every page it shares with this process
    process.start()
    gc.unfreeze()
    theirs.close()
    return _Child(job, process, ours, reached)


def _work(job: Job, workers: int, answer: Connection, reached: Any, parent: int) -> None:
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
        reached[:] = run.round, run.seconds
        if os.getppid() != parent:
            run.stop()

    answer.send_bytes(_do(job, workers, hold, look).encode())


def _bury(board: Board, child: _Child, deaths: Counter[Path]) -> None:
    """A process has ended: its run is finished or failed; or it was stopped or killed, and is to go on."""
    child.process.join()
    try:
        reason = child.answer.recv_bytes().decode()
    except (EOFError, OSError):
        reason = ""
    child.answer.close()
    job, name = child.job, board.names[child.job.path]
    if board.end(job, reason) or board.stopping:
        return
    deaths[job.path] += 1
    how = _ending(child.process.exitcode)
    if deaths[job.path] > DEATHS_ALLOWED:
        board.fail(job, f"its process died twice ({how})")
    else:
        logger.warning("%s: its process died (%s); going on from its last checkpoint", name, how)
        board.left.append(job)


def _ending(code: int | None) -> str:
    return f"signal {signal.Signals(-code).name}" if code is not None and code < 0 else f"exit code {code}"
