"""Who holds what: rules that allocate the samples of a data set to clients, and their settings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias, get_args

import numpy as np
from pydantic import BaseModel, BeforeValidator, Field

from polyfed import plug_ins
from polyfed.data.allocation import (
    Partition,
    check_possible,
    dirichlet_counts,
    draw_until,
    even_owners,
    fill_up,
    from_owners,
    least_size,
    members_by_class,
    owners_from_counts,
)
from polyfed.data.arrays import Ints
from polyfed.data.dataset import DataSet
from polyfed.data.dirichlet import Dialect, dirichlet
from polyfed.data.domains import rotate
from polyfed.errors import DataError, describe, place_in_users_code
from polyfed.plug_ins import importable_name
from polyfed.schema import SECTION, OneOrMore


def iid(samples: int, clients: int, rng: np.random.Generator) -> Partition:
    """Samples allocated at random, client sizes equal up to one."""
    check_possible(samples, clients, 1)
    owner = np.empty(samples, dtype=np.int64)
    owner[rng.permutation(samples)] = even_owners(samples, clients)
    return from_owners(owner, clients)


def pathological(
    labels: Ints, clients: int, classes_per_client: int, rng: np.random.Generator, minimum: int | None = None
) -> Partition:
    """Each client holds samples of only a few classes; a class is shared evenly by those that hold it."""
    _, codes, sizes = np.unique(labels, return_inverse=True, return_counts=True)
    classes, k = len(sizes), classes_per_client
    if not 1 <= k <= classes:
        raise DataError(f"{k} classes for each client, but there are {classes}: use 1 to {classes}")
    if clients * k < classes:
        raise DataError(
            f"{clients} clients of {k} classes leave some of the {classes} classes to nobody: "
            f"use at least {-(-classes // clients)} classes for each client"
        )
    least = least_size(minimum, len(labels), clients)
    check_possible(len(labels), clients, least)
    # A group of clients takes all classes once, k each (the last one wraps around); the next group has them
    # shuffled again.
    group = -(-classes // k)
    shuffled = rng.permuted(np.tile(np.arange(classes), (-(-clients // group), 1)), axis=1)
    client = np.arange(clients)
    places = ((client % group)[:, None] * k + np.arange(k)) % classes
    held = shuffled[(client // group)[:, None], places]  # clients × k
    owner = np.empty(len(codes), dtype=np.int64)
    members = members_by_class(codes, sizes, rng)
    for number in range(classes):
        holders = rng.permutation(np.flatnonzero((held == number).any(axis=1)))
        owner[members[number]] = holders[even_owners(int(sizes[number]), len(holders))]
    return from_owners(fill_up(owner, clients, least, rng), clients)


def shards(labels: Ints, clients: int, shards_per_client: int, rng: np.random.Generator) -> Partition:
    """Samples sorted by class and cut into equal shards, allocated at random (McMahan et al. 2017)."""
    total = clients * shards_per_client
    if shards_per_client < 1:
        raise DataError(f"each client needs at least one shard, not {shards_per_client}")
    check_possible(len(labels), total, 1, what="shards")
    shuffled = rng.permutation(len(labels))
    by_class = shuffled[np.argsort(labels[shuffled], kind="stable")]
    holder = rng.permutation(np.repeat(np.arange(clients), shards_per_client))
    owner = np.empty(len(labels), dtype=np.int64)
    owner[by_class] = holder[even_owners(len(labels), total)]
    return from_owners(owner, clients)


def quantity_skew(
    samples: int, clients: int, alpha: float, rng: np.random.Generator, minimum: int | None = None
) -> Partition:
    """The same mix of classes for all, but sizes by Dirichlet(alpha) shares."""
    if not (np.isfinite(alpha) and alpha > 0):
        raise DataError(f"alpha must be above 0, not {alpha}")
    least = least_size(minimum, samples, clients)
    check_possible(samples, clients, least)
    one_class = np.array([samples])
    counts = draw_until(lambda: dirichlet_counts(one_class, clients, alpha, rng), clients, least)
    owner = owners_from_counts(np.zeros(samples, dtype=np.int64), counts, rng)
    return from_owners(fill_up(owner, clients, least, rng), clients)


def listed(given: Any, samples: int, rows: Ints, clients: int | None = None) -> Partition:
    """Row numbers of each client as somebody lists them: by name, or one list after the other.

    rows: those that can be held; what else is listed (public rows, say) is left out.
    """
    names = tuple(map(str, given)) if isinstance(given, Mapping) else None
    lists = list(given.values()) if isinstance(given, Mapping) else list(given)
    if clients is not None and clients != len(lists):
        raise DataError(
            f"data.partition lists the rows of {len(lists)} clients, but data.clients is {clients}"
        )
    owner = np.full(samples, -1, dtype=np.int64)
    for client, own in enumerate(lists):
        called = names[client] if names else f"client {client}"
        numbers = np.asarray(own)
        if numbers.ndim != 1 or not numbers.size or numbers.dtype.kind not in "iu":
            raise DataError(f"data.partition: the rows of {called} are not a list of row numbers")
        if numbers.min() < 0 or numbers.max() >= samples:
            odd = numbers.min() if numbers.min() < 0 else numbers.max()
            raise DataError(f"data.partition: {called} has row {odd}, but rows go from 0 to {samples - 1}")
        taken = numbers[owner[numbers] >= 0]
        if taken.size or len(np.unique(numbers)) < len(numbers):
            row = taken[0] if taken.size else _first_twice(numbers)
            raise DataError(f"data.partition: row {row} is listed twice, the second time for {called}")
        owner[numbers] = client
    held = rows[owner[rows] >= 0]
    return from_owners(owner[held], len(lists), names).of_rows(held)


def _first_twice(numbers: Ints) -> int:
    found, counts = np.unique(numbers, return_counts=True)
    return int(found[counts > 1][0])


def _dealt(name: str, dataset: DataSet, clients: int | None, rng: np.random.Generator) -> Any:
    """What a function of the user's own gives."""
    function = plug_ins.named_function(name, "partition", DataError)
    known = {"labels": dataset.labels, "inputs": dataset.inputs, "clients": clients, "rng": rng}
    given = plug_ins.taken_of(function, known, f"partition '{name}'", DataError)
    try:
        found = function(**given)
    except Exception as error:
        place = place_in_users_code(error)
        raise DataError(
            f"partition '{name}' failed: {describe(error)}{f' ({place})' if place else ''}"
        ) from error
    if not isinstance(found, Mapping | Sequence | np.ndarray) or isinstance(found, str) or not len(found):
        raise DataError(
            f"partition '{name}' gave a {type(found).__name__}: give a list of row numbers for each client"
        )
    return found


def natural(
    codes: Ints,
    rng: np.random.Generator,
    clients: int | None = None,
    words: tuple[str, ...] | None = None,
) -> Partition:
    """One client for each value of a column (a writer, a domain), or several values each for fewer clients.

    codes: the column, one code for each sample.
    words: the word for each code; they become the names of the clients where each has one value.
    """
    present, group = np.unique(codes, return_inverse=True)
    group = group.reshape(-1).astype(np.int64)
    if len(present) == 0:
        raise DataError("there are no samples to allocate")
    if clients is None or clients == len(present):
        names = tuple(words[code] for code in present) if words else tuple(map(str, present))
        return from_owners(group, len(present), names)
    if clients < 1 or clients > len(present):
        raise DataError(
            f"{clients} clients, but the column has {len(present)} values: use 1 to {len(present)}"
        )
    owner = rng.permutation(len(present)) % clients
    return from_owners(owner[group].astype(np.int64), clients)


class _Settings(BaseModel):
    model_config = SECTION

    @property
    def domain(self) -> str | None:
        """The column whose values are the clients, if there is one."""
        return None


class Iid(_Settings):
    """Every client gets a random part of equal size."""

    kind: Literal["iid"] = "iid"


class Dirichlet(_Settings):
    """Each class is spread over the clients by Dirichlet shares. For the dialects see the function `dirichlet`."""

    kind: Literal["dirichlet"] = "dirichlet"
    alpha: float = Field(0.5, gt=0, allow_inf_nan=False)
    """The smaller, the more different the clients; 0.01 to 100 in papers."""
    dialect: Dialect = "balanced"
    """How shares are drawn: as NIID-Bench does (balanced), class by class, as FedKF (rotating) or FedDF (blocks)."""
    minimum: int | None = Field(None, ge=0)
    """Samples that every client gets at least; null: 10, or half the mean if that is less."""


class Pathological(_Settings):
    """Each client has samples of a few classes only."""

    kind: Literal["pathological"] = "pathological"
    classes_per_client: int = Field(2, ge=1)
    """How many classes."""
    minimum: int | None = Field(None, ge=0)
    """Samples that every client gets at least; null: 10, or half the mean if that is less."""


class Shards(_Settings):
    """Samples sorted by class are cut into shards, some for each client (McMahan et al. 2017)."""

    kind: Literal["shards"] = "shards"
    shards_per_client: int = Field(2, ge=1)
    """How many shards; a client has about as many classes."""


class Quantity(_Settings):
    """Clients differ in size but not in their mix of classes."""

    kind: Literal["quantity"] = "quantity"
    alpha: float = Field(0.5, gt=0, allow_inf_nan=False)
    """The smaller, the more different the sizes."""
    minimum: int | None = Field(None, ge=0)
    """Samples that every client gets at least; null: 10, or half the mean if that is less."""


class Natural(_Settings):
    """A client for each value of a column, such as `writer_id` or `domain`."""

    kind: Literal["natural"] = "natural"
    column: str = Field(min_length=1)
    """The column; `polyfed data NAME` says which there are."""

    @property
    def domain(self) -> str:
        return self.column


class Rotated(_Settings):
    """A client for each angle that the images are rotated by."""

    kind: Literal["rotated"] = "rotated"
    angles: Annotated[tuple[float, ...], OneOrMore, Field(min_length=1)] = (0.0, 20.0, 40.0, 60.0)
    """Degrees, counter-clockwise (FedH2L's are negative)."""
    shared_split: bool = True
    """Whether rotated copies of an image are all in training or all in test, whatever the client."""

    @property
    def domain(self) -> str:
        return "domain"


class Listed(_Settings):
    """Rows as you list them: the row numbers of each client, by name or one list after the other."""

    kind: Literal["rows"] = "rows"
    rows: dict[str, list[int]] | list[list[int]] = Field(min_length=1)
    """Row numbers from 0, each at most once: {north: [0, 1, 5], south: [2, 3]}, or [[0, 1, 5], [2, 3]]."""


class Function(_Settings):
    """Rows as a function of yours deals them out."""

    kind: Literal["function"] = "function"
    function: Annotated[str, BeforeValidator(importable_name)] = Field(min_length=1)
    """A function of a module of yours, such as my_module:deal. It is given what it takes by name of `labels`, `inputs`,
    `clients` and `rng`, and gives the row numbers of each client, as `rows` lists them."""


AnyPartition: TypeAlias = (
    Iid | Dirichlet | Pathological | Shards | Quantity | Natural | Rotated | Listed | Function
)
PartitionSettings: TypeAlias = Annotated[AnyPartition, Field(discriminator="kind")]
PARTITIONS: dict[str, type[AnyPartition]] = {
    kind.model_fields["kind"].default: kind for kind in get_args(AnyPartition)
}


def prepare(settings: PartitionSettings, dataset: DataSet, cache_dir: Path | str | None = None) -> DataSet:
    """The data set that is to be partitioned: itself, or for rotated domains its rotated copies."""
    if isinstance(settings, Rotated) and "origin" not in dataset.columns:
        return rotate(dataset, settings.angles, settings.shared_split, cache_dir)
    return dataset


def make_partition(
    settings: PartitionSettings,
    dataset: DataSet,
    clients: int | None,
    rng: np.random.Generator,
    rows: Ints | None = None,
) -> Partition:
    """Allocate the rows of a data set to clients as the settings say.

    dataset: for rotated domains the one that `prepare` gave.
    clients: how many; None only where the data decide (natural, rotated).
    rows: allocate only these rows of the data set, such as those that a public share left.
    """
    rows = np.arange(len(dataset), dtype=np.int64) if rows is None else rows
    if isinstance(settings, Natural | Rotated):
        codes = dataset.column(settings.domain)[rows]
        return natural(codes, rng, clients, dataset.column_names.get(settings.domain)).of_rows(rows)
    if isinstance(settings, Listed):
        return listed(settings.rows, len(dataset), rows, clients)
    if isinstance(settings, Function):
        return listed(_dealt(settings.function, dataset, clients, rng), len(dataset), rows, clients)
    if clients is None:
        raise DataError(f"a {settings.kind} partition needs a number of clients")
    return _make(settings, dataset, clients, rng, rows).of_rows(rows)


def _make(
    settings: Iid | Dirichlet | Pathological | Shards | Quantity,
    dataset: DataSet,
    clients: int,
    rng: np.random.Generator,
    rows: Ints,
) -> Partition:
    match settings:
        case Iid():
            return iid(len(rows), clients, rng)
        case Quantity():
            return quantity_skew(len(rows), clients, settings.alpha, rng, settings.minimum)
    dataset.need_labels()
    assert dataset.strata is not None
    labels = dataset.strata[rows]
    match settings:
        case Dirichlet():
            return dirichlet(
                labels, clients, settings.alpha, rng, dialect=settings.dialect, minimum=settings.minimum
            )
        case Pathological():
            return pathological(labels, clients, settings.classes_per_client, rng, settings.minimum)
        case Shards():
            return shards(labels, clients, settings.shards_per_client, rng)
