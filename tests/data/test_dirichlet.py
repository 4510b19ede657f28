"""Each dialect on a case small enough to work out by hand: the draws are given, the counts follow."""

from __future__ import annotations

from typing import get_args

import numpy as np
import pytest

from polyfed.data.allocation import dirichlet_shares, fill_up
from polyfed.data.arrays import Array
from polyfed.data.dirichlet import Dialect, dirichlet

Draws = list[list[float]]


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def give(monkeypatch: pytest.MonkeyPatch, draws: Draws) -> Draws:
    """Let the Dirichlet draws be these, one after the other; returns what has not been used yet."""
    left = [list(draw) for draw in draws]

    def next_draw(clients: int, alpha: float, _: np.random.Generator) -> Array:
        assert len(left[0]) == clients
        return np.array(left.pop(0))

    monkeypatch.setattr("polyfed.data.allocation.dirichlet_shares", next_draw)
    monkeypatch.setattr("polyfed.data.dirichlet.dirichlet_shares", next_draw)
    return left


def counts(labels: Array, clients: int, dialect: Dialect, minimum: int | None = 0) -> list[list[int]]:
    partition = dirichlet(labels, clients, 0.5, rng(), dialect=dialect, minimum=minimum)
    table: list[list[int]] = partition.class_counts(labels, int(labels.max()) + 1).tolist()
    return table


def test_per_class_cuts_each_class_by_its_own_shares(monkeypatch: pytest.MonkeyPatch) -> None:
    labels = np.array([0] * 4 + [1] * 8)
    give(monkeypatch, [[0.5, 0.5], [0.25, 0.75]])
    assert counts(labels, 2, "per-class") == [[2, 2], [2, 6]]


def test_shares_are_cut_at_the_running_sum(monkeypatch: pytest.MonkeyPatch) -> None:
    give(monkeypatch, [[0.3, 0.3, 0.4], [0.0, 0.0, 1.0]])
    # 10 samples: cut at 3 and 6; then 5 samples: cut at 0 and 0
    assert counts(np.array([0] * 10 + [1] * 5), 3, "per-class") == [[3, 0], [3, 0], [4, 5]]


def test_balanced_gives_nothing_to_a_client_that_has_the_mean(monkeypatch: pytest.MonkeyPatch) -> None:
    labels = np.array([0] * 4 + [1] * 4)
    give(monkeypatch, [[1.0, 0.0], [0.5, 0.5]])  # mean 4: client 0 is full after class 0
    assert counts(labels, 2, "balanced") == [[4, 0], [0, 4]]


def test_balanced_survives_shares_that_are_all_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    labels = np.array([0] * 4 + [1] * 2)
    give(monkeypatch, [[1.0, 0.0, 0.0], [1.0, 0.0, 0.0]])  # mean 2: only the full client has a share
    assert counts(labels, 3, "balanced") == [[4, 0], [0, 1], [0, 1]]


def test_a_class_that_is_missing_in_a_block_is_passed_over() -> None:
    labels = np.array([0] * 10 + [1])  # two blocks of clients, and class 1 is in one of them
    assert dirichlet(labels, 11, 1.0, rng(), dialect="blocks", minimum=0).sizes.tolist() == [1] * 11


def test_rotating_hands_the_largest_share_to_each_client_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    labels = np.array([0] * 4 + [1] * 4)
    give(monkeypatch, [[0.75, 0.25], [0.75, 0.25]])  # client 0 was the largest, so client 1 must be next
    assert counts(labels, 2, "rotating") == [[3, 1], [1, 3]]


def test_rotating_starts_a_new_turn_when_all_have_been_the_largest(monkeypatch: pytest.MonkeyPatch) -> None:
    labels = np.repeat([0, 1, 2], 4)
    give(monkeypatch, [[0.75, 0.25], [0.75, 0.25], [0.75, 0.25]])
    assert counts(labels, 2, "rotating") == [[3, 1, 3], [1, 3, 1]]


def test_rotating_splits_a_class_over_groups_by_their_number_of_clients(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    labels = np.array([0] * 6 + [1] * 6)  # 2 classes: groups of 2 and 1, which get 4 and 2 of each class
    give(monkeypatch, [[0.75, 0.25], [1.0], [0.25, 0.75], [1.0]])
    assert counts(labels, 3, "rotating") == [[3, 1], [1, 3], [2, 2]]


def test_blocks_cut_the_clients_to_equal_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    labels = np.array([0] * 2 + [1] * 6)
    give(monkeypatch, [[1.0, 0.0], [0.5, 0.5]])
    # Drawn: client 0 has 2 + 3, client 1 has 0 + 3; cut to 4 and 4, one sample of class 1 changes sides.
    assert counts(labels, 2, "blocks") == [[2, 2], [0, 4]]


def test_a_draw_below_the_minimum_is_drawn_again(monkeypatch: pytest.MonkeyPatch) -> None:
    labels = np.array([0] * 4 + [1] * 4)
    left = give(monkeypatch, [[1.0, 0.0], [0.75, 0.25], [0.5, 0.5], [0.5, 0.5], [0.1, 0.9]])
    assert counts(labels, 2, "per-class", minimum=2) == [[2, 2], [2, 2]]
    assert left == [[0.1, 0.9]]


def test_after_too_many_draws_samples_move_from_the_largest(monkeypatch: pytest.MonkeyPatch) -> None:
    labels = np.array([0] * 6 + [1] * 6)
    left = give(monkeypatch, [[1.0, 0.0, 0.0], [0.5, 0.5, 0.0]] * 100)
    # 9, 3 and 0 each time; the third client needs 2, which the first gives
    partition = dirichlet(labels, 3, 0.5, rng(), dialect="per-class", minimum=2)
    assert left == []
    assert partition.sizes.tolist() == [7, 3, 2]


def test_samples_come_from_the_largest_clients_alone() -> None:
    owner = np.repeat([0, 1, 2, 4], [9, 8, 3, 4])  # client 3 has nothing
    filled = fill_up(owner, 5, 3, rng())
    # 9 and 8 down to a level of 7: 2 + 1 = 3
    assert np.bincount(filled).tolist() == [7, 7, 3, 3, 4]


@pytest.mark.parametrize("dialect", ["per-class", "balanced", "rotating", "blocks"])
def test_small_alpha_is_more_uneven_than_large(dialect: Dialect) -> None:
    labels = np.repeat(np.arange(10), 200)

    def largest_class_share(alpha: float) -> float:
        partition = dirichlet(labels, 10, alpha, rng(1), dialect=dialect)
        table = partition.class_counts(labels, 10)
        return float((table.max(axis=1) / table.sum(axis=1)).mean())

    assert largest_class_share(0.05) > 0.5
    assert largest_class_share(100.0) < 0.25


def test_the_papers_own_settings_end_quickly_where_redrawing_does_not() -> None:
    labels = np.repeat(np.arange(10), 5000)  # CIFAR-10
    for clients in (20, 30):  # alpha 0.01 with 20 clients (FedKF) and 30 (FedORION)
        for dialect in get_args(Dialect):
            assert dirichlet(labels, clients, 0.01, rng(), dialect=dialect).sizes.min() >= 10


def test_a_share_vector_that_is_not_a_number_becomes_one_client(monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken:
        def dirichlet(self, alpha: Array) -> Array:
            return np.full(len(alpha), np.nan)

        def integers(self, high: int) -> int:
            return high - 1

    assert dirichlet_shares(3, 0.01, Broken()).tolist() == [0, 0, 1]  # type: ignore[arg-type]
