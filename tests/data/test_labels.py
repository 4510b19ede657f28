"""Class numbers and their words."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from decimal import Decimal
from typing import Any

import numpy as np
import pytest

from polyfed.data.labels import encode_labels

Refuses = Callable[[str], AbstractContextManager[None]]


@pytest.mark.parametrize(
    ("values", "labels", "words"),
    [
        ([0, 1, 2, 1], [0, 1, 2, 1], ("0", "1", "2")),
        ([1, 2, 1, 2], [0, 1, 0, 1], ("1", "2")),
        ([-1, 1, 1], [0, 1, 1], ("-1", "1")),
        ([3, 0, 1], [2, 0, 1], ("0", "1", "3")),
        ([10, 9, 100], [1, 0, 2], ("9", "10", "100")),
        ([1.0, 2.0], [0, 1], ("1", "2")),
        ([10115, 20095], [0, 1], ("10115", "20095")),
        ([True, False], [1, 0], ("0", "1")),
        (["b", "a", "b"], [1, 0, 1], ("a", "b")),
    ],
)
def test_the_values_that_occur_are_the_classes(
    values: Any, labels: list[int], words: tuple[str, ...]
) -> None:
    found, classes = encode_labels(np.array(values), where="t")
    assert (found.tolist(), classes) == (labels, words)
    assert found.dtype == np.int64


def test_numbers_from_zero_may_be_the_classes_own() -> None:
    found, classes = encode_labels(np.array([0, 3, 1]), where="t", from_zero=True)
    assert (found.tolist(), classes) == ([0, 3, 1], ("0", "1", "2", "3"))
    found, classes = encode_labels(np.array([1, 3]), where="t", from_zero=True)
    assert (found.tolist(), classes) == ([0, 1], ("1", "3"))


def test_a_sources_own_words_are_numbered_by_their_places() -> None:
    found, classes = encode_labels(np.array([2, 0]), ("x", "y", "z"), where="t")
    assert (found.tolist(), classes) == ([2, 0], ("x", "y", "z"))
    digits = tuple("123")  # words that look like other classes' numbers
    found, _ = encode_labels(np.array([1, 2]), digits, where="t", known=digits)
    assert found.tolist() == [1, 2]


def test_a_test_split_keeps_the_classes_of_the_training_split(refuses: Refuses) -> None:
    known = ("1", "2", "5")
    found, classes = encode_labels(np.array([5, 2]), where="t", known=known)
    assert (found.tolist(), classes) == ([2, 1], known)
    found, _ = encode_labels(np.array([5.0, 1.0]), where="t", known=known)
    assert found.tolist() == [2, 0]
    found, _ = encode_labels(np.array([1, 0]), where="t", known=("cat", "dog"))
    assert found.tolist() == [1, 0]
    with refuses("the label '3' does not occur in the training split"):
        encode_labels(np.array([3]), where="t", known=known)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([1.0, np.nan, np.nan], "t: row 1 has no label (2 rows have none): fill it in, or leave the row out"),
        (["a", " ", "b"], "t: row 1 has no label: fill it in"),
        (np.array(["a", None], dtype=object), "row 1 has no label"),
        (np.array(["a", float("nan")], dtype=object), "row 1 has no label"),
        (np.array([{}, {"a": 1}], dtype=object), "labels must be whole numbers or words, not dict"),
        ([0.0, 0.5], "whole numbers or words, but row 1 has 0.5"),
        ([0.0, np.inf], "whole numbers or words, but row 1 has inf"),
        ([1.0, 1e20], "whole numbers or words, but row 1 has 1e+20"),
        ([7, 7], "all rows are of one class"),
        (range(50), "50 different labels in 50 rows; is this the label column? name"),
        (np.array([1, 2.5], dtype=object), "whole numbers or words, but row 1 has 2.5"),
        (
            np.array([Decimal("1.5"), Decimal(2)], dtype=object),
            "but row 0 has 1.5 (2 different labels in 2 rows)",
        ),
        ([f"patient {row}" for row in range(50)], "50 different labels in 50 rows"),
        (np.array(["2020-01-01", "2020-01-02"], dtype="datetime64[D]"), "not datetime64[D]"),
    ],
)
def test_labels_that_are_none(refuses: Refuses, values: Any, message: str) -> None:
    with refuses(message):
        encode_labels(np.asarray(values), where="t")


def test_few_rows_of_many_classes_are_classes_where_the_numbers_are_their_own(refuses: Refuses) -> None:
    assert encode_labels(np.arange(15), where="t")[1][-1] == "14"
    with refuses("40 different labels in 40 rows"):
        encode_labels(np.arange(40), where="t", from_zero=True)
    with refuses("a label of 5000 in 2 rows"):
        encode_labels(np.array([0, 5000]), where="t", from_zero=True)
    with refuses("classes count from 0, but row 1 has -1"):
        encode_labels(np.array([0, -1]), ("x", "y"), where="t")


RNG = np.random.default_rng(0)
QUANTITIES = RNG.normal(150, 60, 442).round().clip(25, 346)  # as scikit-learn's diabetes: 190 values
HONEST = {
    "letters": np.repeat(list("abcdefghijklmnopqrstuvwxyz"), 2),
    "a hundred classes, drawn at random": RNG.integers(0, 100, 300),
    "two hundred classes from 1, drawn at random": RNG.integers(1, 201, 600),
    "people by number, three rows each": np.repeat(RNG.choice(10_000, 100, replace=False), 3),
    "people by name, most with one row": np.array([f"p{min(n, 60)}" for n in RNG.zipf(1.5, 300)]),
    "many classes with a single row, all numbers used": np.r_[np.arange(80), np.zeros(120, int)],
    "doses": RNG.choice(["0.5", "1.0", "2.5"], 30),
    "numbers as names": np.array([str(int(number)) for number in QUANTITIES]),
}


@pytest.mark.parametrize(
    "values",
    [
        QUANTITIES,
        QUANTITIES.astype(int),
        QUANTITIES.astype(np.float32),
        QUANTITIES.astype(object),
        (QUANTITIES / 10).astype(str),
        np.char.replace((QUANTITIES / 10).astype(str), ".", ","),
    ],
)
def test_quantities_are_not_taken_for_classes(refuses: Refuses, values: Any) -> None:
    for from_zero in (False, True):
        with refuses("different labels in 442 rows; is this the label column? name another"):
            encode_labels(values, where="t.csv, column 'target'", from_zero=from_zero)
    with refuses("or put the numbers into bins"):
        encode_labels(values, where="t")


@pytest.mark.parametrize("values", list(HONEST.values()), ids=list(HONEST))
def test_classes_with_few_rows_are_classes(values: Any) -> None:
    labels, classes = encode_labels(values, where="t")
    assert len(labels) == len(values)
    assert len(classes) == len(set(values.tolist()))
