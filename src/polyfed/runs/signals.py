"""Ctrl-C and SIGTERM: both ask a run, or many, to stop."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def stop_signals_call(handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """Have Ctrl-C and SIGTERM call a handler; afterwards they do what they did before."""
    before = {number: signal.signal(number, handler) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, earlier in before.items():
            signal.signal(number, earlier)
