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
from tests.conftest import MakeRun, job

from polyfed import disk
from polyfed.errors import CheckpointError, ConfigError
from polyfed.experiments import grid
from polyfed.experiments.grid import run_jobs
from polyfed.experiments.jobs import Job, state_of
from polyfed.runs import api, checkpoint
from polyfed.runs.config import read_config
from polyfed.runs.folders import delete_run, unused_folder
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
    for act in (lambda: run_jobs([job(tmp_path, small)], 1), lambda: delete_run(tmp_path)):
        with pytest.raises(ConfigError, match="choose another --out"):
            act()
    assert {part.name: part.read_text() for part in tmp_path.iterdir()} == dict.fromkeys(names, "mine")


def test_a_folder_in_which_another_process_is_at_work_is_left_alone(
    tmp_path: Path, small: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grid, "ENDING_SECONDS", 0.1)
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


# -- deleting a run ------------------------------------------------------------------------------------------


def files_of(path: Path) -> set[str]:
    return {str(part.relative_to(path)) for part in path.rglob("*")}


@pytest.mark.parametrize("rounds", [0, 1, 2])
def test_a_run_begun_or_finished_is_deleted_whole(make_run: MakeRun, rounds: int) -> None:
    """Rounds: killed before the first, stopped after one, finished; with all that a run can leave."""
    public = {"source": "share", "share": 0.2}
    fedmd = {"name": "fedmd", "public_rows": 40}
    run = make_run(fedmd, rounds=2, data={"public": public}, models={"server": "mlp-small"})
    if rounds == 0:
        run.stop()
    run.go(lambda now: now.stop() if now.round == rounds else None)
    run.close()
    assert run.finished == (rounds == 2)
    for name in ("failures.log", "curves.png", "summary.json.tmp"):
        (run.path / name).write_text("")
    (run.path / "scratch" / "shelf").mkdir(parents=True)
    delete_run(run.path)
    assert files_of(run.path) == set()


def test_a_folder_that_is_not_there_or_empty_is_as_good_as_deleted(tmp_path: Path) -> None:
    delete_run(tmp_path / "nowhere")
    delete_run(tmp_path)
    assert tmp_path.exists()


@pytest.mark.parametrize("name", ["notes.txt", "models/notes.txt", "states/mine/weights.pt", "more"])
def test_a_run_with_something_else_beside_it_is_left_whole(make_run: MakeRun, name: str) -> None:
    run = make_run("local", rounds=1)
    run.go()
    run.close()
    (run.path / name).parent.mkdir(exist_ok=True)
    (run.path / name).write_text("precious")
    before = files_of(run.path)
    with pytest.raises(ConfigError, match="is no part of a run, and would be deleted too"):
        delete_run(run.path)
    assert files_of(run.path) == before


def test_what_a_link_leads_to_is_never_deleted(make_run: MakeRun, tmp_path: Path) -> None:
    run = make_run("local", rounds=1)
    run.go()
    run.close()
    elsewhere = tmp_path / "elsewhere"
    (run.path / "models").rename(elsewhere)
    (run.path / "models").symlink_to(elsewhere)
    before = files_of(elsewhere)
    with pytest.raises(ConfigError, match="models is no part of a run"):
        delete_run(run.path)
    assert files_of(elsewhere) == before


def test_a_folder_without_a_run_is_left_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("precious")
    with pytest.raises(ConfigError, match="not empty: choose another --out"):
        delete_run(tmp_path)
    assert files_of(tmp_path) == {"notes.txt"}


def test_a_run_at_work_is_not_deleted(make_run: MakeRun) -> None:
    run = make_run("local", rounds=2)
    run.go(lambda now: now.stop())
    before = files_of(run.path)
    with pytest.raises(CheckpointError, match="another process is at work"):
        delete_run(run.path)
    assert files_of(run.path) == before
