"""Labels of arrays and torch data sets in the shapes that people have them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, TensorDataset

from polyfed.data import load
from polyfed.data.objects import arrays_digest

Refuses = Callable[[str], AbstractContextManager[None]]
NUMBERS = [2, 0, 1, 0]
ONE_HOT = np.eye(3)[NUMBERS]
X = np.random.default_rng(0).normal(size=(4, 5)).astype(np.float32)


class Pairs(Dataset[Any]):
    """A map-style data set of inputs and labels as they are given."""

    def __init__(self, labels: Any) -> None:
        self.labels = labels

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, row: int) -> Any:
        return torch.from_numpy(X[row]), self.labels[row]


@pytest.mark.parametrize(
    "y",
    [
        ONE_HOT,
        ONE_HOT.astype(np.int64),
        ONE_HOT.astype(bool),
        torch.from_numpy(ONE_HOT),
        ONE_HOT.tolist(),
        np.array(NUMBERS)[:, None],
        np.array(NUMBERS, dtype=np.float64),
        torch.tensor(NUMBERS),
    ],
    ids=["one-hot", "whole", "bool", "tensor", "list", "N×1", "floats", "numbers"],
)
def test_labels_are_class_numbers_in_whatever_shape(y: Any) -> None:
    sources: list[Any] = [(X, y), Pairs(y)]
    if isinstance(y, torch.Tensor):
        sources.append(TensorDataset(torch.from_numpy(X), y))
    for source in sources:
        data = load(source)
        assert (data.need_labels().tolist(), data.classes) == (NUMBERS, ("0", "1", "2"))
        assert data.notes == ()


def test_a_one_hot_class_without_rows_is_a_class(refuses: Refuses) -> None:
    wide = np.eye(5)[NUMBERS]
    assert len(load((X, wide)).classes) == 5
    test = load({"train": (X, wide), "test": (X[:1], wide[:1])}, "test")
    assert test.need_labels().tolist() == [2]
    with refuses("there is a label 2, but there are only 2 classes"):
        load({"train": (X, np.eye(2)[[0, 1, 0, 1]]), "test": (X[:1], wide[:1])}, "test")


@pytest.mark.parametrize(
    ("y", "message"),
    [
        (np.full((4, 3), 1 / 3), "labels of shape (4, 3) must be one-hot, a single 1 in each row, but row 0"),
        (ONE_HOT + np.eye(4)[:, [3, 2, 1]], "but row 1 is not; give one class number for each row"),
        (np.array([["a", "b"]] * 4), "must be one-hot"),
        (np.zeros((4, 2, 2)), "labels of shape (4, 2, 2); one label for each row"),
        ([[0], [0, 1], [0], [1]], "differ in "),
    ],
)
def test_labels_of_other_shapes_are_refused(refuses: Refuses, y: Any, message: str) -> None:
    for source in ((X, y), Pairs(y)):
        with refuses(message):
            load(source)


def test_numbers_from_zero_stay_and_gaps_are_noted() -> None:
    data = load((X, [0, 1, 3, 0]))
    assert (data.classes, data.need_labels().tolist()) == (("0", "1", "2", "3"), [0, 1, 3, 0])
    assert data.notes == ("arrays: no row has the label 2, but there are 4 classes, as the labels go from 0",)
    data = load({"train": (X, [0, 1, 3, 0]), "test": (X[:2], [2, 3])}, "test")
    assert data.need_labels().tolist() == [2, 3]


def test_other_numbers_are_classes_by_their_order() -> None:
    for y, classes in (
        ([1, 2, 2, 1], ("1", "2")),
        ([-1, 1, 1, -1], ("-1", "1")),
        ([3, 9, 3, 5], ("3", "5", "9")),
    ):
        data = load((X, y))
        assert [data.classes[label] for label in data.need_labels()] == [str(number) for number in y]
        assert (data.classes, data.notes) == (classes, ())


def test_inputs_that_are_missing_are_told_by_row_and_column(refuses: Refuses) -> None:
    x = X.copy()
    x[2, 3] = np.inf
    with refuses(
        "1 values are missing (NaN), infinite or too large, the first in row 2, column 3: fill them in"
    ):
        load((x, NUMBERS))
    images = np.zeros((4, 3, 3), dtype=np.float32)
    images[1, 2, 0] = np.nan
    with refuses("the first in row 1: fill"):
        load((images, NUMBERS))


def test_the_identity_of_objects_is_what_they_say() -> None:
    words = [np.array(["".join([letter, "b"]), "c"], dtype=object) for letter in "aax"]
    digests = [arrays_digest(X, y) for y in words]
    assert digests[0] == digests[1] != digests[2]
