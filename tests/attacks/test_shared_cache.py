"""A cache and run directories that users share: permissions as the umask says, and what was changed is noticed."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.attacks.conftest import unharmed
from tests.conftest import Command

import polyfed
from polyfed.data import load
from polyfed.data.named import _write_note
from polyfed.data.storage import Draft, StoredDataSet, check_cache, open_stored, stored, verify
from polyfed.errors import DataError


@pytest.fixture
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


def check_permissions(root: Path, umask: int) -> None:
    found = [root, *root.rglob("*")]
    assert len(found) > 5
    for path in found:
        expected = (0o777 if path.is_dir() else 0o666) & ~umask
        assert stat.S_IMODE(path.stat().st_mode) == expected, path


@pytest.mark.parametrize("umask", [0o022, 0o002, 0o077], indirect=True, ids=oct)
def test_everything_in_the_cache_has_the_umasks_permissions(tmp_path: Path, umask: int) -> None:
    cache = tmp_path / "cache"
    data = load("digits", limit=200, cache_dir=cache)
    assert isinstance(data, StoredDataSet)
    (data.folder / "inputs.npy").write_bytes(b"")
    load("digits", limit=200, cache_dir=cache)  # built a second time, after the broken one was put aside
    _write_note(cache / "hub" / "a-train.json", [tmp_path])
    check_permissions(cache, umask)


@pytest.mark.parametrize("umask", [0o022, 0o002, 0o077], indirect=True, ids=oct)
@pytest.mark.parametrize("method", ["fedavg", "local"])
def test_everything_in_a_run_directory_has_the_umasks_permissions(
    tmp_path: Path, small: dict[str, Any], umask: int, method: str
) -> None:
    small |= {"rounds": 1, "method": method}
    polyfed.run(small, out=tmp_path / "out" / "run", engine="inline")
    check_permissions(tmp_path / "out", umask)


def build(_: Path) -> Draft:
    pixels = np.random.default_rng(0).integers(0, 256, (40, 4, 4, 1), dtype=np.uint8)
    columns = {"site": np.arange(40) % 2}
    return Draft("s", pixels, np.arange(40) % 2, ("a", "b"), columns, {"site": ("north", "south")})


def keep(cache: Path) -> StoredDataSet:
    return stored({"a": 1}, build, cache)


def flip(path: Path, place: int, *, hide: bool = False) -> None:
    """Change a byte of a file; hidden, its time of change stays, as where a disk fails."""
    before = path.stat()
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(content)
    times = (before.st_atime_ns, before.st_mtime_ns + (0 if hide else 1_000_000_000))
    os.utime(path, ns=times)


@pytest.mark.parametrize("victim", ["inputs.npy", "labels.npy", "column-0.npy", "set.json"])
@pytest.mark.parametrize("place", [70, -3])
def test_a_changed_entry_is_noticed_and_built_again(
    tmp_path: Path, victim: str, place: int, caplog: pytest.LogCaptureFixture
) -> None:
    data = keep(tmp_path)
    whole = {path.name: path.read_bytes() for path in data.folder.glob("*.npy")}
    flip(data.folder / victim, place)
    again = keep(tmp_path)
    assert "is broken" in caplog.text
    assert "it is decoded again" in caplog.text
    assert {path.name: path.read_bytes() for path in again.folder.glob("*.npy")} == whole
    assert again.fingerprint == data.fingerprint


def test_a_copied_cache_is_compared_once_and_used(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    data = keep(tmp_path / "a")
    shutil.copytree(tmp_path / "a", tmp_path / "b", copy_function=shutil.copy)  # with new times
    copied = tmp_path / "b" / "data" / data.folder.name
    for path in copied.glob("*.npy"):
        os.utime(path, (1, 1))
    assert open_stored(copied).fingerprint == data.fingerprint
    assert caplog.text == ""
    flip(copied / "inputs.npy", -3, hide=True)
    assert (
        open_stored(copied).fingerprint == data.fingerprint
    )  # its times are known now: it is not read again


def test_what_leaves_no_trace_is_found_by_a_check(tmp_path: Path) -> None:
    data = keep(tmp_path)
    assert check_cache(tmp_path) == []
    flip(data.folder / "inputs.npy", -3, hide=True)
    (line,) = check_cache(tmp_path)
    assert line.endswith("is broken: its contents were changed")
    assert not data.folder.exists()
    assert check_cache(tmp_path) == []


def test_the_command_checks_the_cache(
    tmp_path: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("POLYFED_CACHE", str(tmp_path / "cache"))
    assert command("data", "--check").out == "every cached data set is as it was written\n"
    data = keep(tmp_path / "cache")
    flip(data.folder / "labels.npy", -3, hide=True)
    said = command("data", "--check")
    assert said.code == 0
    assert said.out.endswith("was removed, and is decoded again when it is next used\n")


def test_a_run_is_not_resumed_with_data_that_were_changed(
    tmp_path: Path, small: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("POLYFED_CACHE", str(tmp_path / "cache"))
    run = polyfed.prepare(small, out=tmp_path / "run", engine="inline")
    run.go(lambda now: now.stop())
    run.close()
    for path in (tmp_path / "cache").rglob("inputs.npy"):
        flip(path, -3, hide=True)
    with pytest.raises(
        DataError, match=r"its contents were changed; it was removed, and the same command decodes it ag"
    ):
        polyfed.resume(run.path, engine="inline")
    assert polyfed.resume(run.path, engine="inline").finished


def test_hostile_entries_of_the_cache_are_built_again(tmp_path: Path) -> None:
    for name, content in (
        ("set.json", b"[]"),
        ("set.json", b"{}"),
        ("set.json", b'{"seal": 1}'),
        ("set.json", b"\xff"),
        ("inputs.npy", b""),
    ):
        (keep(tmp_path).folder / name).write_bytes(content)
        with unharmed():
            assert len(keep(tmp_path)) == 40
    verify(keep(tmp_path))
