"""Folders of images, one folder for each class: which images, and whether the folders can be meant as classes.

They may come from anybody: nothing leads out of a folder.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from polyfed.data.dataset import DataSet
from polyfed.data.files import Reading, colour_of
from polyfed.data.images import decode_all
from polyfed.data.labels import encode_labels
from polyfed.data.oddities import class_notes, listed
from polyfed.data.storage import Draft
from polyfed.disk import check_regular
from polyfed.errors import DataError

_IMAGE_ENDINGS = {".png", ".jpg", ".jpeg", ".bmp", ".webp", ".gif", ".tif", ".tiff", ".ppm", ".pgm"}
_TABLE_ENDINGS = {".csv", ".parquet", ".npz"}
_MOST_OTHERS = 100_000  # files that are no images, in a folder of images
_SPLITS = (
    "train",
    "test",
    "val",
    "dev",
    "eval",
)  # how folders of splits begin: training, testing, validation


@dataclass(frozen=True)
class ImageFolder:
    """The images in the class folders of a folder, in a fixed order.

    notes: what looks odd, a line each.
    """

    root: Path
    files: Sequence[Path]
    notes: tuple[str, ...]

    def classes(self) -> list[str]:
        """The class of each image: the name of the folder that it is in."""
        return [path.relative_to(self.root).parts[0] for path in self.files]


def open_image_folder(root: Path) -> ImageFolder:
    """A folder with one folder of images for each class; a `DataError` if its folders cannot be the classes."""
    found = sorted(_images(root))
    files = [path for path in found if path.parent != root]
    if not files:
        raise DataError(_nothing_in(root, found))
    inner = _inner_folders(root, files)
    if len(inner) > 1:
        _check_outer_are_classes(root, inner)
    notes = [*_left_out(root, found, inner), *_deeper(root, inner)]
    return ImageFolder(root, files, tuple(notes))


def read_image_folder(
    images: ImageFolder, name: str, reading: Reading, train: DataSet | None, folder: Path
) -> Draft:
    """The images of a folder, decoded, with their folders as classes."""
    words = images.classes()
    if train is None and len(set(words)) == 1 and not reading.part:
        raise DataError(_only_one_in(images.root, words[0]))
    files = images.files
    mode = colour_of(reading, train)
    inputs = decode_all(lambda: files, len(files), folder, where=name, mode=mode, size=reading.size)
    known = train.classes if train else None
    labels, classes = encode_labels(np.array(words), where=name, known=known, part=reading.part)
    notes = images.notes + (class_notes(labels, classes, str(images.root)) if train is None else ())
    return Draft(name, inputs, labels, classes, notes=notes)


def image_files(root: Path) -> list[Path]:
    """The images in the class folders of an image folder, in a fixed order."""
    return sorted(path for path in _images(root) if path.parent != root)


def images_below(path: Path) -> list[Path]:
    """An image file itself, or every image in a folder at any depth, in a fixed order."""
    return sorted(_images(path)) if path.is_dir() else [path]


def is_image_file(path: Path) -> bool:
    """Whether a file's name says that it is an image."""
    return path.suffix.lower() in _IMAGE_ENDINGS


# -- whether the folders are classes ---------------------------------------------------------------------------


def _inner_folders(root: Path, files: Sequence[Path]) -> dict[str, Counter[str]]:
    """For each folder how many images each folder in it has; those directly inside count under an empty name."""
    inner: dict[str, Counter[str]] = {}
    for path in files:
        outer, *deeper = path.relative_to(root).parts[:-1]
        inner.setdefault(outer, Counter())[deeper[0] if deeper else ""] += 1
    return inner


def _check_outer_are_classes(root: Path, inner: dict[str, Counter[str]]) -> None:
    """Refuse folders whose own folders look like the classes: most of the names come again in the next one.

    One name alone, such as `images` in each class folder, tells nothing apart. Names that hardly repeat, such as a
    folder for each patient, may be parts of a class: they are noted.
    """
    holders = Counter(name for names in inner.values() for name in names if name)
    again = [name for name, count in holders.items() if count > 1]
    if len(holders) < 2 or len(again) < len(holders) / 2:
        return
    outer = [name for name, names in inner.items() if set(names) & set(again)][:2]
    if all(name.lower().startswith(_SPLITS) for name in inner):
        raise DataError(
            f"{root}: {listed(list(inner))} look like parts of one data set, with the classes inside: "
            "call the folders train and test"
        )
    raise DataError(
        f"{root}: folders of folders of images, such as {outer[0]}/{again[0]} and {outer[1]}/{again[0]}, where one "
        "folder for each class is expected: put all images of a class directly into one folder; if "
        f"{outer[0]} and {outer[1]} are clients, set data.each: …/*"
    )


def _nothing_in(root: Path, images: Sequence[Path]) -> str:
    expected = "one folder for each class is expected"
    if images:
        return f"{root}: its images are in no folder of their own ({images[0].name}): {expected}"
    tables = sorted(path.name for path in root.iterdir() if path.suffix.lower() in _TABLE_ENDINGS)
    if tables:
        return (
            f"{root}: it has {listed(tables)}, but no train{Path(tables[0]).suffix}: give one of the files; put all "
            "rows into one table with a column that says who holds each (data.partition: natural); or set "
            f"data.each: …/*{Path(tables[0]).suffix} if each is a client's"
        )
    return f"{root}: there are no images in it ({expected})"


def _only_one_in(root: Path, word: str) -> str:
    """The images are all in one folder: what to give instead, if there are others inside, as in data/data/CLASS."""
    inside = root / word
    while len(deeper := _inner_folders(inside, image_files(inside))) == 1:
        inside = inside / next(iter(deeper))
    if deeper:
        return (
            f"{root}: all images are in its folder {word}, so there is one class; {listed(sorted(deeper))} "
            f"are in {inside}: give that folder"
        )
    return f"{root}: all images are in its folder {word}, so there is one class; a folder for each class is expected"


def _left_out(root: Path, found: Sequence[Path], inner: dict[str, Counter[str]]) -> Iterator[str]:
    beside = [path.name for path in found if path.parent == root]
    if beside:
        yield (
            f"{root}: images that lie beside the class folders are left out ({listed(beside)}): put each into the "
            "folder of its class, or elsewhere"
        )
    folders = sorted(path.name for path in root.iterdir() if path.is_dir())
    empty = [name for name in folders if name not in inner and not name.startswith((".", "__"))]
    if empty:
        endings = " ".join(sorted(_IMAGE_ENDINGS))
        yield f"{root}: no class for folders without images ({listed(empty)}): images end in {endings}"


def _deeper(root: Path, inner: dict[str, Counter[str]]) -> Iterator[str]:
    holders = Counter(name for names in inner.values() for name in names if name)
    mixed = any("" in names for names in inner.values())
    if len(holders) > 1 or (holders and mixed):
        outer, name = next((outer, name) for outer, names in inner.items() for name in names if name)
        yield (
            f"{root}: its {len(inner)} folders are taken as the classes, with the folders inside them as parts of a "
            f"class ({outer}/{name} as '{outer}'): if those are the classes, put them directly into one folder"
        )


# -- which files -----------------------------------------------------------------------------------------------


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
    for parent, folders, names in os.walk(root, onerror=_refuse_folder):
        folders[:] = [name for name in folders if not name.startswith(".")]
        for name in folders:
            if Path(parent, name).is_symlink():
                raise DataError(
                    f"{Path(parent, name)} is a link to a folder, which is not followed: put the folder itself there"
                )
        yield from (Path(parent, name) for name in names if not name.startswith("."))


def _refuse_folder(error: OSError) -> None:
    # By default os.walk leaves out what it may not open, and the class would be missing.
    raise DataError(f"{error.filename} cannot be read: {error.strerror}") from error


def _check_inside(path: Path, root: Path) -> None:
    try:
        check_regular(path)
        inside = not path.is_symlink() or path.resolve().is_relative_to(root.resolve())
    except (OSError, RuntimeError) as error:  # RuntimeError: links that lead round in a circle
        raise DataError(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}") from error
    if not inside:
        raise DataError(f"{path} is a link that leads out of {root}: put the file itself there")
