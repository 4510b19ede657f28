"""What a run's folder may hold already, and what is done then."""

from __future__ import annotations

import fcntl
import multiprocessing
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import job

from polyfed import disk
from polyfed.errors import ConfigError
from polyfed.experiments.grid import run_jobs
from polyfed.experiments.jobs import Job, state_of
from polyfed.runs import api, checkpoint
from polyfed.runs.config import read_config
from polyfed.runs.folders import clear, unused_folder
from polyfed.testing import result_of

fork = multiprocessing.get_context("fork")


def test_a_job_is_new_then_begun_then_finished(tmp_path: Path, small: dict[str, Any]) -> None:
    one = job(tmp_path / "run", small)
    assert state_of(one) == "new"
    one.path.mkdir()
    assert state_of(one) == "new"
    run = api.prepare_checked(one.config, one.path, 1)
    run.go(lambda now: now.stop())
    run.close()
    assert state_of(one) == "begun"
    assert run_jobs([one], 1) == []
    assert state_of(one) == "finished"


def test_a_run_with_another_config_is_refused_and_its_first_other_key_named(
    tmp_path: Path, small: dict[str, Any]
) -> None:
    run_jobs([job(tmp_path / "run", small, rounds=1)], 1)
    other = {**small["training"], "lr": 0.2}
    with pytest.raises(ConfigError, match=r"training\.lr is 0\.1 there and 0\.2 here: choose another --out"):
        run_jobs([job(tmp_path / "run", small, rounds=1, training=other)], 1)
    with pytest.raises(ConfigError, match=r'method\.name is "fedavg" there'):
        state_of(job(tmp_path / "run", small, rounds=1, method="local"))


def test_what_was_left_open_or_to_a_default_is_the_same_config(tmp_path: Path, small: dict[str, Any]) -> None:
    one = job(tmp_path / "run", small, rounds=1)
    run_jobs([one], 1)
    assert one.config.stack == "auto"
    decided = read_config(one.path / "config.yaml")
    assert decided.stack != "auto"
    written_out = {"name": "fedavg", "within": "all"}
    assert state_of(job(one.path, small, rounds=1, method=written_out, stack=decided.stack)) == "finished"
    with pytest.raises(ConfigError, match="stack is"):
        state_of(job(one.path, small, rounds=1, stack=int(decided.stack) + 1))


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def dies_before_its_config(one: Job) -> None:
    checkpoint.RunDirectory.write_config = lambda *_: die()  # type: ignore[method-assign]
    api.prepare_checked(one.config, one.path, 1).go()


def dies_before_its_first_checkpoint(one: Job) -> None:
    whole = disk.write_through

    def write(path: Path, data: bytes) -> None:
        whole(path, data)
        if path.name == "manifest.json.tmp":
            die()

    disk.write_through = write
    api.prepare_checked(one.config, one.path, 1).go()


@pytest.mark.parametrize("dies", [dies_before_its_config, dies_before_its_first_checkpoint])
def test_a_folder_left_by_a_process_killed_before_its_first_checkpoint_is_used_again(
    tmp_path: Path, small: dict[str, Any], dies: Callable[[Job], None]
) -> None:
    one = job(tmp_path / "run", small)
    process = fork.Process(target=dies, args=(one,))
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    assert (one.path / ".lock").exists()
    assert state_of(one) == "new"
    other = job(tmp_path / "other", small)
    assert run_jobs([one, other], 2) == []
    assert result_of(one.path) == result_of(other.path)


@pytest.mark.parametrize(
    "names", [["notes.txt"], ["config.yaml"], [".lock", "notes.txt"], [".lock", "history.jsonl"]]
)
def test_a_folder_with_anything_else_in_it_is_refused_and_left_alone(
    tmp_path: Path, small: dict[str, Any], names: list[str]
) -> None:
    for name in names:
        (tmp_path / name).write_text("mine")
    for act in (lambda: run_jobs([job(tmp_path, small)], 1), lambda: clear(tmp_path)):
        with pytest.raises(ConfigError, match="choose another --out"):
            act()
    assert {part.name: part.read_text() for part in tmp_path.iterdir()} == dict.fromkeys(names, "mine")


def test_a_folder_in_which_another_process_is_at_work_is_left_alone(
    tmp_path: Path, small: dict[str, Any]
) -> None:
    one = job(tmp_path / "run", small)
    (one.path / "states").mkdir(parents=True)
    with (one.path / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        (failure,) = run_jobs([one], 1)
    assert "another process is at work" in failure.reason
    assert (one.path / "states").exists()


def test_the_first_folder_that_is_empty_or_not_there_is_used(tmp_path: Path) -> None:
    path = tmp_path / "run"
    assert unused_folder(path) == path
    path.mkdir()
    assert unused_folder(path) == path
    (path / "notes").touch()
    assert unused_folder(path) == tmp_path / "run-2"
    (tmp_path / "run-2").touch()  # a file
    assert unused_folder(path) == tmp_path / "run-3"
