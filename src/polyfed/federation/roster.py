"""Who takes part: what every client has declared of itself, and the clients' names."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Facts:
    """What a client has declared of itself to the server: all that a method's round may know in advance."""

    index: int
    name: str
    samples: int
    architecture: str


NAME = re.compile(r"[^\W\d_]([^\W_]|[.-]){0,99}")  # begins with a letter: 7 and 0-5 are numbers of clients


def why_not_a_name(name: object) -> str | None:
    """Why a client cannot be called so; nothing if it can."""
    if isinstance(name, bool):
        return f"'{name}' cannot be a name: YAML reads on, off, yes and no as true and false, so write it in quotes"
    if not isinstance(name, str) or not NAME.fullmatch(name):
        return (
            f"'{name!s:.60}' cannot be a name: begin with a letter, go on with at most 99 letters, digits, dots and"
            " dashes"
        )
    if name.partition(".")[0].casefold() == "server":
        return f"'{name}' reads like the server's name: choose another"
    return None


def why_not_names(names: Sequence[object]) -> str | None:
    """Why clients cannot be called so, or not all of them; nothing if they can."""
    if len(names) < 2:
        return "a federation has two clients or more"
    seen: dict[str, object] = {}
    for name in names:
        if (reason := why_not_a_name(name)) is not None:
            return reason
        folded = str(name).casefold()  # on some disks North and north are one file
        if folded in seen:
            return f"'{seen[folded]}' and '{name}' are too much alike: give every client a name of its own"
        seen[folded] = name
    return None


class Names(Sequence[str]):
    """The clients' names: those given, or `client-0`, `client-1` … made when asked for."""

    def __init__(self, count: int, given: Sequence[str] | None = None) -> None:
        self.given = None if given is None else tuple(given)
        self._count = count
        self._places = {name: place for place, name in enumerate(self.given or ())}
        self._ranks: dict[int, int] | None = None

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[place] for place in range(*index.indices(len(self)))]
        if not 0 <= index < len(self):
            raise IndexError(index)
        return f"client-{int(index)}" if self.given is None else self.given[index]

    def index(self, name: str, *_: Any) -> int:
        """The number of the client with this name; a `ValueError` if there is none."""
        if self.given is not None:
            place = self._places.get(name, -1)
        else:
            number = name.removeprefix("client-")
            place = int(number) if number.isdecimal() else -1
        if not 0 <= place < len(self) or self[place] != name:
            raise ValueError(f"no client is called '{name}'")
        return place

    def rank(self, index: int) -> int:
        """The place of a client among all in the order of their names; `client-10` is after `client-9`."""
        if self.given is None:
            return index
        if self._ranks is None:
            self._ranks = {self._places[name]: rank for rank, name in enumerate(sorted(self._places))}
        return self._ranks[index]

    def __contains__(self, name: object) -> bool:
        try:
            self.index(str(name))
        except ValueError:
            return False
        return True


class Roster(Sequence[Facts]):
    """What every client declared. Facts are made when asked for: a million clients are two arrays.

    which: for each client the place of its architecture in `architectures`.
    names: the clients' names; `client-0`, `client-1` … by default.
    """

    def __init__(
        self,
        samples: Sequence[int] | NDArray[np.int64],
        architectures: Sequence[str],
        which: Sequence[int] | NDArray[np.int64],
        names: Sequence[str] | None = None,
    ) -> None:
        self._samples = samples
        self.architectures = tuple(architectures)
        self.which = np.asarray(which)
        self.names = names if isinstance(names, Names) else Names(len(samples), names)

    def __len__(self) -> int:
        return len(self._samples)

    @property
    def total_samples(self) -> int:
        """How many samples all clients have together."""
        return int(np.sum(self._samples))

    def holders(self) -> NDArray[np.int64]:
        """The numbers of the clients that hold training rows, in their order."""
        return np.flatnonzero(np.asarray(self._samples))

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[place] for place in range(*index.indices(len(self)))]
        if not 0 <= index < len(self):
            raise IndexError(index)
        index = int(index)
        return Facts(index, self.name(index), int(self._samples[index]), self.architecture(index))

    def name(self, index: int) -> str:
        return str(self.names[index])

    def architecture(self, index: int) -> str:
        return self.architectures[int(self.which[index])]

    def __iter__(self) -> Iterator[Facts]:
        return (self[index] for index in range(len(self)))


@dataclass(frozen=True)
class FederationFacts:
    """What is known of a federation before it runs: for a method's `check`, to be read and not changed."""

    roster: Roster
    """What every client declared: `len(roster)`, `roster[3].samples`, `roster.architectures`."""
    shape: tuple[int, ...]
    """Of one input, as a model sees it."""
    outputs: int
    """How many outputs every model has."""
    classes: int
    """How many classes the private data have: the first of the outputs."""
    public: int | None
    """How many rows the public set has; None where there is none."""
    server: str | None
    """The architecture of the server's model; None where it has none."""
    tokens: bool
    """Whether inputs are token ids, and not numbers."""
    feature_count: Callable[[str], int]
    """How many features the models of an architecture have: `feature_count("mlp")`. A `ModelError` if it has none."""
