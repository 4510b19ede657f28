"""What is told of the named data sets without reading them."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from polyfed import data
from polyfed.data.facts import PUBLISHED
from polyfed.data.named import NAMED
from polyfed.errors import DataError


def test_every_named_set_has_its_facts() -> None:
    assert list(PUBLISHED) == list(data.known_sets())
    for name, entry in NAMED.items():
        published = PUBLISHED[name]
        assert published.shape is None or published.shape[0] == {"L": 1, "RGB": 3}[entry.mode]
        assert (published.shape is None) == (entry.size is not None)
        assert set(published.rows) == ({"train", "test"} if entry.test else {"train"})
        assert not entry.classes or len(entry.classes) == published.classes


def test_what_is_told_of_digits_is_so() -> None:
    facts = data.about("digits").published
    for split in ("train", "test"):
        loaded = data.load("digits", split)
        assert (len(loaded), loaded.shape, len(loaded.classes)) == (
            facts.rows[split],
            facts.shape,
            facts.classes,
        )


def test_rows_of_local_files_are_counted_without_reading_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("POLYFED_DATA", str(tmp_path))
    assert data.about("mnist").here == {}
    (tmp_path / "mnist").mkdir()
    for split, rows in (("train", 3), ("test", 2)):
        table = pa.table({"image": [b"no image"] * rows, "label": [0] * rows})
        pq.write_table(table, tmp_path / "mnist" / f"{split}.parquet")
    assert data.about("mnist").here == {"train": 3, "test": 2}
    assert data.about("mnist").whereabouts == str(tmp_path / "mnist")


def test_a_local_file_that_is_broken_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "mnist" / "train.parquet"
    file.parent.mkdir()
    file.write_text("not parquet")
    monkeypatch.setenv("POLYFED_DATA", str(tmp_path))
    with pytest.raises(DataError, match=r"train\.parquet cannot be read as parquet: "):
        data.about("mnist")
