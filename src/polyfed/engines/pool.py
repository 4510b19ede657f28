"""The engine of one machine: a worker process per core, one thread each.

Which worker does what is the scheduler's business. Payload that is the same for all is encoded once and sent to each
worker once.

A worker that dies takes the states in its memory along. If clients keep nothing, its call is simply made again.
Otherwise `WorkerLost` is raised and the run goes back to its last checkpoint: the bits are the same. A call that
kills its worker twice is a `Failure`; a job of the server's is tried more often, since nobody else can do it.
"""

from __future__ import annotations

import functools
import gc
import logging
import multiprocessing
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from polyfed.disk import SavedState
from polyfed.engines.host import LIVE_BYTES, Host, too_slow
from polyfed.engines.ipc import SMALL_BLOB, leave, pack, unpack
from polyfed.engines.process_setup import keep_freed_memory, warm_up
from polyfed.engines.scheduler import Move, Scheduler, Shift
from polyfed.engines.watching import end, is_stopped, limit_waiting
from polyfed.engines.worker import read_outcomes, work, write_units
from polyfed.errors import RunError, WorkerLost, describe_exit
from polyfed.federation.engine import Call, Failure, Outcome, Population, Request, Success
from polyfed.federation.program import Program, step_name
from polyfed.machine import cores

logger = logging.getLogger(__name__)

AHEAD_SECONDS = 0.01  # of work a worker has at hand, so that short steps never wait for the pipe
GRACE_SECONDS = 1.0  # beyond the timeout, before a worker that does not answer is killed
STOPPED_SECONDS = 60.0  # without a timeout, before a worker that is stopped (SIGSTOP) is killed
LOOK_SECONDS = 1.0  # between two looks whether a worker is stopped
DEATHS_ALLOWED = 1  # of workers during one client's call: the next one is the client's fault
JOB_DEATHS_ALLOWED = 20  # of workers during one job of the server's, which is nobody's fault but ends the run


@dataclass
class _Worker:
    process: BaseProcess
    pipe: Connection
    request: Request | None = None
    doing: Any = None
    """Shared with the process: the place of the unit that it is at, or −1."""
    units: dict[int, float] = field(default_factory=dict)
    """Units sent and not yet answered, in the order of sending: place in the request → seconds it may take."""
    heard: float = 0.0
    """When it last answered, or was given something while idle."""
    stopped_since: float | None = None
    """When it was first seen stopped, if it still is."""


@dataclass
class _UnderWay:
    """A request that is being done: what is left of it, and what came of the rest."""

    request: Request
    shift: Shift
    done: dict[int, list[Outcome]]
    common_file: str | None
    """Where workers read what goes to all clients, if that is large."""


class Pool:
    """Runs steps in a pool of worker processes."""

    def __init__(
        self,
        workers: int | None = None,
        timeout: float | None = None,
        *,
        live_bytes: int = LIVE_BYTES,
        start_method: str | None = None,
    ) -> None:
        """One worker per core by default. They are forked where that is safe, unless `start_method` says how."""
        self.width = workers or cores()
        self.timeout = timeout
        self.live_bytes = live_bytes
        self.start_method = start_method
        self._workers: list[_Worker] = []
        self.scheduler = Scheduler(self.width)
        self._deaths: dict[tuple[int, int, str, int], list[str]] = {}
        self._under_way: _UnderWay | None = None
        self._stopped_seconds = STOPPED_SECONDS if timeout is None else timeout

    # -- life ------------------------------------------------------------------------------------------------

    def open(self, population: Population, program: Program, scratch: Path) -> None:
        warm_up(program.method)
        keep_freed_memory()  # the server's own work is done in this process
        self._keeps = bool(program.keeps)
        self._folder = scratch
        self._make_host = functools.partial(
            Host,
            population,
            program,
            scratch,
            timeout=self.timeout,
            live_bytes=self.live_bytes,
        )
        # fork shares the imported torch and the mapped data: workers start in milliseconds. It is not safe with a
        # GPU, nor on macOS.
        forks = population.device.type == "cpu" and sys.platform == "linux"
        self._context = multiprocessing.get_context(self.start_method or ("fork" if forks else "spawn"))
        self._workers = []
        gc.collect()
        gc.freeze()  # else a worker's first collection would touch, and so copy, every page it shares with this process
        for _ in range(self.width):
            self._workers.append(self._start())
        gc.unfreeze()
        logger.info("pool: %d workers, started by %s", self.width, self._context.get_start_method())

    def _start(self) -> _Worker:
        ours, theirs = self._context.Pipe()
        inherited = self._context.get_start_method() == "fork"
        others = [ours, *(worker.pipe for worker in self._workers)] if inherited else []
        doing = self._context.RawValue("q", -1)
        process = self._context.Process(  # type: ignore[attr-defined]
            target=work, args=(self._make_host, theirs, others, self._folder, doing), daemon=True
        )
        process.start()
        theirs.close()
        limit_waiting(ours, self._stopped_seconds + GRACE_SECONDS)
        return _Worker(process, ours, doing=doing)

    def close(self) -> None:
        for worker in self._workers:
            worker.pipe.close()
        end(*(worker.process for worker in self._workers))
        self._workers = []

    # -- requests -----------------------------------------------------------------------------------------------

    def run(self, request: Request) -> Iterator[Outcome]:
        self._settle()
        done = self._given_up(request)
        shift = self.scheduler.shift(
            request, (place for place in range(len(request.units)) if place not in done)
        )
        for move in shift.moves:
            self._move(move)
        file = leave(request.common, self._folder) if len(request.common) > SMALL_BLOB else None
        under_way = _UnderWay(request, shift, done, file)
        try:
            for place in range(len(request.units)):
                while place not in done:
                    self._settle(but=under_way)
                    self._under_way = under_way
                    self._hand_out(under_way, place)
                    self._collect(under_way)
                yield from done.pop(place)
        except KeyboardInterrupt:
            for worker in self._workers:
                worker.process.kill()  # the user wants to go at once: nobody waits for these steps
            raise
        finally:
            if self._under_way is under_way:
                self._drain(under_way)
                self._under_way = None
            if file:
                Path(file).unlink(missing_ok=True)

    def _settle(self, but: _UnderWay | None = None) -> None:
        """Before another request is begun, or gone on with, let workers finish what they have of the last one."""
        last = self._under_way
        while last is not None and last is not but and any(worker.units for worker in self._workers):
            self._collect(last)

    def _given_up(self, request: Request) -> dict[int, list[Outcome]]:
        """The units that have killed their worker too often, and are not tried again."""
        failed: dict[int, list[Outcome]] = {}
        for place, unit in enumerate(request.units if self._deaths else ()):
            deaths = [self._deaths.get(self._moment(request, call), []) for call in unit]
            if any(len(reasons) > _allowed_deaths(call) for call, reasons in zip(unit, deaths, strict=True)):
                failed[place] = [
                    Failure(
                        call.client, step_name(request.step), reasons[-1] if reasons else "its worker died"
                    )
                    for call, reasons in zip(unit, deaths, strict=True)
                ]
        return failed

    def _move(self, move: Move) -> None:
        old, new = self._workers[move.source], self._workers[move.target]
        try:
            old.pipe.send_bytes(pack({"do": "give", "client": move.client}))
            head, blobs = self._answer(old)
            if "error" in head:
                raise RunError(head["error"])
            new.pipe.send_bytes(pack({"do": "take", "client": move.client, **head}, blobs, self._folder))
        except (EOFError, OSError) as error:
            raise WorkerLost("a worker died or was stopped between two steps") from error

    def _answer(self, worker: _Worker) -> tuple[dict[str, Any], list[bytes]]:
        """What a worker answers, however long its disk takes. One that is stopped is killed: an `EOFError`, as if it
        had died."""
        stopped = 0.0
        look = min(LOOK_SECONDS, self._stopped_seconds / 4)
        while not worker.pipe.poll(look):
            stopped = stopped + look if is_stopped(worker.process) else 0.0
            if stopped >= self._stopped_seconds:
                end(worker.process, patience=0.0)
                raise EOFError
        return unpack(worker.pipe.recv_bytes())

    def _hand_out(self, now: _UnderWay, next_place: int) -> None:
        """Give every worker a batch of units, turn by turn, until each has enough at hand."""
        request = now.request
        limit = len(request.units) if request.window is None else next_place + request.window
        given = True
        while given:
            given = False
            for number, worker in enumerate(self._workers):
                if sum(worker.units.values()) < AHEAD_SECONDS:
                    batch = now.shift.batch(number, limit)
                    if batch:
                        self._send(worker, now, batch)
                        given = True

    def _send(self, worker: _Worker, now: _UnderWay, batch: Mapping[int, float]) -> None:
        if not worker.units:
            worker.heard = time.monotonic()
        try:
            units = [(place, now.request.units[place]) for place in batch]
            news = None if worker.request is now.request else now.request
            worker.pipe.send_bytes(write_units(units, self._folder, news, now.common_file))
            worker.request = now.request
        except OSError:
            pass  # it died; `_collect` sees the closed pipe and knows what to do
        worker.units.update(batch)

    def _collect(self, now: _UnderWay) -> None:
        """Wait for the next outcomes, or for a worker that died or does not answer in time."""
        request = now.request
        busy = {worker.pipe: worker for worker in self._workers if worker.units}
        for pipe in wait(list(busy), self._patience(request)):
            worker = busy[pipe]  # type: ignore[index]
            try:
                frame = worker.pipe.recv_bytes()
            except (EOFError, OSError):
                self._replace(worker, now, why=None)
                continue
            worker.heard = time.monotonic()
            head, blobs = unpack(frame)
            if "error" in head:
                for place in head["places"]:
                    del worker.units[place]
                raise RunError(head["error"])
            self._note(now, worker, head, blobs)
        if self.timeout is not None:
            for worker in self._workers:
                if worker.units and time.monotonic() > self._deadline(request, worker):
                    worker.process.kill()
                    self._replace(worker, now, why=too_slow(self.timeout))
        else:
            self._replace_stopped(now)

    def _replace_stopped(self, now: _UnderWay) -> None:
        """Without a timeout a step may take for ever, unless its worker does not run at all."""
        for worker in self._workers:
            if not worker.units or not is_stopped(worker.process):
                worker.stopped_since = None
            elif worker.stopped_since is None:
                worker.stopped_since = time.monotonic()
            elif time.monotonic() - worker.stopped_since >= self._stopped_seconds:
                end(worker.process, patience=0.0)
                self._replace(worker, now, why=None)

    def _deadline(self, request: Request, worker: _Worker) -> float:
        """When a worker must have answered."""
        return worker.heard + self._allowed(request, worker)

    def _allowed(self, request: Request, worker: _Worker) -> float:
        """Seconds until a worker's next answer: a stack of clients has as much as they would have one by one."""
        assert self.timeout is not None
        return self.timeout * len(request.units[next(iter(worker.units))]) + GRACE_SECONDS

    def _patience(self, request: Request) -> float | None:
        if self.timeout is None:
            return self._stopped_seconds / 4
        first = min(self._deadline(request, worker) for worker in self._workers if worker.units)
        return max(0.0, first - time.monotonic()) + 0.01

    def _note(self, now: _UnderWay, worker: _Worker, head: dict[str, Any], blobs: list[bytes]) -> None:
        number = self._workers.index(worker)
        for place, unit in read_outcomes(head, blobs):
            for outcome in unit:
                if isinstance(outcome, Success):
                    self.scheduler.note_seconds(now.request.step, outcome.client, outcome.seconds)
                if outcome.client is not None:
                    self.scheduler.note(outcome.client, number, stays=self._keeps)
            now.done[place] = unit
            del worker.units[place]

    # -- workers that die ------------------------------------------------------------------------------------

    def _replace(self, worker: _Worker, now: _UnderWay, why: str | None) -> None:
        """A worker died: start another, and see to what it was doing."""
        request = now.request
        end(worker.process)
        reason = why or f"its worker died ({describe_exit(worker.process.exitcode)})"
        lost = list(worker.units)
        if worker.doing.value in lost:
            # What was sent before it is done, and only its answer is lost.
            lost.remove(worker.doing.value)
            lost.insert(0, worker.doing.value)
        number = self._workers.index(worker)
        worker.pipe.close()
        self._workers[number] = self._start()
        logger.info(
            "worker %d, in round %d, step %s: %s; another was started",
            *(number, request.moment.round, step_name(request.step), reason),
        )
        guilty = request.units[lost[0]]
        for call in guilty:
            deaths = self._deaths.setdefault(self._moment(request, call), [])
            deaths += [reason] * (1 if why is None else _allowed_deaths(call) + 1)
        if self._keeps:
            self.scheduler.homes.clear()
            raise WorkerLost(f"{reason} in round {request.moment.round}, step {step_name(request.step)}")
        too_often = len(self._deaths[self._moment(request, guilty[0])]) > _allowed_deaths(guilty[0])
        if too_often:
            now.done[lost[0]] = [Failure(call.client, step_name(request.step), reason) for call in guilty]
        now.shift.put_back(lost[1:] if too_often else lost)

    def _drain(self, now: _UnderWay) -> None:
        """Let workers finish what nobody waits for any more."""
        for worker in self._workers:
            while worker.units:
                if self.timeout is not None and not worker.pipe.poll(self._allowed(now.request, worker)):
                    end(worker.process, patience=0.0)
                try:
                    head, _ = self._answer(worker)
                except (EOFError, OSError):
                    break
                places = head["places"] if "error" in head else [place for place, _ in head["outcomes"]]
                for place in places:
                    worker.units.pop(place, None)
            worker.units.clear()

    @staticmethod
    def _moment(request: Request, call: Call) -> tuple[int, int, str, int]:
        """What a call is known by when it is made again; a job of the server's by what it was sent."""
        who = call.client if call.client is not None else hash(call.own)
        return request.moment.round, request.moment.sequence, request.step, who

    # -- states ----------------------------------------------------------------------------------------------

    def save(self, directory: Path, label: str) -> list[SavedState]:
        frame = pack({"do": "save", "directory": str(directory), "label": label})
        saved: list[SavedState] = []
        errors: list[str] = []
        asked, lost = [], 0
        for worker in self._workers:
            try:
                worker.pipe.send_bytes(frame)
                asked.append(worker)
            except OSError:
                lost += 1
        # Every answer is read, also where one is missing: else it would be taken for another's.
        for worker in asked:
            try:
                head, _ = self._answer(worker)
            except (EOFError, OSError):
                lost += 1
                continue
            if "error" in head:
                errors.append(head["error"])
            else:
                saved += [SavedState(*row) for row in head["saved"]]
        if lost:
            raise WorkerLost("a worker died or was stopped while saving")
        if errors:
            raise RunError(f"cannot write a checkpoint: {errors[0]}")
        return sorted(saved, key=lambda state: state.owner)

    def restore(self, states: Mapping[int, Path]) -> None:
        self.scheduler.homes.clear()
        frame = pack({"do": "restore", "states": {str(index): str(path) for index, path in states.items()}})
        for number, worker in enumerate(self._workers):
            try:
                if worker.process.exitcode is not None:
                    raise BrokenPipeError
                worker.pipe.send_bytes(frame)
            except OSError:  # it died, or does not listen
                worker.pipe.close()
                end(worker.process)
                self._workers[number] = self._start()
                try:
                    self._workers[number].pipe.send_bytes(frame)
                except OSError as error:
                    raise WorkerLost("a worker died as soon as it was started") from error


def _allowed_deaths(call: Call) -> int:
    return JOB_DEATHS_ALLOWED if call.client is None else DEATHS_ALLOWED
