"""The engine of one machine: a worker process a core, one thread each.

Which worker does what is the rota's business. Payload that is the same for all is encoded once and sent to each worker
once.

A worker that dies takes the states in its memory along. If clients keep nothing, its call is simply made again.
Otherwise `WorkerLost` is raised and the run goes back to its last checkpoint: the bits are the same. A call that
kills its worker twice is a `Failure`.
"""

from __future__ import annotations

import functools
import gc
import multiprocessing
import signal
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from polyfed.engines.host import LIVE_BYTES, Host, too_slow
from polyfed.engines.ipc import SMALL_BLOB, leave, pack, unpack
from polyfed.engines.machine import cores
from polyfed.engines.process_setup import warm_up
from polyfed.engines.scheduler import Move, Rota, Shift
from polyfed.engines.worker import work, write_units
from polyfed.errors import RunError, WorkerLost
from polyfed.federation.engine import Answer, Call, Failure, Outcome, Population, SavedState, Task
from polyfed.federation.method import Method

AHEAD_SECONDS = 0.01  # of work a worker has at hand, so that short steps never wait for the pipe
GRACE_SECONDS = 1.0  # beyond the timeout, before a worker that does not answer is killed
DEATHS_ALLOWED = 1


@dataclass
class _Worker:
    process: BaseProcess
    pipe: Connection
    task: Task | None = None
    doing: Any = None
    """Shared with the process: the place of the unit that it is at, or −1."""
    under_way: dict[int, float] = field(default_factory=dict)
    """Units sent and not yet answered, in the order of sending: place in the task → seconds it may take."""
    heard: float = 0.0
    """When it last answered, or was given something while idle."""


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
        """One worker a core unless told. They are forked where that is safe, unless `start_method` says how."""
        self.count = workers or cores()
        self.timeout = timeout
        self.live_bytes = live_bytes
        self.start_method = start_method
        self._workers: list[_Worker] = []
        self.rota = Rota(self.count)
        self._deaths: dict[tuple[int, int, str, int], list[str]] = {}

    # -- life ------------------------------------------------------------------------------------------------

    def open(self, population: Population, method: Method, scratch: Path) -> None:
        warm_up()
        self._keeps = bool(method.keeps)
        self._folder = scratch
        self._common_file: str | None = None
        self._make_host = functools.partial(
            Host,
            population,
            method,
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
        for _ in range(self.count):
            self._workers.append(self._start())
        gc.unfreeze()

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
        return _Worker(process, ours, doing=doing)

    def close(self) -> None:
        for worker in self._workers:
            worker.pipe.close()
        for worker in self._workers:
            worker.process.join(timeout=2)
            if worker.process.is_alive():
                worker.process.kill()
                worker.process.join()
        self._workers = []

    # -- tasks -----------------------------------------------------------------------------------------------

    def run(self, task: Task) -> Iterator[Outcome]:
        done = self._doomed(task)
        shift = self.rota.shift(task, (place for place in range(len(task.units)) if place not in done))
        for move in shift.moves:
            self._move(move)
        self._common_file = leave(task.common, self._folder) if len(task.common) > SMALL_BLOB else None
        try:
            for place in range(len(task.units)):
                while place not in done:
                    self._hand_out(task, shift, place)
                    self._collect(task, done, shift)
                yield from done.pop(place)
        except KeyboardInterrupt:
            for worker in self._workers:
                worker.process.kill()  # the user wants to go at once: nobody waits for these steps
            raise
        finally:
            self._drain(task)
            if self._common_file:
                Path(self._common_file).unlink(missing_ok=True)

    def _doomed(self, task: Task) -> dict[int, list[Outcome]]:
        """The units that have killed their worker too often, and are not tried again."""
        failed: dict[int, list[Outcome]] = {}
        for place, unit in enumerate(task.units if self._deaths else ()):
            deaths = [self._deaths.get(self._moment(task, call), []) for call in unit]
            if any(len(reasons) > DEATHS_ALLOWED for reasons in deaths):
                failed[place] = [
                    Failure(call.client, task.step, reasons[-1] if reasons else "its worker died")
                    for call, reasons in zip(unit, deaths, strict=True)
                ]
        return failed

    def _move(self, move: Move) -> None:
        old, new = self._workers[move.source], self._workers[move.target]
        try:
            old.pipe.send_bytes(pack({"do": "release", "client": move.client}))
            head, _ = unpack(old.pipe.recv_bytes())
            if "error" in head:
                raise RunError(head["error"])
            new.pipe.send_bytes(pack({"do": "receive", "client": move.client, **head}))
        except (EOFError, OSError) as error:
            raise WorkerLost("a worker died between two steps") from error

    def _hand_out(self, task: Task, shift: Shift, next_place: int) -> None:
        """Give every worker a batch of units, turn by turn, until each has enough at hand."""
        limit = len(task.units) if task.window is None else next_place + task.window
        given = True
        while given:
            given = False
            for number, worker in enumerate(self._workers):
                if sum(worker.under_way.values()) < AHEAD_SECONDS:
                    batch = shift.batch(number, limit)
                    if batch:
                        self._send(worker, task, batch)
                        given = True

    def _send(self, worker: _Worker, task: Task, batch: Mapping[int, float]) -> None:
        if not worker.under_way:
            worker.heard = time.monotonic()
        try:
            units = [(place, task.units[place]) for place in batch]
            news = None if worker.task is task else task
            worker.pipe.send_bytes(write_units(units, self._folder, news, self._common_file))
            worker.task = task
        except OSError:
            pass  # it died; `_collect` sees the closed pipe and knows what to do
        worker.under_way.update(batch)

    def _collect(self, task: Task, done: dict[int, list[Outcome]], shift: Shift) -> None:
        """Wait for the next answers, or for a worker that died or does not answer in time."""
        busy = {worker.pipe: worker for worker in self._workers if worker.under_way}
        for pipe in wait(list(busy), self._patience(task)):
            worker = busy[pipe]  # type: ignore[index]
            try:
                frame = worker.pipe.recv_bytes()
            except (EOFError, OSError):
                self._bury(worker, task, shift, done, why=None)
                continue
            worker.heard = time.monotonic()
            head, blobs = unpack(frame)
            if "error" in head:
                for place in head["places"]:
                    del worker.under_way[place]
                raise RunError(head["error"])
            self._note(task, worker, head["outcomes"], blobs, done)
        if self.timeout is not None:
            for worker in self._workers:
                if worker.under_way and time.monotonic() > self._deadline(task, worker):
                    worker.process.kill()
                    self._bury(worker, task, shift, done, why=too_slow(self.timeout))

    def _deadline(self, task: Task, worker: _Worker) -> float:
        """When a worker must have answered."""
        return worker.heard + self._allowed(task, worker)

    def _allowed(self, task: Task, worker: _Worker) -> float:
        """Seconds until a worker's next answer: a stack of clients has as much as they would have one by one."""
        assert self.timeout is not None
        return self.timeout * len(task.units[next(iter(worker.under_way))]) + GRACE_SECONDS

    def _patience(self, task: Task) -> float | None:
        if self.timeout is None:
            return None
        first = min(self._deadline(task, worker) for worker in self._workers if worker.under_way)
        return max(0.0, first - time.monotonic()) + 0.01

    def _note(
        self,
        task: Task,
        worker: _Worker,
        outcomes: list[Any],
        blobs: list[bytes],
        done: dict[int, list[Outcome]],
    ) -> None:
        queue = iter(blobs)
        number = self._workers.index(worker)
        for place, rows in outcomes:
            unit: list[Outcome] = []
            for row in rows:
                if len(row) == 2:
                    client, seconds = row
                    unit.append(Answer(client, next(queue), seconds))
                    self.rota.note_seconds(task.step, client, seconds)
                else:
                    unit.append(Failure(*row))
                self.rota.note(row[0], number, stays=self._keeps)
            done[place] = unit
            del worker.under_way[place]

    # -- death -----------------------------------------------------------------------------------------------

    def _bury(
        self,
        worker: _Worker,
        task: Task,
        shift: Shift,
        done: dict[int, list[Outcome]],
        why: str | None,
    ) -> None:
        """A worker died: start another, and see to what it was doing."""
        worker.process.join(timeout=5)
        reason = why or f"its worker died ({_exit(worker.process.exitcode)})"
        lost = list(worker.under_way)
        if worker.doing.value in lost:
            # What was sent before it is done, and only its answer is lost.
            lost.remove(worker.doing.value)
            lost.insert(0, worker.doing.value)
        number = self._workers.index(worker)
        worker.pipe.close()
        self._workers[number] = self._start()
        guilty = task.units[lost[0]]
        for call in guilty:
            deaths = self._deaths.setdefault(self._moment(task, call), [])
            deaths += [reason] * (1 if why is None else DEATHS_ALLOWED + 1)
        if self._keeps:
            self.rota.homes.clear()
            raise WorkerLost(f"{reason} in round {task.moment.round}, step {task.step}")
        twice = len(self._deaths[self._moment(task, guilty[0])]) > DEATHS_ALLOWED
        if twice:
            done[lost[0]] = [Failure(call.client, task.step, reason) for call in guilty]
        shift.put_back(lost[1:] if twice else lost)

    def _drain(self, task: Task) -> None:
        """Let workers finish what nobody waits for any more."""
        for worker in self._workers:
            while worker.under_way:
                if self.timeout is not None and not worker.pipe.poll(self._allowed(task, worker)):
                    worker.process.kill()
                    worker.process.join()
                try:
                    head, _ = unpack(worker.pipe.recv_bytes())
                except (EOFError, OSError):
                    break
                places = head["places"] if "error" in head else [place for place, _ in head["outcomes"]]
                for place in places:
                    worker.under_way.pop(place, None)
            worker.under_way.clear()

    @staticmethod
    def _moment(task: Task, call: Call) -> tuple[int, int, str, int]:
        return task.moment.round, task.moment.sequence, task.step, call.client

    # -- states ----------------------------------------------------------------------------------------------

    def save(self, directory: Path, label: str) -> list[SavedState]:
        frame = pack({"do": "save", "directory": str(directory), "label": label})
        saved: list[SavedState] = []
        errors: list[str] = []
        try:
            for worker in self._workers:
                worker.pipe.send_bytes(frame)
            heads = [unpack(worker.pipe.recv_bytes())[0] for worker in self._workers]
        except (EOFError, OSError) as error:
            raise WorkerLost("a worker died while saving") from error
        for head in heads:
            if "error" in head:
                errors.append(head["error"])
            else:
                saved += [SavedState(*row) for row in head["saved"]]
        if errors:
            raise RunError(f"cannot write a checkpoint: {errors[0]}")
        return sorted(saved, key=lambda state: state.client)

    def restore(self, states: Mapping[int, Path]) -> None:
        self.rota.homes.clear()
        frame = pack({"do": "restore", "states": {str(index): str(path) for index, path in states.items()}})
        for number, worker in enumerate(self._workers):
            try:
                worker.pipe.send_bytes(frame)
            except OSError:  # it died
                worker.pipe.close()
                self._workers[number] = self._start()
                self._workers[number].pipe.send_bytes(frame)


def _exit(code: int | None) -> str:
    if code is not None and code < 0:
        return f"signal {signal.Signals(-code).name}"
    return f"exit code {code}"
