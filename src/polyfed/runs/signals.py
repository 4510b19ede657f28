"""Ctrl-C and SIGTERM: both ask a run, or many, to stop; after SIGTERM it is over within ten seconds.

A handler written in Python waits until the interpreter gets to it: not while an operation in C goes on. So a small
process beside this one is told of SIGTERM by the system itself. If this process has not ended by then, it sends a
second SIGTERM, which abandons the round under way, and in the end SIGKILL. A run directory survives both.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from polyfed.errors import stop_at_once

ROUND_SECONDS = 5.0  # after SIGTERM, for the round under way
END_SECONDS = 4.0  # after that, for everything else

_WATCHDOG = """
import os, select, signal, sys
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
    signal.signal(number, signal.SIG_IGN)
parent, seconds = int(sys.argv[1]), [float(word) for word in sys.argv[2:]]
while True:
    told = os.read(0, 100)
    if not told:
        sys.exit()
    if signal.SIGTERM in told:
        break
for pause, number in zip(seconds, (signal.SIGTERM, signal.SIGKILL)):
    while select.select([0], [], [], pause)[0]:
        if not os.read(0, 100):
            sys.exit()
    if os.getppid() != parent:
        sys.exit()
    os.kill(parent, number)
os.write(2, b"polyfed: ended at once, since it did not stop; the last checkpoint is there: polyfed resume DIR\\n")
"""


@contextmanager
def stop_signals_call(ask: Callable[[], None]) -> Iterator[None]:
    """Have the first Ctrl-C or SIGTERM call a function that asks to stop; the second one stops at once.

    Afterwards they do what they did before. To be used in the main thread.
    """
    here = os.getpid()
    asked = False

    def handle(_signal: int, _frame: FrameType | None) -> None:
        nonlocal asked
        if os.getpid() != here:
            return  # a process that was forked from this one has inherited the handler
        if asked:
            stop_at_once()
        asked = True
        ask()

    with _watched():
        before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, earlier in before.items():
                signal.signal(number, earlier)


@contextmanager
def _watched() -> Iterator[None]:
    """Have another process end this one, some seconds after a SIGTERM that did not."""
    theirs, ours = os.pipe()
    os.set_blocking(ours, False)
    words = [
        sys.executable,
        "-I",
        "-S",
        "-c",
        _WATCHDOG,
        *map(str, (os.getpid(), ROUND_SECONDS, END_SECONDS)),
    ]
    watchdog = None
    with contextlib.suppress(OSError):  # without it, all the rest is as it is
        watchdog = subprocess.Popen(words, stdin=theirs, start_new_session=True)
    os.close(theirs)
    before = signal.set_wakeup_fd(ours, warn_on_full_buffer=False)
    try:
        yield
    finally:
        signal.set_wakeup_fd(before)
        os.close(ours)
        if watchdog is not None:
            watchdog.kill()
            watchdog.wait()
