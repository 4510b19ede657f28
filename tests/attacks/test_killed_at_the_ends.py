"""`kill -9` before any file operation of a run's start or end: the same command again, and all is there."""

from __future__ import annotations

import json
import multiprocessing
import os
import shutil
import signal
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.conftest import SMALL

import polyfed
from polyfed import disk
from polyfed.errors import CheckpointError
from polyfed.runs.folders import unused_folder
from polyfed.runs.history import RunRecord
from polyfed.runs.manifest import is_finished, read_manifest
from polyfed.testing import result_of

fork = multiprocessing.get_context("fork")

CONFIG = {**SMALL, "rounds": 1, "data": {"limit": 80, "clients": 2}, "method": "local"}
CHANGES = {"open", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.truncate"}


def die_before_change(folder: Path, step: int) -> None:
    """Let this process be killed before the `step`-th time that it opens, makes, moves or removes anything there."""
    seen = [0]

    def count(event: str, args: tuple[Any, ...]) -> None:
        if event in CHANGES and isinstance(args[0], str | os.PathLike):
            seen[0] += str(args[0]).startswith(str(folder))
            if seen[0] == step:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(count)


def child(folder: Path, step: int, work: Callable[[], Any]) -> None:
    torch.set_num_threads(1)
    die_before_change(folder, step)
    work()
    os._exit(0)


def killed(folder: Path, step: int, work: Callable[[], Any]) -> bool:
    """Do it in a process that is killed at some step; whether it was before the end."""
    process = fork.Process(target=child, args=(folder, step, work))
    process.start()
    process.join()
    assert process.exitcode in (0, -signal.SIGKILL)
    return process.exitcode != 0


def everything(path: Path) -> dict[str, Any]:
    """All that a run leaves, but for times."""
    summary = {key: value for key, value in RunRecord(path).summary.items() if key != "seconds"}
    files = sorted(str(file.relative_to(path)) for file in path.rglob("*"))
    fixed = [(path / name).read_bytes() for name in ("config.yaml", "data.json", "assignment.json")]
    clients = (path / "models" / "clients.json").read_bytes()
    return {**result_of(path), "summary": summary, "files": files, "all": (*fixed, clients)}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return everything(polyfed.run(CONFIG, out=tmp_path_factory.mktemp("whole") / "run", workers=1).path)


@pytest.mark.slow
def test_killed_before_any_file_operation_of_its_start_a_run_is_started_again_by_the_same_command(
    tmp_path: Path, whole: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    starts = 0
    for step in range(1, 200):
        folder = tmp_path / f"at-{step}"
        path = folder / "run"
        assert killed(folder, step, partial(polyfed.run, CONFIG, out=path, workers=1))
        if (path / "manifest.json").exists():
            break
        starts += 1
        assert unused_folder(path) == path  # without --out it is used again, too
        again = folder / "again"
        if path.exists():
            shutil.copytree(path, again)
        # Killed a second time, while what is left is cleared, and only then let go on.
        killed(folder, 3, partial(polyfed.run, CONFIG, out=path, workers=1))
        for each in (path, again):
            polyfed.run(CONFIG, out=each, workers=1)
            assert everything(each) == whole, step
    assert starts >= 15


def test_what_a_killed_start_left_is_used_again_without_a_name_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    first = polyfed.prepare(CONFIG, workers=1)
    while_at_work = polyfed.prepare(CONFIG, workers=1)
    assert [first.path.name, while_at_work.path.name] == ["run", "run-2"]
    with pytest.raises(CheckpointError, match="another process is at work"):
        polyfed.prepare(CONFIG, out=first.path, workers=1)
    first.close()
    while_at_work.close()
    assert polyfed.run(CONFIG, workers=1).path == first.path


def test_what_is_not_only_left_by_a_killed_start_is_not_cleared(tmp_path: Path) -> None:
    run = polyfed.prepare(CONFIG, out=tmp_path / "run", workers=1)
    run.close()
    (run.path / "notes.txt").write_text("mine")
    before = sorted(run.path.rglob("*"))
    with pytest.raises(CheckpointError, match="not empty and holds no run"):
        polyfed.run(CONFIG, out=run.path, workers=1)
    assert sorted(run.path.rglob("*")) == before


def ready_to_conclude(path: Path) -> None:
    """A run whose last round is committed, and nothing of its result is there."""
    shutil.rmtree(path / "models")
    (path / "models").mkdir()
    (path / "summary.json").unlink()
    manifest = {**read_manifest(path), "result": None}
    seal = disk.digest(json.dumps(manifest, sort_keys=True).encode())
    (path / "manifest.json").write_text(json.dumps({**manifest, "digest": seal}))


@pytest.mark.slow
def test_killed_before_any_file_operation_of_its_end_a_run_is_concluded_by_resume(
    tmp_path: Path, whole: dict[str, Any]
) -> None:
    """Also between the summary and the manifest that knows of it."""
    begun = polyfed.run(CONFIG, out=tmp_path / "begun", workers=1).path
    expected = read_manifest(begun)
    summary = (begun / "summary.json").read_bytes()
    ready_to_conclude(begun)
    in_between = 0
    for step in range(1, 200):
        path = shutil.copytree(begun, tmp_path / f"at-{step}")
        if not killed(path, step, partial(polyfed.resume, path, workers=1)):
            break
        in_between += (path / "summary.json").exists() and not is_finished(path)
        if not is_finished(path):
            with pytest.raises(CheckpointError, match="has not finished"):
                polyfed.load_model(path, "client-0")
        polyfed.resume(path, workers=1)
        assert everything(path) == whole
        assert (path / "summary.json").read_bytes() == summary
        assert read_manifest(path) == expected
    assert in_between >= 3
    assert step > 30
