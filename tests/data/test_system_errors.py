"""What the system refuses (too many open files, a full disk) names the file, and is not told as broken data."""

from __future__ import annotations

import errno
import os
import resource
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from polyfed.data import about, check_cache, load, verify
from polyfed.errors import DataError

Refuses = Callable[[str], AbstractContextManager[None]]


@contextmanager
def no_files_left() -> Iterator[None]:
    """As below `ulimit -n`: nothing more can be opened."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


@pytest.fixture(params=["t.csv", "t.parquet", "images.parquet", "t.npz", "folder"])
def source(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    path = tmp_path / str(request.param)
    pixels = np.arange(64, dtype=np.uint8).reshape(4, 4, 4)
    for place, shades in enumerate(pixels):
        file = tmp_path / "folder" / "ab"[place % 2] / f"{place}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(shades).save(file)
    if path.name == "t.csv":
        path.write_text("a,label\n1,0\n2,1\n")
    elif path.name == "t.parquet":
        pq.write_table(pa.table({"a": [1, 2], "label": [0, 1]}), path)
    elif path.name == "images.parquet":
        encoded = [file.read_bytes() for file in sorted((tmp_path / "folder").rglob("*.png"))]
        pq.write_table(pa.table({"image": encoded, "label": [0, 0, 1, 1]}), path)
    elif path.name == "t.npz":
        np.savez(path, x=np.eye(4), y=[0, 1, 0, 1])
    return path


def test_too_many_open_files_are_told_with_the_file_and_cost_nothing_that_was_decoded(
    source: Path, tmp_path: Path
) -> None:
    known = load(source, cache_dir=tmp_path / "cache")  # what is imported on the way is there from now on
    (tmp_path / "new").mkdir()
    attempts: list[Callable[[], object]] = [
        lambda: load(source, cache_dir=tmp_path / "new"),
        lambda: load(source, cache_dir=tmp_path / "cache"),
        lambda: verify(known),
    ]
    for attempt in attempts:
        with no_files_left(), pytest.raises(DataError) as caught:
            attempt()
        told = str(caught.value)
        assert told.endswith("Too many open files") and str(tmp_path) in told
        assert not any(word in told for word in ("broken", "damaged", " as a", " as ."))
    assert check_cache(tmp_path / "cache") == []
    assert load(source, cache_dir=tmp_path / "cache").folder == known.folder  # type: ignore[attr-defined]


def test_a_full_disk_names_the_file_of_the_cache(
    source: Path, tmp_path: Path, refuses: Refuses, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any, **__: Any) -> NoReturn:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", full)
    monkeypatch.setattr(np, "save", full)
    with refuses("inputs.npy: No space left on device; make room, or set POLYFED_CACHE to another folder"):
        load(source, cache_dir=tmp_path / "cache")


def test_facts_of_a_set_that_cannot_be_opened_now(
    tmp_path: Path, refuses: Refuses, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("POLYFED_DATA", str(tmp_path))
    (tmp_path / "mnist").mkdir()
    pq.write_table(pa.table({"image": [b""], "label": [0]}), tmp_path / "mnist" / "train.parquet")
    assert about("mnist").here == {"train": 1}
    with no_files_left(), refuses(f"{tmp_path}/mnist/train.parquet cannot be read: Too many open files"):
        about("mnist")
