"""Labels and other columns as integer codes, with the words for them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from polyfed.data.dataset import Array, Ints
from polyfed.errors import DataError

_MOST_CLASSES = 1000  # a label above this and above the number of rows: the column is not a label


def encode_labels(
    values: Array,
    words: Sequence[str] = (),
    *,
    where: str,
    known: Sequence[str] | None = None,
    base: int = 0,
) -> tuple[Ints, tuple[str, ...]]:
    """Class numbers from 0 and the word for each.

    values: whole numbers, or words, one for each row.
    words: the class words of the source, if it has them.
    where: the name of the set, for messages.
    known: the classes of the training split, which a test split must keep.
    base: the number of the first class in the source, where that is not 0; only used if 0 never occurs.
    """
    if values.dtype.kind in "USO":
        return _encode_words(values, where, known)
    labels = _whole_numbers(values, where)
    lowest, highest = int(labels.min()), int(labels.max())
    if lowest < 0:
        raise DataError(f"{where}: labels count from 0, but there is a label {lowest}")
    if base and lowest >= base:
        labels, highest = labels - base, highest - base
        words = words[base:] if len(words) == highest + 1 + base else words
    if known is not None:
        words = known
    if not words:
        if highest >= max(_MOST_CLASSES, len(labels)):
            raise DataError(f"{where}: a label of {highest} in {len(labels)} rows; is this the label column?")
        words = [str(number) for number in range(highest + 1)]
    if highest >= len(words):
        raise DataError(f"{where}: there is a label {highest}, but there are only {len(words)} classes")
    if known is None and len(words) < 2:
        raise DataError(f"{where}: all rows are of one class; at least two are needed to learn anything")
    return labels, tuple(words)


def encode_column(values: Array, known: Sequence[str] = ()) -> tuple[Ints, tuple[str, ...]]:
    """Codes of a further column and the word for each; the codes of `known` words are kept."""
    if values.dtype.kind in "iu":
        present, codes = np.unique(values, return_inverse=True)  # numbers sort as numbers
        texts = [str(value) for value in present]
    else:
        present, codes = np.unique(values.astype(str), return_inverse=True)
        texts = present.tolist()
    words = [*known, *(text for text in texts if text not in set(known))]
    place = {word: code for code, word in enumerate(words)}
    new_codes = np.array([place[text] for text in texts], dtype=np.int64)
    return new_codes[codes.reshape(-1)], tuple(words)


def _encode_words(values: Array, where: str, known: Sequence[str] | None) -> tuple[Ints, tuple[str, ...]]:
    if values.dtype.kind == "O" and any(value is None for value in values):
        raise DataError(f"{where}: some rows have no label")
    present, codes = np.unique(values.astype(str), return_inverse=True)
    words = present.tolist() if known is None else list(known)
    unknown = sorted(set(present.tolist()) - set(words))
    if unknown:
        raise DataError(f"{where}: the label '{unknown[0]}' does not occur in the training split")
    if known is None and len(words) < 2:
        raise DataError(f"{where}: all rows are of one class; at least two are needed to learn anything")
    place = {word: code for code, word in enumerate(words)}
    new_codes = np.array([place[word] for word in present.tolist()], dtype=np.int64)
    return new_codes[codes.reshape(-1)], tuple(words)


def _whole_numbers(values: Array, where: str) -> Ints:
    if values.dtype.kind not in "biuf":
        raise DataError(f"{where}: labels must be whole numbers or words, not {values.dtype}")
    if values.dtype.kind == "f":
        odd = values[~np.isfinite(values) | (values != np.floor(values))]
        if odd.size:
            raise DataError(f"{where}: labels must be whole numbers, but there is {odd[0]}")
    return values.astype(np.int64)
