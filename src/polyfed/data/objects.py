"""Data sets that are in memory already: arrays, tensors, and PyTorch data sets."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset, TensorDataset

from polyfed.data.arrays import Array
from polyfed.data.dataset import DataSet
from polyfed.data.oddities import column_notes, id_note, looks_like_id
from polyfed.data.storage import Draft
from polyfed.data.targets import CLASS_LABELS, LabelSource, Targets
from polyfed.errors import DataError

_CHANNELS = (1, 3)
LARGEST_ID = 2**31  # of tokens; more than any embedding has rows


def to_arrays(source: object) -> tuple[Array, Array | None]:
    """Inputs and labels of a pair (x, y), or of a map-style data set of such pairs."""
    if isinstance(source, TensorDataset):
        source = source.tensors
    if isinstance(source, tuple | list) and len(source) == 2:
        x, y = source
        return _inputs(x), None if y is None else _numpy(y)
    if isinstance(source, Dataset):
        return _walk(source)
    if isinstance(source, np.ndarray | torch.Tensor):
        raise DataError("inputs without labels: give a pair (x, y), or (x, None) for an unlabelled set")
    raise DataError(
        f"a {type(source).__name__} is not a data set: give a name, a path, (x, y) or a torch Dataset"
    )


def arrays_digest(x: Array, y: Array | None) -> str:
    """What identifies arrays in the cache: their contents."""
    digest = hashlib.blake2b(digest_size=16)
    for array in (x, y):
        if array is not None:
            digest.update(f"{array.dtype.str}{array.shape}".encode())
            digest.update(_bytes(array))
    return digest.hexdigest()


def draft_arrays(
    x: Array,
    y: Array | None,
    name: str,
    train: DataSet | None,
    *,
    part: bool = False,
    targets: Targets = CLASS_LABELS,
    tokens: bool = False,
) -> Draft:
    """Arrays as a data set: N×F numbers or token ids, or N×H×W or N×H×W×C images (uint8, or normalised floats)."""
    if x.ndim and len(x) == 0:
        raise DataError(f"{name}: there are no rows in it")
    if tokens and x.ndim != 2:
        raise DataError(f"{name}: token ids must be rows × positions, not an array of {x.ndim} dimensions")
    if x.ndim == 3:
        x = x[..., None]
    if x.ndim not in (2, 4):
        raise DataError(f"{name}: inputs must be N×features, N×height×width or 4-dimensional, not {x.ndim}-d")
    ids = _id_notes(x, name) if train is None and not tokens else ()
    if tokens:
        x = check_tokens(x, name, lambda row, column: f"row {row}, column {column}")
    elif x.ndim == 2 or x.dtype != np.uint8:
        x = check_features(x, name)
    if y is None:
        return Draft(name, x, None, (), notes=ids)
    y = _check_count(y, len(x), name)
    labels, classes = targets.read(
        LabelSource(values=y, where=name, known=train.classes if train else None, from_zero=True, part=part)
    )
    notes = () if train or y.ndim > 1 else _gaps(labels, classes, name)
    if train is None:
        notes += ids + targets.notes(labels, classes, name)
        if x.ndim == 2 and not tokens:
            numbers = [str(place) for place in range(x.shape[1])]
            notes += column_notes(x, labels, numbers, name, _left_out)
    return Draft(name, x, labels, classes, notes=notes)


def _id_notes(x: Array, name: str) -> tuple[str, ...]:
    if x.ndim != 2 or x.dtype.kind not in "iuf":
        return ()
    places = [place for place in range(x.shape[1]) if looks_like_id("", x[:, place])]
    return tuple(id_note(str(place), x[:, place], name, _left_out([place])) for place in places)


def _left_out(places: Sequence[int]) -> str:
    return f"leave {'it' if len(places) == 1 else 'them'} out of the inputs"


def _check_count(y: Array, rows: int, name: str) -> Array:
    """One label for each row, whatever a label is."""
    if y.ndim == 2 and y.shape[1] == 1:
        y = y[:, 0]
    if len(y.shape) == 0 or len(y) != rows or y.ndim > 2:
        raise DataError(
            f"{name}: {rows} inputs, but labels of shape {y.shape}; one label for each row is needed"
        )
    return y


def _gaps(labels: Array, classes: tuple[str, ...], name: str) -> tuple[str, ...]:
    if labels.dtype.kind == "f":
        return ()
    absent = [classes[number] for number in np.flatnonzero(np.bincount(labels, minlength=len(classes)) == 0)]
    if not absent:
        return ()
    shown = ", ".join(absent[:5]) + (", …" if len(absent) > 5 else "")
    return (
        f"{name}: no row has the label {shown}, but there are {len(classes)} classes, as the labels go from 0",
    )


def check_features(features: Array, where: str) -> Array:
    """Inputs as float32, or an error for numbers that are missing or infinite."""
    if features.dtype.kind not in "biuf":
        raise DataError(f"{where}: inputs must be numbers, not {features.dtype}")
    with np.errstate(over="ignore"):
        values = np.ascontiguousarray(features, dtype=np.float32)
    bad = ~np.isfinite(values)
    if bad.any():
        row, column, *_ = np.argwhere(bad)[0]
        first = f"row {row}, column {column}" if values.ndim == 2 else f"row {row}"
        raise DataError(
            f"{where}: {int(bad.sum())} values are missing (NaN), infinite or too large, the first in {first}: "
            "fill them in, or leave out what has them"
        )
    return values


def check_tokens(ids: Array, where: str, place: Callable[[int, int], str]) -> Array:
    """Token ids as int64, or an error for what is not a whole number from 0.

    place: says of a row and a column where that is.
    """
    if ids.dtype.kind not in "iuf":
        raise DataError(f"{where}: token ids must be whole numbers, not {ids.dtype}")
    with np.errstate(invalid="ignore"):
        wrong = (ids < 0) | (ids >= LARGEST_ID)
        if ids.dtype.kind == "f":
            wrong |= ~np.isfinite(ids) | (ids != np.floor(ids))
    if wrong.any():
        row, column = map(int, np.argwhere(wrong)[0])
        value = ids[row, column]
        lost = ids.dtype.kind == "f" and np.isnan(value)
        more = f" ({int(wrong.sum())} such values)" if wrong.sum() > 1 else ""
        raise DataError(
            f"{where}: {'a token id is missing' if lost else f'{value:g} is not a token id'} in"
            f" {place(row, column)}{more}: ids are whole numbers from 0"
        )
    return np.ascontiguousarray(ids, dtype=np.int64)


def channels_last(x: Array, *, channels_first: bool) -> Array:
    """Images with their channels at the end. Where the shape does not show it, `channels_first` decides."""
    if x.ndim != 4:
        return x
    first, last = x.shape[1] in _CHANNELS, x.shape[3] in _CHANNELS
    if first != last:
        channels_first = first
    return np.ascontiguousarray(x.transpose(0, 2, 3, 1)) if channels_first else x


def _inputs(x: object) -> Array:
    return channels_last(_numpy(x), channels_first=isinstance(x, torch.Tensor))


def _walk(source: Dataset[Any]) -> tuple[Array, Array]:
    if not hasattr(source, "__len__") or not hasattr(source, "__getitem__"):
        raise DataError(
            "a torch Dataset must be of the map style (with a length); an iterable one cannot be split"
        )
    items = [source[row] for row in range(len(source))]
    if not items:
        raise DataError("the torch Dataset has no items")
    if not all(isinstance(item, tuple | list) and len(item) == 2 for item in items):
        raise DataError("the items of a torch Dataset must be pairs (x, y)")
    first = items[0][0]
    inputs = [_numpy(x) for x, _ in items]
    row = _odd_one(inputs)
    if row is not None:
        raise DataError(
            f"the items differ in size ({inputs[0].shape} first, but item {row} is {inputs[row].shape}): "
            "resize them in the data set"
        )
    stacked = channels_last(np.stack(inputs), channels_first=isinstance(first, torch.Tensor))
    labels = [_numpy(y) for _, y in items]
    row = _odd_one(labels)
    if row is not None:
        raise DataError(
            f"the labels of the items differ in shape ({labels[0].shape} first, but item {row} has "
            f"{labels[row].shape}): give each one class number"
        )
    return stacked, np.stack(labels)


def _odd_one(arrays: Sequence[Array]) -> int | None:
    """The first array that has not the shape of the first."""
    return next((row for row, array in enumerate(arrays) if array.shape != arrays[0].shape), None)


def _numpy(values: object) -> Array:
    if isinstance(values, torch.Tensor):
        return values.detach().cpu().numpy()
    try:
        return np.asarray(values)
    except ValueError as error:
        raise DataError(f"a {type(values).__name__} of rows that differ in length is not an array") from error


def _bytes(array: Array) -> bytes | memoryview:
    if array.dtype.kind == "O":  # its own bytes are addresses
        return repr(array.tolist()).encode()
    return np.ascontiguousarray(array).data if array.dtype.kind in "biufc" else array.tobytes()
