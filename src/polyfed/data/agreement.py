"""What clients that bring their own data agree on: what a row is, and the classes in their order.

Columns and classes are told apart by their names, never by their places. Whatever does not fit together is refused,
with who has what.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np

from polyfed.data.dataset import DataSet, Mode
from polyfed.data.labels import is_whole
from polyfed.data.normalisation import Constants, no_normalisation
from polyfed.data.targets import CLASS_LABELS, Targets
from polyfed.errors import DataError

Value = TypeVar("Value")

_SHOWN = 8  # names in a message; of more only the first
_FEW_CLASSES = 20  # so many classes may there be, however few rows


@dataclass(frozen=True, kw_only=True)
class Agreement:
    """What the rows of all clients of a federation have in common.

    shape: of one row as it is read: (features,), or (height, width, channels) of an image.
    features: the names of the columns, in their order; none for images and arrays.
    scaled: images are 8-bit and are scaled; those that are not were given as normalised floats.
    classes: the word for each class, in their order; where numbers are learnt, what they are called.
    label_columns, image: the columns with labels, and that with images, where they are known.
    largest_id: where rows are token ids, the largest of all; None where they are numbers.
    """

    shape: tuple[int, ...]
    features: tuple[str, ...]
    scaled: bool
    classes: tuple[str, ...]
    label_columns: tuple[str, ...] = ()
    image: str | None = None
    largest_id: int | None = None

    @property
    def is_tokens(self) -> bool:
        return self.largest_id is not None

    @property
    def is_image(self) -> bool:
        return len(self.shape) == 3

    @property
    def model_shape(self) -> tuple[int, ...]:
        """The shape of one input as a model sees it: (C, H, W) or (F,)."""
        *sides, channels = self.shape
        return (channels, *sides)

    @property
    def mode(self) -> Mode | None:
        """Grey or colour; None for images of other channels, which are in no files."""
        modes: dict[int, Mode] = {1: "L", 3: "RGB"}
        return modes.get(self.shape[-1])

    def told(self) -> str:
        """What a row is, in words."""
        if not self.is_image:
            return f"{self.shape[0]} {'token ids' if self.is_tokens else 'numbers'}"
        height, width, channels = self.shape
        kind = "8-bit images" if self.scaled else "images as normalised floats,"
        return f"{kind} of {height}×{width} with {channels} channel{'s' if channels > 1 else ''}"


def agreement_of(data: DataSet, image: str | None = None) -> Agreement:
    """What the rows of one data set have in common."""
    return Agreement(
        shape=tuple(data.inputs.shape[1:]),
        features=data.features,
        scaled=data.is_image and data.inputs.dtype == np.uint8,
        classes=data.classes,
        label_columns=data.label_columns,
        image=image,
        largest_id=data.largest_id,
    )


def with_ids_of(agreement: Agreement, sets: Iterable[DataSet | None]) -> Agreement:
    """The same agreement, where the rows of further sets are token ids too: the largest id is the largest of all."""
    if agreement.largest_id is None:
        return agreement
    largest = max(agreement.largest_id, *(data.largest_id or 0 for data in sets if data is not None), 0)
    return replace(agreement, largest_id=largest)


def template(agreement: Agreement, constants: Constants | None = None) -> DataSet:
    """A set of no rows that is as was agreed on: for what is to be like it.

    constants: by what all rows are normalised; where each client has its own, 0 and 1 of a pixel become −2 and 2.
    """
    width = agreement.shape[-1]
    mean, std = constants or (
        ((0.5,) * width, (0.25,) * width) if agreement.scaled else no_normalisation(width)
    )
    return DataSet(
        name="the clients' data",
        inputs=np.empty((0, *agreement.shape), _input_type(agreement)),
        labels=np.empty(0, np.int64),
        classes=agreement.classes,
        mean=mean,
        std=std,
        fingerprint="",
        features=agreement.features,
        label_columns=agreement.label_columns,
    )


def _input_type(agreement: Agreement) -> type[np.generic]:
    if agreement.is_tokens:
        return np.int64
    return np.uint8 if agreement.scaled else np.float32


def agree(
    sets: Mapping[str, Sequence[DataSet]],
    classes: Sequence[str] = (),
    image: str | None = None,
    targets: Targets = CLASS_LABELS,
) -> Agreement:
    """What clients agree on, by what each of them has; a `DataError` that says who has what if they cannot.

    sets: the data sets of each client, for training and, where there is one, for testing. Columns are in the order of
        the first client's.
    classes: the agreed classes, in their order; where not given, all that occur, if the clients' classes overlap.
    image: the column with images, where that is said.
    targets: what labels are.
    """
    own = {name: agreement_of(each[0]) for name, each in sets.items()}
    first = next(iter(own.values()))
    _same("rows", {name: _kind(each) for name, each in own.items()}, str, "bring rows of one kind")
    _check_columns({name: each.features for name, each in own.items()})
    _same("rows", {name: each.told() for name, each in own.items()}, str, _remedy(list(own.values())))
    labels = {name: each.label_columns for name, each in own.items() if each.label_columns}
    if labels and not targets.several_columns:
        _same(
            "label columns", labels, lambda columns: f"'{columns[0]}'", "set data.label to one that all have"
        )
    return Agreement(
        shape=first.shape,
        features=first.features,
        scaled=first.scaled,
        classes=targets.agreed(sets, classes),
        label_columns=next(iter(labels.values()), ()),
        image=image,
        largest_id=max((data.largest_id or 0 for each in sets.values() for data in each), default=0)
        if first.is_tokens
        else None,
    )


def _remedy(own: Sequence[Agreement]) -> str:
    """What to do where rows are not of one shape."""
    if not own[0].is_image:
        return "pad or cut all to one length" if own[0].is_tokens else "give all the same columns"
    if len({each.shape[-1] for each in own}) > 1:
        return "make all of them grey, or all colour"
    return "set data.size for images of one size, or bring arrays to one size"


def _kind(own: Agreement) -> str:
    if own.is_image:
        return "8-bit images" if own.scaled else "images as floats"
    if own.is_tokens:
        return "token ids in columns with names" if own.features else "token ids"
    return "columns with names" if own.features else "numbers without names"


def _check_columns(columns: Mapping[str, Sequence[str]]) -> None:
    """Refuse columns that not all clients have."""
    for column in dict.fromkeys(name for own in columns.values() for name in own):
        lacking = [client for client, own in columns.items() if column not in own]
        if lacking:
            having = [client for client, own in columns.items() if column in own]
            raise DataError(
                f"{_listed(having)} {_have(having)} a column '{column}' to learn from, {_listed(lacking)}"
                f" {_have(lacking)} not: add it there, or leave it out everywhere (data.drop: [{column}])"
            )


def listed_classes(sets: Mapping[str, Sequence[DataSet]], listed: Sequence[str]) -> Sequence[str]:
    """The classes that were agreed on beforehand, if no row is of another one."""
    for client, own in sets.items():
        for data in own:
            for number in np.unique(data.need_labels()):
                word = data.classes[number - data.first_class]
                if word not in listed:
                    raise DataError(
                        f"{client} has rows of the class '{word}', which data.classes does not list"
                        f" ({_listed(listed)})"
                    )
    return listed


def common_classes(sets: Mapping[str, Sequence[DataSet]]) -> Sequence[str]:
    """All classes of all clients, if those of each overlap with another's."""
    words = {client: {word for data in own for word in data.need_classes()} for client, own in sets.items()}
    groups = _overlapping(words)
    if len(groups) > 1:
        told = "; ".join(f"{_listed(group)}: {_listed(_union(words, group))}" for group in groups)
        raise DataError(
            f"the clients' classes have nothing in common ({told}): if they mean the same, write them alike; if they"
            " are different classes, list all of them in data.classes"
        )
    union = _union(words, words)
    _check_tested(sets)
    rows = sum(len(data) for own in sets.values() for data in own)
    if len(union) > max(_FEW_CLASSES, rows / 2):
        raise DataError(
            f"{len(union)} different labels in {rows} rows of all clients; is this the label column?"
        )
    if len(union) < 2:
        raise DataError(
            f"all rows of all clients are of one class ({union[0]}): at least two are needed to learn anything, list"
            " them in data.classes"
        )
    return union


def _check_tested(sets: Mapping[str, Sequence[DataSet]]) -> None:
    """Refuse test rows of a class that nobody can learn: it is rather written in another way."""
    trained = {word for own in sets.values() for word in own[0].need_classes()}
    for client, own in sets.items():
        unknown = [word for data in own[1:] for word in data.need_classes() if word not in trained]
        if unknown:
            raise DataError(
                f"{client} has test rows of the class '{unknown[0]}', of which nobody has training rows"
                f" ({_listed(sorted(trained))}): write classes alike, or list all of them in data.classes"
            )


def _overlapping(words: Mapping[str, Collection[str]]) -> list[list[str]]:
    """Clients in groups: within one, each is connected with the others by classes that they share."""
    groups: list[tuple[list[str], set[str]]] = []
    for client, own in words.items():
        near = [group for group in groups if group[1] & set(own)]
        groups = [group for group in groups if group not in near]
        members = [name for group in near for name in group[0]]
        groups.append(([*members, client], set(own).union(*(group[1] for group in near))))
    return [members for members, _ in groups]


def _union(words: Mapping[str, Collection[str]], clients: Iterable[str]) -> list[str]:
    """All classes of these clients; numbers in the order of numbers."""
    found = {word for client in clients for word in words[client]}
    return sorted(found, key=int if all(map(is_whole, found)) else str)


def _same(what: str, of: Mapping[str, Value], shown: Callable[[Value], str], remedy: str) -> None:
    """Refuse clients of which not all have the same."""
    groups: dict[Any, list[str]] = {}
    for client, value in of.items():
        groups.setdefault(value, []).append(client)
    if len(groups) > 1:
        told = "; ".join(f"{_listed(clients)}: {shown(value)}" for value, clients in groups.items())
        raise DataError(f"the clients have different {what} ({told}): {remedy}")


def _have(clients: Sequence[str]) -> str:
    return "has" if len(clients) == 1 else "have"


def _listed(words: Sequence[str]) -> str:
    more = len(words) - _SHOWN
    return ", ".join(words[:_SHOWN]) + (f" and {more} more" if more > 0 else "")
