"""The engine without processes: every step in this one, on one thread."""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import torch

from polyfed.disk import SavedState
from polyfed.engines.host import LIVE_BYTES, Host
from polyfed.engines.process_setup import warm_up
from polyfed.errors import stop_at_once
from polyfed.federation.engine import Outcome, Population, Request
from polyfed.federation.program import Program

logger = logging.getLogger(__name__)


class Inline:
    """Runs every step in this process. Simple to debug; the same results as every other engine."""

    width = 1

    def __init__(self, timeout: float | None = None, live_bytes: int = LIVE_BYTES) -> None:
        self.timeout = timeout
        self.live_bytes = live_bytes

    def open(self, population: Population, program: Program, scratch: Path) -> None:
        warm_up(program.method)
        logger.info("inline: every step in this process")
        self.host = Host(population, program, scratch, timeout=self.timeout, live_bytes=self.live_bytes)

    def run(self, request: Request) -> Iterator[Outcome]:
        for unit in request.units:
            with _as_in_a_worker():
                outcomes = self.host.run_unit(request, unit)
            yield from outcomes

    def save(self, directory: Path, label: str) -> list[SavedState]:
        return self.host.save(directory, label)

    def restore(self, states: Mapping[int, Path]) -> None:
        self.host.restore(states)

    def close(self) -> None:
        self.host.restore({})


@contextmanager
def _as_in_a_worker() -> Iterator[None]:
    """One thread, the caller's global random state put back afterwards, and Ctrl-C told from a step's own doing."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    handled = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    handled = handled and threading.current_thread() is threading.main_thread()
    if handled:
        signal.signal(signal.SIGINT, lambda _signal, _frame: stop_at_once())
    try:
        with torch.random.fork_rng(devices=[]):
            yield
    finally:
        torch.set_num_threads(threads)
        if handled:
            signal.signal(signal.SIGINT, signal.default_int_handler)
