"""Data sets in files: `.npz` arrays and folders of images (tables are in tables.py)."""

from __future__ import annotations

import zipfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from polyfed.data.dataset import Array, DataSet, Mode
from polyfed.data.images import decode_all
from polyfed.data.labels import encode_labels
from polyfed.data.storage import Draft
from polyfed.errors import DataError

_IMAGE_ENDINGS = {".png", ".jpg", ".jpeg", ".bmp", ".webp", ".gif", ".tif", ".tiff", ".ppm", ".pgm"}


@dataclass(frozen=True)
class Reading:
    """How to read a source. What is None is found out from the source itself.

    image: the column with images (encoded bytes, or paths beside the table).
    label: the column with labels; "none" for an unlabelled set.
    columns: further columns to keep; `optional` ones are kept where they exist.
    drop: columns that are not learnt from.
    features: the columns that are learnt from, in this order; where none are given, all that are left.
    size: height and width to resize images to.
    mode: grey ("L") or colour ("RGB").
    transposed: images are stored with rows and columns exchanged.
    label_base: the number of the first class, where that is not 0.
    from_zero: label numbers that begin at 0 are the classes' own, whether or not all of them occur.
    classes: class words for a source that has none.
    like: the classes of another set, whose numbers are kept where the labels are numbers that all occur there.
    """

    image: str | None = None
    label: str | None = None
    columns: tuple[str, ...] = ()
    optional: tuple[str, ...] = ()
    drop: tuple[str, ...] = ()
    features: tuple[str, ...] = ()
    size: tuple[int, int] | None = None
    mode: Mode | None = None
    transposed: bool = False
    label_base: int = 0
    from_zero: bool = False
    classes: tuple[str, ...] = ()
    like: tuple[str, ...] = ()


def identity(paths: Iterable[Path]) -> list[list[Any]]:
    """What tells whether files changed: path, time of change, size."""
    facts = [(path.resolve(), path.stat()) for path in paths]
    return [[str(path), stat.st_mtime_ns, stat.st_size] for path, stat in facts]


def read_image_folder(root: Path, name: str, reading: Reading, train: DataSet | None, folder: Path) -> Draft:
    """A folder with one folder of images for each class."""
    files = image_files(root)
    if not files:
        raise DataError(f"{root}: there are no images in it (one folder for each class is expected)")
    mode = colour_of(reading, train)
    inputs = decode_all(lambda: files, len(files), folder, where=name, mode=mode, size=reading.size)
    words = np.array([path.relative_to(root).parts[0] for path in files])
    labels, classes = encode_labels(words, where=name, known=train.classes if train else None)
    return Draft(name, inputs, labels, classes)


def image_files(root: Path) -> list[Path]:
    """The images in the class folders of an image folder, in a fixed order."""
    found = (path for path in root.glob("*/**/*") if path.suffix.lower() in _IMAGE_ENDINGS and path.is_file())
    return sorted(path for path in found if not any(p.startswith(".") for p in path.relative_to(root).parts))


def npz_arrays(path: Path, split: str) -> tuple[Array, Array | None] | None:
    """The arrays of a split in an .npz file: x and y (or inputs and labels), x_test and y_test."""
    ending = "" if split == "train" else "_test"
    try:
        with np.load(path, allow_pickle=False) as arrays:
            x = next((arrays[key + ending] for key in ("x", "inputs") if key + ending in arrays), None)
            y = next((arrays[key + ending] for key in ("y", "labels") if key + ending in arrays), None)
            names = ", ".join(arrays.files)
    except (OSError, ValueError, zipfile.BadZipFile) as error:
        raise DataError(f"{path} cannot be read as .npz: {str(error).splitlines()[0]}") from error
    if x is None and split == "train":
        raise DataError(f"{path} has no array 'x' or 'inputs': it has {names}")
    return None if x is None else (x, y)


def colour_of(reading: Reading, train: DataSet | None) -> Mode | None:
    """Grey or colour: as asked, else as the training split; None is found out from the images."""
    return reading.mode or (train.mode if train else None)
