from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, get_args

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from polyfed.data import DataSet
from polyfed.data.allocation import Partition, from_owners
from polyfed.data.dirichlet import Dialect, dirichlet
from polyfed.data.partition import (
    Dirichlet,
    Iid,
    Natural,
    PartitionSettings,
    Pathological,
    Quantity,
    Shards,
    iid,
    make_partition,
    natural,
    pathological,
    quantity_skew,
    shards,
)
from polyfed.data.storage import Draft, in_memory

Refuses = Callable[[str], AbstractContextManager[None]]
ZEROS = np.zeros(20, dtype=np.int64)
DIALECTS: tuple[Dialect, ...] = get_args(Dialect)


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def each_sample_once(partition: Partition, samples: int, clients: int) -> None:
    assert len(partition) == clients
    assert partition.offsets[0] == 0
    assert partition.offsets[-1] == samples
    assert np.array_equal(np.sort(partition.order), np.arange(samples))
    assert sum(len(partition.rows(client)) for client in range(clients)) == samples


@st.composite
def federations(draw: st.DrawFn) -> tuple[np.ndarray[Any, Any], int, int, float, int]:
    """Labels, clients, a minimum that is possible, alpha, a seed."""
    classes = draw(st.integers(1, 8))
    labels = np.array(draw(st.lists(st.integers(0, classes - 1), min_size=1, max_size=150)))
    clients = draw(st.integers(1, min(25, len(labels))))
    minimum = draw(st.integers(0, len(labels) // clients))
    alpha = 10 ** draw(st.floats(-2, 2))
    return labels, clients, minimum, alpha, draw(st.integers(0, 1000))


Federation = tuple[np.ndarray[Any, Any], int, int, float, int]


@pytest.mark.parametrize("dialect", DIALECTS)
@settings(deadline=None, max_examples=40)
@given(federation=federations())
def test_dirichlet_allocates_each_sample_once_and_keeps_the_minimum(
    dialect: Dialect, federation: Federation
) -> None:
    labels, clients, minimum, alpha, seed = federation
    made = [dirichlet(labels, clients, alpha, rng(seed), dialect=dialect, minimum=minimum) for _ in range(2)]
    each_sample_once(made[0], len(labels), clients)
    assert made[0].sizes.min() >= minimum
    assert np.array_equal(made[0].order, made[1].order)
    assert np.array_equal(made[0].offsets, made[1].offsets)


@settings(deadline=None, max_examples=40)
@given(federation=federations())
def test_the_other_rules_allocate_each_sample_once(federation: Federation) -> None:
    labels, clients, minimum, alpha, seed = federation
    samples, classes = len(labels), len(np.unique(labels))
    each_sample_once(iid(samples, clients, rng(seed)), samples, clients)
    skewed = quantity_skew(samples, clients, alpha, rng(seed), minimum)
    each_sample_once(skewed, samples, clients)
    assert skewed.sizes.min() >= minimum
    few = max(1, -(-classes // clients))
    each_sample_once(pathological(labels, clients, few, rng(seed), minimum), samples, clients)
    per_client = samples // clients
    each_sample_once(shards(labels, clients, per_client, rng(seed)), samples, clients)
    present = len(np.unique(labels))
    each_sample_once(natural(labels, rng(seed)), samples, present)
    each_sample_once(natural(labels, rng(seed), (present + 1) // 2), samples, (present + 1) // 2)


def test_iid_sizes_differ_by_one_at_most_and_classes_mix() -> None:
    labels = np.repeat(np.arange(10), 100)
    partition = iid(1000, 7, rng())
    assert sorted(set(partition.sizes.tolist())) == [142, 143]
    assert partition.class_counts(labels, 10).min() > 3


def test_class_counts_by_hand() -> None:
    partition = from_owners(np.array([0, 1, 1, 0, 2]), 3)
    assert partition.rows(1).tolist() == [1, 2]
    assert partition.class_counts(np.array([0, 1, 1, 1, 0]), 2).tolist() == [[1, 1], [0, 2], [1, 0]]


@pytest.mark.parametrize(("clients", "k"), [(20, 2), (7, 3), (100, 1), (5, 2), (3, 10)])
def test_a_pathological_client_has_exactly_k_classes(clients: int, k: int) -> None:
    labels = np.repeat(np.arange(10), 200)
    table = pathological(labels, clients, k, rng(), minimum=0).class_counts(labels, 10)
    assert ((table > 0).sum(axis=1) == k).all()
    assert table.sum() == 2000


def test_pathological_clients_do_not_all_hold_the_same_classes() -> None:
    labels = np.repeat(np.arange(10), 200)
    table = pathological(labels, 50, 2, rng()).class_counts(labels, 10)
    assert len({tuple(np.flatnonzero(row)) for row in table}) > 15


def test_two_shards_are_at_most_four_classes() -> None:
    labels = np.repeat(np.arange(10), 100)
    partition = shards(labels, 50, 2, rng())
    assert set(partition.sizes.tolist()) == {20}
    assert ((partition.class_counts(labels, 10) > 0).sum(axis=1) <= 2).all()  # 10 shards fit a class exactly


def test_quantity_skew_differs_in_size_and_not_in_mix() -> None:
    labels = np.repeat(np.arange(2), 5000)
    partition = quantity_skew(10_000, 5, 0.3, rng(2))
    table = partition.class_counts(labels, 2)
    assert partition.sizes.max() > 4 * partition.sizes.min()
    large = table[partition.sizes > 500]
    assert (abs(large[:, 0] / large.sum(axis=1) - 0.5) < 0.1).all()


def test_natural_clients_have_the_names_of_their_values() -> None:
    codes = np.array([2, 0, 2, 3])
    partition = natural(codes, rng(), words=("art", "cartoon", "photo", "sketch"))
    assert partition.names == ("art", "photo", "sketch")
    assert partition.rows(1).tolist() == [0, 2]


def test_fewer_natural_clients_share_whole_values() -> None:
    codes = np.repeat(np.arange(10), 5)
    partition = natural(codes, rng(), 4)
    holders = {code: {c for c in range(4) if code in codes[partition.rows(c)]} for code in range(10)}
    assert all(len(owners) == 1 for owners in holders.values())
    assert partition.sizes.min() >= 10


def test_the_default_minimum_gives_way_when_samples_are_few() -> None:
    labels = np.repeat(np.arange(5), 10)
    assert dirichlet(labels, 50, 0.1, rng()).sizes.min() == 1
    assert dirichlet(labels, 5, 0.01, rng(), dialect="per-class").sizes.min() >= 5
    assert dirichlet(np.repeat(labels, 10), 5, 0.01, rng(), dialect="per-class").sizes.min() >= 10


def test_ten_thousand_clients_have_their_minimum_too() -> None:
    labels = np.arange(50_000) % 10  # five samples per client, so the minimum is two
    per_class = dirichlet(labels, 10_000, 0.1, rng(), dialect="per-class")
    balanced = dirichlet(labels, 10_000, 0.1, rng(), dialect="balanced")
    few_classes = pathological(labels, 10_000, 2, rng())
    for partition in (per_class, balanced, few_classes):
        each_sample_once(partition, 50_000, 10_000)
        assert partition.sizes.min() >= 2
    assert len(iid(1_000_000, 1_000_000, rng())) == 1_000_000


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: iid(5, 6, rng()), "use at most 5 clients"),
        (lambda: iid(5, 0, rng()), "at least one"),
        (lambda: dirichlet(ZEROS, 4, 0.5, rng(), minimum=6), "a minimum of at most 5"),
        (lambda: dirichlet(ZEROS, 4, 0.0, rng()), "alpha must be above 0"),
        (lambda: dirichlet(ZEROS, 4, float("nan"), rng()), "alpha must be above 0"),
        (lambda: dirichlet(ZEROS, 4, 1.0, rng(), dialect="blocs"), "did you mean 'blocks'?"),  # type: ignore[arg-type]
        (lambda: dirichlet(ZEROS, 4, 1.0, rng(), minimum=-1), "makes no sense"),
        (lambda: pathological(np.arange(9) % 3, 2, 4, rng()), "use 1 to 3"),
        (lambda: pathological(np.arange(90) % 9, 2, 2, rng()), "at least 5 classes for each client"),
        (lambda: shards(ZEROS[:9], 5, 2, rng()), "use at most 9 shards"),
        (lambda: shards(ZEROS[:9], 5, 0, rng()), "at least one shard"),
        (lambda: quantity_skew(9, 5, -1.0, rng()), "alpha must be above 0"),
        (lambda: natural(np.array([1, 2]), rng(), 3), "use 1 to 2"),
    ],
)
def test_what_cannot_be_is_refused(refuses: Refuses, make: Callable[[], Partition], message: str) -> None:
    with refuses(message):
        make()


def tiny(labelled: bool = True) -> DataSet:
    labels = np.repeat(np.arange(4), 30)
    columns = {"site": np.arange(120) % 3}
    features = rng().normal(size=(120, 2)).astype(np.float32)
    words: dict[str, tuple[str, ...]] = {"site": ("x", "y", "z")}
    return in_memory(Draft("tiny", features, labels if labelled else None, tuple("abcd"), columns, words))


@pytest.mark.parametrize(
    "chosen",
    [
        Iid(),
        Dirichlet(alpha=0.1),
        Dirichlet(dialect="blocks"),
        Pathological(classes_per_client=2),
        Shards(),
        Quantity(),
    ],
)
def test_settings_allocate_the_given_rows_of_a_set(chosen: PartitionSettings) -> None:
    rows = np.arange(0, 120, 2)
    partition = make_partition(chosen, tiny(), 5, rng(), rows)
    assert np.array_equal(np.sort(partition.order), rows)
    assert len(partition) == 5


def test_natural_settings_take_a_column(refuses: Refuses) -> None:
    partition = make_partition(Natural(column="site"), tiny(), None, rng())
    assert partition.names == ("x", "y", "z")
    assert partition.rows(2).tolist() == list(range(2, 120, 3))
    with refuses("has no column 'sites': did you mean 'site'?"):
        make_partition(Natural(column="sites"), tiny(), None, rng())
    with refuses("needs a number of clients"):
        make_partition(Iid(), tiny(), None, rng())
    with refuses("no labels"):
        make_partition(Dirichlet(), tiny(labelled=False), 4, rng())


def test_settings_are_told_apart_by_kind_and_know_their_keys() -> None:
    adapter: TypeAdapter[PartitionSettings] = TypeAdapter(PartitionSettings)
    assert adapter.validate_python({"kind": "dirichlet", "alpha": 0.01}) == Dirichlet(alpha=0.01)
    assert adapter.validate_python({"kind": "shards"}) == Shards(shards_per_client=2)
    for wrong in (
        {"kind": "iid", "alpha": 0.5},
        {"kind": "dirichlet", "alpha": 0},
        {"kind": "dirichlet", "dialect": "hsu"},
        {"kind": "natural"},
        {"kind": "nothing"},
    ):
        with pytest.raises(ValidationError):
            adapter.validate_python(wrong)
