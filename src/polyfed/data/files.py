"""Data sets in files: `.npz` arrays and folders of images (tables are in tables.py).

They may come from anybody: nothing leads out of a folder, and no more is read than what was declared and fits.
"""

from __future__ import annotations

import math
import os
import tokenize
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from polyfed.data.dataset import Array, DataSet, Mode
from polyfed.data.images import decode_all
from polyfed.data.labels import encode_labels
from polyfed.data.storage import Draft
from polyfed.disk import check_regular
from polyfed.errors import DataError
from polyfed.machine import memory

_IMAGE_ENDINGS = {".png", ".jpg", ".jpeg", ".bmp", ".webp", ".gif", ".tif", ".tiff", ".ppm", ".pgm"}
_MOST_OTHERS = 100_000  # files that are no images, in a folder of images
# What zipfile and numpy raise for broken files, besides OSError.
_DAMAGED = (
    OSError,
    ValueError,
    KeyError,
    TypeError,
    EOFError,
    RuntimeError,  # encrypted; also NotImplementedError, for what zip files may do but nobody does
    MemoryError,
    OverflowError,
    SyntaxError,
    tokenize.TokenError,
    zipfile.BadZipFile,
    zlib.error,
)


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
    return sorted(path for path in _images(root) if path.parent != root)


def images_below(path: Path) -> list[Path]:
    """An image file itself, or every image in a folder at any depth, in a fixed order."""
    return sorted(_images(path)) if path.is_dir() else [path]


def is_image_file(path: Path) -> bool:
    """Whether a file's name says that it is an image."""
    return path.suffix.lower() in _IMAGE_ENDINGS


def _images(root: Path) -> Iterator[Path]:
    """The images in a folder at any depth.

    Links to folders are refused (one may lead anywhere, or round in a circle), and so are links out of the folder.
    """
    images = others = 0
    for path in _visible_files(root):
        if is_image_file(path):
            images += 1
            _check_inside(path, root)
            yield path
        else:
            others += 1
        if others > max(_MOST_OTHERS, images):
            raise DataError(f"{root}: {others:,} files in it are no images; is this a folder of images?")


def _visible_files(root: Path) -> Iterator[Path]:
    for parent, folders, names in os.walk(root):
        folders[:] = [name for name in folders if not name.startswith(".")]
        for name in folders:
            if Path(parent, name).is_symlink():
                raise DataError(
                    f"{Path(parent, name)} is a link to a folder, which is not followed: put the folder itself there"
                )
        yield from (Path(parent, name) for name in names if not name.startswith("."))


def _check_inside(path: Path, root: Path) -> None:
    try:
        check_regular(path)
        inside = not path.is_symlink() or path.resolve().is_relative_to(root.resolve())
    except (OSError, RuntimeError) as error:  # RuntimeError: links that lead round in a circle
        raise DataError(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}") from error
    if not inside:
        raise DataError(f"{path} is a link that leads out of {root}: put the file itself there")


def npz_arrays(path: Path, split: str) -> tuple[Array, Array | None] | None:
    """The arrays of a split in an .npz file: x and y (or inputs and labels), x_test and y_test."""
    ending = "" if split == "train" else "_test"
    try:
        check_regular(path)
        with zipfile.ZipFile(path) as archive:
            names = [name.removesuffix(".npy") for name in archive.namelist()]
            x = _array(archive, names, (f"x{ending}", f"inputs{ending}"))
            y = _array(archive, names, (f"y{ending}", f"labels{ending}"))
    except _DAMAGED as error:
        reason = (
            (error.strerror if isinstance(error, OSError) else None) or str(error) or type(error).__name__
        )
        raise DataError(f"{path} cannot be read as .npz: {' '.join(reason.split())}") from error
    if x is None and split == "train":
        raise DataError(f"{path} has no array 'x' or 'inputs': it has {', '.join(names[:10]) or 'nothing'}")
    return None if x is None else (x, y)


def _array(archive: zipfile.ZipFile, names: Sequence[str], wanted: Sequence[str]) -> Array | None:
    """The first of these arrays that is there. What its header says is checked before room is made for it."""
    name = next((name for name in wanted if name in names), None)
    if name is None:
        return None
    member = archive.getinfo(f"{name}.npy")
    with archive.open(member) as file:
        version = np.lib.format.read_magic(file)
        if version == (1, 0):
            shape, _, dtype = np.lib.format.read_array_header_1_0(file)
        elif version == (2, 0):
            shape, _, dtype = np.lib.format.read_array_header_2_0(file)
        else:
            raise ValueError(f"array '{name}' is in a format of numpy that is not known: {version}")
        size = math.prod(shape) * dtype.itemsize
        if dtype.hasobject:
            raise ValueError(
                f"array '{name}' holds Python objects, which are not read; save numbers or texts"
            )
        if dtype.itemsize == 0 or (size <= 0 and shape[:1] != (0,)):
            raise ValueError(f"array '{name}' of shape {shape} has no values")
        if file.tell() + size != member.file_size:
            raise ValueError(f"array '{name}' is said to have {size:,} bytes, but has others")
        if size > memory() // 2:
            raise ValueError(f"array '{name}' has {size / 1e9:.1f} GB, more than half of the memory here")
    with archive.open(member) as file:
        return np.lib.format.read_array(file, allow_pickle=False)


def colour_of(reading: Reading, train: DataSet | None) -> Mode | None:
    """Grey or colour: as asked, else as the training split; None is found out from the images."""
    return reading.mode or (train.mode if train else None)
