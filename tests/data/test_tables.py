"""Tables of a user's own: what is learnt from, what is missing, what looks odd."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from polyfed.data import load

Refuses = Callable[[str], AbstractContextManager[None]]


def csv(folder: Path, text: str, name: str = "t.csv") -> Path:
    folder.mkdir(exist_ok=True)
    path = folder / name
    path.write_text(text)
    return path


def parquet(folder: Path, **columns: Any) -> Path:
    pq.write_table(pa.table(columns), folder / "t.parquet")
    return folder / "t.parquet"


# -- which columns -------------------------------------------------------------------------------------------

CLINICS = "id,age,city,bmi,clinic,label\n3,40,Ulm,21.5,n,1\n1,50,Bonn,22.5,s,2\n2,60,Ulm,23.5,n,2\n"


def test_dropped_columns_are_not_learnt_from(tmp_path: Path) -> None:
    data = load(csv(tmp_path, CLINICS), drop=["id", "city"], columns=["clinic"])
    assert data.features == ("age", "bmi")
    assert data.inputs.tolist() == [[40, 21.5], [50, 22.5], [60, 23.5]]
    assert data.classes == ("1", "2")
    assert load(tmp_path / "t.csv", drop=["id", "city", "clinic"], columns=["clinic"]).features == (
        "age",
        "bmi",
    )


def test_a_dropped_column_is_not_taken_for_the_label_or_the_image(tmp_path: Path) -> None:
    path = parquet(tmp_path, a=[1.0, 2.0], image=[b"x", b"y"], label=[5, 5], y=[0, 1])
    data = load(path, drop=["image", "label"])
    assert (data.features, data.classes) == (("a",), ("0", "1"))


def test_columns_that_cannot_be_dropped(tmp_path: Path, refuses: Refuses) -> None:
    path = csv(tmp_path, CLINICS)
    with refuses(f"{path} has no column 'ctiy': did you mean 'city'?"):
        load(path, drop=["ctiy"])
    with refuses("has no column 'weight_in_kg': it has id, age, city, bmi, clinic, label"):
        load(path, drop=["weight_in_kg"])
    with refuses("'label' is the label, so data.drop cannot name it"):
        load(path, drop=["label"], label="label")
    with refuses("no column is left to learn from"):
        load(path, drop=["id", "age", "city", "bmi", "clinic"])
    for source in ("digits", (np.eye(2), [0, 1])):
        with refuses("data.drop: only tables have columns with names"):
            load(source, drop=["a"])


def test_a_test_split_has_the_columns_of_the_training_split_in_their_order(
    tmp_path: Path, refuses: Refuses
) -> None:
    csv(tmp_path, "id,a,b,label\n7,1,2,x\n8,3,4,y\n", "train.csv")
    csv(tmp_path, "note,label,b,a\nhello,y,20,10\n", "test.csv")
    test = load(tmp_path, "test", drop=["id"])
    assert (test.features, test.inputs.tolist()) == (("a", "b"), [[10, 20]])
    csv(tmp_path, "label,a\ny,10\n", "test.csv")
    with refuses("test.csv has no column 'b', which is learnt from"):
        load(tmp_path, "test", drop=["id"])


def test_a_test_split_need_not_say_who_holds_its_rows(tmp_path: Path) -> None:
    csv(tmp_path, "a,site,label\n1,n,x\n3,s,y\n", "train.csv")
    for test, columns in (
        ("a,label\n1,y\n", {}),
        ("a,site,label\n1,,y\n", {}),
        ("a,site,label\n1,s,y\n", {"site": [1]}),
    ):
        csv(tmp_path, test, "test.csv")
        data = load(tmp_path, "test", columns=["site"])
        assert (data.features, data.need_labels().tolist()) == (("a",), [1])
        assert {name: codes.tolist() for name, codes in data.columns.items()} == columns


def test_class_words_that_look_like_numbers_in_a_test_split(tmp_path: Path) -> None:
    csv(tmp_path, "a,label\n1,07\n2,A1\n", "train.csv")
    csv(tmp_path, "a,label\n1,07\n2,07\n", "test.csv")
    assert load(tmp_path, "test").need_labels().tolist() == [0, 0]


def test_a_table_can_be_read_like_another(tmp_path: Path) -> None:
    mine = load(csv(tmp_path, "bmi,age,label\n1,2,0\n3,4,1\n5,6,2\n"))
    data = load(csv(tmp_path, CLINICS, "other.csv"), like=mine)
    assert (data.features, data.inputs[0].tolist()) == (("bmi", "age"), [21.5, 40])
    assert (data.classes, data.need_labels().tolist()) == (("0", "1", "2"), [1, 2, 2])
    data = load(csv(tmp_path, CLINICS.replace(",2\n", ",7\n"), "other.csv"), like=mine)
    assert data.classes == ("1", "7")


# -- what is not a number ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "a,city,day,label\n1,Ulm,2024-01-02,0\n2,Ulm,2024-01-03,1\n",
            "but 'city' is text ('Ulm' in line 2), 'day' is dates; data.drop: [city, day] leaves them out",
        ),
        ("a,b,label\n1,1,0\n2,n.a.,1\n", "'b' is text ('n.a.' in line 3); data.drop: [b] leaves it out"),
        ('a,label\n"1,5",0\n"2,5",1\n', "'a' is text ('1,5' in line 2; decimals need a point)"),
        ("a,b,label\n1,,0\n2,,1\n", "'b' has no values; data.drop: [b]"),
        ("a,,label\n1,,0\n2,,1\n", "data.drop: [''] leaves it out"),
        ("yes,b c,label\nx,x,0\ny,y,1\n", "data.drop: ['yes', 'b c'] leaves them out"),
        ('a,b,label\n1,"x,0\n2,y,1\n', "is a quote not closed?"),
    ],
)
def test_columns_that_are_not_numbers_are_told_with_what_to_set(
    tmp_path: Path, refuses: Refuses, text: str, message: str
) -> None:
    with refuses(message):
        load(csv(tmp_path, text))


def test_the_columns_that_are_dropped_already_stay_in_the_advice(tmp_path: Path, refuses: Refuses) -> None:
    with refuses("data.drop: [city, clinic] leaves it out"):
        load(csv(tmp_path, CLINICS), drop=["city"])


def test_booleans_and_decimals_are_numbers(tmp_path: Path, refuses: Refuses) -> None:
    path = parquet(tmp_path, a=[True, False], b=[Decimal("1.5"), Decimal("2.5")], label=[0, 1])
    assert load(path).inputs.tolist() == [[1, 1.5], [0, 2.5]]
    path = parquet(tmp_path, a=[True, None], label=[0, 1])
    with refuses("column 'a' has no value in row 1"):
        load(path)
    with refuses("'a' is numbers saved as text; data.drop: [a] leaves it out"):
        load(parquet(tmp_path, a=["1.5", "2"], label=[0, 1]))
    with refuses("'a' is list<element: double>"):
        load(parquet(tmp_path, a=[[1.0], [2.0]], label=[0, 1]))


# -- what is missing -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cell", "what"),
    [("", "has no value"), ("NaN", "has no value"), ("inf", "is infinite"), ("1e300", "is 1e+300, too")],
)
def test_a_value_that_is_none_is_told_by_file_line_and_column(
    tmp_path: Path, refuses: Refuses, cell: str, what: str
) -> None:
    path = csv(tmp_path, f"age,bmi,label\n40,20.5,0\n\n50,{cell},1\n")
    with refuses(f"{path}: column 'bmi' {what}"):
        load(path)
    with refuses("in line 4: put a number there, or leave the column out with data.drop: [bmi]"):
        load(path)


def test_all_columns_that_have_gaps_are_named(tmp_path: Path, refuses: Refuses) -> None:
    path = parquet(tmp_path, a=[1.0, None], b=[1, 2], c=[None, float("inf")], label=[0, 1])
    with refuses("column 'c' has no value in row 0 (3 such values in 2 columns)"):
        load(path)
    with refuses("with data.drop: [a, c]"):
        load(path)


@pytest.mark.parametrize("cell", ["", " ", "NA", "nan", '""'])
def test_a_row_of_nobody_is_refused(tmp_path: Path, refuses: Refuses, cell: str) -> None:
    for north, south in (("north", "south"), ("1", "2")):
        path = csv(tmp_path, f"a,site,label\n1,{north},0\n2,{cell},1\n3,{south},1\n4,{cell},0\n")
        with refuses(
            f"{path}: column 'site' has no value in line 3 (nor in 1 more), so that nobody holds the row: fill it in"
        ):
            load(path, columns=["site"])


@pytest.mark.parametrize("sites", [["n", None], [1.0, float("nan")], [1, None], ["n", ""]])
def test_a_row_of_nobody_in_a_parquet_table(tmp_path: Path, refuses: Refuses, sites: list[Any]) -> None:
    with refuses("column 'site' has no value in row 1, so that"):
        load(parquet(tmp_path, a=[1, 2], site=sites, label=[0, 1]), columns=["site"])


# -- ids -----------------------------------------------------------------------------------------------------

ROWS = 30
SHUFFLED = np.random.default_rng(0).permutation(ROWS) + 1000


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("patient_id", SHUFFLED),
        ("ID", SHUFFLED),
        ("recordId", SHUFFLED.astype(float)),
        ("case no", np.r_[SHUFFLED[:-3], SHUFFLED[:3]]),  # some come twice
        ("x", np.arange(ROWS)),
        ("x", 10**9 - 7 * np.arange(ROWS)),
    ],
)
def test_a_column_that_looks_like_an_id_is_noted(tmp_path: Path, name: str, values: Any) -> None:
    columns = {"a": np.linspace(0, 1, ROWS), name: values, "label": np.arange(ROWS) % 2}
    path = parquet(tmp_path, **columns)
    for _ in range(2):  # also when it comes from the cache
        notes = load(path).notes
        assert len(notes) == 1
        assert f"column '{name}' looks like an id" in notes[0]
        assert "data.drop: [" in notes[0] and "\n" not in notes[0]
    assert load(path, limit=10).notes == notes
    assert load(path, drop=[name]).notes == ()


def test_ordinary_columns_are_not_taken_for_ids(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    columns = {
        "time": np.linspace(0, 1, ROWS),  # sorted, but real
        "age": rng.integers(20, 90, ROWS),
        "salary": rng.permutation(ROWS) * 1000,  # all different, in no order
        "covid": rng.integers(0, 2, ROWS),
        "hospital_id": rng.integers(0, 3, ROWS),
        "label": np.arange(ROWS) % 2,
    }
    assert load(parquet(tmp_path, **columns)).notes == ()
    assert load(csv(tmp_path, "a,label\n1,0\n2,1\n3,1\n")).notes == ()


# -- labels --------------------------------------------------------------------------------------------------


def test_labels_of_a_table_are_the_values_that_occur(tmp_path: Path) -> None:
    data = load(csv(tmp_path, "a,label\n1,3\n2,1\n3,0\n"))
    assert (data.classes, data.need_labels().tolist()) == (("0", "1", "3"), [2, 1, 0])
    csv(tmp_path / "two", "a,label\n1,2\n2,1\n3,2\n", "train.csv")
    csv(tmp_path / "two", "a,label\n1,2\n", "test.csv")
    assert load(tmp_path / "two").classes == ("1", "2")
    assert load(tmp_path / "two", "test").need_labels().tolist() == [1]
    data = load(csv(tmp_path, "a,label\n1,-1\n2,0\n3,1\n"))
    assert data.classes == ("-1", "0", "1")
    assert "the label -1 is a class like the others" in data.notes[0]


def test_a_label_that_is_missing_is_told_by_its_line(tmp_path: Path, refuses: Refuses) -> None:
    for words in ("01", "xy"):
        path = csv(tmp_path, f"a,label\n1,{words[0]}\n2,{words[1]}\n\n3,\n")
        with refuses(f"{path}, column 'label': line 5 has no label: fill it in, or leave the row out"):
            load(path)
