"""`kill -9` at any moment, then resume, equals the uninterrupted run bit for bit."""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import polyfed
from polyfed import disk
from polyfed.runs import checkpoint
from polyfed.testing import result_of

fork = multiprocessing.get_context("fork")

CONFIG: dict[str, Any] = {
    "rounds": 25,
    "data": {"limit": 400, "clients": 4},
    "models": {"names": ["mlp-small", "cnn-small"]},
    "training": {"batch": 16, "epochs": 2},
    "checkpoint_seconds": 0,
}
METHODS = {"local": "local", "fedavg": {"name": "fedavg", "within": "architecture"}}


def work(path: Path, method: str, workers: int, prepare: Callable[[], None] | None) -> None:
    """What the child process does: begin the run, or go on with it."""
    torch.set_num_threads(1)
    if prepare is not None:
        prepare()
    if (path / "manifest.json").exists():
        polyfed.resume(path, workers=workers)
    else:
        polyfed.run(CONFIG, method=METHODS[method], out=path, workers=workers)


def finished(path: Path) -> bool:
    return (path / "summary.json").exists()


def start(path: Path, method: str, workers: int, prepare: Callable[[], None] | None = None) -> Any:
    if not (path / "manifest.json").exists() and path.exists():
        for file in sorted(path.rglob("*"), reverse=True):
            file.rmdir() if file.is_dir() else file.unlink()
    process = fork.Process(target=work, args=(path, method, workers, prepare))
    process.start()
    return process


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    results: dict[str, Any] = {}
    for method, settings in METHODS.items():
        path = tmp_path_factory.mktemp("undisturbed") / method
        started = time.monotonic()
        polyfed.run(CONFIG, method=settings, out=path, workers=1)
        results[method] = result_of(path)
        results[f"seconds of {method}"] = time.monotonic() - started
    return results


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("method", list(METHODS))
def test_killed_at_random_moments_and_resumed_equals_undisturbed(
    tmp_path: Path, undisturbed: dict[str, Any], method: str, workers: int
) -> None:
    moments = random.Random(f"{method}{workers}")
    path = tmp_path / "run"
    longest = min(0.35, undisturbed[f"seconds of {method}"] / 8)  # so that three kills come before the end
    kills = 0
    for _ in range(40):
        process = start(path, method, workers)
        process.join(moments.uniform(min(0.05, longest), longest) if kills < 8 else None)
        if process.is_alive():
            kills += 1
            process.kill()
            process.join()
        if finished(path):
            break
    assert kills >= 3
    assert result_of(path) == undisturbed[method]


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def die_in_state_file(count: int) -> Callable[[], None]:
    """Die with the `count`-th state file half written."""

    def prepare() -> None:
        written = [0]
        whole = disk.write_through

        def half(path: Path, data: bytes) -> None:
            written[0] += path.name.startswith("client")
            if written[0] == count:
                path.write_bytes(data[: len(data) // 2])
                die()
            whole(path, data)

        disk.write_through = half

    return prepare


def die_before_rename(count: int) -> Callable[[], None]:
    def prepare() -> None:
        seen = [0]
        whole = disk.write_through

        def write(path: Path, data: bytes) -> None:
            whole(path, data)
            seen[0] += path.name == "manifest.json.tmp"
            if seen[0] == count:
                die()

        disk.write_through = write

    return prepare


def die_after_rename(count: int) -> Callable[[], None]:
    def prepare() -> None:
        seen = [0]
        commit = checkpoint.RunDirectory.commit

        def then_die(self: checkpoint.RunDirectory, *args: Any) -> None:
            commit(self, *args)
            seen[0] += 1
            if seen[0] == count:
                die()

        checkpoint.RunDirectory.commit = then_die  # type: ignore[assignment, method-assign]

    return prepare


POINTS = {
    "inside a state file": die_in_state_file(6),
    "before the manifest's rename": die_before_rename(3),
    "right after a commit": die_after_rename(4),
    "before the very first commit": die_before_rename(1),
}


@pytest.mark.slow
@pytest.mark.parametrize("point", list(POINTS))
def test_killed_while_a_checkpoint_is_written_and_resumed_equals_undisturbed(
    tmp_path: Path, undisturbed: dict[str, Any], point: str
) -> None:
    path = tmp_path / "run"
    first = start(path, "local", 1, POINTS[point])
    first.join()
    assert first.exitcode == -signal.SIGKILL
    assert not finished(path)
    second = start(path, "local", 1)
    second.join()
    assert second.exitcode == 0
    assert result_of(path) == undisturbed["local"]


def test_workers_do_not_outlive_a_run_that_was_killed(tmp_path: Path) -> None:
    process = start(tmp_path / "run", "fedavg", 2)
    workers: list[int] = []
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    deadline = time.monotonic() + 20
    while len(workers) < 2 and time.monotonic() < deadline and process.is_alive():
        workers = [int(pid) for pid in children.read_text().split()]
        time.sleep(0.01)
    assert len(workers) == 2
    process.kill()
    process.join()
    while any(alive(pid) for pid in workers) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(alive(pid) for pid in workers)


def alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except OSError:
        return False
    return state != "Z"
