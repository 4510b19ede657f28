"""Loading of all data: `load` takes a name, a path, arrays or a PyTorch data set and gives a `DataSet`."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, Protocol, TypeAlias, cast, get_args

import numpy as np

from polyfed.data.arrays import Ints
from polyfed.data.dataset import DataSet, why_not_alike
from polyfed.data.files import Reading, identity, npz_arrays
from polyfed.data.image_folders import open_image_folder, read_image_folder
from polyfed.data.named import NAMED, draft_digits, hub_files, local_folder, named_has_split
from polyfed.data.objects import arrays_digest, channels_last, draft_arrays, to_arrays
from polyfed.data.oddities import copy_notes
from polyfed.data.splits import draw_per_class, draw_stratified
from polyfed.data.storage import Draft, stored, stored_rows
from polyfed.data.targets import CLASS_LABELS, Targets
from polyfed.errors import DataError, nearest

log = logging.getLogger(__name__)


class Likeness(Protocol):
    """What a set is to be like: another set, or what clients have agreed on."""

    @property
    def features(self) -> tuple[str, ...]: ...

    @property
    def classes(self) -> tuple[str, ...]: ...


Split: TypeAlias = Literal["train", "test"]
InputKind: TypeAlias = Literal["numbers", "tokens"]
# A name, a path, (x, y), a torch Dataset, or {"train": one of these, "test": another}.
Source: TypeAlias = Any
_Build: TypeAlias = Callable[[DataSet | None, Path], Draft]  # (the training split, where to write) -> draft
_FILE_ENDINGS = (".parquet", ".csv", ".npz")
_SHOWN = 100  # letters of a path that cannot be one


def load(
    source: Source,
    split: Split = "train",
    *,
    image: str | None = None,
    label: str | Sequence[str] | None = None,
    columns: Sequence[str] = (),
    drop: Sequence[str] = (),
    like: Likeness | None = None,
    part: bool = False,
    targets: Targets = CLASS_LABELS,
    size: int | tuple[int, int] | None = None,
    limit: int | None = None,
    per_class: int | None = None,
    inputs: InputKind = "numbers",
    cache_dir: Path | str | None = None,
) -> DataSet:
    """A split of a data set, decoded once and memory-mapped from then on.

    source: a name (`known_sets()`), a parquet, CSV or .npz file, a folder of such files or of images by
        class, a pair (x, y), a map-style torch Dataset, or a mapping of "train" and "test" to any of these.
    split: "train" or "test". A test split takes class numbers, column codes and normalisation from the
        training split.
    image, label, columns: names of columns in tables; found out where not given. label="none": no labels.
    drop: columns of a table that are not learnt from.
    like: another set, whose columns a table is learnt from, in their order, and whose class numbers it keeps where
        its labels are numbers that all occur there.
    part: this is one client's part of a federation's data: it may have a single class, and a test split may have
        classes that its training split has not.
    targets: what labels are; classes by default.
    size: resize images to this height and width.
    limit: only this many rows, drawn once and for all with the class shares of the whole.
    per_class: only this many rows of each class, drawn once and for all.
    inputs: "tokens" for columns, or arrays rows × positions, of token ids: they stay whole numbers as they are.
    cache_dir: where decoded arrays are kept; by default $POLYFED_CACHE or ~/.cache/polyfed.
    """
    reading = Reading(
        image=image,
        label=label if label is None or isinstance(label, str) else tuple(label),
        columns=tuple(columns),
        drop=tuple(drop),
        features=() if like is None else like.features,
        like=() if like is None else like.classes,
        part=part,
        targets=targets,
        size=_size(size),
        tokens=_are_tokens(inputs),
    )
    found = _find(source, _checked(split), reading, cache_dir)
    if found is None:
        raise DataError(f"data set {_title(source)} has no {split} split")
    train = None
    if split == "test" and has_split(source, "train"):
        train = load(
            source,
            "train",
            image=image,
            label=label,
            columns=columns,
            drop=drop,
            like=like,
            part=part,
            targets=targets,
            size=size,
            inputs=inputs,
            cache_dir=cache_dir,
        )
    key = {"source": found.key, "train": train.fingerprint if train else None}

    def build(folder: Path) -> Draft:
        draft = found.build(train, folder)
        if train is not None:
            _check_like(draft, train)
            draft.mean, draft.std = train.mean, train.std
            draft.notes += copy_notes(draft.inputs, train.inputs, draft.name)
        return draft

    data = stored(key, build, cache_dir)
    return _limited(data, limit, per_class, cache_dir)


def has_split(source: Source, split: Split) -> bool:
    """Whether a source has this split; nothing is decoded or downloaded."""
    _checked(split)
    if isinstance(source, Mapping):
        return split in source
    if isinstance(source, str) and source in NAMED:
        return named_has_split(source, split)
    if source == "digits":
        return True
    if isinstance(source, str | Path):
        path = _existing(source)
        if path.suffix.lower() == ".npz":
            return npz_arrays(path, split) is not None
        return split == "train" or (path.is_dir() and _split_path(path, split) is not None)
    return split == "train"


def table_columns(source: Source) -> tuple[str, ...] | None:
    """The names of the columns of a table's training split, none of its rows read; None of what is not a table."""
    if isinstance(source, Mapping):
        return table_columns(source["train"]) if "train" in source else None
    if not isinstance(source, str | Path) or source in known_sets():
        return None
    path = _existing(source)
    path = (_split_path(path, "train") or path) if path.is_dir() else path
    if path.suffix.lower() not in (".csv", ".parquet") or path.is_dir():
        return None
    from polyfed.data.tables import column_names_of  # noqa: PLC0415  (slow to import, and only needed here)

    return column_names_of(path)


def known_sets() -> tuple[str, ...]:
    """The names that `load` knows."""
    return ("digits", *NAMED)


@dataclass(frozen=True)
class _Found:
    """A split that was found: what identifies it in the cache, and how it is decoded."""

    key: dict[str, Any]
    build: _Build


def _find(source: Source, split: Split, reading: Reading, cache_dir: Path | str | None) -> _Found | None:
    if isinstance(source, Mapping):
        return _find(source[split], "train", reading, cache_dir) if split in source else None
    if not isinstance(source, str | Path):
        _check_no_drop(reading, "what is given as arrays")
        return _found_arrays(*to_arrays(source), "arrays", reading)
    if not has_split(source, split):
        return None
    if source == "digits":
        _check_no_drop(reading, source)
        _check_has_classes(reading, source)
        _check_not_images(reading, source)
        return _Found({"digits": split}, lambda train, _: draft_digits(split, train))
    if isinstance(source, str) and source in NAMED:
        folder = local_folder(source)
        paths = [folder / f"{split}.parquet"] if folder else hub_files(source, split, cache_dir)
        log.debug("%s, %s split: found in %s", source, split, ", ".join(map(str, paths)))
        return _found_table(paths, source, NAMED[source].reading(reading, on_hub=folder is None))
    log.debug("%s, %s split: found in %s", source, split, _existing(source).resolve())
    return _find_path(_existing(source), split, reading)


def _find_path(path: Path, split: Split, reading: Reading) -> _Found | None:
    name = path.resolve().stem
    if path.is_dir():
        path = _split_path(path, split) or _undivided(path)
        if path.is_dir():
            _check_no_drop(reading, str(path))
            _check_not_images(reading, str(path))
            return _found_images(path, name, reading)
        split = "train"  # a file of its own has one split, and calls its arrays x and y
    if path.suffix.lower() == ".npz":
        _check_no_drop(reading, str(path))
        arrays = npz_arrays(path, split)
        if arrays is None:
            return None
        x, y = arrays
        return _found_arrays(channels_last(x, channels_first=False), y, name, reading)
    if path.suffix.lower() in _FILE_ENDINGS:
        return _found_table([path], name, reading)
    raise DataError(
        f"{path} is not a data set: give a folder, or a file that ends in {', '.join(_FILE_ENDINGS)}"
    )


def _found_table(paths: list[Path], name: str, reading: Reading) -> _Found:
    key = {"files": identity(paths), "reading": reading.key(), "name": name}

    def build(train: DataSet | None, folder: Path) -> Draft:
        from polyfed.data.tables import read_table  # noqa: PLC0415  (slow to import, and only needed here)

        return read_table(paths, name, reading, train, folder)

    return _Found(key, build)


def _found_images(root: Path, name: str, reading: Reading) -> _Found:
    _check_has_classes(reading, f"{root}, a folder of images by class,")
    used = replace(reading, features=(), like=()).key()
    images = open_image_folder(root)
    key = {
        "files": identity(images.files),
        "notes": images.notes,
        "reading": used,
        "images": str(root.resolve()),
    }
    return _Found(key, lambda train, folder: read_image_folder(images, name, reading, train, folder))


def _found_arrays(
    x: np.ndarray[Any, Any], y: np.ndarray[Any, Any] | None, name: str, reading: Reading
) -> _Found:
    return _Found(
        {
            "arrays": arrays_digest(x, y),
            "name": name,
            "part": reading.part,
            "targets": reading.targets.kind,
            "tokens": reading.tokens,
        },
        lambda train, _: draft_arrays(
            x, y, name, train, part=reading.part, targets=reading.targets, tokens=reading.tokens
        ),
    )


def _split_path(folder: Path, split: Split) -> Path | None:
    """Where a folder keeps a split: train.parquet (or .csv, .npz) or a folder train/ of images."""
    for ending in (*_FILE_ENDINGS, ""):
        path = folder / f"{split}{ending}"
        if path.exists():
            return path
    return None


def _undivided(folder: Path) -> Path:
    """A folder that is all to be trained on: one with a test split of its own would be trained on that too."""
    test = _split_path(folder, "test")
    if test is not None:
        raise DataError(
            f"{folder} has {test.name}, but no train{test.suffix}, where what is to be learnt from belongs"
        )
    return folder


def _existing(source: str | Path) -> Path:
    try:
        path = Path(source).expanduser()
        there = path.exists()
    except (
        OSError,
        RuntimeError,
        ValueError,
    ) as error:  # too long; no such user; letters that no name may have
        reason = getattr(error, "strerror", None) or error
        raise DataError(f"'{str(source)[:_SHOWN]}' cannot be the path of a data set: {reason}") from error
    if there:
        return path
    if isinstance(source, str) and path.name == source and not path.suffix:
        raise DataError(f"there is no data set '{source}': {nearest(source, known_sets(), 'polyfed data')}")
    raise DataError(f"there is no file or folder {path}{'' if path.is_absolute() else f' in {Path.cwd()}'}")


def _limited(
    data: DataSet, limit: int | None, per_class: int | None, cache_dir: Path | str | None
) -> DataSet:
    if per_class is not None:
        rows = draw_per_class(_strata(data), per_class, np.random.default_rng(0))
        data = stored_rows(data, rows, {"per class": per_class}, cache_dir)
    if limit is not None and limit < 1:
        raise DataError(f"a limit of {limit} rows leaves no data: use 1 or more")
    if limit is not None and limit < len(data):
        rows = draw_stratified(data.strata, len(data), limit, np.random.default_rng(0))
        data = stored_rows(data, rows, {"limit": limit}, cache_dir)
    return data


def _check_like(draft: Draft, train: DataSet) -> None:
    if draft.inputs.shape[1:] != train.inputs.shape[1:]:
        shapes = ["×".join(map(str, inputs.shape[1:])) for inputs in (draft.inputs, train.inputs)]
        raise DataError(f"{draft.name}: test rows are {shapes[0]}, but training rows are {shapes[1]}")
    reason = why_not_alike(draft, train)
    if reason is not None:
        raise DataError(f"{draft.name}: {reason}")


def _check_no_drop(reading: Reading, called: str) -> None:
    if reading.drop:
        raise DataError(f"data.drop: only tables have columns with names, and {called} is none")


def _check_has_classes(reading: Reading, called: str) -> None:
    if reading.targets != CLASS_LABELS:
        raise DataError(f"{called} has one class for each row: set task=classification, or give a table")


def _strata(data: DataSet) -> Ints:
    data.need_labels()
    assert data.strata is not None
    return data.strata


def _check_not_images(reading: Reading, called: str) -> None:
    if reading.tokens:
        raise DataError(f"data.inputs: {called} is images, not token ids: leave `inputs` out")


def _are_tokens(inputs: str) -> bool:
    if inputs not in get_args(InputKind):
        raise DataError(f"inputs are {' or '.join(get_args(InputKind))}, not '{inputs!s:.60}'")
    return inputs == "tokens"


def _checked(split: str) -> Split:
    if split not in get_args(Split):
        raise DataError(f"there is no split '{split}': a data set has 'train' and 'test'")
    return cast("Split", split)


def _size(size: int | tuple[int, int] | None) -> tuple[int, int] | None:
    return (size, size) if isinstance(size, int) else size


def _title(source: Source) -> str:
    return f"'{source}'" if isinstance(source, str | Path) else f"given as {type(source).__name__}"
