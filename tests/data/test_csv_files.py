"""CSV files as people have them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from polyfed.data.csv_files import line_of, read_csv

Refuses = Callable[[str], AbstractContextManager[None]]


def written(tmp_path: Path, content: str | bytes) -> Path:
    path = tmp_path / "t.csv"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


@pytest.mark.parametrize(
    ("text", "columns"),
    [
        ("\ufeffa,label\n1,x\n2,y\n", {"a": [1, 2], "label": ["x", "y"]}),
        ("a;label\n1;x\n2;y\n", {"a": [1, 2], "label": ["x", "y"]}),
        ("a\tlabel\n1\tx\n2\ty\n", {"a": [1, 2], "label": ["x", "y"]}),
        ("a;b\n1,5;2\n-2,25;3\n", {"a": [1.5, -2.25], "b": [2, 3]}),
        ("a;b\n1.5;x,y\n2.25;z\n", {"a": [1.5, 2.25], "b": ["x,y", "z"]}),
        ("\n\na, b \n1, x\n\n2,x \n", {"a": [1, 2], "b": ["x", "x"]}),
        ('"a;1","b"\n"1","x, ""y"""\n', {"a;1": [1], "b": ['x, "y"']}),
        ('a,b\n"one\ntwo",2\n', {"a": ["one\ntwo"], "b": [2]}),
        ("a,b\r\n1,x\r\n", {"a": [1], "b": ["x"]}),
        ("a,b\nNA,x\n2, \n,null\n", {"a": [None, 2, None], "b": ["x", None, None]}),
        ("0,1\n5,6\n", {"0": [5], "1": [6]}),
        ("a,b\ntrue,False\n", {"a": [True], "b": [False]}),
    ],
)
def test_files_are_read_as_they_were_meant(tmp_path: Path, text: str, columns: dict[str, Any]) -> None:
    assert read_csv(written(tmp_path, text)).to_pydict() == columns


def test_a_column_can_be_taken_as_it_is_written(tmp_path: Path) -> None:
    path = written(tmp_path, "a, code\n1,07\n2,08\n")
    assert read_csv(path).to_pydict()["code"] == [7, 8]
    assert read_csv(path, as_text=["code"]).to_pydict()["code"] == ["07", "08"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "t.csv is empty"),
        ("\n \n", "t.csv is empty"),
        ("a,b,a\n1,2,3\n", "t.csv, line 1: columns 1 and 3 are both called 'a': rename one"),
        ("a, a\n1,2\n", "columns 1 and 2 are both called 'a'"),
        (",a,\n1,2,3\n", "columns 1 and 3 have no name: give them one each"),
        ("a,b\n1,2\n3,4,5\n", "t.csv, line 3: 3 values, but the header has 2"),
        ("a,b\n\n1,2\n3\n", "t.csv, line 4: 1 value, but the header has 2"),
        ('a,b\n1,2\n"3,4\n5,6\n', "t.csv, line 3: 1 value, but the header has 2; is a quote not closed?"),
        ("5.1,3.5,0\n4.9,3.0,1\n", "line 1 is numbers; the first line must name the columns"),
        ("1,1,0\n4,3,1\n", "line 1 is numbers; the first line must name the columns"),
        ("a,b\n1,Zoë\n".encode("latin-1"), "not UTF-8"),
        ("a,é\n1,2\n".encode("latin-1"), "not UTF-8"),
        ("a,b\n1,2\n".encode("utf-16"), "not UTF-8"),
        (b"a,b\n" + b"1,x\n" * 40_000 + b"1,\xe9\n", "column 'b' has letters that are not UTF-8"),
    ],
)
def test_files_that_cannot_be_read_name_the_line(
    tmp_path: Path, refuses: Refuses, content: str | bytes, message: str
) -> None:
    with refuses(message):
        read_csv(written(tmp_path, content))


def test_the_line_of_a_row_counts_what_an_editor_counts(tmp_path: Path) -> None:
    path = written(tmp_path, 'a,b\n\n1,"x\ny"\n\n2,z\n3,w\n')
    assert [line_of(path, row) for row in range(3)] == [3, 6, 7]
