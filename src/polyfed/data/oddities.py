"""What looks odd in data that can be read: a line for each, which every set-up warns of.

What cannot be meant is refused where it is read. Here is what may be meant: a warning says what to set if it is not.
"""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import TypeAlias

import numpy as np

from polyfed.data.arrays import Array, Ints

LeftOut: TypeAlias = Callable[
    [Sequence[int]], str
]  # how to leave columns out, by their places: `data.drop: [a]`

_SHOWN = 5  # names in a line
_NAME = 40  # letters of a class's word
_FEW_ROWS = 10  # fewer may look odd by chance
_SAMPLE = 500  # rows that are looked at first: most columns need no more
_FINER = 5  # times as many values as classes, or classes as values: another form of the label; more is a measurement
_ID_NAME = re.compile(r"(?i:(^|[_\W])(id|uuid|guid|nr|no|number|key)$)|[a-z]I[dD]$")
_CHUNK = 4096
_COPIES = 0.01  # the share of test rows that may be training rows


def listed(names: Sequence[str]) -> str:
    """Some names, the first few of them."""
    return ", ".join(names[:_SHOWN]) + (", …" if names[_SHOWN:] else "")


# -- columns of numbers ----------------------------------------------------------------------------------------


def column_notes(
    inputs: Array, labels: Array | None, names: Sequence[str], where: str, left_out: LeftOut
) -> tuple[str, ...]:
    """Lines on columns that say nothing, or that say the label.

    inputs: rows × columns.
    labels: if there are any; only class numbers are looked at.
    names: what to call each column.
    left_out: what to set so that columns are not learnt from.
    """
    if len(inputs) < 2:
        return ()
    notes = []
    constant = _constant(inputs)
    if constant:
        called = ", ".join(names[place] for place in constant[:_SHOWN])
        more = f" and {len(constant) - _SHOWN} more" if constant[_SHOWN:] else ""
        columns = f"columns {called}{more} have" if len(constant) > 1 else f"column {called} has"
        notes.append(
            f"{where}: {columns} the same value in every row, so that nothing can be learnt from "
            f"{'them' if len(constant) > 1 else 'it'}: {left_out(constant)}"
        )
    if labels is not None and labels.ndim == 1 and labels.dtype.kind == "i" and len(inputs) >= _FEW_ROWS:
        for place in _like_labels(inputs, labels, set(constant)):
            notes.append(
                f"{where}: column {names[place]} tells the label (rows of one value there have one class, or rows of "
                f"one class one value): if it is another form of the label, {left_out([place])}"
            )
    return tuple(notes)


def looks_like_id(name: str, numbers: Array) -> bool:
    """Whether a column of numbers only tells the rows apart: whole numbers that count up or down, or whose name is one
    of an id and which hardly repeat."""
    if len(numbers) < _FEW_ROWS or not np.isfinite(numbers).all() or (numbers != np.floor(numbers)).any():
        return False
    steps = np.diff(numbers)
    if (steps > 0).all() or (steps < 0).all():
        return True
    return _ID_NAME.search(name) is not None and len(np.unique(numbers)) > len(numbers) / 2


def id_note(name: str, numbers: Array, where: str, left_out: str) -> str:
    """The line on a column that looks like an id."""
    return (
        f"{where}: column {name} looks like an id ({len(np.unique(numbers))} different whole numbers in {len(numbers)} "
        f"rows), and it is learnt from: {left_out}"
    )


def _constant(inputs: Array) -> list[int]:
    places = np.arange(inputs.shape[1])
    for start in range(0, len(inputs), _CHUNK):
        same = (inputs[start : start + _CHUNK, places] == inputs[0, places]).all(axis=0)
        places = places[same]
        if not places.size:
            break
    return [int(place) for place in places]


def _like_labels(inputs: Array, labels: Ints, without: set[int]) -> Iterator[int]:
    """The columns that are the label in other numbers, or a finer or coarser form of it."""
    classes = len(np.unique(labels))
    if classes < 2 or len(labels) < 3 * classes:
        return  # of a class with a row or two every column looks like a name
    some = np.linspace(0, len(labels) - 1, min(len(labels), _SAMPLE)).astype(int)
    for place in range(inputs.shape[1]):
        if place not in without and any(_goes_with(inputs[some, place], labels[some])):
            column = inputs[:, place]
            values, (finer, coarser) = len(np.unique(column)), _goes_with(column, labels)
            # That all of a class have milk, and no others, is a fact of nature: two values tell no more than that.
            if (finer and values <= min(_FINER * classes, len(labels) / 2)) or (
                coarser and values >= max(3, classes / _FINER)
            ):
                yield place


def _goes_with(column: Array, labels: Ints) -> tuple[bool, bool]:
    """Whether each value belongs to one class alone; and whether each class has one value alone."""
    values, codes = np.unique(column, return_inverse=True)
    pairs = len(np.unique(codes.reshape(-1) * (int(labels.max()) + 1) + labels))
    return pairs == len(values), pairs == len(np.unique(labels))


# -- classes ---------------------------------------------------------------------------------------------------


def class_notes(labels: Ints, classes: Sequence[str], where: str) -> tuple[str, ...]:
    """Lines on classes that look alike, and on those that hardly occur."""
    notes = [*alike_notes(classes, where)]
    counts = np.bincount(labels, minlength=len(classes))
    single = [f"'{word[:_NAME]}'" for word, count in zip(classes, counts, strict=True) if count == 1]
    if single and len(labels) >= _FEW_ROWS * 2:
        quantity = (
            all(re.fullmatch(r"-?\d+(\.\d+)?", word) for word in classes) and len(classes) > 2 * _FEW_ROWS
        )
        advice = "; if the label is a quantity, put it into bins: classes are learnt" if quantity else ""
        notes.append(
            f"{where}: {len(single)} of {len(classes)} classes {'have' if len(single) > 1 else 'has'} a single row "
            f"({listed(single)}), which cannot be both learnt from and tested on{advice}"
        )
    return tuple(notes)


def alike_notes(classes: Sequence[str], where: str) -> tuple[str, ...]:
    """Lines on classes whose words differ in spaces or capitals alone."""
    alike = defaultdict(list)
    for word in classes:
        if len(word) > 1:  # A and a are two letters
            alike[" ".join(word.split()).casefold()].append(f"'{word[:_NAME]}'")
    return tuple(
        f"{where}: {listed(words)} are {len(words)} classes, and look like one: write them alike if they are"
        for words in [words for words in alike.values() if len(words) > 1][:_SHOWN]
    )


# -- test rows -------------------------------------------------------------------------------------------------


def copy_notes(test: Array, train: Array, where: str) -> tuple[str, ...]:
    """A line on test rows that are training rows as well, if there are more of them than by chance.

    Rows of a few whole numbers repeat by chance: as many test rows may be training rows as training rows are each
    other's copies.
    """
    trained = Counter(row_hashes(train))
    twins = sum(count for count in trained.values() if count > 1) / len(train)
    copies = sum(row in trained for row in row_hashes(test))
    if copies / len(test) <= _COPIES + twins + 3 * math.sqrt(twins / len(test)):
        return ()
    return (
        f"{where}: {copies} of {len(test)} test rows are training rows as well, so that scores say too much: "
        "leave them out of one of the two",
    )


def row_hashes(inputs: Array) -> Iterator[int]:
    """A number for each row, equal for equal rows."""
    for start in range(0, len(inputs), _CHUNK):
        yield from (hash(row.tobytes()) for row in np.asarray(inputs[start : start + _CHUNK]))
