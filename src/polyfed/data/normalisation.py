"""Mean and spread of inputs, by which they are normalised."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from polyfed.data.arrays import Array, Ints
from polyfed.data.dataset import is_tokens

_CHUNK = 4096  # rows looked at together, so that a set larger than memory passes through


Constants: TypeAlias = tuple[tuple[float, ...], tuple[float, ...]]
"""Mean and standard deviation per channel (of uint8 images, scaled to 0..1) or per feature."""


def normalisation(inputs: Array, rows: Ints | None = None) -> Constants:
    """Mean and standard deviation of all inputs, or of these rows.

    A constant channel or feature has deviation 1. Float images are taken as normalised already, and token ids are not
    normalised: mean 0, deviation 1.
    """
    return pooled([moments(inputs, rows)])


def no_normalisation(width: int) -> Constants:
    """Constants that leave inputs of so many channels or features as they are (images of 8 bits: from 0 to 1)."""
    return (0.0,) * width, (1.0,) * width


@dataclass(frozen=True, eq=False)
class Moments:
    """How many rows there are, and the mean and variance of each channel or feature over them."""

    rows: int
    mean: Array
    variance: Array


def moments(inputs: Array, rows: Ints | None = None) -> Moments:
    """Of all inputs, or of these rows; what an owner tells of its data where all are normalised alike."""
    rows = np.arange(len(inputs)) if rows is None else rows
    if is_tokens(inputs) or (inputs.ndim == 4 and inputs.dtype != np.uint8):
        mean, variance = np.zeros(inputs.shape[-1]), np.ones(inputs.shape[-1])
    else:
        mean, variance = _of_images(inputs, rows) if inputs.ndim == 4 else _of_features(inputs[rows])
    return Moments(len(rows), mean, variance)


def pooled(parts: Sequence[Moments]) -> Constants:
    """The constants of several owners' rows together."""
    mean, variance = parts[0].mean, parts[0].variance
    if len(parts) > 1:
        shares = np.array([part.rows for part in parts])[:, None] / sum(part.rows for part in parts)
        means = np.stack([part.mean for part in parts])
        mean = (shares * means).sum(axis=0)
        within = np.stack([part.variance for part in parts])
        variance = (shares * (within + (means - mean) ** 2)).sum(axis=0)
    std = np.sqrt(variance)
    return tuple(mean.tolist()), tuple(np.where(std > 1e-12, std, 1.0).tolist())


def _of_images(inputs: Array, rows: Ints) -> tuple[Array, Array]:
    # Counting the 256 levels is exact, whatever the number of pixels.
    counts = np.zeros((inputs.shape[-1], 256), dtype=np.int64)  # channels × levels
    for start in range(0, len(rows), _CHUNK):
        part = inputs[rows[start : start + _CHUNK]]
        for channel in range(inputs.shape[-1]):
            counts[channel] += np.bincount(part[..., channel].ravel(), minlength=256)
    levels = np.arange(256) / 255
    total = counts.sum(axis=1)
    mean = counts @ levels / total
    variance = counts @ levels**2 / total - mean**2
    return mean, np.maximum(variance, 0)


def _of_features(inputs: Array) -> tuple[Array, Array]:
    values = np.asarray(inputs, dtype=np.float64)
    return values.mean(axis=0), values.var(axis=0)
