"""A run directory stays whole: what was truncated, edited or moved since its last commit is noticed."""

from __future__ import annotations

import json
import resource
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.conftest import Command, MakeRun

import polyfed
from polyfed.disk import SavedState, digest
from polyfed.errors import CheckpointError, RunError, UserError
from polyfed.runs.checkpoint import RunDirectory, read_lines, read_manifest, read_states
from polyfed.runs.manifest import seal
from polyfed.testing import result_of


@pytest.fixture
def stopped(make_run: MakeRun) -> Path:
    """A run of `local`, stopped after its second of four rounds."""
    run = make_run("local", rounds=4)
    run.go(lambda now: now.stop() if now.round == 2 else None)
    run.close()
    return run.path


def a_state(path: Path) -> Path:
    return next((path / "states").glob("client-1.*"))


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-10])


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(bytes(data))


def edit_config(path: Path) -> None:
    content = yaml.safe_load(path.read_text())
    path.write_text(yaml.safe_dump({**content, "rounds": 9}))


def server_state(path: Path) -> Path:
    return next((path / "states").glob("server.*"))


DAMAGES: dict[str, tuple[Callable[[Path], Path], Callable[[Path], Any]]] = {
    "a truncated state": (a_state, truncate),
    "an edited state": (a_state, flip),
    "a missing state": (a_state, Path.unlink),
    "an edited server state": (server_state, flip),
    "a truncated history": (lambda path: path / "history.jsonl", truncate),
    "an edited history": (lambda path: path / "history.jsonl", flip),
    "a truncated ledger": (lambda path: path / "ledger.jsonl", truncate),
    "a truncated index": (lambda path: path / "states.jsonl", truncate),
    "a truncated manifest": (lambda path: path / "manifest.json", truncate),
    "an edited manifest": (lambda path: path / "manifest.json", flip),
    "an edited config": (lambda path: path / "config.yaml", edit_config),
    "an edited description of the data": (lambda path: path / "data.json", flip),
    "a missing description of the data": (lambda path: path / "data.json", Path.unlink),
    "an edited assignment": (lambda path: path / "assignment.json", flip),
    "a missing assignment": (lambda path: path / "assignment.json", Path.unlink),
}


@pytest.mark.parametrize("what", list(DAMAGES))
def test_damage_is_noticed_and_named_in_one_line(stopped: Path, what: str) -> None:
    find, damage = DAMAGES[what]
    damage(find(stopped))
    with pytest.raises(UserError) as caught:
        polyfed.resume(stopped, workers=1)
    assert "\n" not in str(caught.value)
    assert str(stopped) in str(caught.value)


def test_what_was_written_after_the_last_commit_is_dropped(stopped: Path, make_run: MakeRun) -> None:
    with (stopped / "history.jsonl").open("a") as file:
        file.write('{"round": 3, "summary": {}}\n{"rou')
    (stopped / "states" / "client-1.3.safetensors").write_bytes(b"half")
    polyfed.resume(stopped, workers=1)
    whole = make_run("local", rounds=4, name="whole")
    whole.go()
    assert result_of(stopped) == result_of(whole.path)


def test_a_moved_run_directory_resumes(stopped: Path, tmp_path: Path) -> None:
    moved = tmp_path / "elsewhere" / "run"
    moved.parent.mkdir()
    shutil.move(stopped, moved)
    assert polyfed.resume(moved, workers=1).finished


def test_other_data_are_refused(stopped: Path) -> None:
    import torch

    with pytest.raises(RunError, match="the data are not those"):
        polyfed.resume(stopped, data=(torch.rand(300, 1, 8, 8), torch.arange(300) % 10), workers=1)


def test_two_processes_cannot_work_in_one_directory(stopped: Path) -> None:
    first = RunDirectory(stopped, new=False)
    with pytest.raises(CheckpointError, match="another process is at work"):
        RunDirectory(stopped, new=False)
    first.close()
    RunDirectory(stopped, new=False).close()


def test_a_directory_with_something_in_it_is_not_overwritten(tmp_path: Path, stopped: Path) -> None:
    """Only of a run it is said that it can be resumed."""
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "precious.txt").write_text("mine")
    with pytest.raises(CheckpointError, match=r"not empty and holds no run: choose another --out$"):
        RunDirectory(mine, new=True)
    assert (mine / "precious.txt").read_text() == "mine"
    with pytest.raises(CheckpointError, match=r"holds a run: choose another --out, `polyfed resume .*`"):
        RunDirectory(stopped, new=True)


def test_a_commit_writes_only_the_states_that_changed(make_run: MakeRun) -> None:
    run = make_run("local", cohort={"count": 1}, rounds=3)
    run.go()
    labels = {path.name.split(".")[1] for path in (run.path / "states").glob("client-*")}
    index = (run.path / "states.jsonl").read_text().splitlines()
    assert len(index) == 3
    assert labels <= {"1", "2", "3"}


@pytest.mark.parametrize("workers", [1, 2])
def test_a_full_disk_is_one_line_and_nothing_is_lost(stopped: Path, make_run: MakeRun, workers: int) -> None:
    """A limit on the size of files stands in for the disk: the kernel refuses the write just the same."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4000, hard))
    try:
        with pytest.raises(RunError, match="cannot write") as caught:
            polyfed.resume(stopped, workers=workers)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert "\n" not in str(caught.value)
    assert polyfed.resume(stopped, workers=workers).finished
    whole = make_run("local", rounds=4, name="whole")
    whole.go()
    assert result_of(stopped) == result_of(whole.path)


@pytest.mark.parametrize("size", [10, 1000, 3000])
def test_a_full_disk_at_the_start_is_one_line_that_names_the_file_or_the_run(
    tmp_path: Path, small: dict[str, Any], command: Command, size: int
) -> None:
    (tmp_path / "r.yaml").write_text(yaml.safe_dump(small))
    polyfed.prepare(small, out=tmp_path / "first").close()  # so that the data are in the cache
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        said = command("run", tmp_path / "r.yaml", "--out", tmp_path / "out", "--set", "rounds=200")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    told = said.err.strip().splitlines()[-1]
    assert said.code == 2
    assert str(tmp_path / "out") in told and "File too large" in told


@pytest.mark.parametrize(("seconds", "expected"), [(0, 12), (0.001, 2)])
def test_checkpoints_that_take_long_are_rare_unless_every_round_is_wanted(
    make_run: MakeRun, monkeypatch: pytest.MonkeyPatch, seconds: float, expected: int
) -> None:
    run = make_run("local", rounds=12, checkpoint_seconds=seconds, evaluate={"every": 12})
    run.open()
    commit, rounds = run._commit, []

    def slowly() -> None:
        rounds.append(run.round)
        time.sleep(0.5)
        commit()

    monkeypatch.setattr(run, "_commit", slowly)
    run.go()
    assert len(set(rounds)) <= expected + 1  # and one at the end
    assert rounds[-1] == 12
    if not seconds:
        assert set(rounds) >= set(range(1, 13))


# -- run directories from others ------------------------------------------------------------------------------


def reseal(path: Path, **changes: Any) -> None:
    """Change a run directory as somebody would who knows how it is sealed: every digest fits again."""
    manifest = {**read_manifest(path), **changes}
    index = (path / "states.jsonl").read_bytes()
    manifest["states"] = [len(index), digest(index)]
    (path / "manifest.json").write_text(json.dumps({**manifest, "digest": seal(manifest)}))


OUTSIDE = [
    "../precious.txt",
    "/etc/hostname",
    "..",
    ".",
    "",
    "deeper/state.safetensors",
    "..\\precious.txt",
    "nul\0",
    7,
    ["a"],
]


@pytest.mark.parametrize("name", OUTSIDE, ids=repr)
@pytest.mark.parametrize("owner", ["client-1", "shelf/a"])
def test_a_state_outside_the_directory_is_refused_and_nothing_is_touched(
    stopped: Path, owner: str, name: Any
) -> None:
    (stopped / "precious.txt").write_text("mine")
    line = {"owner": owner, "file": name, "digest": digest(b"mine")}
    with (stopped / "states.jsonl").open("a") as file:
        file.write(json.dumps(line) + "\n")
    reseal(stopped)
    before = sorted(path.name for path in (stopped / "states").iterdir())
    with pytest.raises(CheckpointError, match="not a file inside states/") as caught:
        polyfed.resume(stopped, workers=1)
    assert str(stopped) in str(caught.value)
    assert "\n" not in str(caught.value)
    assert (stopped / "precious.txt").read_text() == "mine"
    assert sorted(path.name for path in (stopped / "states").iterdir()) == before


@pytest.mark.parametrize("name", [*OUTSIDE, None], ids=repr)
def test_a_server_state_outside_the_directory_is_refused(stopped: Path, name: Any) -> None:
    (stopped / "precious.txt").write_text("mine")
    reseal(stopped, server=[name, digest(b"mine")])
    said = "not a file inside states/" if isinstance(name, str) else r"manifest\.json was truncated or edited"
    with pytest.raises(CheckpointError, match=said):
        polyfed.resume(stopped, workers=1)
    assert (stopped / "precious.txt").read_text() == "mine"


@pytest.mark.parametrize(
    "line",
    ["[]", "{}", '{"client": 1, "file": "a", "digest": "b"}', "7", "no JSON", '{"owner": [1], "file": null}'],
)
def test_an_index_that_is_not_a_list_of_states_is_refused(stopped: Path, line: str) -> None:
    with (stopped / "states.jsonl").open("a") as file:
        file.write(line + "\n")
    reseal(stopped)
    with pytest.raises(CheckpointError, match="is not a list of states"):
        polyfed.resume(stopped, workers=1)


@pytest.mark.parametrize("owner", ["client-9", "client-01", "client--1", "client-", "somebody"])
def test_a_state_of_somebody_who_is_not_a_client_is_refused(stopped: Path, owner: str) -> None:
    line = read_states(stopped)["client-1"]
    with (stopped / "states.jsonl").open("a") as file:
        file.write(json.dumps({"owner": owner, "file": line.file, "digest": line.digest}) + "\n")
    reseal(stopped)
    with pytest.raises(CheckpointError, match=f"a state of '{owner}', which is not a client"):
        polyfed.resume(stopped, workers=1)


def test_a_run_of_an_older_format_is_refused_in_one_line(stopped: Path) -> None:
    reseal(stopped, format=1)
    with pytest.raises(CheckpointError, match=r"another version of polyfed \(format 1\)"):
        polyfed.resume(stopped, workers=1)


# -- owners ---------------------------------------------------------------------------------------------------


def directory_with(path: Path, *commits: list[SavedState]) -> RunDirectory:
    directory = RunDirectory(path, new=True)
    directory.write_config({})
    directory.write_description({})
    directory.write_assignment({})
    for number, saved in enumerate(commits):
        for state in saved:
            if state.file is not None:
                (path / "states" / state.file).write_bytes(b"state")
        directory.commit(number, str(number), {}, saved, {})
    return directory


def state(owner: str, file: str | None) -> SavedState:
    return SavedState(owner, file, digest(b"state") if file else None)


def test_states_belong_to_clients_and_to_the_shelf_by_name(tmp_path: Path) -> None:
    directory = directory_with(tmp_path, [state("client-3", "c"), state("shelf/client-3", "s")])
    assert directory.state_files() == {"client-3": tmp_path / "states" / "c"}
    assert directory.shelf_files() == {"client-3": tmp_path / "states" / "s"}
    assert next(read_lines(tmp_path / "states.jsonl")) == {
        "owner": "client-3",
        "file": "c",
        "digest": digest(b"state"),
    }
    directory.close()


def test_a_deleted_state_is_gone_with_its_file_once_that_is_committed(tmp_path: Path) -> None:
    directory = directory_with(tmp_path, [state("shelf/a", "a"), state("shelf/b", "b")])
    directory.commit(1, "1", {}, [state("shelf/a", None)], {})
    assert not (tmp_path / "states" / "a").exists()
    directory.rewind()
    assert list(directory.shelf_files()) == ["b"]
    assert sorted(path.name for path in (tmp_path / "states").iterdir()) == ["b", "server.1.safetensors"]
    directory.close()


def test_a_slot_that_was_deleted_and_set_again_comes_last(tmp_path: Path) -> None:
    directory = directory_with(
        tmp_path,
        [state("shelf/a", "a"), state("shelf/b", "b")],
        [state("shelf/a", None), state("shelf/a", "a.1")],
    )
    assert list(directory.shelf_files()) == ["b", "a"]
    directory.rewind()
    assert list(directory.shelf_files()) == ["b", "a"]
    directory.close()


@pytest.mark.parametrize("name", ["config.yaml", "data.json", "assignment.json"])
def test_a_run_that_was_stopped_is_not_resumed_with_a_damaged_file(stopped: Path, name: str) -> None:
    """Not even where the run would not need it: who reads the finished run would be told too late."""
    file = stopped / name
    file.write_bytes(file.read_bytes().replace(b"0", b"1", 1) + b" ")
    with pytest.raises(CheckpointError, match=name):
        polyfed.reopen(stopped)
