"""Parquet and CSV tables. Imported only where one is read: pyarrow costs 60 MB and a third of a second."""

from __future__ import annotations

import errno
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.dataset

from polyfed.data.dataset import Array, DataSet, Ints
from polyfed.data.files import Reading, colour_of
from polyfed.data.images import decode_all
from polyfed.data.labels import encode_column, encode_labels
from polyfed.data.objects import check_features
from polyfed.data.storage import Draft
from polyfed.errors import DataError

_LABEL_NAMES = ("label", "labels", "fine_label", "character", "target", "class", "y")
_IMAGE_NAMES = ("image", "img")
_BATCH = 1000


def read_table(
    paths: Sequence[Path], name: str, reading: Reading, train: DataSet | None, folder: Path
) -> Draft:
    """A parquet or CSV table: a column of images, or columns of numbers; a label column; further columns."""
    try:
        table = _open_table(paths)
        return _Table(table, paths[0].parent, name, reading).draft(train, folder)
    except (pa.ArrowException, OSError) as error:
        if isinstance(error, OSError) and error.errno == errno.ENOSPC:  # no space for what we write
            raise
        reason = str(error).splitlines()[0].rsplit(": ", 1)[-1]
        raise DataError(f"{paths[0]} cannot be read as a table: {reason}") from error


def read_columns(path: Path, wanted: Sequence[str], also: str | None = None) -> dict[str, Array]:
    """Columns of a table by their names, wherever they stand in it, and one more where it exists."""
    with _as_table(path):
        table = _Table(_open_table([path]), path.parent, str(path), Reading())
        names = [*wanted, *([also] if also in table.names else [])]
        return {name: table._values(name) for name in names if name in table.names}


def read_encoded_images(
    path: Path, column: str | None, also: str | None = None
) -> tuple[list[bytes | Path], Array | None]:
    """The images of a table, not decoded yet, and the values of one more column where it exists."""
    with _as_table(path):
        table = _Table(_open_table([path]), path.parent, str(path), Reading(image=column))
        found = table._image_column()
        if found is None:
            raise DataError(f"{path} has no column of images: it has {', '.join(table.names)}")
        return list(table._images(found)), table._values(also) if also in table.names else None


@contextmanager
def _as_table(path: Path) -> Iterator[None]:
    try:
        yield
    except (pa.ArrowException, OSError) as error:
        reason = str(error).splitlines()[0].rsplit(": ", 1)[-1]
        raise DataError(f"{path} cannot be read as a table: {reason}") from error


def _open_table(paths: Sequence[Path]) -> Any:
    if paths[0].suffix.lower() == ".csv":
        return pyarrow.dataset.dataset(pyarrow.csv.read_csv(paths[0]))
    return pyarrow.dataset.dataset([str(path) for path in paths], format="parquet")


class _Table:
    """One table that is being read."""

    def __init__(self, table: Any, beside: Path, name: str, reading: Reading) -> None:
        self.table = table
        self.beside = beside
        self.name = name
        self.reading = reading
        self.names: list[str] = table.schema.names

    def draft(self, train: DataSet | None, folder: Path) -> Draft:
        count = self.table.count_rows()
        if count == 0:
            raise DataError(f"{self.name}: the table has no rows")
        label, image = self._label_column(), self._image_column()
        further = [self._known(column) for column in self.reading.columns]
        further += [c for c in self.reading.optional if c in self.names and c not in further]
        features: tuple[str, ...] = ()
        if image is None:
            inputs, features = self._features(without={label, *further})
        else:
            inputs = decode_all(
                lambda: self._images(image),
                count,
                folder,
                where=self.name,
                mode=colour_of(self.reading, train),
                size=self.reading.size,
                transposed=self.reading.transposed,
            )
        labels, classes = self._labels(label, train)
        draft = Draft(self.name, inputs, labels, classes, features=features, label_column=label)
        for column in further:
            known = train.column_names.get(column, ()) if train else ()
            draft.columns[column], draft.column_names[column] = encode_column(self._values(column), known)
        return draft

    def _labels(self, column: str | None, train: DataSet | None) -> tuple[Ints | None, tuple[str, ...]]:
        if column is None:
            return None, ()
        return encode_labels(
            self._values(column),
            self._class_words(column) or self.reading.classes,
            where=f"{self.name}, column '{column}'",
            known=train.classes if train else None,
            base=self.reading.label_base,
        )

    def _known(self, column: str) -> str:
        if column not in self.names:
            raise DataError(f"{self.name} has no column '{column}': it has {', '.join(self.names)}")
        return column

    def _label_column(self) -> str | None:
        wanted = self.reading.label
        if wanted == "none":
            return None
        if wanted is not None:
            return self._known(wanted)
        for guess in _LABEL_NAMES:
            if guess in self.names:
                return guess
        raise DataError(f"{self.name}: say which column is the label (or 'none') of {', '.join(self.names)}")

    def _image_column(self) -> str | None:
        if self.reading.image is not None:
            return self._known(self.reading.image)
        types = {name: self.table.schema.field(name).type for name in self.names}
        likely = [name for name, kind in types.items() if _holds_bytes(kind)]
        return next((name for name in likely if name in _IMAGE_NAMES), likely[0] if likely else None)

    def _images(self, column: str) -> Iterator[bytes | Path]:
        for batch in self.table.to_batches(columns=[column], batch_size=_BATCH):
            for cell in batch.column(0).to_pylist():
                encoded, path = (
                    (cell.get("bytes"), cell.get("path")) if isinstance(cell, dict) else (cell, cell)
                )
                if isinstance(encoded, bytes):
                    yield encoded
                elif isinstance(path, str):
                    yield self.beside / path
                else:
                    raise DataError(f"{self.name}: column '{column}' has a row without an image")

    def _features(self, without: set[str | None]) -> tuple[Array, tuple[str, ...]]:
        names = [name for name in self.names if name not in without]
        texts = [name for name in names if not _is_number(self.table.schema.field(name).type)]
        if texts:
            raise DataError(
                f"{self.name}: columns that are not numbers: {', '.join(texts)}; "
                "name them as image or label or in columns"
            )
        if not names:
            raise DataError(f"{self.name}: there is no column besides {', '.join(self.names)} to learn from")
        values = np.stack([self._values(name) for name in names], axis=1)
        return check_features(values, self.name), tuple(names)

    def _values(self, column: str) -> Array:
        values = self.table.to_table(columns=[column]).column(0)
        if pa.types.is_dictionary(values.type):
            values = values.cast(values.type.value_type)
        return values.to_numpy()  # type: ignore[no-any-return]

    def _class_words(self, column: str) -> tuple[str, ...]:
        """The class words that the hub's files carry in their schema."""
        raw = (self.table.schema.metadata or {}).get(b"huggingface")
        try:
            feature = json.loads(raw)["info"]["features"][column] if raw else {}
        except (ValueError, KeyError, TypeError):
            return ()
        names = feature.get("names") if isinstance(feature, dict) else None
        return tuple(map(str, names)) if isinstance(names, list) else ()


def _holds_bytes(kind: Any) -> bool:
    if pa.types.is_struct(kind):
        return any(kind.field(place).name == "bytes" for place in range(kind.num_fields))
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind))


def _is_number(kind: Any) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind))
