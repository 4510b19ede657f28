"""Many runs, several at a time: what is finished is skipped, what was begun goes on, the rest is started.

A grid keeps no records of its own. Every run has its directory and its checkpoints, so whatever is killed costs at most
the rounds since the last checkpoint, and the same grid given again goes on where it was.

Each run has a process of its own, not one of a shared executor: when one dies, an executor ends all the others too.
"""

from __future__ import annotations

import gc
import importlib
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

from polyfed import disk
from polyfed.engines import end_with_parent
from polyfed.errors import PolyfedError, describe, describe_exit
from polyfed.experiments.jobs import Job, JobFailure, JobTracker, RunProgress, Snapshot, state_of
from polyfed.machine import cores
from polyfed.models import modules_to_trust
from polyfed.runs import api
from polyfed.runs.config import pick_device
from polyfed.runs.rounds import Run
from polyfed.runs.signals import stop_signals_call

logger = logging.getLogger(__name__)

POLL_SECONDS = 0.5  # between two looks at the runs under way
RESTARTS_ALLOWED = 1  # of a run whose process died
ENDING_SECONDS = 10.0  # for a process that was killed, and may still hold the folder of its run

Listener = Callable[[Snapshot], None]


def run_jobs(
    jobs: Sequence[Job], workers: int | None = None, listener: Listener | None = None
) -> list[JobFailure]:
    """Do all that is left of these jobs, as many at a time as there are workers, and return those that failed.

    Results do not depend on `workers` (one per core by default): if there are fewer jobs than workers, each run has
    several, and the last one has them all. The other runs go on when one fails. A process that dies is replaced once
    and its run goes on from its last checkpoint.

    On Ctrl-C or SIGTERM the runs under way finish their round and are saved, no others are started, and then
    `KeyboardInterrupt` is raised. A second one ends everything at once; so does SIGTERM after some seconds. `listener`
    is called twice a second with a snapshot, and, from within the signal's handler, when the runs are to stop.
    """
    count = workers or cores()
    tracker = JobTracker(jobs)
    reporter = _Reporter(tracker, listener)
    at_a_time = min(count, len(tracker.left))
    reporter.tell()
    with _stopping_after_the_round(reporter):
        if at_a_time == 1:
            _one_by_one(tracker, reporter, count)
        elif at_a_time > 1:
            _side_by_side(tracker, reporter, at_a_time, count)
    reporter.tell()
    if tracker.stopping and tracker.unfinished:
        raise KeyboardInterrupt
    return tracker.failures


class _Reporter:
    """Calls the listener with snapshots, and passes on the signals to stop."""

    def __init__(self, tracker: JobTracker, listener: Listener | None) -> None:
        self.tracker = tracker
        self.listener = listener
        self.run: Run | None = None
        """The run under way in this process, if it is done here."""
        self._told_at = 0.0
        self._last = tracker.snapshot()

    def ask_to_stop(self) -> None:
        self.tracker.stopping = True
        if self.run is not None:
            self.run.stop()
        if self.listener is not None:
            self.listener(replace(self._last, stopping=True))

    def run_started(self, run: Run) -> None:
        """A run has started in this process."""
        self.run = run
        if self.tracker.stopping:
            run.stop()

    def round_ended(self, _run: Run) -> None:
        """A run in this process has ended a round."""
        if time.monotonic() - self._told_at >= POLL_SECONDS:
            self.tell()

    def progress(self) -> RunProgress:
        """How far the run in this process is."""
        return RunProgress() if self.run is None else RunProgress(self.run.round, self.run.seconds)

    def tell(self) -> None:
        self._told_at = time.monotonic()
        self._last = self.tracker.snapshot()
        if self.listener is not None:
            self.listener(self._last)


@contextmanager
def _stopping_after_the_round(reporter: _Reporter) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread can handle signals
        return
    with stop_signals_call(reporter.ask_to_stop):
        yield


# -- one run -------------------------------------------------------------------------------------------------


def _do_job(
    job: Job, workers: int, run_started: Callable[[Run], None], round_ended: Callable[[Run], None]
) -> str:
    """Do what is left of a run until it is finished or told to stop; the reason if it failed, else nothing."""
    try:
        disk.wait_until_free(job.path, ENDING_SECONDS)
        state = state_of(job)
        if state == "finished":
            return ""
        if state == "new":
            run = api.prepare_checked(job.config, job.path, workers, data=job.data, models=job.models)
        else:
            # The run's config is the one that the user has given: what it names may be imported.
            trust = modules_to_trust(job.config.code_names())
            run = api.reopen(job.path, workers=workers, data=job.data, models=job.models, trust=trust)
        try:
            run_started(run)
            run.go(round_ended)
        finally:
            run.close()
    except PolyfedError as error:
        return str(error) or type(error).__name__
    except Exception as error:
        logger.debug("%s failed", job.path, exc_info=True)
        return describe(error)
    return ""


def _one_by_one(tracker: JobTracker, reporter: _Reporter, workers: int) -> None:
    while tracker.left and not tracker.stopping:
        job = tracker.left.popleft()
        tracker.begin(job, reporter.progress)
        reporter.tell()
        reason = _do_job(job, workers, reporter.run_started, reporter.round_ended)
        tracker.end(job, reason)
        reporter.run = None


# -- several at a time ---------------------------------------------------------------------------------------


@dataclass
class _Child:
    """A process that does one job."""

    job: Job
    process: BaseProcess
    answer: Connection
    reached: Any
    """Shared with the process: the round that it has reached, and the seconds that it took."""

    def progress(self) -> RunProgress:
        number, seconds = self.reached
        return RunProgress(int(number), seconds)


def _side_by_side(tracker: JobTracker, reporter: _Reporter, at_a_time: int, count: int) -> None:
    context = multiprocessing.get_context(_start_method(tracker.left))
    if context.get_start_method() == "fork" and len(tracker.left) > at_a_time:
        # The sizes of models are found on the meta device, for which PyTorch imports its compiler: 0.7 s of every run,
        # unless its process is forked from one that has done it.
        importlib.import_module("torch._dynamo")
    deaths: Counter[Path] = Counter()
    children: list[_Child] = []
    try:
        while children or (tracker.left and not tracker.stopping):
            while tracker.left and len(children) < at_a_time and not tracker.stopping:
                job = tracker.left.popleft()
                # The last one has all workers: soon it will be alone.
                workers = count // at_a_time if tracker.left else count
                child = _start(context, job, tracker.names[job.path], workers)
                tracker.begin(job, child.progress)
                children.append(child)
            # A process's sentinel also waits for the workers that it forked, which hold its directory's lock.
            ended = wait([child.process.sentinel for child in children], POLL_SECONDS)
            for child in [child for child in children if child.process.sentinel in ended]:
                children.remove(child)
                _child_ended(child, tracker, deaths)
            if tracker.stopping:
                for child in children:  # each time: one that had only just begun may not have received it
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
    process = context.Process(target=_child_main, args=args, name=name, daemon=False)
    gc.freeze()  # else the child's first collection would copy every page it shares with this process
    process.start()
    gc.unfreeze()
    theirs.close()
    return _Child(job, process, ours, reached)


def _child_main(job: Job, workers: int, answer: Connection, reached: Any, parent: int) -> None:
    """A run's process. It ends after its round, saved, on SIGTERM, and at once with the process that started it.

    At once: a grid that is begun again right after it was killed finds nobody at work in its folders.
    """
    end_with_parent()
    signal.set_wakeup_fd(-1)
    torch.set_num_threads(1)  # first of all: a fork of a process with threads hangs at its first threaded op
    asked = threading.Event()
    started: list[Run] = []

    def stop(_signal: int, _frame: FrameType | None) -> None:
        asked.set()
        for run in started:
            run.stop()

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C and passes it on as SIGTERM
    signal.signal(signal.SIGTERM, stop)

    def run_started(run: Run) -> None:
        started.append(run)
        if asked.is_set():
            run.stop()

    def round_ended(run: Run) -> None:
        reached[:] = run.round, run.seconds
        if os.getppid() != parent:
            run.stop()

    answer.send_bytes(_do_job(job, workers, run_started, round_ended).encode())


def _child_ended(child: _Child, tracker: JobTracker, deaths: Counter[Path]) -> None:
    """A process has ended: its run is finished or failed; or it was stopped or killed, and is to go on."""
    child.process.join()
    try:
        reason = child.answer.recv_bytes().decode()
    except (EOFError, OSError):
        reason = ""
    child.answer.close()
    job, name = child.job, tracker.names[child.job.path]
    if tracker.end(job, reason) or tracker.stopping:
        return
    deaths[job.path] += 1
    how = describe_exit(child.process.exitcode)
    if deaths[job.path] > RESTARTS_ALLOWED:
        tracker.fail(job, f"its process died twice ({how})")
    else:
        logger.warning("%s: its process died (%s); going on from its last checkpoint", name, how)
        tracker.left.append(job)
