"""CSV files as people have them: read by pyarrow, their mistakes told by the line they are in."""

from __future__ import annotations

import csv
import itertools
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

from polyfed.errors import DataError

_SEPARATORS = (",", ";", "\t", "|")
_DECIMAL_COMMA = re.compile(r"[+-]?\d+,\d+")
_DECIMAL_POINT = re.compile(r"[+-]?\d+\.\d+")
_NUMBER = re.compile(r"[+-]?\d+([.,]\d*)?([eE][+-]?\d+)?")
_LONGEST_LINE = 5_000_000
_LOOKED_AT = 1000  # rows, to tell whether numbers have a decimal comma


def read_csv(path: Path, as_text: Sequence[str] = (), only: Sequence[str] | None = None) -> Any:
    """A CSV file as an Arrow table, whatever it is separated by.

    Cells that are empty or say NA, NaN or null are missing, in columns of text as well. Spaces around names and texts
    are left out.

    as_text: columns that are taken as they are written, even if all of them are numbers.
    only: the columns that are read, of those that there are; by default all.
    """
    separator, header = _header(path)
    names = column_names(path)
    comma = separator != "," and _has_decimal_commas(path, separator)
    asked = set(names if only is None else only)
    wanted = [name for name in names if name in asked]
    if not wanted:
        return pa.table({})
    try:
        table = pyarrow.csv.read_csv(
            path,
            parse_options=pyarrow.csv.ParseOptions(delimiter=separator, newlines_in_values=True),
            convert_options=pyarrow.csv.ConvertOptions(
                strings_can_be_null=True,
                decimal_point="," if comma else ".",
                column_types={header[names.index(name)]: pa.string() for name in as_text},
                include_columns=[cell for cell, name in zip(header, names, strict=True) if name in asked],
            ),
        ).rename_columns(wanted)
    except pa.ArrowInvalid as error:
        _explain(path, separator, len(names))
        raise DataError(f"{path} cannot be read as a table: {str(error).splitlines()[0]}") from error
    for place, name in enumerate(wanted):
        column = table.column(place)
        if pa.types.is_binary(column.type):
            raise DataError(f"{path}: column '{name}' has letters that are not UTF-8; save it as CSV UTF-8")
        if pa.types.is_string(column.type):
            table = table.set_column(place, name, _trimmed(column))
    return table


def column_names(path: Path) -> list[str]:
    """The names of the columns of a file, of which nothing else is read."""
    names = [cell.strip() for cell in _header(path)[1]]
    _check_names(path, names)
    return names


def line_of(path: Path, row: int) -> int:
    """The line of a file in which a row of its table begins."""
    separator, _ = _header(path)
    return next(itertools.islice(_records(path, separator), row + 1, None))[0]


def _trimmed(column: Any) -> Any:
    trimmed = pc.utf8_trim_whitespace(column)
    return pc.if_else(pc.equal(trimmed, ""), pa.scalar(None, pa.string()), trimmed)


def _header(path: Path) -> tuple[str, list[str]]:
    """What separates the columns, and the cells of the first line."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            first = next(
                (line for line in iter(lambda: file.readline(_LONGEST_LINE), "") if line.strip()), ""
            )
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is not UTF-8 text; save it as CSV UTF-8") from error
    if not first:
        raise DataError(f"{path} is empty")
    if len(first) == _LONGEST_LINE:
        raise DataError(
            f"{path}: the first line, which names the columns, is longer than {_LONGEST_LINE:,} letters"
        )
    outside = re.sub(r'"[^"]*"', "", first)
    separator = max(_SEPARATORS, key=outside.count)  # the first of them, where there is none at all
    return separator, next(_records(path, separator))[1]


def _check_names(path: Path, names: Sequence[str]) -> None:
    # pandas numbers columns that have no names, from 0: those are names.
    counted = [[str(number) for number in range(first, first + len(names))] for first in (0, 1)]
    if all(map(_NUMBER.fullmatch, names)) and list(names) not in counted:
        raise DataError(f"{path}: line 1 is numbers; the first line must name the columns")
    places: dict[str, int] = {}
    for place, name in enumerate(names, start=1):
        first = places.setdefault(name, place)
        if first < place and name:
            raise DataError(
                f"{path}, line 1: columns {first} and {place} are both called '{name}': rename one"
            )
        if first < place:
            raise DataError(f"{path}, line 1: columns {first} and {place} have no name: give them one each")


def _records(path: Path, separator: str) -> Iterator[tuple[int, list[str]]]:
    """The records of a file, each with the line in which it begins; empty lines are none."""
    with path.open(encoding="utf-8-sig", errors="replace", newline="") as file:
        reader = csv.reader(file, delimiter=separator)
        begin = 1
        try:
            for cells in reader:
                if cells:
                    yield begin, cells
                begin = reader.line_num + 1
        except csv.Error as error:
            raise DataError(f"{path}, line {begin} cannot be read: {error}") from error


def _has_decimal_commas(path: Path, separator: str) -> bool:
    commas = False
    for _, row in itertools.islice(_records(path, separator), 1, _LOOKED_AT):
        cells = [cell.strip() for cell in row]
        if any(map(_DECIMAL_POINT.fullmatch, cells)):
            return False
        commas = commas or any(map(_DECIMAL_COMMA.fullmatch, cells))
    return commas


def _explain(path: Path, separator: str, columns: int) -> None:
    """Raise for the first line that has not as many values as there are columns."""
    for line, cells in _records(path, separator):
        if len(cells) != columns:
            open_quote = "; is a quote not closed?" if any("\n" in cell for cell in cells) else ""
            values = "1 value" if len(cells) == 1 else f"{len(cells)} values"
            raise DataError(f"{path}, line {line}: {values}, but the header has {columns}{open_quote}")
