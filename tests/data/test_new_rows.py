"""New data in the form of the training data."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from polyfed import data
from polyfed.data import CLASS_LABELS, InputForm, csv_files, read_new_rows, tables
from polyfed.errors import DataError


def table(path: Path, header: str, *rows: str) -> Path:
    path.write_text("\n".join([header, *rows]))
    return path


@pytest.fixture
def form(tmp_path: Path) -> InputForm:
    source = table(tmp_path / "t.csv", "b,a,grade,site", "1,10,low,x", "2,20,high,y", "3,60,low,x")
    found = data.load(source, label="grade", columns=("site",))
    return InputForm.of(data.agreement_of(found), (found.mean, found.std))


def test_a_table_says_its_columns_in_their_order_and_its_label_column(form: InputForm) -> None:
    assert form.features == ("b", "a")
    assert form.label_columns == ("grade",)
    assert form.mean == (2.0, 30.0)


def test_columns_are_kept_when_rows_are_drawn(tmp_path: Path) -> None:
    rows = [f"{n},{n % 2}" for n in range(20)]
    for options in ({"limit": 6}, {"per_class": 3}):
        drawn = data.load(table(tmp_path / "t.csv", "width,label", *rows), **options)  # type: ignore[arg-type]
        assert (drawn.features, drawn.label_columns, len(drawn)) == (("width",), ("label",), 6)


def test_tables_that_differ_in_the_names_of_columns_alone_are_told_apart(tmp_path: Path) -> None:
    rows = [f"{n},{n},{n % 2}" for n in range(20)]
    one, two = (
        data.load(table(tmp_path / "t.csv", header, *rows), limit=6) for header in ("a,b,label", "bb,a,label")
    )
    assert (one.features, two.features) == (("a", "b"), ("bb", "a"))
    assert one.fingerprint != two.fingerprint


def test_new_rows_are_normalised_exactly_as_training_rows(form: InputForm, tmp_path: Path) -> None:
    trained = data.load(tmp_path / "t.csv", label="grade", columns=("site",)).rows().inputs()
    new = read_new_rows(table(tmp_path / "n.csv", "a,id,b", "10,7,1", "20,8,2", "60,9,3"), form)
    assert torch.equal(new.inputs(torch.contiguous_format), trained)
    assert new.labels is None
    assert list(new.names) == ["0", "1", "2"]


def test_other_rows_of_the_same_number_are_other_inputs(form: InputForm) -> None:
    """Tensors are kept by content."""
    one, other = (
        read_new_rows(np.full((2, 2), value), form).inputs(torch.contiguous_format) for value in (1, 2)
    )
    assert not torch.equal(one, other)


@pytest.mark.parametrize(
    ("labels", "classes", "found"),
    [
        (["b", "a", "c"], ("a", "b"), ["b", "a", None]),
        ([1, 0, 2], ("a", "b"), ["b", "a", None]),
        ([1.0, 2.0, -1.0], ("1", "2"), ["1", "2", None]),
        ([None, float("nan"), ""], ("1", "2"), [None, None, None]),
        ([3, 7, 0], ("3", "7"), ["3", "7", None]),
        ([True, False, True], ("a", "b"), ["b", "a", "b"]),
    ],
)
def test_labels_are_classes_by_word_or_number(
    labels: list[object], classes: tuple[str, ...], found: list[str | None]
) -> None:
    form = InputForm(
        shape=(1,),
        features=("x",),
        scaled=False,
        mean=(0.0,),
        std=(1.0,),
        classes=classes,
        label_columns=("y",),
    )
    columns = {"x": np.zeros(3), "y": np.array(labels, dtype=object)}
    labels_given = read_new_rows(columns, form).labels
    assert labels_given is not None
    assert CLASS_LABELS.meant(list(labels_given), classes) == found


def test_a_file_that_is_no_table_is_one_line(form: InputForm, tmp_path: Path) -> None:
    (tmp_path / "n.parquet").write_text("no table")
    with pytest.raises(DataError, match=r"n\.parquet cannot be read as a table"):
        read_new_rows(tmp_path / "n.parquet", form)


def test_only_the_columns_that_a_model_needs_are_read(
    form: InputForm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[list[str]] = []

    def watched(*args: Any, **options: Any) -> Any:
        found = csv_files.read_csv(*args, **options)
        read.append(found.column_names)
        return found

    monkeypatch.setattr(tables, "read_csv", watched)
    others = ",".join(f"x{place}" for place in range(3000))
    wide = table(tmp_path / "wide.csv", f"a,{others}, b", f"10,{'3,' * 3000}1", f"20,{'3,' * 3000}2")
    assert read_new_rows(wide, form).data.inputs.tolist() == [[1, 10], [2, 20]]
    assert read == [["a", "b"]]
    wide.write_text(f"{others}\n{'3,' * 2999}3\n")
    with pytest.raises(DataError, match=r"wide\.csv has no column 'b' \(and 1 more\)"):
        read_new_rows(wide, form)
    pictures = InputForm(
        shape=(4, 4, 1),
        features=(),
        scaled=True,
        mean=(0.0,),
        std=(1.0,),
        classes=("x", "y"),
        image="path",
    )
    with pytest.raises(DataError, match=r"has no column of images: it has x0, .* and 2990 more"):
        read_new_rows(wide, pictures)
    assert read == [["a", "b"], []]


def test_numbers_in_a_table_are_words_of_classes_and_never_their_places(tmp_path: Path) -> None:
    """A file that says 1 for ja must not be taken for one in which 1 is the second class."""
    words, numbers = tmp_path / "words.csv", tmp_path / "numbers.csv"
    rows = [f"{n},{'ja' if n % 2 else 'nein'}" for n in range(20)]
    words.write_text("\n".join(["a,label", *rows]))
    numbers.write_text("\n".join(["a,label", *(f"{n},{n % 2}" for n in range(20))]))
    found = data.load(words)
    form = InputForm.of(data.agreement_of(found), (found.mean, found.std))
    for source in (numbers, {"a": np.arange(20), "label": np.arange(20) % 2}):
        labels = read_new_rows(source, form).labels
        assert labels is not None and set(CLASS_LABELS.meant(list(labels), form.classes)) == {None}
    said = read_new_rows(words, form).labels
    assert said is not None and CLASS_LABELS.meant(list(said), form.classes)[:2] == ["nein", "ja"]
    arrays = read_new_rows((np.arange(20.0)[:, None], np.arange(20) % 2), form).labels
    assert arrays is not None and CLASS_LABELS.meant(list(arrays), form.classes)[:2] == ["ja", "nein"]
