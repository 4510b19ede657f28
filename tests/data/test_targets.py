"""What labels are besides one class: numbers, and several classes at once; and what rows are grouped by."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from polyfed.data import NUMBER_LABELS, SEVERAL_LABELS, agree, load
from polyfed.data.targets import strata_of
from polyfed.errors import DataError

X = np.arange(40, dtype=np.float32).reshape(20, 2)


def table(path: Path, header: str, *lines: str) -> str:
    path.write_text("\n".join([header, *lines]) + "\n")
    return str(path)


def test_numbers_of_a_column(tmp_path: Path) -> None:
    source = table(tmp_path / "t.csv", "age,target", "30,151.5", "40,75", "50,-1e3")
    data = load(source, targets=NUMBER_LABELS)
    assert data.need_labels().dtype == np.float32
    assert data.need_labels().tolist() == [151.5, 75.0, -1000.0]
    assert (data.classes, data.label_columns, data.features) == (("target",), ("target",), ("age",))


def test_several_classes_of_several_columns(tmp_path: Path) -> None:
    source = table(tmp_path / "t.csv", "a,dust,crack", "1,0,1", "2,1,1", "3,0,0")
    data = load(source, label=["crack", "dust"], targets=SEVERAL_LABELS)
    assert data.need_labels().tolist() == [[1, 0], [1, 1], [0, 0]]
    assert (data.classes, data.features) == (("crack", "dust"), ("a",))
    assert data.seen_as(classes=("dust", "crack")).need_labels().tolist() == [[0, 1], [1, 1], [0, 0]]
    arrays = load((X[:3], np.array([[1, 0], [1, 1], [0, 0]])), targets=SEVERAL_LABELS)
    assert arrays.classes == ("0", "1") and arrays.need_labels().tolist() == data.need_labels().tolist()


def test_one_source_read_in_two_ways_is_two_sets() -> None:
    """The cache must not give numbers where classes are asked for."""
    source = X, np.arange(20) % 3
    numbers, classes = load(source, targets=NUMBER_LABELS), load(source)
    assert numbers.need_labels().dtype.kind == "f" and classes.need_labels().dtype.kind == "i"
    assert numbers.fingerprint != classes.fingerprint


@pytest.mark.parametrize(
    ("header", "lines", "options", "reason"),
    [
        ("a,target", ("1,2", "2,"), {"targets": NUMBER_LABELS}, "line 3 has no label"),
        (
            "a,target",
            ("1,2", "2,low"),
            {"targets": NUMBER_LABELS},
            "labels must be numbers, but line 3 has 'low'",
        ),
        ("a,target", ("1,2", "2,1e20"), {"targets": NUMBER_LABELS}, "line 3 has 1e.*another unit"),
        (
            "a,b,c",
            ("1,0,1", "2,2,1"),
            {"label": ["b", "c"], "targets": SEVERAL_LABELS},
            "column 'b': line 3 has 2",
        ),
        ("a,b,c", ("1,0,1",), {"label": ["b", "d"], "targets": SEVERAL_LABELS}, "no column 'd'"),
        (
            "a,b,c",
            ("1,0,1",),
            {"targets": SEVERAL_LABELS},
            r"name the column of each class, data.label: \[first",
        ),
        (
            "a,b,c",
            ("1,0,1",),
            {"label": ["b", "c"]},
            "names 2 columns, and one is learnt: set task=multilabel",
        ),
    ],
)
def test_a_wrong_label_is_one_line_with_its_place(
    tmp_path: Path, header: str, lines: tuple[str, ...], options: dict[str, Any], reason: str
) -> None:
    with pytest.raises(DataError, match=reason) as told:
        load(table(tmp_path / "t.csv", header, *lines), **options)
    assert "\n" not in str(told.value)


def test_arrays_and_sets_that_have_one_class_are_not_read_as_others() -> None:
    with pytest.raises(DataError, match="rows × classes of 0 and 1"):
        load((X, np.arange(20) % 2), targets=SEVERAL_LABELS)
    with pytest.raises(DataError, match=r"must be one-hot.*task=multilabel"):
        load((X, np.ones((20, 3))))
    with pytest.raises(DataError, match="one number for each row"):
        load((X, np.ones((20, 3))), targets=NUMBER_LABELS)
    with pytest.raises(DataError, match="one class for each row: set task=classification"):
        load("digits", targets=NUMBER_LABELS)


def test_numbers_that_were_taken_for_classes_say_what_to_set() -> None:
    with pytest.raises(DataError, match="set task=regression to learn numbers"):
        load((X, np.linspace(0, 1, 20)))


def test_rows_are_grouped_by_what_is_to_be_learnt() -> None:
    assert strata_of(np.array([2, 0, 1])).tolist() == [2, 0, 1]
    assert strata_of(np.linspace(5, 1, 10).astype(np.float32)).tolist() == list(range(9, -1, -1))
    # Class 1 is rarer than class 0: a row that has both is of its group; the last has none.
    several = np.array([[1, 0], [1, 1], [1, 0], [0, 0]], dtype=np.float32)
    assert strata_of(several).tolist() == [0, 1, 0, 2]
    assert strata_of(np.zeros((3, 5), dtype=np.int64)).tolist() == [0, 0, 0]


def test_clients_agree_on_label_columns_whatever_their_order(tmp_path: Path) -> None:
    north = load(table(tmp_path / "n.csv", "a,x,y", "1,0,1"), label=["x", "y"], targets=SEVERAL_LABELS)
    south = load(table(tmp_path / "s.csv", "y,x,a", "1,1,1"), label=["y", "x"], targets=SEVERAL_LABELS)
    assert agree({"north": [north], "south": [south]}, targets=SEVERAL_LABELS).classes == ("x", "y")
    west = load(table(tmp_path / "w.csv", "a,x", "1,1"), label=["x"], targets=SEVERAL_LABELS)
    with pytest.raises(DataError, match="west lacks the class 'y', unlike north"):
        agree({"north": [north], "west": [west]}, targets=SEVERAL_LABELS)


def test_what_stands_in_new_rows_is_what_a_model_would_say() -> None:
    assert NUMBER_LABELS.meant([np.float32(2), "3.5", "x", None], ["y"]) == [2.0, 3.5, None, None]
    assert SEVERAL_LABELS.meant([[1, 0], [0, 0]], ["a", "b"]) == [("a",), ()]


@pytest.mark.parametrize("numbers", [[0.1, 0.1, 0.1], [0.3], [1e6 / 3] * 2, [0.1, 0.1 + 1e-17]])
def test_numbers_that_are_all_alike_are_read_whatever_they_are(numbers: list[float]) -> None:
    """They cannot be told apart, but no digit of theirs is lost that would tell them apart."""
    found = load((X[: len(numbers)], np.array(numbers)), targets=NUMBER_LABELS)
    assert found.need_labels() == pytest.approx(numbers, rel=1e-6)


def test_several_labels_of_new_rows_that_are_not_0_and_1_are_not_known() -> None:
    rows = [[1, 0], [0.0, 1.0], [True, False], ["1", "0"], [1, float("nan")], [3, 0], ["yes", "no"], [0, 0]]
    known = [("dust",), ("crack",), ("dust",), ("dust",), None, None, None, ()]
    assert SEVERAL_LABELS.meant(rows, ("dust", "crack")) == known
