"""The data sets that polyfed knows by name: where they are and what their columns are called.

No two families of sets on the hub agree on the names of their columns and splits, so each has an entry here.
A set is taken whole from one place: from `$POLYFED_DATA/<name>/` if that folder has its training split, else
from the hub.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import logging
import os
import secrets
import string
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath

import numpy as np

from polyfed.data.dataset import DataSet, Mode
from polyfed.data.files import Reading
from polyfed.data.labels import encode_labels
from polyfed.data.storage import Draft, cache_root
from polyfed.errors import DataError

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class NamedSet:
    """What must be known to read a set from the hub.

    train, test: the names of its splits there; None for a split that it does not have.
    folder: where its files lie, for repositories with several variants.
    transposed, label_base, classes: only of the hub's copy; local files are upright and count from 0.
    """

    hub: str
    mode: Mode
    image: str = "image"
    label: str = "label"
    columns: tuple[str, ...] = ()
    train: str = "train"
    test: str | None = "test"
    folder: str = ""
    size: tuple[int, int] | None = None
    transposed: bool = False
    label_base: int = 0
    classes: tuple[str, ...] = ()

    def reading(self, asked: Reading, *, on_hub: bool) -> Reading:
        """How to read it: as asked, and as this entry says where nothing was asked."""
        reading = replace(
            asked,
            image=asked.image or self.image,
            label=asked.label or self.label,
            optional=self.columns,
            size=asked.size or self.size,
            mode=self.mode,
            from_zero=True,
            features=(),  # it is what it is, whatever other set it is used beside: so it is decoded once
            like=(),
        )
        if not on_hub:
            return reading
        return replace(reading, transposed=self.transposed, label_base=self.label_base, classes=self.classes)


NAMED: dict[str, NamedSet] = {
    "mnist": NamedSet("ylecun/mnist", "L"),
    "fashion_mnist": NamedSet("zalando-datasets/fashion_mnist", "L"),
    # EMNIST's own files have rows and columns exchanged, and its letters count from 1.
    "emnist": NamedSet(
        "tanganke/emnist_letters",
        "L",
        folder="emnist-letters",
        transposed=True,
        label_base=1,
        classes=tuple(string.ascii_uppercase),
    ),
    "femnist": NamedSet(
        "flwrlabs/femnist", "L", label="character", columns=("writer_id", "hsf_id"), test=None
    ),
    "cifar10": NamedSet("uoft-cs/cifar10", "RGB", image="img"),
    "cifar100": NamedSet("uoft-cs/cifar100", "RGB", image="img", label="fine_label"),
    "tiny_imagenet": NamedSet("zh-plus/tiny-imagenet", "RGB", test="valid"),
    "pacs": NamedSet("flwrlabs/pacs", "RGB", columns=("domain", "split"), test=None),
    # Office-Home's photographs have all sizes.
    "office_home": NamedSet("flwrlabs/office-home", "RGB", columns=("domain",), test=None, size=(64, 64)),
}


def local_folder(name: str) -> Path | None:
    """The folder of a named set below $POLYFED_DATA, if its training split is there."""
    root = os.environ.get("POLYFED_DATA")
    folder = Path(root) / name if root else None
    return folder if folder and (folder / "train.parquet").is_file() else None


def whereabouts(name: str) -> str:
    """Where a named set would come from, in words."""
    if name not in NAMED:
        return "comes with polyfed"
    folder = local_folder(name)
    if folder is not None:
        return str(folder)
    installed = importlib.util.find_spec("huggingface_hub") is not None
    hub = "the hub" if installed else "the hub, once polyfed[hub] is installed"
    return f"{hub} ({NAMED[name].hub})"


def named_has_split(name: str, split: str) -> bool:
    """Whether a named set has this split, where it would be taken from. Without network access."""
    folder = local_folder(name)
    if folder is not None:
        return (folder / f"{split}.parquet").is_file()
    return split == "train" or NAMED[name].test is not None


def hub_files(name: str, split: str, cache_dir: Path | str | None = None) -> list[Path]:
    """The parquet files of a split, downloaded once. Later calls need no network."""
    entry = NAMED[name]
    hub_split = entry.train if split == "train" else entry.test
    note = cache_root(cache_dir) / "hub" / f"{name}-{split}.json"
    noted = _noted(note)
    if noted:
        return noted
    try:
        hub = importlib.import_module("huggingface_hub")
    except ImportError as error:
        raise DataError(
            f"data set '{name}' is not here: set POLYFED_DATA to a folder that has {name}/{split}.parquet, "
            f"or install 'polyfed[hub]' to download {entry.hub}"
        ) from error
    try:
        listed = hub.HfApi().list_repo_files(entry.hub, repo_type="dataset")
        wanted = [file for file in sorted(listed) if _is_of(file, entry.folder, str(hub_split))]
        log.info("%s: downloading %d files from %s", name, len(wanted), entry.hub)
        paths = [Path(hub.hf_hub_download(entry.hub, file, repo_type="dataset")) for file in wanted]
    except Exception as error:  # the hub's client lets through what its transport raises, whichever that is
        raise DataError(
            f"data set '{name}' could not be downloaded from {entry.hub} ({type(error).__name__}): "
            f"try again, or set POLYFED_DATA to a folder that has {name}/{split}.parquet"
        ) from error
    if not paths:
        raise DataError(f"{entry.hub} has no parquet files of its split '{hub_split}' any more")
    _write_note(note, paths)
    return paths


def draft_digits(split: str, train: DataSet | None) -> Draft:
    """scikit-learn's 1,797 digits of 8×8 pixels, 80 % to train on and 20 % to test on, always the same."""
    from sklearn.datasets import load_digits  # noqa: PLC0415  (slow to import, and only needed here)
    from sklearn.model_selection import train_test_split  # noqa: PLC0415

    digits = load_digits()
    parts = train_test_split(
        np.arange(len(digits.target)), test_size=0.2, random_state=0, stratify=digits.target
    )
    rows = np.sort(parts[0] if split == "train" else parts[1])
    images = np.rint(digits.images[rows] * (255 / 16)).astype(np.uint8)[..., None]
    labels, classes = encode_labels(
        digits.target[rows], where="digits", known=train.classes if train else None
    )
    return Draft("digits", images, labels, classes)


def _is_of(file: str, folder: str, split: str) -> bool:
    """Whether a file of a repository belongs to a split: train-00000-of-00002.parquet, train/0000.parquet."""
    path = PurePosixPath(file)
    if path.suffix != ".parquet" or (folder and folder not in path.parts[:-1]):
        return False
    return path.stem == split or path.stem.startswith(f"{split}-") or path.parent.name == split


def _noted(note: Path) -> list[Path]:
    try:
        paths = [Path(path) for path in json.loads(note.read_text(encoding="utf-8"))]
    except (FileNotFoundError, ValueError, TypeError):
        return []
    return paths if all(path.is_file() for path in paths) else []


def _write_note(note: Path, paths: Sequence[Path]) -> None:
    note.parent.mkdir(parents=True, exist_ok=True)
    beside = note.with_name(f"{note.name}.{secrets.token_hex(8)}")
    beside.write_text(json.dumps([str(path.absolute()) for path in paths]), encoding="utf-8")
    beside.replace(note)
