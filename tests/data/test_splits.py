from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polyfed.data.splits import apportion, draw_stratified, split_client, split_sizes

Refuses = Callable[[str], AbstractContextManager[None]]


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def test_largest_remainders() -> None:
    # 10 seats for 6, 3 and 1: exactly 6, 3, 1
    assert apportion(np.array([6, 3, 1]), 10, rng()).tolist() == [6, 3, 1]
    # 4 seats: 2.4, 1.2 and 0.4; one seat is left, 0.4 ties with 0.4
    assert apportion(np.array([6, 3, 1]), 4, rng()).tolist() in ([3, 1, 0], [2, 1, 1])
    # 7 of 10: 4.2, 2.1, 0.7: the last seat goes to 0.7
    assert apportion(np.array([6, 3, 1]), 7, rng()).tolist() == [4, 2, 1]


def test_fedh2l_shares_are_met_exactly_in_every_class() -> None:
    labels = np.repeat(np.arange(10), 100)
    train, validation, test = split_client(np.arange(1000), labels, 0.10, 0.15, rng())
    for part, size in ((train, 75), (validation, 10), (test, 15)):
        assert np.bincount(labels[part]).tolist() == [size] * 10


@settings(deadline=None, max_examples=80)
@given(
    labels=st.lists(st.integers(0, 4), min_size=1, max_size=40),
    validation=st.floats(0, 0.45),
    test=st.floats(0, 0.45),
    seed=st.integers(0, 99),
)
def test_every_row_is_in_one_part_and_training_is_never_empty(
    labels: list[int], validation: float, test: float, seed: int
) -> None:
    rows = np.arange(len(labels)) * 2 + 5
    of_set = np.zeros(rows.max() + 1, dtype=np.int64)
    of_set[rows] = labels
    parts = split_client(rows, of_set, validation, test, rng(seed))
    assert sorted(np.concatenate(parts).tolist()) == rows.tolist()
    assert len(parts[0]) > 0
    assert len(parts[2]) > 0 or test == 0 or len(rows) == 1
    assert len(parts[1]) > 0 or validation == 0 or len(rows) < 3
    again = split_client(rows, of_set, validation, test, rng(seed))
    assert all(np.array_equal(a, b) for a, b in zip(parts, again, strict=True))


def test_one_row_is_kept_for_training() -> None:
    train, validation, test = split_client(np.array([3]), np.zeros(4, dtype=np.int64), 0.4, 0.5, rng())
    assert (train.tolist(), len(validation), len(test)) == ([3], 0, 0)


def test_copies_of_one_origin_are_on_the_same_side_in_all_clients() -> None:
    origin = np.tile(np.arange(50), 4)  # four domains with copies of the same 50 images
    labels = np.tile(np.arange(50) % 5, 4)
    side: dict[int, int] = {}
    for domain in range(4):
        rows = np.arange(50) + 50 * domain
        for place, part in enumerate(split_client(rows, labels, 0.1, 0.2, rng(3), by=origin)):
            for image in origin[part].tolist():
                assert side.setdefault(image, place) == place
    assert sorted(np.bincount(list(side.values())).tolist()) == [5, 10, 35]


def test_unlabelled_rows_are_split_at_random() -> None:
    train, validation, test = split_client(np.arange(20), None, 0.25, 0.25, rng())
    assert (len(train), len(validation), len(test)) == (10, 5, 5)


@pytest.mark.parametrize(("validation", "test"), [(0.5, 0.5), (-0.1, 0.2), (0.0, 1.0)])
def test_shares_that_leave_nothing_are_refused(refuses: Refuses, validation: float, test: float) -> None:
    with refuses("must leave some rows"):
        split_client(np.arange(9), None, validation, test, rng())


def test_a_stratified_draw_has_the_shares_of_the_whole() -> None:
    labels = np.array([0] * 60 + [1] * 30 + [2] * 10)
    rows = draw_stratified(labels, 100, 20, rng())
    assert np.bincount(labels[rows]).tolist() == [12, 6, 2]
    assert np.array_equal(rows, np.sort(rows))


@pytest.mark.parametrize("rows", [1, 2, 3, 7, 40, 101])
@pytest.mark.parametrize(("validation", "test"), [(0, 0), (0.1, 0.2), (0.4, 0.5), (0, 0.9), (0.3, 0)])
def test_sizes_are_known_without_drawing(rows: int, validation: float, test: float) -> None:
    labels = np.arange(rows) % 3
    parts = split_client(np.arange(rows), labels, validation, test, np.random.default_rng(0))
    assert tuple(len(part) for part in parts) == split_sizes(rows, validation, test)
