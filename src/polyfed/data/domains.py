"""Domains made from one data set by rotating its images."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image

from polyfed.data.dataset import DataSet
from polyfed.data.images import as_image
from polyfed.data.storage import Draft, new_inputs, stored
from polyfed.errors import DataError


def rotate(
    dataset: DataSet, angles: Sequence[float], shared_split: bool = True, cache_dir: Path | str | None = None
) -> DataSet:
    """A copy of the whole set for each angle, as one set with the columns `domain` and `origin`.

    angles: degrees, counter-clockwise; corners that come into view are black.
    shared_split: `origin` is the row that an image was made from, so that `split_client(…, by=origin)`
        keeps the copies of an image on one side. Otherwise every copy is an origin of its own.

    Normalisation constants stay those of the given set, so that training and test splits agree.
    """
    if not dataset.is_image or dataset.inputs.dtype != np.uint8:
        raise DataError(f"'{dataset.name}' has no 8-bit images, and only those can be rotated into domains")
    if len(set(angles)) != len(angles) or not angles:
        raise DataError(f"angles of rotated domains must differ from each other, not {list(angles)}")
    count = len(dataset)
    words = tuple(f"{angle:g}°" for angle in angles)

    def build(folder: Path) -> Draft:
        inputs = new_inputs(folder, (count * len(angles), *dataset.inputs.shape[1:]), np.uint8)
        for place, angle in enumerate(angles):
            _rotate_into(inputs[place * count : (place + 1) * count], dataset, angle)
        copies = np.arange(count * len(angles))
        labels = None if dataset.labels is None else np.concatenate([dataset.labels] * len(angles))
        columns = {name: np.tile(codes, len(angles)) for name, codes in dataset.columns.items()}
        columns |= {"domain": copies // count, "origin": copies % count if shared_split else copies}
        return Draft(
            f"rotated {dataset.name}",
            inputs,
            labels,
            dataset.classes,
            columns,
            dataset.column_names | {"domain": words},
            dataset.mean,
            dataset.std,
            label_columns=dataset.label_columns,
        )

    key = {"of": dataset.fingerprint, "rotated": [float(angle) for angle in angles], "shared": shared_split}
    return stored(key | {"name": dataset.name}, build, cache_dir)


def _rotate_into(
    out: np.ndarray[tuple[int, ...], np.dtype[np.uint8]], dataset: DataSet, angle: float
) -> None:
    if angle % 360 == 0:
        out[:] = dataset.inputs
        return
    for row, pixels in enumerate(dataset.inputs):
        turned = as_image(pixels).rotate(angle, Image.Resampling.BILINEAR)
        out[row] = np.asarray(turned).reshape(out.shape[1:])
