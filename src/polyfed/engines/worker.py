"""A worker process of the pool: a host that is told what to do through a pipe."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch

from polyfed.engines.host import Host
from polyfed.engines.ipc import pack, unpack
from polyfed.engines.process_setup import end_with_parent
from polyfed.errors import RunError, describe
from polyfed.federation.engine import Call, Failure, Outcome, Request, Success
from polyfed.federation.message import EMPTY
from polyfed.federation.nodes import Moment

FLUSH_SECONDS = 0.03  # outcomes that lie closer together than this travel together: each wakes the pool


def work(
    make_host: Callable[[], Host], pipe: Connection, others: Sequence[Connection], folder: Path, doing: Any
) -> None:
    """Serve until the pipe is closed. `others` are the pool's ends of pipes, inherited by a fork.

    They must be closed here: else a worker would outlive a pool that was killed. `doing` tells the pool, in shared
    memory, which unit is under way, should it be the last thing that this worker does.
    """
    end_with_parent()  # a step under way is of no use to anybody then
    torch.set_num_threads(1)  # first of all: a fork of a process with threads hangs at its first threaded op
    for number in (signal.SIGINT, signal.SIGTERM):  # stopping is the pool's business
        signal.signal(number, signal.SIG_IGN)
    signal.set_wakeup_fd(-1)
    _let_the_pool_finish()
    for other in others:
        other.close()
    host = make_host()
    request: Request | None = None
    while True:
        try:
            frame = pipe.recv_bytes()
        except (EOFError, OSError):
            return
        head, blobs = unpack(frame)
        match head.pop("do"):
            case "units":
                request = read_request(head["request"], blobs) or request
                assert request is not None
                _run_units(host, request, read_units(head, blobs), pipe, folder, doing)
            case "save":
                pipe.send_bytes(_saved(host, Path(head["directory"]), head["label"]))
            case "restore":
                host.restore({int(index): Path(path) for index, path in head["states"].items()})
            case "give":
                pipe.send_bytes(_given(host, head["client"], folder))
            case "take":
                host.take(head["client"], blobs[0] if blobs else None, head["changed"])


def _let_the_pool_finish() -> None:
    """When the pool wakes this worker, do not take the core from it: it has the next worker to wake.

    With two workers and steps of 15 ms, rounds of FedH2L measured 8 % shorter.
    """
    if sys.platform == "linux":
        with suppress(OSError):  # forbidden in some containers
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))


def _run_units(
    host: Host,
    request: Request,
    units: Sequence[tuple[int, list[Call]]],
    pipe: Connection,
    folder: Path,
    doing: Any,
) -> None:
    waiting: list[tuple[int, list[Outcome]]] = []
    flushed = time.perf_counter()
    for number, (place, unit) in enumerate(units):
        doing.value = place
        try:
            waiting.append((place, host.run_unit(request, unit)))
        except Exception as error:
            unanswered = [place for place, _ in waiting] + [place for place, _ in units[number:]]
            why = str(error) if isinstance(error, RunError) else describe(error)
            pipe.send_bytes(pack({"error": why, "places": unanswered}))
            break
        if time.perf_counter() - flushed > FLUSH_SECONDS or number == len(units) - 1:
            pipe.send_bytes(write_outcomes(waiting, folder))
            waiting = []
            flushed = time.perf_counter()
    doing.value = -1


def _saved(host: Host, directory: Path, label: str) -> bytes:
    try:
        saved = host.save(directory, label)
    except (OSError, RunError) as error:
        return pack({"error": describe(error)})
    return pack({"saved": [[state.owner, state.file, state.digest] for state in saved]})


def _given(host: Host, client: int, folder: Path) -> bytes:
    try:
        state, changed = host.give(client)
    except (OSError, RunError) as error:
        return pack({"error": str(error)})
    return pack({"changed": changed}, [] if state is None else [state], folder)


def write_units(
    units: Sequence[tuple[int, Sequence[Call]]],
    folder: Path,
    request: Request | None,
    common_file: str | None,
) -> bytes:
    """A frame of units, each with its place in the request; with the request itself where the worker has another."""
    heads: list[Any] = []
    blobs: list[bytes] = [] if request is None or common_file else [request.common]
    for place, unit in units:
        calls = []
        for call in unit:
            calls.append([call.client, [sender for sender, _ in call.heard], call.measuring])
            blobs += [call.own, *(data for _, data in call.heard)]
        heads.append([place, calls])
    about = None
    if request is not None:
        now = request.moment
        about = [request.step, [now.round, now.sequence], common_file, request.aloud]
    return pack({"do": "units", "units": heads, "request": about}, blobs, folder)


def read_request(about: list[Any] | None, blobs: list[bytes]) -> Request | None:
    """The request in a frame of units, if there is one. What all its clients are sent is read once, by each worker."""
    if about is None:
        return None
    step, moment, file, aloud = about
    common = Path(file).read_bytes() if file else blobs.pop(0)
    return Request(step, Moment(*moment), common, (), aloud=aloud)


def read_units(head: dict[str, Any], blobs: list[bytes]) -> list[tuple[int, list[Call]]]:
    """What `write_units` wrote."""
    queue = iter(blobs)
    return [
        (
            place,
            [
                Call(client, next(queue), tuple((sender, next(queue)) for sender in senders), measuring)
                for client, senders, measuring in calls
            ],
        )
        for place, calls in head["units"]
    ]


def write_outcomes(outcomes: Sequence[tuple[int, list[Outcome]]], folder: Path) -> bytes:
    """A frame of the outcomes of some units."""
    heads: list[Any] = []
    blobs: list[bytes] = []
    for place, unit in outcomes:
        rows: list[Any] = []
        for outcome in unit:
            if isinstance(outcome, Success):
                reported = outcome.report != EMPTY
                rows.append([outcome.client, outcome.seconds, reported])
                blobs += [outcome.reply, outcome.report] if reported else [outcome.reply]
            else:
                rows.append([outcome.client, outcome.step, outcome.reason, "failed"])
                blobs.append(outcome.traceback.encode(errors="backslashreplace"))
        heads.append([place, rows])
    return pack({"outcomes": heads}, blobs, folder)


def read_outcomes(head: dict[str, Any], blobs: list[bytes]) -> list[tuple[int, list[Outcome]]]:
    """What `write_outcomes` wrote."""
    queue = iter(blobs)
    found: list[tuple[int, list[Outcome]]] = []
    for place, rows in head["outcomes"]:
        unit: list[Outcome] = []
        for row in rows:
            if row[-1] == "failed":
                client, step, reason, _ = row
                unit.append(Failure(client, step, reason, next(queue).decode()))
            else:
                client, seconds, reported = row
                reply = next(queue)
                unit.append(Success(client, reply, seconds, next(queue) if reported else EMPTY))
        found.append((place, unit))
    return found
