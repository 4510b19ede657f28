"""The engine of one machine: a worker process a core, one thread each.

Clients that keep something live in the worker that first met them (sticky: a state is not copied between steps);
they move only where a cohort would leave a worker idle. Clients that keep nothing go to whichever worker is free.
Payload that is the same for all is encoded once and sent to each worker once.

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
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from polyfed.engines.engine import Answer, Call, Failure, Outcome, Population, SavedState, Task
from polyfed.engines.frames import SMALL_BLOB, leave, pack, unpack
from polyfed.engines.host import LIVE_BYTES, Host, too_slow
from polyfed.engines.machine import cores
from polyfed.engines.warm import warm_up
from polyfed.engines.worker import work, write_units
from polyfed.errors import RunError, WorkerLost
from polyfed.method import Method

AHEAD_SECONDS = 0.01  # of work a worker has at hand, so that short steps never wait for the pipe
SHORT_SECONDS = 0.002  # of work that travels in one frame
OWN_SHORT_SECONDS = 0.1  # the same for what no other worker can do
BATCH_MOST = 256  # units in a frame: it must fit into the pipe's buffer
FAMILIAR_AMONG = 64  # units looked through for a client that a worker has met before
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
        self._homes: dict[int, int] = {}
        self._last: dict[int, int] = {}
        self._seconds: dict[tuple[str, int], float] = {}
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
        done: dict[int, list[Outcome]] = {}
        own, free = self._plan(task, done)
        self._common_file = leave(task.common, self._folder) if len(task.common) > SMALL_BLOB else None
        try:
            for place in range(len(task.units)):
                while place not in done:
                    self._hand_out(task, own, free, place)
                    self._collect(task, done, free)
                yield from done.pop(place)
        except KeyboardInterrupt:
            for worker in self._workers:
                worker.process.kill()  # the user wants to go at once: nobody waits for these steps
            raise
        finally:
            self._drain(task)
            if self._common_file:
                Path(self._common_file).unlink(missing_ok=True)

    def _plan(self, task: Task, done: dict[int, list[Outcome]]) -> tuple[list[deque[int]], deque[int]]:
        """Each worker's own units (of clients that live there) and those that any worker can do."""
        own: list[deque[int]] = [deque() for _ in self._workers]
        free: list[int] = []
        load = [0.0] * len(self._workers)
        for place, unit in enumerate(task.units):
            doomed = [self._deaths.get(self._moment(task, call), []) for call in unit]
            if any(len(reasons) > DEATHS_ALLOWED for reasons in doomed):
                done[place] = [
                    Failure(call.client, task.step, reasons[-1] if reasons else "its worker died")
                    for call, reasons in zip(unit, doomed, strict=True)
                ]
                continue
            home = self._gather(unit)
            if home is None:
                free.append(place)
            else:
                own[home].append(place)
                load[home] += self._cost(task, unit)
        self._even_out(task, own, load)
        if task.window is None:
            free.sort(key=lambda place: -self._cost(task, task.units[place]))
        # In order: a unit within the window must not wait behind one beyond it.
        return [deque(sorted(places)) for places in own], deque(free)

    def _gather(self, unit: Sequence[Call]) -> int | None:
        """Where the clients of a unit live; those of a stack that live elsewhere move there."""
        homes = [self._homes[call.client] for call in unit if call.client in self._homes]
        if not homes:
            return None
        for call in unit:
            if self._homes.get(call.client, homes[0]) != homes[0]:
                self._move(call.client, self._homes[call.client], homes[0])
        return homes[0]

    def _even_out(self, task: Task, own: list[deque[int]], load: list[float]) -> None:
        """Move clients from the fullest worker to the emptiest while that shortens the round by a tenth."""
        while len(own) > 1:
            full = max(range(len(load)), key=load.__getitem__)
            empty = min(range(len(load)), key=load.__getitem__)
            gap = load[full] - load[empty]
            movable = [(self._cost(task, task.units[place]), place) for place in own[full]]
            fitting = [(cost, place) for cost, place in movable if 0 < cost < gap]
            if gap < 0.1 * load[full] + SHORT_SECONDS or not fitting:
                return
            cost, place = min(fitting, key=lambda item: abs(item[0] - gap / 2))
            if load[full] - max(load[full] - cost, load[empty] + cost) < 0.1 * load[full]:
                return
            for call in task.units[place]:
                self._move(call.client, full, empty)
            own[full].remove(place)
            own[empty].append(place)
            load[full] -= cost
            load[empty] += cost

    def _move(self, client: int, source: int, target: int) -> None:
        old, new = self._workers[source], self._workers[target]
        try:
            old.pipe.send_bytes(pack({"do": "release", "client": client}))
            head, _ = unpack(old.pipe.recv_bytes())
            if "error" in head:
                raise RunError(head["error"])
            new.pipe.send_bytes(pack({"do": "receive", "client": client, **head}))
        except (EOFError, OSError) as error:
            raise WorkerLost("a worker died between two steps") from error
        self._homes[client] = target

    def _cost(self, task: Task, unit: Sequence[Call]) -> float:
        """Seconds that this unit took last time."""
        return sum(self._seconds.get((task.step, call.client), 0.0) for call in unit)

    def _hand_out(self, task: Task, own: list[deque[int]], free: deque[int], next_place: int) -> None:
        """Give every worker a batch of units, turn by turn, until each has enough at hand."""
        limit = len(task.units) if task.window is None else next_place + task.window
        given = True
        while given:
            given = False
            for number, worker in enumerate(self._workers):
                if sum(worker.under_way.values()) < AHEAD_SECONDS:
                    batch = self._batch(task, number, own[number], free, limit)
                    if batch:
                        self._send(worker, task, batch)
                        given = True

    def _batch(
        self, task: Task, number: int, mine: deque[int], free: deque[int], limit: int
    ) -> dict[int, float]:
        """The next units of a worker: what is known to be short travels in company, anything else alone."""
        batch: dict[int, float] = {}
        while len(batch) < BATCH_MOST:
            seconds = sum(batch.values())
            if mine and mine[0] < limit and seconds < OWN_SHORT_SECONDS:
                place: int | None = mine.popleft()
            elif seconds < SHORT_SECONDS:
                place = self._familiar(task, number, free, limit)
            else:
                break
            if place is None:
                break
            batch[place] = self._cost(task, task.units[place]) or OWN_SHORT_SECONDS
        return batch

    def _familiar(self, task: Task, number: int, free: deque[int], limit: int) -> int | None:
        """Take one of the next free units, if need be any; better one whose data this worker already has at hand."""
        nearby = [place for place in islice(free, FAMILIAR_AMONG) if place < limit]
        known = (place for place in nearby if self._last.get(task.units[place][0].client) == number)
        found = next(known, nearby[0] if nearby else None)
        if found is not None:
            free.remove(found)
        return found

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

    def _collect(self, task: Task, done: dict[int, list[Outcome]], free: deque[int]) -> None:
        """Wait for the next answers, or for a worker that died or does not answer in time."""
        busy = {worker.pipe: worker for worker in self._workers if worker.under_way}
        for pipe in wait(list(busy), self._patience(task)):
            worker = busy[pipe]  # type: ignore[index]
            try:
                frame = worker.pipe.recv_bytes()
            except (EOFError, OSError):
                self._bury(worker, task, free, done, why=None)
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
                    self._bury(worker, task, free, done, why=too_slow(self.timeout))

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
                    self._seconds[task.step, client] = seconds
                else:
                    unit.append(Failure(*row))
                self._last[row[0]] = number
                if self._keeps:
                    self._homes[row[0]] = number
            done[place] = unit
            del worker.under_way[place]

    # -- death -----------------------------------------------------------------------------------------------

    def _bury(
        self,
        worker: _Worker,
        task: Task,
        free: deque[int],
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
            self._homes.clear()
            raise WorkerLost(f"{reason} in round {task.moment.round}, step {task.step}")
        twice = len(self._deaths[self._moment(task, guilty[0])]) > DEATHS_ALLOWED
        if twice:
            done[lost[0]] = [Failure(call.client, task.step, reason) for call in guilty]
        free.extendleft(reversed(lost[1:] if twice else lost))

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
        self._homes.clear()
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
