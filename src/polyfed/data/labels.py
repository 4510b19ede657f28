"""Labels and other columns as integer codes, with the words for them."""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Callable, Sequence
from decimal import Decimal
from numbers import Integral, Number, Real
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from polyfed.data.arrays import Array, Ints
from polyfed.errors import DataError

Place: TypeAlias = Callable[[int], str]  # what to call a row in a message

_MOST_CLASSES = 1000  # a label above this and above the number of rows: the column is not a label
_FEW_CLASSES = 20  # so many labels may each have one or two rows
_FEW_ROWS = 5  # per class: with more, any numbers are taken as classes
_SINGLE = 0.25  # the share of classes with one row, from which on sparse numbers are taken for quantities
_SPARSE = 0.7  # class numbers fill their range; of 200 classes, 350 rows drawn at random still have 0.8
_DECIMAL = re.compile(r"(?P<whole>[+-]?(0|[1-9]\d*))[.,](?P<fraction>\d+)")
_BINS = "name another label column, set task=regression to learn numbers, or put the numbers into bins"


def row_place(row: int) -> str:
    """What to call a row where there is nothing better, such as the line of a file."""
    return f"row {row}"


def encode_labels(
    values: Array,
    words: Sequence[str] = (),
    *,
    where: str,
    known: Sequence[str] | None = None,
    base: int = 0,
    from_zero: bool = False,
    like: Sequence[str] = (),
    part: bool = False,
    place: Place = row_place,
) -> tuple[Ints, tuple[str, ...]]:
    """Class numbers from 0 and the word for each: the values that occur, in their order.

    values: whole numbers, or words, one for each row.
    words: the class words of the source, if it has them; then the values are places in this list.
    where: the name of the set, for messages.
    known: the classes of the training split, which a test split must keep.
    base: the number of the first class in the source, where that is not 0; only used if 0 never occurs.
    from_zero: numbers that begin at 0 are the classes' own numbers, as PyTorch has them; those that do not occur
        are classes too.
    like: the classes of another set; numbers that all occur there have the same class numbers here.
    part: these are one client's rows. Their classes are words, however they are written elsewhere: 07 is not 7, but 1.0
        is 1. They may be of one class, and a test split may have classes that the training split has not.
    """
    lost = np.flatnonzero(missing(values))
    if lost.size:
        more = f" ({lost.size} rows have none)" if lost.size > 1 else ""
        raise DataError(f"{where}: {place(lost[0])} has no label{more}: fill it in, or leave the row out")
    if part and not words:
        return _encode(_words_of(values, where, place), where, known, part)
    if values.dtype.kind in "USO":
        odd = next((value for value in values.tolist() if not isinstance(value, str | Number)), None)
        if odd is not None:
            raise DataError(f"{where}: labels must be whole numbers or words, not {type(odd).__name__}")
        broken = next((row for row, value in enumerate(values.tolist()) if _is_fraction(value)), None)
        if broken is not None:
            raise _not_whole(values.astype(str), broken, where, place)
        return _encode(values.astype(str), where, known, part)
    labels = _whole_numbers(values, where, place)
    if not words and known is not None and all(map(is_whole, known)):
        return _encode(labels, where, known, part)
    if words or known is not None or (from_zero and labels.min() == 0):
        return _places(labels, words if known is None or part else known, where, base, place)
    shared = all(map(is_whole, like)) and {str(label) for label in np.unique(labels)} <= set(like)
    return _encode(labels, where, like if shared else None, part)


def one_hot_places(values: Array, where: str) -> tuple[Array, list[str]]:
    """Labels that are one-hot as the places of their ones, with a word for each place."""
    ones = values.dtype.kind in "biuf" and ((values == 0) | (values == 1)).all(axis=1) & (
        values.sum(axis=1) == 1
    )
    if not np.all(ones):
        row = int(np.argmin(ones))
        raise DataError(
            f"{where}: labels of shape {values.shape} must be one-hot, a single 1 in each row, but row {row} is not; "
            "give one class number for each row instead, or set task=multilabel where a row has several classes"
        )
    return values.argmax(axis=1), [str(number) for number in range(values.shape[1])]


def missing(values: Array) -> npt.NDArray[np.bool_]:
    """Where nothing is: None, NaN, a text without a letter."""
    if values.dtype.kind in "USO":
        return np.array([_is_nothing(value) for value in values.tolist()], dtype=bool)
    if values.dtype.kind in "mM":
        return np.isnat(values)
    return np.isnan(values) if values.dtype.kind == "f" else np.zeros(len(values), dtype=bool)


def encode_column(values: Array, known: Sequence[str] = ()) -> tuple[Ints, tuple[str, ...]]:
    """Codes of a further column and the word for each; the codes of `known` words are kept."""
    if values.dtype.kind in "iu":
        present, codes = np.unique(values, return_inverse=True)  # numbers sort as numbers
        texts = [str(value) for value in present]
    else:
        present, codes = np.unique(values.astype(str), return_inverse=True)
        texts = present.tolist()
    words = [*known, *(text for text in texts if text not in set(known))]
    return _placed(texts, codes, words), tuple(words)


def unknown_note(classes: Sequence[str], where: str) -> tuple[str, ...]:
    """A line for the label -1 beside others than 1: there it often stands for what is not known."""
    if len(classes) < 3 or classes[0] != "-1":
        return ()
    return (
        f"{where}: the label -1 is a class like the others; if it stands for unknown, leave its rows out",
    )


def _encode(
    values: Array, where: str, known: Sequence[str] | None, part: bool
) -> tuple[Ints, tuple[str, ...]]:
    """Every value that occurs is a class; in a test split, those that the training split has."""
    present, codes = np.unique(values, return_inverse=True)  # numbers sort as numbers
    texts = [str(value) for value in present]
    words = texts if known is None else list(known)
    unknown = [text for text in texts if text not in set(words)]
    if unknown and not part:
        raise DataError(f"{where}: the label '{unknown[0]}' does not occur in the training split")
    words += unknown
    if known is None and not part:  # of a client's part nothing can be told from how many classes it has
        _check_classes(values, where)
    return _placed(texts, codes, words), tuple(words)


def _places(
    labels: Ints, words: Sequence[str], where: str, base: int, place: Place
) -> tuple[Ints, tuple[str, ...]]:
    """Labels that are places in the list of class words; without one, numbers from 0."""
    lowest, highest = int(labels.min()), int(labels.max())
    if lowest < 0:
        raise DataError(f"{where}: classes count from 0, but {place(int(labels.argmin()))} has {lowest}")
    if base and lowest >= base:
        labels, highest = labels - base, highest - base
        words = words[base:] if len(words) == highest + 1 + base else words
    if not words:
        if highest >= max(_MOST_CLASSES, len(labels)):
            raise DataError(f"{where}: a label of {highest} in {len(labels)} rows; is this the label column?")
        words = [str(number) for number in range(highest + 1)]
        _check_classes(labels, where)
    if highest >= len(words):
        raise DataError(f"{where}: there is a label {highest}, but there are only {len(words)} classes")
    if len(words) < 2:
        _check_classes(labels, where)
    return labels, tuple(words)


def _words_of(values: Array, where: str, place: Place) -> Array:
    """Labels as words that are the same whatever file they stand in."""
    if values.dtype.kind not in "USO":
        return _whole_numbers(values, where, place).astype(str)
    found = []
    for row, value in enumerate(values.tolist()):
        if not isinstance(value, str | Number):
            raise DataError(f"{where}: labels must be whole numbers or words, not {type(value).__name__}")
        text = unicodedata.normalize("NFC", str(value).strip())
        number = _DECIMAL.fullmatch(text)
        if number is not None and number["fraction"].strip("0"):
            raise _not_whole(values.astype(str), row, where, place)
        found.append(text if number is None else number["whole"])
    return np.array(found, dtype=str)


def _check_classes(values: Array, where: str) -> None:
    """Refuse values that cannot be meant as classes: one, about as many as rows, or quantities."""
    present, counts = np.unique(values, return_counts=True)
    classes, rows = len(present), len(values)
    if classes < 2:
        raise DataError(f"{where}: all rows are of one class; at least two are needed to learn anything")
    if classes <= _FEW_CLASSES:
        return
    told = f"{where}: {classes} different labels in {rows} rows; is this the label column?"
    if classes > rows / 2:
        advice = _BINS if _are_numbers(present) else "polyfed learns classes, and a class needs several rows"
        raise DataError(f"{told} {advice}")
    if classes > rows / _FEW_ROWS and (counts == 1).mean() >= _SINGLE and _are_quantities(present):
        raise DataError(
            f"{told} {_BINS}; if they are the names of classes, write them with a letter, such as c12"
        )


def _are_numbers(present: Array) -> bool:
    return present.dtype.kind not in "USO" or None not in map(_as_number, present.tolist())


def _are_quantities(present: Array) -> bool:
    """Whether values are rather quantities than numbers of classes: fractions, or with gaps between them."""
    if present.dtype.kind in "USO":  # whole numbers that are given as texts were meant as names
        return _are_numbers(present) and not all(map(is_whole, present.tolist()))
    return len(present) < _SPARSE * (int(present[-1]) - int(present[0]) + 1)


def _as_number(text: str) -> float | None:
    try:
        return float(text.replace(",", "."))
    except ValueError:
        return None


def _placed(texts: Sequence[str], codes: Ints, words: Sequence[str]) -> Ints:
    """The place of each row's text in the list of words."""
    place = {word: code for code, word in enumerate(words)}
    new_codes = np.array([place[text] for text in texts], dtype=np.int64)
    return np.asarray(new_codes[codes.reshape(-1)])


def _whole_numbers(values: Array, where: str, place: Place) -> Ints:
    if values.dtype.kind not in "biuf":
        raise DataError(f"{where}: labels must be whole numbers or words, not {values.dtype}")
    if values.dtype.kind == "f":
        odd = np.flatnonzero(~(np.abs(values) < 2**53) | (values != np.floor(values)))
        if odd.size:
            raise _not_whole(values, odd[0], where, place)
    return values.astype(np.int64)


def _is_fraction(value: object) -> bool:
    """Whether an object is a number, but no whole one."""
    return isinstance(value, Real | Decimal) and not isinstance(value, Integral) and float(value) % 1 != 0


def _not_whole(values: Array, row: int, where: str, place: Place) -> DataError:
    return DataError(
        f"{where}: labels must be whole numbers or words, but {place(row)} has {values[row]} "
        f"({len(np.unique(values))} different labels in {len(values)} rows); {_BINS}"
    )


def _is_nothing(value: object) -> bool:
    if isinstance(value, str):
        return not value.strip()
    if isinstance(value, float):
        return math.isnan(value)
    return value is None or type(value).__name__ in ("NAType", "NaTType")  # pandas' own, without importing it


def is_whole(word: str) -> bool:
    """Whether a class word is a whole number."""
    return re.fullmatch(r"-?\d+", word) is not None
