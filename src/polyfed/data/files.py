"""Data sets in files: how to read them, and `.npz` arrays (tables are in tables.py, images in image_folders.py).

They may come from anybody: no more is read than what was declared and fits.
"""

from __future__ import annotations

import math
import tokenize
import zipfile
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from polyfed.data.arrays import Array
from polyfed.data.dataset import DataSet, Mode
from polyfed.data.targets import CLASS_LABELS, Targets
from polyfed.disk import check_regular
from polyfed.errors import DataError, describe_os_error, system_reason
from polyfed.machine import memory

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
    label: the column with labels, or several; "none" for an unlabelled set.
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
    part: these are one client's rows (see `encode_labels`).
    targets: what labels are.
    tokens: inputs are token ids, which stay whole numbers.
    """

    image: str | None = None
    label: str | tuple[str, ...] | None = None
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
    part: bool = False
    targets: Targets = CLASS_LABELS
    tokens: bool = False

    def key(self) -> dict[str, Any]:
        """All of it as plain values, for the cache's keys."""
        return {**asdict(self), "targets": self.targets.kind}


def identity(paths: Iterable[Path]) -> list[list[Any]]:
    """What tells whether files changed: path, time of change, size."""
    try:
        facts = [(path.resolve(), path.stat()) for path in paths]
    except OSError as error:
        raise DataError(describe_os_error(error)) from error
    return [[str(path), stat.st_mtime_ns, stat.st_size] for path, stat in facts]


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
        if system_reason(error):
            raise DataError(f"{path} cannot be read: {system_reason(error)}") from error
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
