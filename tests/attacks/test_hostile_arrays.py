"""Arrays and tables from anybody: damaged, with Python objects, and small files that stand for much."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.attacks.conftest import unharmed

from polyfed import machine
from polyfed.data import load
from polyfed.errors import DataError


def npy(
    shape: str = "(4, 2)", kind: str = "'<f4'", values: bytes = bytes(32), version: bytes = b"\x01\0"
) -> bytes:
    """An array as numpy writes it, with any head."""
    head = f"{{'descr': {kind}, 'fortran_order': False, 'shape': {shape}}}\n".encode()
    return b"\x93NUMPY" + version + len(head).to_bytes(2 if version[0] == 1 else 4, "little") + head + values


LABELS = npy("(4,)", "'<i8'", np.array([0, 1, 0, 1]).tobytes())


def archive(path: Path, x: bytes, **options: int) -> Path:
    with zipfile.ZipFile(path, "w", **options) as file:  # type: ignore[call-overload]
        file.writestr("x.npy", x)
        file.writestr("y.npy", LABELS)
    return path


def pickled() -> bytes:
    content = io.BytesIO()
    np.save(content, np.array([{"a": 1}, None, None, None], dtype=object), allow_pickle=True)
    return content.getvalue()


ARRAYS: dict[str, tuple[bytes, str]] = {
    "Python objects": (pickled(), "array 'x' holds Python objects, which are not read"),
    "objects inside of records": (npy("(4,)", "[('a', '|O')]"), "array 'x' holds Python objects"),
    "nothing": (b"", "cannot be read as .npz"),
    "no array": (b"not an array", "cannot be read as .npz"),
    "another version": (npy(version=b"\x09\0"), "cannot be read as .npz"),
    "a head that is code": (npy("__import__('os').system('true')"), "cannot be read as .npz"),
    "a deep head": (npy("(" * 4000), "cannot be read as .npz"),
    "a long head": (npy("(" + "1," * 40_000 + ")", version=b"\x02\0"), "cannot be read as .npz"),
    "more rows than values": (
        npy("(1000000000000, 2)"),
        "is said to have 8,000,000,000,000 bytes, but has others",
    ),
    "more rows than there are numbers": (npy("(9" + "9" * 40 + ",)"), "bytes, but has others"),
    "fewer rows than values": (npy("(3, 2)"), "is said to have 24 bytes, but has others"),
    "less than no rows": (npy("(-4, 2)"), "has no values"),
    "rows without columns": (npy("(1000000000000, 0)", values=b""), "has no values"),
    "letters of no size": (npy("(1000000000000,)", "'<U0'", b""), "has no values"),
    "an unknown kind": (npy(kind="'<q99'"), "cannot be read as .npz"),
    "a single number": (npy("()", values=bytes(4)), ""),
    "texts": (npy("(4, 2)", "'<U1'"), "inputs must be numbers"),
    "dates": (npy("(4, 1)", "'<M8[D]'"), "inputs must be numbers"),
    "records": (npy("(4,)", "[('a', '<f8')]"), ""),
}


@pytest.mark.parametrize("kind", ARRAYS)
def test_no_array_harms(tmp_path: Path, kind: str) -> None:
    content, message = ARRAYS[kind]
    with unharmed(), pytest.raises(DataError) as caught:
        load(archive(tmp_path / "a.npz", content))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_zip_bomb_is_refused_by_what_it_would_take(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("polyfed.data.files.memory", lambda: 100_000_000)
    rows = 30_000_000
    path = archive(
        tmp_path / "a.npz", npy(f"({rows}, 2)", "'|u1'", bytes(2 * rows)), compression=zipfile.ZIP_DEFLATED
    )
    assert path.stat().st_size < 100_000
    with (
        unharmed(),
        pytest.raises(DataError, match=r"array 'x' has 0\.1 GB, more than half of the memory here"),
    ):
        load(path)


FILES: dict[str, Callable[[bytes], bytes]] = {
    "no bytes": lambda _: b"",
    "a zip file of nothing": lambda _: b"PK\x05\x06" + bytes(18),
    "a single array": lambda _: npy(),
    "a pickle": lambda _: b"\x80\x04N.",
    "half of it": lambda whole: whole[: len(whole) // 2],
    "its end": lambda whole: whole[-60:],
    "encrypted": lambda whole: whole.replace(b"PK\x01\x02\x14\x03\x14\0\0", b"PK\x01\x02\x14\x03\x14\0\x01"),
    "packed in an unknown way": lambda whole: whole.replace(
        b"\x14\x03\x14\0\0\0\0\0", b"\x14\x03\x14\0\0\0\x63\0"
    ),
}


@pytest.mark.parametrize("kind", FILES)
def test_damaged_npz_files_are_one_line(tmp_path: Path, kind: str) -> None:
    path = archive(tmp_path / "a.npz", npy())
    path.write_bytes(FILES[kind](path.read_bytes()))
    with unharmed(), pytest.raises(DataError, match=r"^\S+a\.npz [^\n]+$"):
        load(path)


def test_flipped_and_truncated_npz_files_are_data_or_one_line(tmp_path: Path) -> None:
    whole = archive(tmp_path / "a.npz", npy(values=np.arange(8, dtype=np.float32).tobytes())).read_bytes()
    _damage(whole, tmp_path / "b.npz", 400)


@pytest.mark.parametrize("compression", ["none", "snappy", "zstd"])
def test_flipped_and_truncated_tables_are_data_or_one_line(tmp_path: Path, compression: str) -> None:
    words = pa.array([f"w{row % 3}" for row in range(20)])
    table = pa.table({"a": [float(row) for row in range(20)], "b": [1, 2] * 10, "label": words})
    pq.write_table(table, tmp_path / "a.parquet", compression=compression)
    _damage((tmp_path / "a.parquet").read_bytes(), tmp_path / "b.parquet", 250)


def _damage(whole: bytes, path: Path, times: int) -> None:
    rng = np.random.default_rng(0)
    refusals = 0
    for number in range(times):
        content = np.frombuffer(whole, np.uint8).copy()
        if number % 3:
            content[rng.integers(len(whole), size=number % 3)] ^= rng.integers(1, 256, dtype=np.uint8)
        else:
            content = content[: rng.integers(len(whole))]
        path.write_bytes(content.tobytes())
        try:
            with unharmed():
                load(path, cache_dir=path.parent / "cache")
        except DataError as error:
            refusals += 1
            assert "\n" not in str(error)
    assert refusals > times / 3


def test_a_few_bytes_that_stand_for_many_rows_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("polyfed.data.tables.memory", lambda: 1_000_000)
    path = tmp_path / "a.parquet"
    rows = 500_000
    pq.write_table(pa.table({"a": np.zeros(rows, np.int8), "label": np.zeros(rows, np.int8)}), path)
    assert path.stat().st_size < 10_000
    with pytest.raises(
        DataError, match=r"a\.parquet: 500,000 rows take 0\.0 GB or more, over half of the memory here"
    ):
        load(path)


def test_one_long_text_in_many_rows_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("polyfed.data.tables.memory", lambda: 60_000_000)
    path = tmp_path / "a.parquet"
    words = pa.DictionaryArray.from_arrays(pa.array(np.arange(4000) % 2, pa.int32()), ["a" * 50_000, "b"])
    pq.write_table(pa.table({"a": np.zeros(4000), "label": words.cast(pa.string())}), path)
    assert path.stat().st_size < 1_000_000
    with unharmed(), pytest.raises(DataError, match="over half of the memory here"):
        load(path)


def test_a_first_line_without_end_and_many_columns_take_no_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("polyfed.data.csv_files._LONGEST_LINE", 1000)
    path = tmp_path / "a.csv"
    path.write_text("a" * 5000)
    with pytest.raises(
        DataError, match="the first line, which names the columns, is longer than 1,000 letters"
    ):
        load(path)
    monkeypatch.undo()
    path.write_text(",".join(f"c{column}" for column in range(60_000)) + ",c7\n")
    with unharmed(), pytest.raises(DataError, match="columns 8 and 60001 are both called 'c7'"):
        load(path)


def test_the_memory_of_this_machine_is_known() -> None:
    assert machine.memory() > 100_000_000
