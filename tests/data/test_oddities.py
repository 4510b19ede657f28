"""What looks odd in columns, classes and test rows; and what is honest and must not be told of."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from polyfed.data import load

RNG = np.random.default_rng(0)
ROWS = 120
LABELS = RNG.permutation(ROWS) % 3
REAL = RNG.normal(size=(ROWS, 3))


def notes_of(folder: Path, column: Any, labels: Any = LABELS) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """What is said of a column `odd` beside an ordinary one: in a table, and in an array."""
    pq.write_table(pa.table({"real": REAL[:, 0], "odd": column, "label": labels}), folder / "t.parquet")
    return load(folder / "t.parquet").notes, load((np.c_[REAL[:, 0], column], labels)).notes


@pytest.mark.parametrize(
    ("column", "said"),
    [
        (np.full(ROWS, 7.5), "has the same value in every row"),
        (LABELS, "tells the label"),
        (LABELS * 10.5 - 3, "tells the label"),
        (np.array([2, 0, 1])[LABELS], "tells the label"),
        (LABELS * 4 + RNG.integers(0, 4, ROWS), "tells the label"),  # a finer form of it
        (np.arange(ROWS) + 1000, "looks like an id"),
    ],
)
def test_a_column_that_carries_nothing_or_the_label_is_told_with_what_to_set(
    tmp_path: Path, column: Any, said: str
) -> None:
    of_table, of_array = notes_of(tmp_path, column)
    assert [said in note for note in (*of_table, *of_array)] == [True, True]
    assert "column 'odd'" in of_table[0] and "data.drop: [odd] leaves it out" in of_table[0]
    assert "column 1 " in of_array[0] and "leave it out of the inputs" in of_array[0]


def test_a_coarser_form_of_the_label_is_told(tmp_path: Path) -> None:
    fine = RNG.permutation(ROWS) % 12
    assert "tells the label" in notes_of(tmp_path, fine // 4, fine)[0][0]


@pytest.mark.parametrize(
    "column",
    [
        np.where(RNG.random(ROWS) < 0.02, 1 - (LABELS > 0), LABELS > 0) * 1.0,  # nearly the label
        LABELS == 1,  # a fact of one class among several
        LABELS * 100 + RNG.normal(size=ROWS),  # a measurement that tells classes apart
        RNG.integers(0, 3, ROWS),
        RNG.integers(0, 2, ROWS),
    ],
)
def test_honest_columns_are_not_told_of(tmp_path: Path, column: Any) -> None:
    assert notes_of(tmp_path, column) == ((), ())


def test_many_constant_columns_are_one_line(tmp_path: Path) -> None:
    columns = {f"pixel{place}": np.zeros(ROWS) for place in range(40)}
    pq.write_table(pa.table({"real": REAL[:, 0], **columns, "label": LABELS}), tmp_path / "t.parquet")
    (note,) = load(tmp_path / "t.parquet").notes
    assert "columns 'pixel0', 'pixel1', 'pixel2', 'pixel3', 'pixel4' and 35 more have the same value" in note
    assert "pixel7, …] leaves them out" in note


def test_constant_pixels_of_images_are_what_images_have() -> None:
    images = np.zeros((ROWS, 4, 4), np.uint8)
    images[:, 1:3] = RNG.integers(0, 256, (ROWS, 2, 4))
    assert load((images, LABELS)).notes == ()
    assert load("digits").notes == ()
    assert load("digits", "test").notes == ()


def test_classes_that_look_alike_or_hardly_occur_are_told() -> None:
    words = np.array(["yes", "no", "NO ", "perhaps"])[LABELS]
    (alike,) = load((REAL, words)).notes
    assert "'NO ', 'no' are 2 classes, and look like one: write them alike if they are" in alike
    assert load((REAL, np.array(["A", "a", "b"])[LABELS])).notes == ()
    words[0] = "perhaps"
    assert "1 of 4 classes has a single row ('perhaps')" in load((REAL, words)).notes[1]
    (quantity,) = load((REAL, np.r_[LABELS[:-30] + 1, np.arange(4, 34)])).notes
    assert "if the label is a quantity, put it into bins" in quantity


def test_test_rows_that_are_training_rows_are_told_unless_rows_repeat_by_chance() -> None:
    new = RNG.normal(size=(40, 3))

    def notes(test: Any, train: Any = REAL) -> tuple[str, ...]:
        return load({"train": (train, LABELS), "test": (test, LABELS[: len(test)])}, "test").notes

    assert notes(new) == ()
    (copied,) = notes(np.r_[REAL[:10], new])
    assert "10 of 50 test rows are training rows as well" in copied
    assert notes(np.sign(new), np.sign(REAL)) == ()  # eight different rows
    images = RNG.integers(0, 256, (ROWS, 4, 4), dtype=np.uint8)
    assert "120 of 120 test rows" in notes(images, images)[0]
