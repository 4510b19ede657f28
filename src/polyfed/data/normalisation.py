"""Mean and spread of inputs, by which they are normalised."""

from __future__ import annotations

import numpy as np

from polyfed.data.dataset import Array

_CHUNK = 4096  # rows looked at together, so that a set larger than memory passes through


def normalisation(inputs: Array) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation per channel (of uint8 images, scaled to 0..1) or per feature.

    A constant channel or feature has deviation 1. Float images are taken as normalised already: mean 0, deviation 1.
    """
    if inputs.ndim == 4 and inputs.dtype != np.uint8:
        return (0.0,) * inputs.shape[-1], (1.0,) * inputs.shape[-1]
    mean, std = _image_moments(inputs) if inputs.ndim == 4 else _feature_moments(inputs)
    std = np.where(std > 1e-12, std, 1.0)
    return tuple(mean.tolist()), tuple(std.tolist())


def _image_moments(inputs: Array) -> tuple[Array, Array]:
    # Counting the 256 levels is exact, whatever the number of pixels.
    counts = np.zeros((inputs.shape[-1], 256), dtype=np.int64)  # channels × levels
    for start in range(0, len(inputs), _CHUNK):
        part = inputs[start : start + _CHUNK]
        for channel in range(inputs.shape[-1]):
            counts[channel] += np.bincount(part[..., channel].ravel(), minlength=256)
    levels = np.arange(256) / 255
    total = counts.sum(axis=1)
    mean = counts @ levels / total
    variance = counts @ levels**2 / total - mean**2
    return mean, np.sqrt(np.maximum(variance, 0))


def _feature_moments(inputs: Array) -> tuple[Array, Array]:
    values = np.asarray(inputs, dtype=np.float64)
    return values.mean(axis=0), values.std(axis=0)
