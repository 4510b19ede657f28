"""New data for a trained model: brought into the form that its training data had."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from polyfed.data.agreement import Agreement
from polyfed.data.arrays import Array
from polyfed.data.dataset import DataSet, Limits, pixel_limits
from polyfed.data.files import npz_arrays
from polyfed.data.image_folders import image_files, images_below, is_image_file
from polyfed.data.images import decode_image, resize_images
from polyfed.data.normalisation import Constants
from polyfed.data.objects import check_features, check_tokens, to_arrays
from polyfed.data.storage import Draft, in_memory
from polyfed.errors import DataError

_FEW_NAMES = 8  # listed in a message; of more columns only the first


@dataclass(frozen=True, kw_only=True)
class InputForm(Agreement):
    """What the inputs of a trained model were, so that others can be made like them.

    mean, std: normalisation constants, per channel (in 0..1) or per feature.
    """

    mean: tuple[float, ...]
    std: tuple[float, ...]

    @classmethod
    def of(cls, agreement: Agreement, constants: Constants) -> InputForm:
        """Rows as was agreed on, normalised by these constants."""
        return cls(**vars(agreement), mean=constants[0], std=constants[1])

    @property
    def limits(self) -> Limits | None:
        """The smallest and the largest normalised value of each channel: of images of 8 bits. Else None."""
        return pixel_limits(self.mean, self.std) if self.scaled else None


@dataclass(frozen=True)
class NewRows:
    """Rows in the form that a model takes.

    data: the rows as a data set without labels; its inputs are normalised as those in training were.
    names: what to call each row: its number in a table, or the name of an image's file.
    labels: what the new data say of each row, as it stands there; None where they say nothing.
    """

    data: DataSet
    names: Sequence[str]
    labels: Sequence[Any] | None = None

    def inputs(self, memory_format: torch.memory_format) -> torch.Tensor:
        """The normalised inputs, as a model takes them."""
        return self.data.rows().inputs(memory_format)


def read_new_rows(source: Any, form: InputForm) -> NewRows:
    """New data as rows of this form.

    source: a CSV or parquet table with the same columns in any order (others are ignored), an .npz file, an image or a
        folder of images; or arrays: N×F numbers, images N×H×W(×C) as in training, a mapping of columns by name, a
        pair (x, y).
    """
    if isinstance(source, str | Path):
        return _from_path(Path(source).expanduser(), form)
    if isinstance(source, Mapping):
        columns = {str(name): np.asarray(values) for name, values in source.items()}
        return _from_columns(columns, form, "the new data", words=True)
    if isinstance(source, list) and source and all(isinstance(item, str | Path) for item in source):
        return _from_images([Path(item) for item in source], [str(item) for item in source], None, form)
    x, y = to_arrays(source if isinstance(source, tuple) else (source, None))
    return _from_arrays(x, y, form, "the new data")


def _from_path(path: Path, form: InputForm) -> NewRows:
    if not path.exists():
        raise DataError(f"there is no file or folder {path}")
    if path.is_dir() or is_image_file(path):
        files = images_below(path)
        names = [str(file.relative_to(path)) if path.is_dir() else file.name for file in files]
        if not files:
            raise DataError(f"{path}: there are no images in it")
        by_class = path.is_dir() and len(image_files(path)) == len(files)
        folders = [Path(name).parts[0] for name in names] if by_class else None
        known = folders if folders and set(folders) & set(form.classes) else None
        return _from_images(files, names, known, form)
    if path.suffix.lower() == ".npz":
        arrays = npz_arrays(path, "train")
        assert arrays is not None, "an .npz file without a training split is refused"
        return _from_arrays(*to_arrays(arrays), form, str(path))
    if path.suffix.lower() not in (".csv", ".parquet"):
        raise DataError(
            f"{path}: give a file that ends in .csv, .parquet or .npz, an image, or a folder of images"
        )
    from polyfed.data.tables import read_columns, read_encoded_images  # noqa: PLC0415  (slow to import)

    if form.is_image:
        encoded, columns = read_encoded_images(path, form.image, form.label_columns)
        labels = _labels_in(columns, form)
        return _from_images(encoded, [str(row) for row in range(len(encoded))], labels, form)
    columns = read_columns(path, form.features, form.label_columns)
    return _from_columns(columns, form, str(path), words=path.suffix.lower() == ".csv")


def _from_columns(columns: Mapping[str, Array], form: InputForm, where: str, *, words: bool) -> NewRows:
    """words: whether numbers among the labels are words of classes, never their places, as in training."""
    if not form.features:
        told = form.told()
        raise DataError(
            f"{where} has columns, but the model was trained on {told} without names: give an array"
        )
    missing = [name for name in form.features if name not in columns]
    if missing:
        more = f" (and {len(missing) - 1} more)" if len(missing) > 1 else ""
        known = ", ".join(form.features[:_FEW_NAMES]) + (" …" if len(form.features) > _FEW_NAMES else "")
        raise DataError(f"{where} has no column '{missing[0]}'{more}: the model was trained on {known}")
    count = columns[form.features[0]].size
    _check_some(count, where)
    for name in form.features:
        if columns[name].shape != (count,):
            raise DataError(
                f"{where}, column '{name}': {_shown(columns[name])} values, not one for each of {count} rows"
            )
        _check_numbers(columns[name], f"{where}, column '{name}'", lambda at: f"row {at[0]}")
    values = np.stack([columns[name] for name in form.features], axis=1)
    labels = _labels_in(columns, form)
    if words and labels is not None and labels.ndim == 1 and labels.dtype.kind in "iuf":
        labels = np.array(
            [f"{label:.0f}" if label == round(label, 0) else repr(label) for label in labels.tolist()]
        )
    return _rows(_as_inputs(values, form, where), form, labels=labels)


def _from_arrays(x: Array, y: Array | None, form: InputForm, where: str) -> NewRows:
    if form.is_image and x.ndim == 3:
        x = x[..., None]
    if not form.is_image:
        if x.ndim != 2 or x.shape[1] != form.shape[0]:
            raise DataError(f"{where}: inputs are {_shown(x)}, but the model takes rows of {form.told()}")
        _check_numbers(x, where, lambda at: f"row {at[0]}, {_column(form, at[1])}")
        return _rows(_as_inputs(x, form, where), form, labels=y)
    if x.ndim != 4 or x.shape[3] != form.shape[2]:
        raise DataError(f"{where}: inputs are {_shown(x)}, but the model takes {form.told()}")
    if form.scaled:
        return _rows(_same_size(_eight_bit(x, form, where), form), form, labels=y)
    if x.shape[1:] != form.shape or x.dtype == np.uint8:
        raise DataError(f"{where}: inputs are {x.dtype} of {_shown(x)}, but the model takes {form.told()}")
    _check_numbers(x, where, lambda at: f"row {at[0]}")
    return _rows(check_features(x, where), form, labels=y)


def _as_inputs(values: Array, form: InputForm, where: str) -> Array:
    if not form.is_tokens:
        return check_features(values, where)
    return check_tokens(values, where, lambda row, place: f"row {row}, {_column(form, place)}")


def _from_images(
    images: Sequence[bytes | Path], names: Sequence[str], labels: Any, form: InputForm
) -> NewRows:
    if not (form.is_image and form.scaled and form.mode):
        raise DataError(
            f"{names[0] if names else 'this'} is an image, but the model takes {form.told()}: give an array of these"
        )
    _check_some(len(images), "the new data")
    height, width, _ = form.shape
    pixels = [
        decode_image(image, form.mode, (height, width), called=name)
        for image, name in zip(images, names, strict=True)
    ]
    return _rows(np.stack(pixels), form, names, labels)


def _rows(inputs: Array, form: InputForm, names: Sequence[str] | None = None, labels: Any = None) -> NewRows:
    _check_some(len(inputs), "the new data")
    if labels is not None and len(labels) != len(inputs):
        raise DataError(f"{len(inputs)} rows, but {len(labels)} labels: one for each row is needed")
    data = in_memory(Draft("new rows", inputs, None, (), mean=form.mean, std=form.std))
    return NewRows(data, names or [str(row) for row in range(len(inputs))], labels)


def _labels_in(columns: Mapping[str, Array], form: InputForm) -> Array | None:
    """What a table says of its rows, if it has all columns with labels."""
    found = [columns[name] for name in form.label_columns if name in columns]
    if not found or len(found) < len(form.label_columns):
        return None
    return found[0] if len(found) == 1 else np.stack(found, axis=1)


def _check_some(count: int, where: str) -> None:
    if count == 0:
        raise DataError(f"{where}: there are no rows in it")


def _check_numbers(values: Array, where: str, place: Callable[[Array], str]) -> None:
    if values.dtype.kind not in "biuf":
        kind = "text" if values.dtype.kind in "OUS" else str(values.dtype)
        raise DataError(f"{where}: there must be a number in every row, not {kind}")
    if values.dtype.kind == "f" and not np.isfinite(values).all():
        bad = np.argwhere(~np.isfinite(values))
        raise DataError(
            f"{where}: a number is missing (NaN) or infinite in {place(bad[0])}, {len(bad)} in all"
        )


def _eight_bit(x: Array, form: InputForm, where: str) -> Array:
    if x.dtype.kind not in "iu" or x.min(initial=0) < 0 or x.max(initial=0) > 255:
        raise DataError(
            f"{where}: inputs are {x.dtype}, but the model takes {form.told()}, values from 0 to 255"
        )
    return x.astype(np.uint8, copy=False)


def _same_size(images: Array, form: InputForm) -> Array:
    if images.shape[1:] == form.shape or form.mode is None:
        return images
    height, width, _ = form.shape
    resized = np.empty((len(images), *form.shape), dtype=np.uint8)
    resize_images(images, form.mode, (height, width), resized)
    return resized


def _column(form: InputForm, place: int) -> str:
    return f"column '{form.features[place]}'" if form.features else f"column {place}"


def _shown(x: Array) -> str:
    return "×".join(map(str, x.shape)) or "one number"
