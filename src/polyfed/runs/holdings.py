"""Who holds what in a federation: what a simulation reads of it, whether one data set is cut or each client brings its
own."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from typing import Generic, Literal, Protocol, TypeAlias, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from polyfed.data import Agreement, Constants, DataSet, Holding, Limits, Rows
from polyfed.federation.nodes import ClientData
from polyfed.federation.roster import Names

Ints: TypeAlias = NDArray[np.int64]
WholeTest: TypeAlias = Literal["split", "clients", "file", "none"]
"""What the whole test set is: the data set's own test split, the clients' own test rows together, a file
(`data.test_set`), or there is none."""

Made = TypeVar("Made")

GIVEN = "(given from Python)"  # stands for the user's own data in a resolved config
MOST_KEPT = 4096


class Holdings(Protocol):
    """Who holds what. A holding is made when it is asked for."""

    @property
    def title(self) -> str:
        """What the data are called."""

    @property
    def names(self) -> Names:
        """The clients' names, their identities: they depend on the data alone."""

    @property
    def agreement(self) -> Agreement:
        """What all rows have in common."""

    @property
    def constants(self) -> Constants | Mapping[str, Constants]:
        """By what rows are normalised: the same for all, or by the client's name."""

    @property
    def limits(self) -> Limits | None:
        """The smallest and the largest normalised value of each channel of 8-bit images; None where not known."""

    @property
    def public(self) -> Rows | None:
        """The rows that all can see, one tensor for all."""

    @property
    def whole_test(self) -> Rows | None:
        """The rows on which the server's models are scored, and clients' beside their own."""

    @property
    def whole_test_is(self) -> WholeTest: ...

    @property
    def fingerprints(self) -> Mapping[str, str]:
        """What ties a run to its data, by whose they are."""

    def samples(self) -> Ints:
        """How many rows each client trains on."""

    def of(self, index: int) -> Holding:
        """What a client holds."""

    def seen_by(self, index: int) -> ClientData:
        """What a client can see: what it holds, and what all can see."""

    def class_counts(self) -> Ints:
        """How many rows of each class (or group of rows) each client holds, clients × groups."""

    @property
    def group_words(self) -> tuple[str, ...]:
        """What to call each of these groups."""

    def training_labels(self) -> Tensor | None:
        """Everybody's training labels, where they are in one place; None where each client has its own."""

    def data_sets(self) -> Iterable[DataSet]:
        """Every data set that rows are of."""


def part_in_turn(public: Rows, names: Names, index: int) -> Tensor:
    """A client's part of public rows that are nobody's own: dealt out in turn, in the order of the clients' names."""
    return torch.from_numpy(np.arange(names.rank(index) % len(public), len(public), len(names)))


def as_seen(rows: Rows, constants: Constants) -> Rows:
    """Rows as whoever normalises by these constants sees them."""
    view = rows.dataset.seen_as(mean=constants[0], std=constants[1])
    return rows if view is rows.dataset else Rows(view, rows.index)


class Kept(Generic[Made]):
    """What was made for clients, by their numbers; of very many the last ones."""

    def __init__(self, make: Callable[[int], Made]) -> None:
        self._make = make
        self._made: OrderedDict[int, Made] = OrderedDict()

    def __call__(self, index: int) -> Made:
        if index not in self._made:
            self._made[index] = self._make(index)
            if len(self._made) > MOST_KEPT:
                self._made.popitem(last=False)
        return self._made[index]
