"""Runs in processes of their own, to be killed."""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import polyfed
from polyfed.testing import result_of

FORK = multiprocessing.get_context("fork")
WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
CHANGES = ("os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.truncate")


def begin_or_resume(path: Path, config: dict[str, Any], workers: int) -> None:
    torch.set_num_threads(1)
    if (path / "manifest.json").exists():
        polyfed.resume(path, workers=workers)
    else:
        polyfed.run(config, out=path, workers=workers)


def stop_half_way(path: Path, config: dict[str, Any]) -> None:
    run = polyfed.prepare(config, out=path, workers=1)
    run.go(lambda now: now.stop() if now.round == 2 else None)
    run.close()


def in_child(work: Callable[[], None]) -> None:
    process = FORK.Process(target=work)
    process.start()
    process.join()
    if process.exitcode != 0:
        raise RuntimeError(f"a run that nobody disturbed ended with exit code {process.exitcode}")


def on_changes(act: Callable[[], None]) -> None:
    """Call a function before every change that this process makes to the disk from now on."""

    def look(event: str, details: tuple[Any, ...]) -> None:
        if event in CHANGES or (event == "open" and isinstance(details[2], int) and details[2] & WRITES):
            act()

    sys.addaudithook(look)


def killed_before(place: int, path: Path, config: dict[str, Any]) -> None:
    seen = [0]

    def die_in_time() -> None:
        seen[0] += 1
        if seen[0] == place:
            os.kill(os.getpid(), signal.SIGKILL)

    on_changes(die_in_time)
    begin_or_resume(path, config, 1)


def in_child_counting(work: Callable[[], None]) -> int:
    """How many changes to the disk some work makes."""
    count = FORK.RawValue("q", 0)

    def counted() -> None:
        def add() -> None:
            count.value += 1

        on_changes(add)
        work()

    in_child(counted)
    return int(count.value)


def children_of(pid: int) -> list[int]:
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def results_of_sweep(folder: Path) -> dict[str, Any]:
    runs = sorted(file.parent for file in folder.rglob("summary.json"))
    return {str(run.relative_to(folder)): result_of(run) for run in runs}


def shuffled(numbers: range, chance: random.Random) -> list[int]:
    mixed = list(numbers)
    chance.shuffle(mixed)
    return mixed
