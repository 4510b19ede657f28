"""What every attack must end in: one line, exit code 2, soon, and with little memory."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import pytest
from tests.conftest import Command

Refused = Callable[..., str]

PATIENCE = 60  # seconds, where two is usual: what is longer hangs
MUCH = 600e6  # bytes


@pytest.fixture
def refused(command: Command) -> Refused:
    """`refused("run", "x.yaml")` is the one line that a command is refused with, if it is not harmed by then."""

    def call(*words: object) -> str:
        with unharmed():
            said = command(*words)
        assert said.code == 2, said
        assert said.err.startswith("polyfed: ")
        assert said.err.count("\n") == 1
        assert said.err.rstrip("\n").isprintable()
        return said.err.removeprefix("polyfed: ").rstrip("\n")

    return call


@contextmanager
def unharmed() -> Iterator[None]:
    """What is done here neither hangs nor takes much memory."""

    def hangs(_signal: int, _frame: FrameType | None) -> None:
        raise AssertionError(f"it hangs: {PATIENCE} seconds have passed")

    before = signal.signal(signal.SIGALRM, hangs)
    signal.alarm(PATIENCE)
    start = _peak(reset=True)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
    assert _peak() - start < MUCH


def _peak(*, reset: bool = False) -> float:
    """The most memory that this process has had since a reset, in bytes; 0 where the system does not say."""
    try:
        if reset:
            Path("/proc/self/clear_refs").write_text("5")
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return 0
    return next((1024.0 * int(line.split()[1]) for line in lines if line.startswith("VmHWM")), 0)
