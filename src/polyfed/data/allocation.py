"""Allocation of samples to clients: a partition, and what the rules that make one have in common.

Every rule decides the owner of each sample, so that each sample has exactly one, and every rule ends for any
setting that is possible at all: where a random draw leaves a client below the minimum, it is drawn again a
limited number of times, and then samples are moved from the largest clients to the smallest.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from polyfed.data.arrays import Array, Ints
from polyfed.errors import DataError

log = logging.getLogger(__name__)

Counts: TypeAlias = Ints  # classes × clients

_MOST_DRAWS = 100
_MOST_NUMBERS = 2_000_000  # drawn in total before samples are moved instead: a second or two
_USUAL_MINIMUM = 10  # NIID-Bench's smallest client


@dataclass(frozen=True, eq=False)
class Partition:
    """The rows of each client, as one array and its borders.

    order: row numbers, those of client 0 first, each client's in rising order.
    offsets: client i holds order[offsets[i]:offsets[i + 1]].
    names: the clients' names, where they are values of a column (a domain, a writer), else None.
    """

    order: Ints
    offsets: Ints
    names: tuple[str, ...] | None = None

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def rows(self, client: int) -> Ints:
        """The row numbers of one client."""
        if not 0 <= client < len(self):
            raise IndexError(f"client {client} of {len(self)}")
        return self.order[self.offsets[client] : self.offsets[client + 1]]

    @property
    def sizes(self) -> Ints:
        """How many rows each client has."""
        return np.diff(self.offsets)

    def class_counts(self, labels: Ints, classes: int) -> Counts:
        """How many rows of each class each client has, clients × classes, for the labels of the data set."""
        owner = np.repeat(np.arange(len(self)), self.sizes)
        flat = np.bincount(owner * classes + labels[self.order], minlength=len(self) * classes)
        return flat.reshape(len(self), classes).astype(np.int64)

    def of_rows(self, rows: Ints) -> Partition:
        """The partition of a subset of a data set, from its own places to the data set's row numbers."""
        return Partition(rows[self.order], self.offsets, self.names)


def from_owners(owner: Ints, clients: int, names: tuple[str, ...] | None = None) -> Partition:
    """The partition in which sample s belongs to client owner[s]."""
    sizes = np.bincount(owner, minlength=clients)
    offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    return Partition(np.argsort(owner, kind="stable").astype(np.int64), offsets, names)


def least_size(asked: int | None, samples: int, clients: int) -> int:
    """The smallest client allowed: as asked, else 10 or what so few samples can sensibly give, at least 1."""
    if asked is not None:
        return asked
    return max(1, min(_USUAL_MINIMUM, samples // (2 * max(clients, 1))))


def check_possible(samples: int, holders: int, minimum: int, what: str = "clients") -> None:
    """A DataError if there are too few samples to give each holder the minimum."""
    if holders < 1:
        raise DataError(f"{holders} {what}: there must be at least one")
    if minimum < 0:
        raise DataError(f"a minimum of {minimum} samples makes no sense: use 0 or more")
    if samples < holders:
        raise DataError(f"{samples} samples are too few for {holders} {what}: use at most {samples} {what}")
    if holders * minimum > samples:
        raise DataError(
            f"{holders} {what} of at least {minimum} samples need {holders * minimum}, "
            f"but there are {samples}: use a minimum of at most {samples // holders}"
        )


def even_owners(samples: int, holders: int) -> Ints:
    """0 0 0 1 1 1 2 2 …: holders in turn, as even as can be."""
    return np.arange(samples, dtype=np.int64) * holders // max(samples, 1)


def members_by_class(codes: Ints, sizes: Ints, rng: np.random.Generator) -> list[Ints]:
    """The samples of each class, in a random order."""
    shuffled = rng.permutation(len(codes))
    ordered = shuffled[np.argsort(codes[shuffled], kind="stable")]
    return np.split(ordered, np.cumsum(sizes)[:-1])


def owners_from_counts(codes: Ints, counts: Counts, rng: np.random.Generator) -> Ints:
    """The owner of each sample when client j gets counts[c, j] samples of class c, drawn at random."""
    owner = np.empty(len(codes), dtype=np.int64)
    clients = np.arange(counts.shape[1])
    for row, members in zip(counts, members_by_class(codes, counts.sum(axis=1), rng), strict=True):
        owner[members] = np.repeat(clients, row)
    return owner


def counts_from_shares(shares: Array, size: int) -> Ints:
    """Whole numbers of samples, `size` in all, for shares that add up to 1: cut at their running sum."""
    borders = np.minimum(np.floor(np.cumsum(shares) * size), size).astype(np.int64)
    borders[-1] = size
    counts: Ints = np.diff(borders, prepend=0)
    return counts


def draw_until(draw: Callable[[], Counts], numbers: int, least: int) -> Counts:
    """Draw until no client is below the least, a limited number of times; `fill_up` does the rest.

    numbers: how many random numbers a draw takes, which decides how often it may be repeated.
    """
    draws = max(1, min(_MOST_DRAWS, _MOST_NUMBERS // max(numbers, 1)))
    for _ in range(draws):
        counts = draw()
        if counts.sum(axis=0).min() >= least:
            return counts
    log.info("no draw of %d gave every client %d samples: moving some from the largest", draws, least)
    return counts


def dirichlet_counts(sizes: Ints, clients: int, alpha: float, rng: np.random.Generator) -> Counts:
    """How many samples of each class each client gets, by one Dirichlet draw per class over all clients."""
    return np.stack([counts_from_shares(dirichlet_shares(clients, alpha, rng), int(size)) for size in sizes])


def fill_up(owner: Ints, clients: int, least: int, rng: np.random.Generator) -> Ints:
    """Move samples from the largest clients to those below the least, all in one pass."""
    sizes = np.bincount(owner, minlength=clients)
    missing = np.maximum(least - sizes, 0)
    wanted = int(missing.sum())
    if wanted == 0:
        return owner
    given = _given_by_largest(sizes, wanted, least)
    shuffled = rng.permutation(len(owner))
    # By client, each client's in a random order.
    ordered = shuffled[np.argsort(owner[shuffled], kind="stable")]
    place = np.arange(len(owner)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    moved = ordered[place < np.repeat(given, sizes)]
    owner = owner.copy()
    owner[moved] = np.repeat(np.arange(clients), missing)
    return owner


def _given_by_largest(sizes: Ints, wanted: int, least: int) -> Ints:
    """How many samples each client gives away: all above one level, which is found by bisection."""
    low, high = least, int(sizes.max())  # a level of `least` gives enough, one of `high` gives nothing
    while low < high:
        level = (low + high + 1) // 2
        if np.maximum(sizes - level, 0).sum() >= wanted:
            low = level
        else:
            high = level - 1
    given = np.maximum(sizes - low, 0)
    # The level may give one sample per client too many: the first clients keep one of theirs.
    too_many = int(given.sum()) - wanted
    given[np.flatnonzero(given)[:too_many]] -= 1
    return given


def dirichlet_shares(clients: int, alpha: float, rng: np.random.Generator) -> Array:
    """One draw of the clients' shares, which add up to 1."""
    shares = rng.dirichlet(np.full(clients, alpha))
    total = shares.sum()
    if np.isfinite(total) and total > 0:
        return shares
    shares = np.zeros(clients)  # the limit of alpha towards 0: one client has it all
    shares[rng.integers(clients)] = 1.0
    return shares
