"""What the labels of a set are: one class for each row, a number, or several classes at once. How they are read.

Labels are arrays, and what they are shows in the array: class numbers (whole, one for each row), numbers (floats, one
for each row), or several classes (floats 0 and 1, rows × classes). Whatever has another form, such as a class for each
place of a row (whole, rows × places), is drawn without regard to its labels.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import numpy as np

from polyfed.data.arrays import Array, Ints
from polyfed.data.labels import Place, encode_labels, missing, one_hot_places, row_place, unknown_note
from polyfed.data.oddities import class_notes
from polyfed.errors import DataError

if TYPE_CHECKING:
    from polyfed.data.dataset import DataSet

LARGEST_NUMBER = 1e12  # that is learnt
MOST_ROUNDED = 1e-3  # of the numbers' deviation
ALIKE = 1e-12  # of the largest number: a smaller deviation is rounding, and the numbers are one
RANK_GROUPS = 10  # into so many groups, from low to high, rows are put that are labelled with numbers


def strata_of(labels: Array) -> Ints:
    """The group of each row, for draws and partitions that keep the groups' shares or spread them over clients.

    Of class numbers the classes; of numbers ten groups from low to high; of several classes at once the rarest that a
    row has, or none of them; of anything else one group for all.
    """
    if labels.ndim == 1 and labels.dtype.kind in "iu":
        return labels
    groups = np.zeros(len(labels), dtype=np.int64)
    if labels.ndim == 1 and len(labels):
        order = np.argsort(np.argsort(labels, kind="stable"), kind="stable")
        groups = (order * RANK_GROUPS // len(labels)).astype(np.int64)
    elif labels.ndim == 2 and labels.dtype.kind == "f":
        has = np.concatenate([labels > 0, np.ones((len(labels), 1), dtype=bool)], axis=1)
        often = np.append(has[:, :-1].sum(axis=0), len(labels) + 1)
        groups = np.where(has, often, np.inf).argmin(axis=1).astype(np.int64)
    return groups


def group_words(labels: Array, classes: Sequence[str]) -> tuple[str, ...]:
    """What to call each group of `strata_of`."""
    if labels.ndim == 1 and labels.dtype.kind in "iu":
        return tuple(classes)
    if labels.ndim == 1 and len(labels):
        groups = strata_of(labels)
        ends = [labels[groups == group].max(initial=labels.min()) for group in range(RANK_GROUPS)]
        return tuple(f"≤ {end:.4g}" for end in ends)
    return (*classes, "none") if labels.ndim == 2 and labels.dtype.kind == "f" else ("rows",)


@dataclass(frozen=True, kw_only=True)
class LabelSource:
    """Labels as they stand in a source, and what is known of them.

    values: one for each row, or rows × columns.
    where: the name of the set, or of the column in it, for messages.
    columns: the names of the label columns, where they are in a table.
    words: the class words of the source, if it has them.
    known: the classes of the training split, which a test split must keep.
    base, from_zero, like, part, place: see `encode_labels`.
    """

    values: Array
    where: str
    columns: tuple[str, ...] = ()
    words: Sequence[str] = ()
    known: Sequence[str] | None = None
    base: int = 0
    from_zero: bool = False
    like: Sequence[str] = ()
    part: bool = False
    place: Place = row_place


class Targets(Protocol):
    """A kind of labels."""

    kind: ClassVar[str]
    """Its name: sets are decoded once for each kind."""
    several_columns: ClassVar[bool]
    """Whether each class has a label column of its own."""

    def read(self, found: LabelSource) -> tuple[Array, tuple[str, ...]]:
        """The labels as an array, and the word for each output that is to be learnt."""

    def notes(self, labels: Array, classes: Sequence[str], where: str) -> tuple[str, ...]:
        """What looks odd in the labels of a training split, a line each."""

    def agreed(self, sets: Mapping[str, Sequence[DataSet]], listed: Sequence[str]) -> tuple[str, ...]:
        """The words that all clients agree on, in their order; a `DataError` that says who has what if they cannot.

        sets: of each client. listed: the words that were agreed on beforehand, if they were.
        """

    def meant(self, values: Sequence[Any], classes: Sequence[str]) -> list[Any]:
        """What the labels of new rows mean, as a model's answers are given; None for one that is not known."""


@dataclass(frozen=True)
class ClassLabels:
    """One class for each row."""

    kind: ClassVar[str] = "classes"
    several_columns: ClassVar[bool] = False

    def read(self, found: LabelSource) -> tuple[Array, tuple[str, ...]]:
        values, words = found.values, found.words
        if values.ndim == 2:
            values, words = one_hot_places(values, found.where)
        return encode_labels(
            values,
            words,
            where=found.where,
            known=found.known,
            base=found.base,
            from_zero=found.from_zero,
            like=found.like,
            part=found.part,
            place=found.place,
        )

    def notes(self, labels: Array, classes: Sequence[str], where: str) -> tuple[str, ...]:
        return unknown_note(classes, where) + class_notes(labels, classes, where)

    def agreed(self, sets: Mapping[str, Sequence[DataSet]], listed: Sequence[str]) -> tuple[str, ...]:
        from polyfed.data.agreement import common_classes, listed_classes  # noqa: PLC0415  (which needs data sets)

        return tuple(listed_classes(sets, listed) if listed else common_classes(sets))

    def meant(self, values: Sequence[Any], classes: Sequence[str]) -> list[Any]:
        return [_class_of(value, classes) for value in values]


@dataclass(frozen=True)
class NumberLabels:
    """A number for each row."""

    kind: ClassVar[str] = "numbers"
    several_columns: ClassVar[bool] = False

    def read(self, found: LabelSource) -> tuple[Array, tuple[str, ...]]:
        values = found.values[:, 0] if found.values.ndim == 2 and found.values.shape[1] == 1 else found.values
        if values.ndim != 1:
            raise DataError(
                f"{found.where}: labels of shape {values.shape}; one number for each row is needed"
            )
        numbers = _numbers(values, found)
        exact = np.asarray(values, dtype=np.float64)
        spread = exact.std() if exact.std() > ALIKE * np.abs(exact).max() else np.inf
        if np.abs(numbers - exact).max() > MOST_ROUNDED * spread:
            raise DataError(
                f"{found.where}: numbers from {exact.min():.10g} to {exact.max():.10g} have more digits than are"
                " learnt (32 bits): subtract a constant from them, such as the smallest"
            )
        return numbers, found.columns or ("value",)

    def notes(self, labels: Array, classes: Sequence[str], where: str) -> tuple[str, ...]:
        if len(np.unique(labels)) > 1:
            return ()
        return (f"{where}: every row has the number {labels[0]:g}, so that there is nothing to learn",)

    def agreed(self, sets: Mapping[str, Sequence[DataSet]], listed: Sequence[str]) -> tuple[str, ...]:
        if listed:
            raise DataError("data.classes lists classes, but numbers are learnt here: leave it out")
        return next(iter(sets.values()))[0].classes

    def meant(self, values: Sequence[Any], classes: Sequence[str]) -> list[Any]:
        return [_number_of(value) for value in values]


@dataclass(frozen=True)
class SeveralLabels:
    """Any number of classes for each row: a column of 0 and 1 for each class."""

    kind: ClassVar[str] = "several"
    several_columns: ClassVar[bool] = True

    def read(self, found: LabelSource) -> tuple[Array, tuple[str, ...]]:
        values = found.values
        if values.ndim != 2 or not values.shape[1]:
            raise DataError(
                f"{found.where}: {values.ndim}-dimensional labels; several classes at once are rows × classes of 0 and"
                " 1: name a column for each class, data.label: [first, second]"
            )
        titles = found.columns or tuple(map(str, range(values.shape[1])))
        named = [replace(found, where=f"{found.where}, column '{title}'") for title in titles]
        numbers = np.stack(
            [_numbers(column, each) for column, each in zip(values.T, named, strict=True)], axis=1
        )
        odd = np.argwhere((numbers != 0) & (numbers != 1))
        if odd.size:
            row, column = map(int, odd[0])
            where = named[column].where if found.columns else f"{found.where}, column {column}"
            raise DataError(
                f"{where}: {found.place(row)} has {values[row, column]}: write 1 where a row is of the class, and 0"
                " where it is not"
            )
        words = found.columns or tuple(map(str, found.words)) or tuple(map(str, range(values.shape[1])))
        if found.known is not None and list(words) != list(found.known):
            raise DataError(f"{found.where}: its classes are not those of the training split")
        return numbers, tuple(words)

    def notes(self, labels: Array, classes: Sequence[str], where: str) -> tuple[str, ...]:
        same = [word for word, column in zip(classes, labels.T, strict=True) if column.min() == column.max()]
        return tuple(
            f"{where}: all rows are alike in '{word}', so that nothing can be learnt of it" for word in same
        )

    def agreed(self, sets: Mapping[str, Sequence[DataSet]], listed: Sequence[str]) -> tuple[str, ...]:
        first_client = next(iter(sets))
        words = tuple(listed) or sets[first_client][0].classes
        for client, own in sets.items():
            for data in own:
                odd = sorted(set(words) ^ set(data.classes))
                if not odd:
                    continue
                which = "lacks" if odd[0] in words else "has"
                others = "data.classes" if listed else first_client
                named = "give all clients the same label columns (data.label)"
                if not data.label_columns:
                    named = "labels that are an array have no names: leave data.classes out, or give tables"
                raise DataError(f"{client} {which} the class '{odd[0]}', unlike {others}: {named}")
        return words

    def meant(self, values: Sequence[Any], classes: Sequence[str]) -> list[Any]:
        rows = ([_number_of(one) for one in row] for row in values)
        return [
            tuple(word for word, one in zip(classes, row, strict=True) if one) if set(row) <= {0, 1} else None
            for row in rows
        ]


CLASS_LABELS, NUMBER_LABELS, SEVERAL_LABELS = ClassLabels(), NumberLabels(), SeveralLabels()


def _numbers(values: Array, found: LabelSource) -> Array:
    """Labels as float32, or an error that says where one is none."""
    lost = np.flatnonzero(missing(values))
    if lost.size:
        more = f" ({lost.size} rows have none)" if lost.size > 1 else ""
        raise DataError(
            f"{found.where}: {found.place(int(lost[0]))} has no label{more}: fill it in, or leave the row out"
        )
    try:
        numbers = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError):
        row = next(row for row, value in enumerate(values.tolist()) if _number_of(value) is None)
        raise DataError(
            f"{found.where}: labels must be numbers, but {found.place(row)} has '{values[row]!s:.40}'; words are"
            " classes (task=classification), and of several at once each is a column of 0 and 1"
        ) from None
    with np.errstate(over="ignore"):
        small = numbers.astype(np.float32)
    bad = np.flatnonzero(~(np.abs(small) <= LARGEST_NUMBER))
    if bad.size:
        raise DataError(
            f"{found.where}: {found.place(int(bad[0]))} has {values[bad[0]]}; numbers that are learnt may be up to"
            f" {LARGEST_NUMBER:g}: give them in another unit"
        )
    return small


def _number_of(value: Any) -> float | None:
    try:
        number = float(value)
    except (TypeError, ValueError):
        return None
    return number if np.isfinite(number) else None


def _class_of(value: Any, classes: Sequence[str]) -> str | None:
    """The class that a label means: by its word; by its number, if words are not numbers; None if it is not known."""
    if hasattr(value, "item"):
        value = value.item()
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if str(value) in classes:
        return str(value)
    numbers = all(word.lstrip("-").isdecimal() for word in classes)
    return classes[value] if not numbers and isinstance(value, int) and 0 <= value < len(classes) else None
