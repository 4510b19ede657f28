"""Data sets that are in memory already: arrays, tensors, and PyTorch data sets."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset, TensorDataset

from polyfed.data.dataset import Array, DataSet
from polyfed.data.labels import encode_labels
from polyfed.data.storage import Draft
from polyfed.errors import DataError

_CHANNELS = (1, 3)


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
            digest.update(np.ascontiguousarray(array).tobytes() if array.dtype.kind == "O" else _bytes(array))
    return digest.hexdigest()


def draft_arrays(x: Array, y: Array | None, name: str, train: DataSet | None) -> Draft:
    """Arrays as a data set: N×F numbers, or N×H×W or N×H×W×C images (uint8, or normalised floats)."""
    if len(x) == 0:
        raise DataError(f"{name}: there are no rows in it")
    if x.ndim == 3:
        x = x[..., None]
    if x.ndim not in (2, 4):
        raise DataError(f"{name}: inputs must be N×features, N×height×width or 4-dimensional, not {x.ndim}-d")
    if x.ndim == 2 or x.dtype != np.uint8:
        x = check_features(x, name)
    if y is None:
        return Draft(name, x, None, ())
    if y.shape != (len(x),):
        raise DataError(
            f"{name}: {len(x)} inputs, but labels of shape {y.shape}; one label for each row is needed"
        )
    labels, classes = encode_labels(y, where=name, known=train.classes if train else None)
    return Draft(name, x, labels, classes)


def check_features(features: Array, where: str) -> Array:
    """Feature vectors as float32, or an error for numbers that are missing or infinite."""
    if features.dtype.kind not in "biuf":
        raise DataError(f"{where}: features must be numbers, not {features.dtype}")
    values = np.ascontiguousarray(features, dtype=np.float32)
    bad = ~np.isfinite(values)
    if bad.any():
        row = int(np.argwhere(bad)[0][0])
        raise DataError(
            f"{where}: {int(bad.sum())} values are missing (NaN) or infinite, the first in row {row}"
        )
    return values


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
    if len({array.shape for array in inputs}) > 1:
        raise DataError(f"the items differ in size ({inputs[0].shape} first): resize them in the data set")
    stacked = channels_last(np.stack(inputs), channels_first=isinstance(first, torch.Tensor))
    return stacked, np.array([y.item() if isinstance(y, torch.Tensor) else y for _, y in items])


def _numpy(values: object) -> Array:
    if isinstance(values, torch.Tensor):
        return values.detach().cpu().numpy()
    return np.asarray(values)


def _bytes(array: Array) -> bytes | memoryview:
    return np.ascontiguousarray(array).data if array.dtype.kind != "U" else array.tobytes()
