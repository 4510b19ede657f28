"""What clients that bring their own data agree on, and what is refused, with who has what."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from polyfed import data
from polyfed.data import Agreement, DataSet, agree
from polyfed.errors import DataError


def table(labels: str, *columns: str, column: str = "ill") -> DataSet:
    """A table with these columns and a row for each letter, its label."""
    words = tuple(sorted(set(labels)))
    return DataSet(
        name="t",
        inputs=np.arange(len(labels) * len(columns), dtype=np.float32).reshape(-1, len(columns)),
        labels=np.array([words.index(letter) for letter in labels]),
        classes=words,
        mean=(0.0,) * len(columns),
        std=(1.0,) * len(columns),
        fingerprint=labels,
        features=columns,
        label_columns=() if column is None else (column,),
    )


def images(labels: str, *shape: int, kind: Any = np.uint8) -> DataSet:
    words = tuple(sorted(set(labels)))
    numbers = np.array([words.index(letter) for letter in labels])
    pixels = np.zeros((len(labels), *shape), kind)
    return DataSet("i", pixels, numbers, words, (0.0,) * shape[-1], (1.0,) * shape[-1], labels)


def agreed(*classes: str, **sets: DataSet) -> Agreement:
    return agree({name: [found] for name, found in sets.items()}, classes)


def refusal(*classes: str, **sets: DataSet) -> str:
    with pytest.raises(DataError) as error:
        agreed(*classes, **sets)
    assert "\n" not in str(error.value)
    return str(error.value)


def test_columns_are_those_of_the_first_and_classes_the_union() -> None:
    found = agreed(a=table("xy", "p", "q"), b=table("yz", "q", "p"))
    assert found.features == ("p", "q")
    assert found.classes == ("x", "y", "z")
    assert (found.label_columns, found.shape, found.model_shape) == (("ill",), (2,), (2,))


def test_a_client_with_one_class_is_fine_if_it_overlaps() -> None:
    assert agreed(a=table("xy", "p"), b=table("yyy", "p")).classes == ("x", "y")


def test_clients_may_overlap_by_way_of_others() -> None:
    sets = {"a": table("uv", "p"), "b": table("xy", "p"), "c": table("vx", "p")}
    assert agreed(**sets).classes == ("u", "v", "x", "y")


def test_numbers_are_in_the_order_of_numbers() -> None:
    def numbered(*words: str) -> DataSet:
        x = np.zeros((len(words), 1), np.float32)
        return DataSet("n", x, np.arange(len(words)), words, (0.0,), (1.0,), "")

    assert agreed(a=numbered("2", "10"), b=numbered("1", "2")).classes == ("1", "2", "10")


def test_given_classes_are_the_agreed_order_and_may_be_more_than_occur() -> None:
    sets = {"a": table("xy", "p"), "b": table("z", "p")}
    assert agreed("z", "other", "y", "x", **sets).classes == ("z", "other", "y", "x")


def test_test_rows_may_have_classes_that_training_rows_lack() -> None:
    sets = {"a": [table("x", "p"), table("xy", "p")], "b": [table("xy", "p")]}
    assert agree(sets).classes == ("x", "y")
    sets["b"] = [table("x", "p")]
    with pytest.raises(
        DataError, match="a has test rows of the class 'y', of which nobody has training rows"
    ):
        agree(sets)
    assert agree(sets, ["x", "y"]).classes == ("x", "y")


@pytest.mark.parametrize(
    ("sets", "said"),
    [
        (
            {"a": table("xy", "p", "q"), "b": table("xy", "p"), "c": table("xy", "p", "q")},
            "a, c have a column 'q' to learn from, b has not: add it there, or leave it out everywhere",
        ),
        ({"a": table("xy", "p"), "b": table("xy", "r")}, "a has a column 'p' to learn from, b has not"),
        (
            {"a": table("01", "p"), "b": table("01", "p"), "c": table("bm", "p"), "d": table("mm", "p")},
            "the clients' classes have nothing in common (a, b: 0, 1; c, d: b, m): if they mean the same, write them "
            "alike; if they are different classes, list all of them in data.classes",
        ),
        ({"a": table("x", "p"), "b": table("x", "p")}, "all rows of all clients are of one class (x)"),
        (
            {"a": table("xy", "p"), "b": table("xy", "p", column="target")},
            "the clients have different label columns (a: 'ill'; b: 'target'): set data.label to one that all have",
        ),
        (
            {"a": images("xy", 8, 8, 1), "b": table("xy", "p")},
            "the clients have different rows (a: 8-bit images; b: columns with names)",
        ),
        (
            {"a": images("xy", 8, 8, 1), "b": images("xy", 8, 8, 3), "c": images("xy", 8, 8, 1)},
            "(a, c: 8-bit images of 8×8 with 1 channel; b: 8-bit images of 8×8 with 3 channels): make all of them grey",
        ),
        (
            {"a": images("xy", 8, 8, 1), "b": images("xy", 9, 8, 1)},
            "(a: 8-bit images of 8×8 with 1 channel; b: 8-bit images of 9×8 with 1 channel): set data.size",
        ),
        (
            {"a": images("xy", 8, 8, 1), "b": images("xy", 8, 8, 1, kind=np.float32)},
            "(a: 8-bit images; b: images as floats)",
        ),
    ],
)
def test_what_does_not_fit_together_is_refused_with_who_has_what(sets: dict[str, DataSet], said: str) -> None:
    assert said in refusal(**sets)


def test_a_class_that_was_not_agreed_on_is_refused_with_its_client() -> None:
    sets = {"a": table("xy", "p"), "b": table("yz", "p")}
    assert refusal("x", "y", **sets) == "b has rows of the class 'z', which data.classes does not list (x, y)"


def test_of_many_clients_only_the_first_are_named() -> None:
    sets = {f"c{number}": table("xy", "p") for number in range(20)}
    said = refusal(**sets, odd=table("xy", "q"))
    assert said.startswith(
        "c0, c1, c2, c3, c4, c5, c6, c7 and 12 more have a column 'p' to learn from, odd has not"
    )


# -- views -----------------------------------------------------------------------------------------------------


def test_a_view_has_other_numbers_for_the_same_words_and_other_constants() -> None:
    whole = table("xyyz", "p")
    view = whole.seen_as(classes=("z", "w", "y", "x"), mean=(1.0,), std=(2.0,))
    assert [view.classes[label] for label in view.need_labels()] == ["x", "y", "y", "z"]
    assert view.rows().inputs().flatten().tolist() == [-0.5, 0.0, 0.5, 1.0]
    assert view.rows().labels.tolist() == [3, 2, 2, 0]
    assert whole.rows().inputs().flatten().tolist() == [0, 1, 2, 3]
    assert whole.seen_as(classes=("x", "y", "z")) is whole
    with pytest.raises(DataError, match="has the label 'z', which is not an agreed class"):
        whole.seen_as(classes=("x", "y"))
    assert whole.seen_as(classes=("x", "y", "z", "rare")).rows([0]).class_counts().tolist() == [1, 0, 0, 0]


def test_views_are_told_apart_by_their_fingerprints() -> None:
    whole = table("xy", "p")
    views = [whole, whole.seen_as(mean=(1.0,)), whole.seen_as(std=(2.0,)), whole.seen_as(classes=("y", "x"))]
    assert len({view.fingerprint for view in views}) == len(views)


# -- rows of several owners ------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["table", "images"])
def test_rows_are_put_together_as_their_owners_normalise_them(kind: str) -> None:
    rng = np.random.default_rng(0)
    parts = []
    for place in range(2):
        x = rng.normal(size=(5, 3)) if kind == "table" else rng.integers(0, 256, (5, 4, 4, 3), dtype=np.uint8)
        found = data.load((x, np.arange(5) % 2), part=True)
        parts.append(found.seen_as(mean=(0.1 * place,) * 3, std=(1.0 + place,) * 3).rows([4, 0, 2]))
    whole = data.put_together(parts, "both")
    expected = np.concatenate([part.inputs().numpy() for part in parts])
    assert np.array_equal(whole.rows().inputs().numpy(), expected)
    assert whole.rows().labels.tolist() == [0, 0, 0, 0, 0, 0]
    assert data.put_together(parts, "both").fingerprint == whole.fingerprint


def test_rows_of_other_classes_are_not_put_together() -> None:
    with pytest.raises(DataError, match="are not like those of"):
        data.put_together([table("xy", "p").rows(), table("xz", "p").rows()], "both")


def test_constants_of_several_owners_are_those_of_all_rows_also_where_one_has_a_constant_column() -> None:
    rng = np.random.default_rng(0)
    parts = [rng.normal(n, n + 1, (20 * (n + 1), 3)).astype(np.float32) for n in range(3)]
    parts[1][:, 2] = 7.0
    mean, std = data.pooled([data.moments(part) for part in parts])
    whole = np.concatenate(parts).astype(np.float64)
    assert mean == pytest.approx(whole.mean(axis=0)) and std == pytest.approx(whole.std(axis=0))
    assert data.pooled([data.moments(parts[1])])[1][2] == 1.0  # a constant column is left as it is
