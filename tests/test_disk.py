"""Writes, folders from anybody, locks and YAML files."""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from polyfed import disk, yaml_files
from polyfed.disk import Folder
from polyfed.errors import CheckpointError, ConfigError, describe_os_error
from polyfed.runs.checkpoint import RunDirectory


def test_a_folder_is_locked_until_the_lock_is_closed(tmp_path: Path) -> None:
    with (
        disk.lock(tmp_path),
        pytest.raises(CheckpointError, match=r"another process is at work in .*: wait for it or stop it"),
    ):
        disk.lock(tmp_path)
    disk.lock(tmp_path).close()


def test_a_yaml_file_gives_its_keys_and_values(tmp_path: Path) -> None:
    file = tmp_path / "a.yaml"
    file.write_text("α: 0.1\nb: {c: [1, 2]}", encoding="utf-8")
    assert yaml_files.read_yaml(file, "missing") == {"α": 0.1, "b": {"c": [1, 2]}}
    file.write_text("# nothing yet")
    assert yaml_files.read_yaml(file, "missing") == {}


def test_merge_keys_may_be_overridden_and_the_same_key_may_be_in_two_sections(tmp_path: Path) -> None:
    file = tmp_path / "a.yaml"
    file.write_text(
        "a: &base {b: 1, c: 2}\nd: &next\n  <<: *base\n  b: 3\ne: {<<: *next, b: 4, '1': x, 1: y}"
    )
    content = yaml_files.read_yaml(file, "missing")
    assert content["d"] == {"b": 3, "c": 2}
    assert content["e"] == {"b": 4, "c": 2, "1": "x", 1: "y"}


def test_a_folder_is_not_a_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"^cannot read \S+: it is a folder; name a file$"):
        yaml_files.read_yaml(tmp_path, "missing")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"a: [1,\nb", r"^\S+a\.yaml is not YAML: "),
        (b"a: 1\nb:\n\tc: 2", r"^\S+a\.yaml is not YAML: line 3: there is a tab: indent with spaces$"),
        (b"a: b: c", r"^\S+a\.yaml is not YAML: line 1: mapping values are not allowed here$"),
        (b"a: \x00", r"^\S+a\.yaml is not YAML: "),
        (b"- a", r"^\S+a\.yaml must hold keys and values, such as `rounds: 20`, but it is a list$"),
        (b"3", r"^\S+a\.yaml must hold keys and values, .* but it is a single value$"),
        (b"\xff\xd8", r"^cannot read \S+a\.yaml: it is not text in UTF-8; save it as that$"),
        (b"a: 1\nb: 2\na: 3", r"^\S+a\.yaml: 'a' is there twice, in lines 1 and 3: leave one out$"),
        (b"a:\n  b: 1\n  'b': 2", r"^\S+a\.yaml: 'b' is there twice, in lines 2 and 3: leave one out$"),
        (b"- {a: 1, a: 1}", r"^\S+a\.yaml: 'a' is there twice, in line 1: leave one out$"),
        (None, "^there is no such file$"),
    ],
)
def test_a_file_that_cannot_be_used_is_named_in_one_line(
    tmp_path: Path, content: bytes | None, message: str
) -> None:
    file = tmp_path / "a.yaml"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(ConfigError, match=message) as caught:
        yaml_files.read_yaml(file, "there is no such file")
    assert "\n" not in str(caught.value)


# -- writes that a power cut does not undo ---------------------------------------------------------------------


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What was synced, moved and made, by name, in its order."""
    told: list[str] = []
    fsync, rename, mkdir = os.fsync, Path.replace, Path.mkdir

    def noted_fsync(descriptor: int) -> None:
        told.append(f"sync {Path(f'/proc/self/fd/{descriptor}').readlink().name}")
        fsync(descriptor)

    def noted_rename(path: Path, target: Path) -> Path:
        told.append(f"move {target.name}")
        return rename(path, target)

    def noted_mkdir(path: Path, *args: Any, **options: Any) -> None:
        told.append(f"make {path.name}")
        mkdir(path, *args, **options)

    monkeypatch.setattr(os, "fsync", noted_fsync)
    monkeypatch.setattr(Path, "replace", noted_rename)
    monkeypatch.setattr(Path, "mkdir", noted_mkdir)
    return told


def test_a_replaced_file_and_its_name_are_on_the_disk(tmp_path: Path, synced: list[str]) -> None:
    disk.replace(tmp_path / "a", b"1")
    assert synced == ["sync a.tmp", "move a", f"sync {tmp_path.name}"]


def test_new_folders_are_on_the_disk_each_in_the_one_above(tmp_path: Path, synced: list[str]) -> None:
    Folder(tmp_path / "a" / "b").make()
    assert synced == ["make a", f"sync {tmp_path.name}", "make b", "sync a"]
    Folder(tmp_path / "a" / "b").make()
    assert len(synced) == 4


def test_a_commit_syncs_states_before_the_manifest_is_moved(tmp_path: Path, synced: list[str]) -> None:
    directory = RunDirectory(tmp_path / "run", new=True)
    directory.write_config({})
    synced.clear()
    directory.commit(1, "1", {}, [], {})
    directory.close()
    assert synced.index("sync states") < synced.index("move manifest.json")
    assert synced[-1] == "sync run"


def test_a_disk_that_cannot_sync_folders_is_used_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fsync = os.fsync

    def refuse(descriptor: int) -> None:
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "Invalid argument")
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", refuse)
    disk.replace(tmp_path / "a", b"1")
    assert (tmp_path / "a").read_bytes() == b"1"


# -- folders from anybody --------------------------------------------------------------------------------------


def test_a_file_that_is_there_is_replaced_and_not_written_into(tmp_path: Path) -> None:
    """Through a link, or under another of its names, it may be somebody else's."""
    mine = tmp_path / "mine"
    for make in (lambda place: place.symlink_to(mine), lambda place: os.link(mine, place)):
        mine.write_bytes(b"precious")
        place = tmp_path / "place"
        make(place)
        disk.write_through(place, b"new")
        assert (mine.read_bytes(), place.read_bytes()) == (b"precious", b"new")
        place.unlink()
        make(tmp_path / "place.tmp")
        disk.replace(place, b"new")
        assert (mine.read_bytes(), place.read_bytes()) == (b"precious", b"new")
        place.unlink()


def test_a_log_that_has_another_name_becomes_a_copy_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "mine").write_bytes(b"1")
    os.link(tmp_path / "mine", tmp_path / "log")
    with Folder(tmp_path).append("log") as log:
        log.write(b"2")
    assert ((tmp_path / "mine").read_bytes(), (tmp_path / "log").read_bytes()) == (b"1", b"12")


def test_a_folder_gives_nothing_through_links_and_nothing_outside(tmp_path: Path) -> None:
    outside, path = tmp_path / "outside", tmp_path / "folder"
    outside.mkdir()
    path.mkdir()
    (outside / "a").write_text("precious")
    (path / "part").symlink_to(outside)
    (path / "file").symlink_to(outside / "a")
    folder = Folder(path)
    part = folder.folder("part")
    acts: list[Callable[[], object]] = [
        lambda: folder.read("file"),
        lambda: folder.write("file", b""),
        lambda: folder.replace("file", b""),
        lambda: folder.append("file"),
        lambda: folder.remove("file"),
        lambda: folder.remove_folder("part"),
        lambda: part.read("a"),
        lambda: part.write("a", b""),
        lambda: part.append("a"),
        lambda: part.remove("a"),
        part.names,
        part.make,
        lambda: part.folder("deeper").make(),
        lambda: part.folder("deeper").read("a"),
    ]
    for act in acts:
        with pytest.raises(CheckpointError, match=r"is a link, not a (file|folder), and is left alone"):
            act()
    for name in ("../outside/a", "/etc/hostname", "..", ".", "", "a/b", "nul\0"):
        with pytest.raises(CheckpointError, match="is not the name of a file inside"):
            folder.read(name)
    assert (outside / "a").read_text() == "precious"
    assert [each.name for each in outside.iterdir()] == ["a"]


def test_a_lock_that_was_deleted_by_another_process_keeps_nobody_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Deleted between opening and locking it: the lock is that of the new file."""
    flock = fcntl.flock
    seen: list[Any] = []

    def late(file: Any, how: int) -> None:
        if not seen:
            (tmp_path / disk.LOCK).unlink()
        seen.append(file)
        flock(file, how)

    monkeypatch.setattr(fcntl, "flock", late)
    held = disk.lock(tmp_path)
    assert len(seen) == 2
    assert os.fstat(held.fileno()).st_ino == (tmp_path / disk.LOCK).stat().st_ino
    held.close()


def test_a_full_disk_names_the_file_that_could_not_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    for write in (disk.write_through, disk.replace):
        with pytest.raises(OSError, match="No space left") as caught:
            write(tmp_path / "config.yaml", b"x")
        assert Path(caught.value.filename).name.startswith("config.yaml")
    with pytest.raises(OSError, match="7 requested and 3 written") as caught, disk.naming(tmp_path / "a.npy"):
        raise OSError("7 requested and 3 written")  # as numpy has it
    assert describe_os_error(caught.value) == f"{tmp_path}/a.npy: 7 requested and 3 written"
