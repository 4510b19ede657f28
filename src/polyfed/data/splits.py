"""Stratified draws, and a client's rows divided into training, validation and test."""

from __future__ import annotations

import math

import numpy as np

from polyfed.data.arrays import Ints
from polyfed.errors import DataError


def split_client(
    rows: Ints,
    labels: Ints | None,
    validation: float,
    test: float,
    rng: np.random.Generator,
    *,
    by: Ints | None = None,
    among: Ints | None = None,
    rank: Ints | None = None,
) -> tuple[Ints, Ints, Ints]:
    """Divide a client's rows into (training, validation, test), with the same class shares where possible.

    rows: row numbers of the data set.
    labels: the labels of the whole data set, or None.
    validation, test: shares from 0 up to, together, less than 1. A share above 0 gets at least one row as
        long as one is left to train on: training is never empty, and a client with one row trains on it.
    by: for each row of the data set the number of its origin, what it was made from (such as `origin` of
        rotated images). All rows of one origin are on the same side, in every client that is split with an
        equally seeded `rng`.
    among: the rows whose origins are divided, the same for every client; by default all rows of the data set.
    rank: a number for each origin of the data set, in their order. The origins of the highest rank are held out
        instead of random ones. So they are the same whatever `among` is, as long as it lacks only low ranks.
    """
    if not (0 <= validation < 1 and 0 <= test < 1 and validation + test < 1):
        raise DataError(
            f"shares of validation ({validation}) and test ({test}) must leave some rows to train on"
        )
    if by is None:
        parts = _parts(None if labels is None else labels[rows], len(rows), validation, test, rng)
    else:
        divided = np.arange(len(by)) if among is None else among
        origins, first = np.unique(by[divided], return_index=True)
        kinds = None if labels is None else labels[divided[first]]
        if rank is not None:
            rank = -rank[np.searchsorted(np.unique(by), origins)]
        of_origin = _parts(kinds, len(origins), validation, test, rng, rank)
        parts = of_origin[np.searchsorted(origins, by[rows])]
        if len(rows) and not (parts == 0).any():
            parts[by[rows] == by[rows[0]]] = 0
    return rows[parts == 0], rows[parts == 1], rows[parts == 2]


def split_sizes(rows: int, validation: float, test: float) -> tuple[int, int, int]:
    """How many of a client's rows `split_client` gives to (training, validation, test), without drawing them."""
    left = rows
    counts = []
    for share in (test, validation):
        count = min(max(1, math.floor(rows * share + 0.5)), left - 1) if share > 0 and left > 1 else 0
        counts.append(count)
        left -= count
    return left, counts[1], counts[0]


def draw_stratified(
    labels: Ints | None, rows: int, count: int, rng: np.random.Generator, rank: Ints | None = None
) -> Ints:
    """`count` of `rows` places, sorted, with the class shares of the whole (by largest remainders).

    rank: a number for each place. The places of the lowest rank in each class are drawn instead of random ones.
    """
    if labels is None:
        labels = np.zeros(rows, dtype=np.int64)
    sizes = np.unique(labels, return_counts=True)[1]
    wanted = apportion(sizes, count, rng)
    return _first_of_each(labels, wanted, rng.permutation(rows) if rank is None else np.argsort(rank))


def draw_per_class(labels: Ints, count: int, rng: np.random.Generator) -> Ints:
    """`count` places of every class, sorted; all of a class that has fewer."""
    classes = len(np.unique(labels))
    return _first_of_each(labels, np.full(classes, count), rng.permutation(len(labels)))


def _first_of_each(labels: Ints, wanted: Ints, order: Ints) -> Ints:
    """The first places of each class in some order, as many as wanted; sorted."""
    _, codes, sizes = np.unique(labels, return_inverse=True, return_counts=True)
    order = order[np.argsort(codes[order], kind="stable")]
    place = np.arange(len(labels)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    return np.sort(order[place < np.repeat(wanted, sizes)]).astype(np.int64)


def apportion(sizes: Ints, total: int, rng: np.random.Generator) -> Ints:
    """Whole numbers that add up to `total`, in proportion to `sizes` and none larger than its size."""
    if sizes.sum() == 0:
        return np.zeros_like(sizes)
    floor, remainder = np.divmod(sizes * total, sizes.sum())
    last = np.lexsort((rng.random(len(sizes)), -remainder))
    floor[last[: total - floor.sum()]] += 1
    return floor


def _parts(
    labels: Ints | None,
    rows: int,
    validation: float,
    test: float,
    rng: np.random.Generator,
    rank: Ints | None = None,
) -> Ints:
    """0, 1 or 2 (training, validation, test) for each row."""
    parts = np.zeros(rows, dtype=np.int64)
    _, *counts = split_sizes(rows, validation, test)
    for part, count in zip((2, 1), reversed(counts), strict=True):
        if count:
            free = np.flatnonzero(parts == 0)
            drawn = draw_stratified(
                None if labels is None else labels[free],
                len(free),
                count,
                rng,
                None if rank is None else rank[free],
            )
            parts[free[drawn]] = part
    return parts
