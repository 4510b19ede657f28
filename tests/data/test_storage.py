from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import fields, replace
from multiprocessing.reduction import ForkingPickler
from pathlib import Path

import numpy as np
import pytest
import torch

from polyfed.data import storage
from polyfed.data.storage import Draft, StoredDataSet, in_memory, open_stored, stored, stored_rows

Refuses = Callable[[str], AbstractContextManager[None]]
KEY = {"a": 1}


class Builder:
    """Builds a small set and counts how often."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, _: Path) -> Draft:
        self.calls += 1
        columns = {"site": np.array([0, 0, 1])}
        pixels = np.arange(12, dtype=np.uint8).reshape(3, 2, 2, 1)
        return Draft("s", pixels, np.array([0, 1, 1]), ("a", "b"), columns, {"site": ("north", "south")})


def test_a_set_is_built_once_and_mapped_from_then_on(tmp_path: Path) -> None:
    build = Builder()
    first, second = stored(KEY, build, tmp_path), stored(KEY, build, tmp_path)
    assert build.calls == 1
    assert not second.inputs.flags.writeable
    assert first.fingerprint == second.fingerprint
    assert second.column_names == {"site": ("north", "south")}
    assert second.column("site").tolist() == [0, 0, 1]
    stored({"a": 2}, build, tmp_path)
    assert build.calls == 2


@pytest.mark.parametrize("victim", ["inputs.npy", "labels.npy", "column-0.npy", "set.json"])
@pytest.mark.parametrize("harm", ["truncated", "missing", "garbage"])
def test_a_broken_entry_is_built_again(tmp_path: Path, victim: str, harm: str) -> None:
    build = Builder()
    before = stored(KEY, build, tmp_path)
    path = before.folder / victim
    content = path.read_bytes()
    if harm == "missing":
        path.unlink()
    else:
        path.write_bytes(content[:-5] if harm == "truncated" else b"\0" * len(content))
    after = stored(KEY, build, tmp_path)
    assert build.calls == 2
    assert after.inputs.ravel().tolist() == list(range(12))
    assert after.fingerprint == before.fingerprint
    assert [path.name for path in (tmp_path / "data").iterdir()] == [before.folder.name]


def large(_: Path) -> Draft:
    pixels = np.random.default_rng(0).integers(0, 256, (500, 32, 32, 1), dtype=np.uint8)
    return Draft("large", pixels, np.arange(500) % 3, ("a", "b", "c"))


@pytest.mark.parametrize("dumps", [pickle.dumps, ForkingPickler.dumps])
def test_another_process_gets_the_folder_of_a_stored_set_and_not_its_bytes(
    tmp_path: Path, dumps: Callable[[object], bytes]
) -> None:
    whole = stored(KEY, large, tmp_path)
    other = {"classes": ("c", "b", "a"), "mean": (0.2,), "std": (3.0,)}
    for data in (
        whole,
        whole.without_labels(),
        whole.with_labels_from(10),
        whole.seen_as(**other),  # type: ignore[arg-type]
        whole.with_labels_from(10).seen_as(mean=(0.1,)).without_labels(),
        replace(whole, name="renamed", notes=("odd",), inputs=whole.inputs[::-1]),
    ):
        sent = dumps(data)
        assert len(sent) < 1000 + (data.inputs.nbytes if data.name == "renamed" else 8 * len(data))
        back = pickle.loads(sent)
        assert isinstance(back, StoredDataSet)
        for each in fields(StoredDataSet):
            if each.name in ("inputs", "labels"):
                assert np.array_equal(getattr(back, each.name), getattr(data, each.name)), each.name
            elif each.name != "as_read":
                assert getattr(back, each.name) == getattr(data, each.name), each.name


def test_rows_of_a_stored_set_are_the_same_in_another_process(tmp_path: Path) -> None:
    rows = stored(KEY, large, tmp_path).with_labels_from(10).rows([3, 1])
    back = pickle.loads(pickle.dumps(rows))
    assert torch.equal(back.inputs(), rows.inputs())
    assert back.labels.tolist() == [10, 11]


def test_rows_stored_as_a_set_keep_the_constants_and_columns_of_the_whole(tmp_path: Path) -> None:
    whole = stored(KEY, Builder(), tmp_path)
    part = stored_rows(whole, np.array([2, 0]), {"which": "two"}, tmp_path)
    assert np.array_equal(part.inputs, whole.inputs[[2, 0]])
    assert part.need_labels().tolist() == [1, 0]
    assert part.column("site").tolist() == [1, 0]
    assert (part.mean, part.std, part.classes) == (whole.mean, whole.std, whole.classes)
    assert part.fingerprint != whole.fingerprint


def test_a_build_that_fails_leaves_nothing(tmp_path: Path) -> None:
    def build(folder: Path) -> Draft:
        (folder / "inputs.npy").write_bytes(b"half")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        stored(KEY, build, tmp_path)
    assert list((tmp_path / "data").iterdir()) == []


def test_a_process_killed_in_the_middle_leaves_a_cache_that_works(tmp_path: Path) -> None:
    program = (
        "import os, signal, sys\n"
        "from pathlib import Path\n"
        "from polyfed.data.storage import new_inputs, stored\n"
        "def build(folder):\n"
        "    new_inputs(folder, (3, 2, 2, 1), 'uint8')[0] = 7\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
        "stored({'a': 1}, build, Path(sys.argv[1]))\n"
    )
    source = str(Path(__file__).parents[2] / "src")
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)], check=False, env=os.environ | {"PYTHONPATH": source}
    )
    assert done.returncode == -9
    left = list((tmp_path / "data").glob("making-*"))
    assert len(left) == 1
    build = Builder()
    assert stored(KEY, build, tmp_path).inputs[0, 0, 0, 0] == 0
    assert left[0].exists()  # it might belong to a process that is still at work
    long_ago = time.time() - 3 * 24 * 3600
    os.utime(left[0], (long_ago, long_ago))
    stored({"a": 2}, build, tmp_path)
    assert not left[0].exists()


def test_the_slower_of_two_processes_takes_what_the_faster_one_wrote(tmp_path: Path) -> None:
    build = Builder()

    def slow(folder: Path) -> Draft:
        stored(KEY, build, tmp_path)  # the other one, meanwhile
        return build(folder)

    data = stored(KEY, slow, tmp_path)
    assert build.calls == 2
    assert len(list((tmp_path / "data").iterdir())) == 1
    assert data.labels is not None


def test_a_cache_that_cannot_be_written_says_what_to_set(tmp_path: Path, refuses: Refuses) -> None:
    (tmp_path / "data").write_text("in the way")
    with refuses("set POLYFED_CACHE"):
        stored(KEY, Builder(), tmp_path)


def test_arrays_of_python_objects_are_never_read(tmp_path: Path, refuses: Refuses) -> None:
    folder = stored(KEY, Builder(), tmp_path).folder
    trap = np.array([{"a": 1}, None, None], dtype=object)
    np.save(folder / "labels.npy", trap, allow_pickle=True)
    facts = json.loads((folder / "set.json").read_text())
    found = (folder / "labels.npy").stat()
    facts["files"]["labels.npy"] = [found.st_size, found.st_mtime_ns]
    del facts["seal"]
    (folder / "set.json").write_text(json.dumps(facts | {"seal": storage._seal(facts)}))
    with refuses("allow_pickle=False"):
        open_stored(folder)


def named_columns(_: Path) -> Draft:
    x = np.array([[1, 2], [3, 4], [5, 6]], np.float32)
    return Draft("t", x, np.array([0, 1, 1]), ("a", "b"), features=("age", "bmi"), notes=("odd",))


def test_the_names_of_features_are_kept_wherever_the_set_goes(tmp_path: Path) -> None:
    whole = stored(KEY, named_columns, tmp_path)
    part = stored_rows(whole, np.array([2, 0]), {"which": "two"}, tmp_path)
    sent = pickle.loads(pickle.dumps(whole.without_labels()))
    for data in (whole, stored(KEY, named_columns, tmp_path), part, sent, in_memory(named_columns(tmp_path))):
        assert (data.features, data.notes) == (("age", "bmi"), ("odd",))
    assert stored({"a": 2}, Builder(), tmp_path).features == ()


def test_the_fingerprint_tells_columns_apart_and_not_notes(tmp_path: Path) -> None:
    draft = named_columns(tmp_path)
    before = in_memory(draft).fingerprint
    draft.notes = ()
    assert in_memory(draft).fingerprint == before
    draft.features = ("bmi", "age")
    assert in_memory(draft).fingerprint != before


def test_sets_of_an_older_format_are_built_again_and_never_misread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build = Builder()
    with monkeypatch.context() as older:
        older.setattr(storage, "_VERSION", storage._VERSION - 1)
        old = stored(KEY, build, tmp_path)
    assert stored(KEY, build, tmp_path).folder != old.folder
    assert build.calls == 2
    facts = json.loads((old.folder / "set.json").read_text())
    del facts["features"]  # as an older version wrote it, in the place of a new one
    new = stored(KEY, build, tmp_path).folder
    (new / "set.json").write_text(json.dumps(facts))
    assert stored(KEY, build, tmp_path).features == ()
    assert build.calls == 3


def test_rows_of_equal_sets_keep_the_notes_of_their_own(tmp_path: Path) -> None:
    def other(folder: Path) -> Draft:
        draft = named_columns(folder)
        draft.notes = ("odder",)
        return draft

    found = [stored({"a": place}, build, tmp_path) for place, build in enumerate((named_columns, other))]
    parts = [stored_rows(whole, np.array([0]), {"limit": 1}, tmp_path) for whole in found]
    assert [part.notes for part in parts] == [("odd",), ("odder",)]
