"""Parquet and CSV tables. Imported only where one is read: pyarrow costs 60 MB and a third of a second."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pyarrow as pa
import pyarrow.dataset

from polyfed.data.arrays import Array
from polyfed.data.csv_files import column_names, line_of, read_csv
from polyfed.data.dataset import DataSet
from polyfed.data.files import Reading, colour_of
from polyfed.data.images import decode_all
from polyfed.data.labels import encode_column, is_whole, missing, row_place
from polyfed.data.objects import check_tokens
from polyfed.data.oddities import column_notes, id_note, looks_like_id
from polyfed.data.storage import Draft
from polyfed.data.targets import CLASS_LABELS, LabelSource
from polyfed.disk import check_regular
from polyfed.errors import DataError, nearest, system_reason
from polyfed.machine import memory

_LABEL_NAMES = ("label", "labels", "fine_label", "character", "target", "class", "y")
_IMAGE_NAMES = ("image", "img")
_BATCH = 200  # rows read at once, where a cell may be of any size
# What pyarrow raises for broken files, and what follows from arrays that are not as long as they were said to be.
_DAMAGED = (pa.ArrowException, OSError, ValueError, IndexError, OverflowError, MemoryError)
_SHOWN = 2  # columns that are told of in a message, of which more would be no clearer
_DROPPED = 8
_LISTED = 10
_CELL = 20  # letters of a cell that are shown
_PATH = 100
_PLAIN_NAME = re.compile(r"(?!(?i:yes|no|on|off|true|false|null|y|n)$)[A-Za-z_][\w-]*")


def read_table(
    paths: Sequence[Path], name: str, reading: Reading, train: DataSet | None, folder: Path
) -> Draft:
    """A parquet or CSV table: a column of images, or columns of numbers; a label column; further columns."""
    with _as_table(paths[0]):
        return _Table(paths, name, reading).draft(train, folder)


def read_columns(path: Path, wanted: Sequence[str], also: Sequence[str] = ()) -> dict[str, Array]:
    """Columns of a table by their names, wherever they stand in it, and more where they exist.

    No others are read: there may be any number of them.
    """
    with _as_table(path):
        names = [*wanted, *also]
        table = _Table([path], str(path), Reading(), only=names)
        there = set(table.names)
        return {name: table._values(name) for name in names if name in there}


def read_encoded_images(
    path: Path, column: str | None, also: Sequence[str] = ()
) -> tuple[list[bytes | Path], dict[str, Array]]:
    """The images of a table, not decoded yet, and the values of more columns where they exist."""
    with _as_table(path):
        is_csv = path.suffix.lower() == ".csv"
        if is_csv and column not in (names := column_names(path)):
            raise DataError(f"{path} has no column of images: it has {_listed(names)}")
        only = [name for name in (column, *also) if name is not None]
        table = _Table([path], str(path), Reading(image=column), only)
        found = table._image_column()
        if found is None:
            raise DataError(f"{path} has no column of images: it has {_listed(table.names)}")
        return list(table._images(found)), {name: table._values(name) for name in also if name in table.names}


def column_names_of(path: Path) -> tuple[str, ...]:
    """The names of a table's columns, none of its rows read."""
    with _as_table(path):
        check_regular(path)
        names = (
            column_names(path) if path.suffix.lower() == ".csv" else pyarrow.parquet.read_schema(path).names
        )
        return tuple(names)


@contextmanager
def _as_table(path: Path) -> Iterator[None]:
    try:
        yield
    except _DAMAGED as error:
        if isinstance(error, OSError) and system_reason(error):
            if error.filename not in (None, str(path)):  # of the cache, into which images are decoded
                raise
            raise DataError(f"{path} cannot be read: {system_reason(error)}") from error
        reason = getattr(error, "strerror", None) or (str(error).splitlines() or [type(error).__name__])[0]
        reason = reason.rsplit(": ", 1)[-1]
        raise DataError(f"{path} cannot be read as a table: {reason}") from error


class _Table:
    """One table that is being read."""

    def __init__(
        self, paths: Sequence[Path], name: str, reading: Reading, only: Sequence[str] | None = None
    ) -> None:
        self.path = paths[0]
        self.name = name
        self.where = str(self.path) if len(paths) == 1 else name
        self.reading = reading
        self.is_csv = self.path.suffix.lower() == ".csv"
        for path in paths:
            check_regular(path)
        self.table = pyarrow.dataset.dataset(
            read_csv(self.path, only=only) if self.is_csv else [str(path) for path in paths],
            format=None if self.is_csv else "parquet",
        )
        self.names: list[str] = self.table.schema.names

    def draft(self, train: DataSet | None, folder: Path) -> Draft:
        self.count = self.table.count_rows()
        if self.count == 0:
            raise DataError(f"{self.where}: the table has no rows")
        self._check_fits(8 * self.count)
        if train is None:  # a test split may lack what is left out anyway
            for column in self.reading.drop:
                self._known(column)
        labels, image = self._label_columns(), self._image_column()
        further = list(self.reading.columns)
        if train is None:  # who would hold a test row is not asked
            further = [self._known(column) for column in further]
        draft = Draft(self.name, np.empty(0), None, (), label_columns=labels)
        if image is not None and self.reading.tokens:
            raise DataError(
                f"{self.where}: column '{image}' is images, not token ids (data.inputs): leave `inputs` out"
            )
        if image is None:
            draft.features = tuple(
                self._feature_names(train, without={*labels, *further, *self.reading.drop})
            )
            draft.inputs, draft.notes = self._features(draft.features)
        else:
            draft.inputs = decode_all(
                lambda: self._images(image),
                self.count,
                folder,
                where=self.where,
                mode=colour_of(self.reading, train),
                size=self.reading.size,
                transposed=self.reading.transposed,
            )
        draft.labels, draft.classes = self._labels(labels, train)
        draft.notes = () if train else draft.notes + self._notes(draft)
        asked = further if train is None else [column for column in further if self._is_whole(column)]
        optional = [column for column in self.reading.optional if self._is_whole(column)]
        for column in dict.fromkeys([*asked, *optional]):
            known = train.column_names.get(column, ()) if train else ()
            draft.columns[column], draft.column_names[column] = encode_column(self._codes(column), known)
        return draft

    def _notes(self, draft: Draft) -> tuple[str, ...]:
        """What looks odd in the columns and classes of a training split."""
        notes: tuple[str, ...] = ()
        if draft.features and not self.reading.tokens:
            names = [f"'{name}'" for name in draft.features]
            notes += column_notes(
                draft.inputs,
                draft.labels,
                names,
                self.where,
                lambda places: self._leave_out([draft.features[place] for place in places]),
            )
        if draft.labels is not None:
            notes += self.reading.targets.notes(draft.labels, draft.classes, self._where(draft.label_columns))
        return notes

    def _place(self, row: int) -> str:
        return f"line {line_of(self.path, row)}" if self.is_csv else row_place(row)

    # -- labels and further columns --------------------------------------------------------------------------

    def _where(self, columns: Sequence[str]) -> str:
        return f"{self.where}, column '{columns[0]}'" if len(columns) == 1 else self.where

    def _labels(
        self, columns: tuple[str, ...], train: DataSet | None
    ) -> tuple[Array | None, tuple[str, ...]]:
        if not columns:
            return None, ()
        first, *others = columns
        if others or self.reading.targets != CLASS_LABELS:
            read = [self._values(column) for column in columns]
            values = np.stack(read, axis=1) if others or self.reading.targets.several_columns else read[0]
        else:
            values = self._values(first)
            known = train.classes if train is not None else ()
            if self.is_csv and (self.reading.part or not all(map(is_whole, known))):
                # Class words such as 07, which here may look like numbers because there is no other.
                values = read_csv(self.path, as_text=[first]).column(first).to_numpy()
        found = LabelSource(
            values=values,
            columns=columns,
            words=self._class_words(first) or self.reading.classes,
            where=self._where(columns),
            known=train.classes if train else None,
            base=self.reading.label_base,
            from_zero=self.reading.from_zero,
            like=self.reading.like,
            part=self.reading.part,
            place=self._place,
        )
        return self.reading.targets.read(found)

    def _codes(self, column: str) -> Array:
        values = self._values(column)
        lost = np.flatnonzero(missing(values))
        if lost.size:
            more = f" (nor in {lost.size - 1} more)" if lost.size > 1 else ""
            raise DataError(
                f"{self.where}: column '{column}' has no value in {self._place(lost[0])}{more}, "
                "so that nobody holds the row: fill it in, or leave the row out"
            )
        return values

    def _is_whole(self, column: str) -> bool:
        """Whether an optional column is there, with a value in every row."""
        return column in self.names and not missing(self._values(column)).any()

    def _known(self, column: str) -> str:
        if column not in self.names:
            raise DataError(f"{self.where} has no column '{column}': {self._hint(column)}")
        return column

    def _hint(self, column: str) -> str:
        hint = nearest(column, self.names)
        return hint if "did you mean" in hint else f"it has {_listed(self.names)}"

    def _label_columns(self) -> tuple[str, ...]:
        """The columns with labels; none for an unlabelled set."""
        wanted = self.reading.label
        if wanted == "none":
            return ()
        several = self.reading.targets.several_columns
        if wanted is not None:
            columns = (wanted,) if isinstance(wanted, str) else tuple(wanted)
            if len(columns) > 1 and not several:
                raise DataError(
                    f"{self.where}: data.label names {len(columns)} columns, and one is learnt: set task=multilabel, or"
                    " name one"
                )
            for column in columns:
                if column in self.reading.drop:
                    raise DataError(f"{self.where}: '{column}' is the label, so data.drop cannot name it")
            return tuple(self._known(column) for column in columns)
        left = [name for name in self.names if name not in self.reading.drop]
        if several:
            raise DataError(
                f"{self.where}: name the column of each class, data.label: [first, second], of {_listed(left)}"
            )
        for guess in _LABEL_NAMES:
            if guess in left:
                return (guess,)
        raise DataError(
            f"{self.where}: say with `label` which column is the label (or none) of {_listed(left)}"
        )

    # -- images ----------------------------------------------------------------------------------------------

    def _image_column(self) -> str | None:
        if self.reading.image is not None:
            return self._known(self.reading.image)
        types = {
            name: self.table.schema.field(name).type for name in self.names if name not in self.reading.drop
        }
        likely = [name for name, kind in types.items() if _holds_bytes(kind)]
        return next((name for name in likely if name in _IMAGE_NAMES), likely[0] if likely else None)

    def _images(self, column: str) -> Iterator[bytes | Path]:
        row = 0
        for batch in self._batches(column):
            for cell in batch.column(0).to_pylist():
                encoded, path = (
                    (cell.get("bytes"), cell.get("path")) if isinstance(cell, dict) else (cell, cell)
                )
                if isinstance(encoded, bytes):
                    yield encoded
                elif isinstance(path, str):
                    yield self._beside(path, column, row)
                else:
                    raise DataError(f"{self.where}: column '{column}' has no image in {self._place(row)}")
                row += 1

    def _beside(self, path: str, column: str, row: int) -> Path:
        """The file that a table names: inside the table's folder, wherever links lead."""
        folder = self.path.parent
        try:
            inside = (folder / path).resolve().is_relative_to(folder.resolve())
        except (OSError, RuntimeError, ValueError):  # links in a circle; letters that no name may have
            inside = False
        if not inside or Path(path).is_absolute():
            raise DataError(
                f"{self.where}: column '{column}' names '{path:.{_PATH}}' in {self._place(row)}, which is not inside "
                "the table's folder: put images there, and give their paths from there"
            )
        return folder / path

    # -- columns of numbers ----------------------------------------------------------------------------------

    def _feature_names(self, train: DataSet | None, without: set[str | None]) -> Sequence[str]:
        """The columns to learn from: as another set has them, else all that are left."""
        asked = self.reading.features or (train.features if train else ())
        absent = [name for name in asked if name not in self.names]
        if absent:
            raise DataError(
                f"{self.where} has no column '{absent[0]}', which is learnt from: {self._hint(absent[0])}"
            )
        names = asked or [name for name in self.names if name not in without]
        if not names:
            raise DataError(f"{self.where}: no column is left to learn from of {_listed(self.names)}")
        others = [name for name in names if not _is_number(self.table.schema.field(name).type)]
        if others:
            told = ", ".join(self._told(name) for name in others[:_SHOWN])
            raise DataError(
                f"{self.where}: only numbers can be learnt from, but {told}{', …' if others[_SHOWN:] else ''}; "
                f"{self._leave_out(others)}"
            )
        return names

    def _told(self, column: str) -> str:
        """What a column is that is not numbers, with the first cell that shows it."""
        kind = self.table.schema.field(column).type
        if pa.types.is_null(kind):
            return f"'{column}' has no values"
        if not _is_text(kind):
            return f"'{column}' is {'dates' if pa.types.is_temporal(kind) else kind}"
        for row, value in enumerate(self._values(column).tolist()):
            if value is not None and not _reads_as_number(value):
                point = "; decimals need a point" if re.fullmatch(r"-?\d+,\d+", value) else ""
                quote = "; is a quote not closed?" if "\n" in value else ""
                shown = " ".join(value.split())[:_CELL]
                return f"'{column}' is text ('{shown}' in {self._place(row)}{point}{quote})"
        return f"'{column}' is numbers saved as text"

    def _features(self, names: Sequence[str]) -> tuple[Array, tuple[str, ...]]:
        """The columns as float32, rows × columns, and a line for each that looks odd."""
        if self.reading.tokens:
            return self._tokens(names), ()
        self._check_fits(4 * self.count * len(names))
        inputs = np.empty((self.count, len(names)), dtype=np.float32)
        notes = []
        for place, name in enumerate(names):
            numbers = self._numbers(name)
            with np.errstate(over="ignore"):
                inputs[:, place] = numbers
            if looks_like_id(name, numbers):
                notes.append(id_note(f"'{name}'", numbers, self.where, self._leave_out([name])))
        bad = ~np.isfinite(inputs)
        if bad.any():
            self._refuse(names, bad)
        return inputs, tuple(notes)

    def _tokens(self, names: Sequence[str]) -> Array:
        """The columns as token ids, int64, rows × columns."""
        self._check_fits(8 * self.count * len(names))
        ids = np.empty((self.count, len(names)), dtype=np.int64)
        for place, name in enumerate(names):
            values = self._numbers(name)[:, None]
            ids[:, place] = check_tokens(values, self.where, self._place_in(name))[:, 0]
        return ids

    def _place_in(self, column: str) -> Callable[[int, int], str]:
        return lambda row, _: f"column '{column}', {self._place(row)}"

    def _refuse(self, names: Sequence[str], bad: Array) -> NoReturn:
        row, place = map(int, np.argwhere(bad)[0])
        value = self._numbers(names[place])[row]
        what = (
            "has no value"
            if np.isnan(value)
            else "is infinite"
            if np.isinf(value)
            else f"is {value}, too large,"
        )
        columns = [name for place, name in enumerate(names) if bad[:, place].any()]
        more = f" ({bad.sum()} such values in {len(columns)} columns)" if bad.sum() > 1 else ""
        raise DataError(
            f"{self.where}: column '{names[place]}' {what} in {self._place(row)}{more}: "
            f"put a number there, or leave the column out with {self._drop_hint(columns)}"
        )

    def _leave_out(self, columns: Sequence[str]) -> str:
        return f"{self._drop_hint(columns)} leaves {'it' if len(columns) == 1 else 'them'} out"

    def _drop_hint(self, columns: Sequence[str]) -> str:
        """What to write into a run file to leave these columns out as well."""
        left_out = [*self.reading.drop, *columns]
        shown = [name if _PLAIN_NAME.fullmatch(name) else f"'{name}'" for name in left_out[:_DROPPED]]
        return f"data.drop: [{', '.join([*shown, *(['…'] if left_out[_DROPPED:] else [])])}]"

    def _numbers(self, column: str) -> Array:
        """A column as float64, what is missing as NaN."""
        values = self.table.to_table(columns=[column]).column(0)
        return values.cast(pa.float64(), safe=False).to_numpy()  # type: ignore[no-any-return]

    def _values(self, column: str) -> Array:
        values = self._column(column)
        if pa.types.is_dictionary(values.type):
            values = values.cast(values.type.value_type)
        return values.to_numpy()  # type: ignore[no-any-return]

    def _column(self, column: str) -> Any:
        """A column, whole. A few bytes of a parquet file can stand for the same long text in a million rows."""
        if self.is_csv or not _is_text(self.table.schema.field(column).type):
            return self.table.to_table(columns=[column]).column(0)
        batches, size = [], 0
        for batch in self._batches(column):
            batches.append(batch)
            size += batch.nbytes
            self._check_fits(size)
        return pa.Table.from_batches(batches).column(0)

    def _batches(self, column: str) -> Iterator[Any]:
        yield from self.table.to_batches(
            columns=[column], batch_size=_BATCH, batch_readahead=2, fragment_readahead=1
        )

    def _check_fits(self, size: int) -> None:
        if size > memory() // 2:
            raise DataError(
                f"{self.where}: {self.count:,} rows take {size / 1e9:.1f} GB or more, over half of the memory here"
            )

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
    types = pa.types
    return bool(
        types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind) or types.is_decimal(kind)
    )


def _is_text(kind: Any) -> bool:
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _reads_as_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:_LISTED]) + (f" and {len(names) - _LISTED} more" if names[_LISTED:] else "")
