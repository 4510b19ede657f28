"""Processes as the pool watches them: one that is stopped, one that does not end, a pipe that nobody serves."""

from __future__ import annotations

import socket
import struct
import sys
import time
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path

END_SECONDS = 2.0  # for processes to end by themselves once their pipes are closed


def is_stopped(process: BaseProcess) -> bool:
    """Whether a process was stopped by a signal (SIGSTOP), rather than being slow. Only Linux says so."""
    if sys.platform != "linux":
        return False
    try:
        state = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return False
    return state == "T"


def limit_waiting(pipe: Connection, seconds: float) -> None:
    """Let no read or write wait for longer once it has begun: an `OSError`, as if the other side had gone.

    For a process that is stopped in the middle of a frame, or does not take what it is sent. Frames are small: one that
    listens takes each in a moment.
    """
    limit = struct.pack("ll", int(seconds), int(seconds % 1 * 1e6))
    with socket.socket(fileno=pipe.fileno()) as ours:
        try:
            ours.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)
            ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)
        finally:
            ours.detach()


def end(*processes: BaseProcess, patience: float = END_SECONDS) -> None:
    """Wait for processes whose pipes are closed, all together; those that go on nevertheless are killed.

    Not by `join(timeout)`: that waits for ever where a process has closed all its descriptors and goes on.
    """
    deadline = time.monotonic() + patience
    while time.monotonic() < deadline and any(
        process.exitcode is None and not is_stopped(process) for process in processes
    ):
        time.sleep(0.001)
    for process in processes:
        if process.exitcode is None:
            process.kill()
        process.join()
