"""Dirichlet partitions in the four dialects that papers use without saying which."""

from __future__ import annotations

from itertools import pairwise
from typing import Literal, TypeAlias, get_args

import numpy as np

from polyfed.data.allocation import (
    Counts,
    Partition,
    check_possible,
    counts_from_shares,
    dirichlet_counts,
    dirichlet_shares,
    draw_until,
    even_owners,
    fill_up,
    from_owners,
    least_size,
    owners_from_counts,
)
from polyfed.data.arrays import Ints
from polyfed.data.splits import apportion
from polyfed.errors import DataError, nearest

Dialect: TypeAlias = Literal["per-class", "balanced", "rotating", "blocks"]

_BLOCK = 10  # clients that FedDF draws for together


def dirichlet(
    labels: Ints,
    clients: int,
    alpha: float,
    rng: np.random.Generator,
    *,
    dialect: Dialect = "balanced",
    minimum: int | None = None,
) -> Partition:
    """Each class spread over the clients by Dirichlet(alpha) shares; the smaller alpha, the more uneven.

    Papers mean different things by this, so each reading of it has a name, its dialect:
    "per-class": for each class one draw over all clients (Yurochkin et al. 2019).
    "balanced": the same, but a client that already has the mean size gets nothing more (NIID-Bench, MOON).
    "rotating": clients in groups of at most as many as there are classes; in a group no client has the
        largest share of a second class before each has had one (FedKF). Milder: sizes stay near each other.
    "blocks": blocks of ten clients, each with a random share of the data and a balanced draw inside; then
        cut to equal sizes, which moves the borders (FedDF).

    alpha: above 0; papers use 0.01 to 100.
    minimum: the smallest client allowed; by default 10, or half the mean size if that is less.
    """
    if not (np.isfinite(alpha) and alpha > 0):
        raise DataError(f"alpha must be above 0, not {alpha}")
    least = least_size(minimum, len(labels), clients)
    check_possible(len(labels), clients, least)
    _, codes, sizes = np.unique(labels, return_inverse=True, return_counts=True)
    match dialect:
        case "per-class" | "balanced":
            draw = dirichlet_counts if dialect == "per-class" else _balanced
            counts = draw_until(lambda: draw(sizes, clients, alpha, rng), sizes.size * clients, least)
            owner = owners_from_counts(codes, counts, rng)
        case "rotating":
            owner = owners_from_counts(codes, _rotating(sizes, clients, alpha, rng), rng)
        case "blocks":
            owner = _blocks(codes, sizes.size, clients, alpha, rng)
        case _:
            raise DataError(f"there is no dialect '{dialect}': {nearest(dialect, get_args(Dialect))}")
    return from_owners(fill_up(owner, clients, least, rng), clients)


def _balanced(sizes: Ints, clients: int, alpha: float, rng: np.random.Generator) -> Counts:
    counts = np.zeros((len(sizes), clients), dtype=np.int64)
    held = np.zeros(clients, dtype=np.int64)
    mean = sizes.sum() / clients
    for number, size in enumerate(sizes):
        if size == 0:  # a class that a block of clients does not have; perhaps no client is open any more
            continue
        is_open = held < mean
        shares = dirichlet_shares(clients, alpha, rng) * is_open
        # At small alpha all that is left may be shares of 0; then the open clients share evenly.
        shares = shares if shares.sum() > 0 else is_open.astype(np.float64)
        counts[number] = counts_from_shares(shares / shares.sum(), int(size))
        held += counts[number]
    return counts


def _rotating(sizes: Ints, clients: int, alpha: float, rng: np.random.Generator) -> Counts:
    groups = np.split(np.arange(clients), np.arange(len(sizes), clients, len(sizes)))
    counts = np.zeros((len(sizes), clients), dtype=np.int64)
    fresh = np.ones(clients, dtype=bool)  # has not had the largest share since the last turn
    for number, size in enumerate(sizes):
        parts = apportion(np.array([len(group) for group in groups]), int(size), rng)
        for group, part in zip(groups, parts, strict=True):
            shares = dirichlet_shares(len(group), alpha, rng)
            top = int(shares.argmax())
            if not fresh[group[top]]:
                # FedKF draws again until the largest share falls on a fresh client. All clients are alike
                # to the Dirichlet law, so handing that share to a random fresh one has the same law, and
                # always ends.
                lucky = int(rng.choice(np.flatnonzero(fresh[group])))
                shares[[top, lucky]] = shares[[lucky, top]]
                top = lucky
            fresh[group[top]] = False
            if not fresh[group].any():
                fresh[group] = True
            counts[number, group] = counts_from_shares(shares, int(part))
    return counts


def _blocks(codes: Ints, classes: int, clients: int, alpha: float, rng: np.random.Generator) -> Ints:
    samples = len(codes)
    block_of_sample = rng.permutation(even_owners(samples, clients) // _BLOCK)
    draws_of = classes * clients  # the limit on draws is for all blocks together
    drawn = np.empty(samples, dtype=np.int64)
    order = np.argsort(block_of_sample, kind="stable")
    borders = np.searchsorted(block_of_sample[order], np.arange(-(-clients // _BLOCK) + 1))
    for block, (start, end) in enumerate(pairwise(borders)):
        members = order[start:end]
        here = min(_BLOCK, clients - block * _BLOCK)
        sizes = np.bincount(codes[members], minlength=classes)
        least = len(members) // (2 * here)  # FedDF's own: half the mean size
        counts = draw_until(lambda: _balanced(sizes, here, alpha, rng), draws_of, least)  # noqa: B023
        inner = fill_up(owners_from_counts(codes[members], counts, rng), here, least, rng)
        drawn[members] = block * _BLOCK + inner
    # All clients' lists (each by class) in a row, cut into equal parts: borders move, as in FedDF's code.
    owner = np.empty(samples, dtype=np.int64)
    owner[np.lexsort((codes, drawn))] = even_owners(samples, clients)
    return owner
