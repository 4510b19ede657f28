"""Which worker does what, and what travels together.

Clients that keep something live in the worker that first met them (sticky: a state is not copied between steps); they
move only where a cohort would leave a worker idle. Clients that keep nothing go to whichever worker is free.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import NamedTuple

from polyfed.federation.engine import Call, Request

SHORT_SECONDS = 0.002  # of work that travels in one frame
OWN_SHORT_SECONDS = 0.1  # the same for what no other worker can do
BATCH_MOST = 256  # units in a frame: it must fit into the pipe's buffer
FAMILIAR_AMONG = 64  # units looked through for a client that a worker has met before


class Move(NamedTuple):
    """A client that is to live elsewhere."""

    client: int
    source: int
    target: int


class Scheduler:
    """What is known of the clients: where they live, who met them last, and how long their steps took."""

    def __init__(self, workers: int) -> None:
        self.workers = workers
        self.homes: dict[int, int] = {}
        self._last: dict[int | None, int] = {}
        self._seconds: dict[tuple[str, int | None], float] = {}

    def note(self, client: int, worker: int, *, stays: bool) -> None:
        """A worker has done a step for a client, which lives there from now on if it stays."""
        self._last[client] = worker
        if stays:
            self.homes[client] = worker

    def note_seconds(self, step: str, client: int | None, seconds: float) -> None:
        self._seconds[step, client] = seconds

    def cost(self, request: Request, place: int) -> float:
        """Seconds that this unit took last time."""
        return sum(self._seconds.get((request.step, call.client), 0.0) for call in request.units[place])

    def met(self, client: int | None, worker: int) -> bool:
        """Whether it was this worker that last met a client, and has its data at hand."""
        return self._last.get(client) == worker

    def shift(self, request: Request, places: Iterable[int]) -> Shift:
        """Deal out the units at these places of a request."""
        return Shift(self, request, places)


class Shift:
    """What is left to do of a request: each worker's own units (of clients that live there), and what any can do."""

    def __init__(self, scheduler: Scheduler, request: Request, places: Iterable[int]) -> None:
        self.scheduler = scheduler
        self.request = request
        self.moves: list[Move] = []
        """What must be done before the first unit."""
        own: list[list[int]] = [[] for _ in range(scheduler.workers)]
        free: list[int] = []
        for place in places:
            home = self._gather(request.units[place])
            (free if home is None else own[home]).append(place)
        self._even_out(own)
        if request.window is None:
            free.sort(key=lambda place: (-scheduler.cost(request, place), -_size(request.units[place])))
        # In order: a unit within the window must not wait behind one beyond it.
        self.own = [deque(sorted(mine)) for mine in own]
        self.free = deque(free)

    def _gather(self, unit: Sequence[Call]) -> int | None:
        """Where the clients of a unit live; those of a stack that live elsewhere move there."""
        homes = [self.scheduler.homes[call.client] for call in unit if call.client in self.scheduler.homes]
        if not homes:
            return None
        for call in unit:
            self._move(call, homes[0])
        return homes[0]

    def _move(self, call: Call, target: int) -> None:
        source = None if call.client is None else self.scheduler.homes.get(call.client, target)
        if call.client is not None and source is not None and source != target:
            self.moves.append(Move(call.client, source, target))
            self.scheduler.homes[call.client] = target

    def _even_out(self, own: list[list[int]]) -> None:
        """Move clients from the fullest worker to the emptiest while that shortens the round by a tenth."""
        load = [sum(self.scheduler.cost(self.request, place) for place in mine) for mine in own]
        while len(own) > 1:
            full = max(range(len(load)), key=load.__getitem__)
            empty = min(range(len(load)), key=load.__getitem__)
            gap = load[full] - load[empty]
            movable = [(self.scheduler.cost(self.request, place), place) for place in own[full]]
            fitting = [(cost, place) for cost, place in movable if 0 < cost < gap]
            if gap < 0.1 * load[full] + SHORT_SECONDS or not fitting:
                return
            cost, place = min(fitting, key=lambda item: abs(item[0] - gap / 2))
            if load[full] - max(load[full] - cost, load[empty] + cost) < 0.1 * load[full]:
                return
            for call in self.request.units[place]:
                self._move(call, empty)
            own[full].remove(place)
            own[empty].append(place)
            load[full] -= cost
            load[empty] += cost

    def batch(self, worker: int, limit: int) -> dict[int, float]:
        """Take a worker's next units below `limit`, with their seconds: short ones in company, others alone."""
        batch: dict[int, float] = {}
        mine = self.own[worker]
        while len(batch) < BATCH_MOST:
            seconds = sum(batch.values())
            if mine and mine[0] < limit and seconds < OWN_SHORT_SECONDS:
                place: int | None = mine.popleft()
            elif seconds < SHORT_SECONDS:
                place = self._familiar(worker, limit)
            else:
                break
            if place is None:
                break
            batch[place] = self.scheduler.cost(self.request, place) or OWN_SHORT_SECONDS
        return batch

    def _familiar(self, worker: int, limit: int) -> int | None:
        """Take one of the next free units, if need be any; better one whose data this worker already has at hand."""
        nearby = [place for place in islice(self.free, FAMILIAR_AMONG) if place < limit]
        known = (place for place in nearby if self.scheduler.met(self.request.units[place][0].client, worker))
        found = next(known, nearby[0] if nearby else None)
        if found is not None:
            self.free.remove(found)
        return found

    def put_back(self, places: Sequence[int]) -> None:
        """These are to be done first, by any worker."""
        self.free.extendleft(reversed(places))


def _size(unit: Sequence[Call]) -> int:
    """Bytes that a unit alone is sent: of what is not known otherwise, the larger model takes longer."""
    return sum(len(call.own) for call in unit)
