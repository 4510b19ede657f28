from __future__ import annotations

import io
import json
import logging
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image
from torch.utils.data import Dataset, IterableDataset, TensorDataset

from polyfed.data import DataSet, has_split, known_sets, load

Refuses = Callable[[str], AbstractContextManager[None]]


def png(pixels: np.ndarray[Any, Any]) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG")
    return buffer.getvalue()


def image_table(path: Path, images: list[np.ndarray[Any, Any]], **columns: list[Any]) -> Path:
    cells = [{"bytes": png(pixels), "path": None} for pixels in images]
    pq.write_table(pa.table({"image": cells, **columns}), path)
    return path


def grey(value: int, size: tuple[int, int] = (3, 4)) -> np.ndarray[Any, Any]:
    return np.full(size, value, dtype=np.uint8)


def test_digits_need_nothing_and_are_always_split_the_same_way() -> None:
    train, test = load("digits"), load("digits", "test")
    assert (len(train), len(test), train.shape) == (1437, 360, (1, 8, 8))
    assert train.inputs.max() == 255
    assert test.rows().class_counts().min() >= 34
    assert (test.mean, test.std) == (train.mean, train.std)
    assert train.rows().inputs().mean().abs() < 1e-4
    assert train.rows().inputs().std() == pytest.approx(1, abs=1e-3)


@pytest.fixture
def test_as_train(real_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The real sets with their small test files in the place of the training files."""
    for path in real_data.glob("*/test.parquet"):
        (tmp_path / path.parent.name).mkdir()
        (tmp_path / path.parent.name / "train.parquet").symlink_to(path)
    monkeypatch.setenv("POLYFED_DATA", str(tmp_path))
    return tmp_path


@pytest.mark.parametrize(
    ("name", "rows", "shape", "classes"),
    [
        ("cifar10", 5000, (3, 32, 32), 10),
        ("cifar100", 1000, (3, 32, 32), 100),
        ("emnist", 1880, (1, 28, 28), 47),
        ("tiny_imagenet", 1000, (3, 64, 64), 200),
    ],
)
def test_real_sets_from_local_files(
    test_as_train: Path, name: str, rows: int, shape: tuple[int, ...], classes: int
) -> None:
    data = load(name)
    assert (len(data), data.shape, len(data.classes)) == (rows, shape, classes)
    assert data.inputs.dtype == np.uint8
    assert len(data.mean) == shape[0]
    assert data.need_labels().dtype == np.int64
    assert data.rows().class_counts().min() > 0


def test_known_pixels_and_constants(real_data: Path) -> None:
    data = load("mnist", "test")
    cell = pq.read_table(real_data / "mnist" / "test.parquet").slice(17, 1).to_pylist()[0]
    assert np.array_equal(
        data.inputs[17, :, :, 0], np.asarray(Image.open(io.BytesIO(cell["image"]["bytes"])))
    )
    assert data.need_labels()[17] == cell["label"]
    assert data.mean == pytest.approx([0.1307], abs=2e-3)  # of the training split, as everyone uses them
    assert data.std == pytest.approx([0.3081], abs=2e-3)


def test_a_test_split_keeps_the_codes_of_the_training_split(real_data: Path) -> None:
    train, test = load("femnist"), load("femnist", "test")
    assert train.column_names["writer_id"] == test.column_names["writer_id"][:100]
    path = real_data / "femnist" / "test.parquet"
    writers = pq.read_table(path, columns=["writer_id"]).column(0).to_pylist()
    words = test.column_names["writer_id"]
    assert [words[code] for code in test.column("writer_id")] == writers
    assert test.mean == train.mean


def test_another_label_column_can_be_chosen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "cifar100").mkdir()
    images = [{"bytes": png(grey(level)), "path": None} for level in range(4)]
    columns = {"img": images, "fine_label": [3, 0, 1, 2], "coarse_label": [1, 0, 1, 0]}
    pq.write_table(pa.table(columns), tmp_path / "cifar100" / "train.parquet")
    monkeypatch.setenv("POLYFED_DATA", str(tmp_path))
    fine, coarse = load("cifar100"), load("cifar100", label="coarse_label")
    assert fine.need_labels().tolist() == [3, 0, 1, 2]
    assert coarse.need_labels().tolist() == [1, 0, 1, 0]
    assert fine.shape == (3, 3, 4)  # the set is in colour, whatever the images are


def test_which_splits_there_are(real_data: Path, refuses: Refuses, monkeypatch: pytest.MonkeyPatch) -> None:
    assert has_split("femnist", "test")  # the local copy has one
    assert has_split("pacs", "train")
    assert not has_split("pacs", "test")
    with refuses("'pacs' has no test split"):
        load("pacs", "test")
    monkeypatch.delenv("POLYFED_DATA")
    assert not has_split("femnist", "test")  # the hub's has not
    assert has_split("tiny_imagenet", "test")
    assert "office_home" in known_sets()
    with refuses("there is no split 'valid'"):
        load("digits", "valid")  # type: ignore[arg-type]


def test_a_limit_is_a_fixed_draw_with_the_constants_of_the_whole(refuses: Refuses) -> None:
    whole, some = load("digits"), load("digits", limit=100)
    assert len(some) == 100
    assert some.rows().class_counts().tolist() == [10] * 10
    assert some.mean == whole.mean
    assert some.fingerprint == load("digits", limit=100).fingerprint
    assert len(load("digits", limit=10**6)) == len(whole)
    with refuses("use 1 or more"):
        load("digits", limit=0)


def test_decoding_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = image_table(tmp_path / "t.parquet", [grey(1), grey(2)], label=[0, 1])
    with caplog.at_level(logging.INFO):
        load(path)
    assert "decoding 2 images of 3×4×1" in caplog.text


def test_a_parquet_of_images_with_further_columns(tmp_path: Path) -> None:
    image_table(
        tmp_path / "train.parquet", [grey(0), grey(255)], label=["cat", "dog"], site=["b", "a"], year=[9, 10]
    )
    image_table(tmp_path / "test.parquet", [grey(255)], label=["dog"], site=["c"], year=[10])
    train = load(tmp_path, columns=["site", "year"])
    test = load(tmp_path, "test", columns=["site", "year"])
    assert (train.name, train.classes, train.shape) == (tmp_path.name, ("cat", "dog"), (1, 3, 4))
    assert (train.mean, train.std) == ((0.5,), (0.5,))
    assert train.column_names == {"site": ("a", "b"), "year": ("9", "10")}
    assert train.column("site").tolist() == [1, 0]
    assert test.column_names == {"site": ("a", "b", "c"), "year": ("9", "10")}
    assert test.need_labels().tolist() == [1]
    assert test.column("site").tolist() == [2]
    assert set(test.rows().inputs().flatten().tolist()) == {1.0}


def test_grey_and_colour_together_become_colour(tmp_path: Path) -> None:
    colour = np.zeros((3, 4, 3), dtype=np.uint8)
    colour[..., 1] = 90
    data = load(image_table(tmp_path / "t.parquet", [grey(7), colour], label=[0, 1]))
    assert data.shape == (3, 3, 4)
    assert data.inputs[0, 0, 0].tolist() == [7, 7, 7]
    assert data.inputs[1, 0, 0].tolist() == [0, 90, 0]


def test_16_bit_grey_is_scaled_and_not_clipped(tmp_path: Path) -> None:
    pixels = np.array([[0, 256 * 100]], dtype=np.uint16)
    data = load(image_table(tmp_path / "t.parquet", [pixels, pixels], label=[0, 1]))
    assert data.inputs[0].ravel().tolist() == [0, 100]


def test_images_of_different_sizes_need_a_size(tmp_path: Path, refuses: Refuses) -> None:
    path = image_table(tmp_path / "t.parquet", [grey(1), grey(2, (5, 5))], label=[0, 1])
    with refuses(
        f"images differ in size: row 0 of {path} is 3×4, row 1 of {path} is 5×5; data.size: 32 makes"
    ):
        load(path)
    data = load(path, size=6)
    assert data.shape == (1, 6, 6)
    assert data.inputs[1].min() == 2


def test_a_csv_of_numbers(tmp_path: Path) -> None:
    path = tmp_path / "flowers.csv"
    path.write_text("a,b,species,garden\n1,2.5,rose,n\n3,4.5,tulip,s\n5,6.5,rose,n\n")
    data = load(path, label="species", columns=["garden"])
    assert (data.name, data.shape, data.classes) == ("flowers", (2,), ("rose", "tulip"))
    assert data.inputs.tolist() == [[1, 2.5], [3, 4.5], [5, 6.5]]
    assert data.mean == pytest.approx((3.0, 4.5))
    assert data.need_labels().tolist() == [0, 1, 0]
    unlabelled = load(path, label="none", columns=["garden", "species"])
    assert unlabelled.labels is None


def test_a_csv_of_image_paths(tmp_path: Path, refuses: Refuses) -> None:
    (tmp_path / "one.png").write_bytes(png(grey(10)))
    (tmp_path / "two.png").write_bytes(png(grey(20)))
    path = tmp_path / "list.csv"
    path.write_text("file,label\none.png,0\ntwo.png,1\n")
    assert load(path, image="file").inputs[:, 0, 0, 0].tolist() == [10, 20]
    (tmp_path / "two.png").write_text("no image")
    path.write_text("file,label\ntwo.png,1\none.png,0\n")
    with refuses("two.png cannot be read as an image"):
        load(path, image="file")


def test_a_changed_file_is_decoded_again(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("a,label\n1,0\n2,1\n")
    before = load(path)
    path.write_text("a,label\n1,0\n9,1\n")
    os.utime(path, ns=(1, 1))  # even by a clock that went backwards
    assert load(path).inputs[1, 0] == 9
    assert before.inputs[1, 0] == 2


def test_class_words_of_the_schema_are_used_and_must_suffice(tmp_path: Path, refuses: Refuses) -> None:
    words = {"info": {"features": {"label": {"names": ["no", "yes"], "_type": "ClassLabel"}}}}
    table = pa.table({"a": [1.0, 2.0], "label": [1, 0]})
    pq.write_table(table.replace_schema_metadata({"huggingface": json.dumps(words)}), tmp_path / "t.parquet")
    assert load(tmp_path / "t.parquet").classes == ("no", "yes")
    table = pa.table({"a": [1.0, 2.0], "label": [2, 0]})
    pq.write_table(table.replace_schema_metadata({"huggingface": json.dumps(words)}), tmp_path / "u.parquet")
    with refuses("there is a label 2, but there are only 2 classes"):
        load(tmp_path / "u.parquet")


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        ("a,label\n1,0\n2,1\n", {"label": "lable"}, "no column 'lable': did you mean 'label'?"),
        ("a,label\n1,0\n2,1\n", {"columns": ["site"]}, "no column 'site': it has a, label"),
        ("a,label\n1,0\n2,1\n", {"image": "img"}, "no column 'img': it has a, label"),
        ("a,b\n1,0\n2,1\n", {}, "say with `label` which column is the label (or none) of a, b"),
        ("a,label\n1,0.5\n2,1\n", {}, "whole numbers or words, but line 2 has 0.5"),
        ("a,label\n1,\n2,1\n", {}, "line 2 has no label"),
        ("a,label\n1,x\n2,x\n", {}, "all rows are of one class"),
        ("a,label\n1,0\n2,0\n", {}, "all rows are of one class"),
        ("a,label\n", {}, "no rows"),
        ("", {}, "t.csv is empty"),
        (
            "a,label\nnan,0\n2,1\n",
            {},
            "column 'a' has no value in line 2: put a number there, or leave the column",
        ),
        ("a,label\n,0\n2,1\n", {}, "column 'a' has no value in line 2"),
        ("a,label\nx,0\ny,1\n", {}, "'a' is text ('x' in line 2); data.drop: [a] leaves it out"),
        ("label\n0\n1\n", {}, "to learn from"),
    ],
)
def test_tables_that_cannot_be_used(
    tmp_path: Path, refuses: Refuses, text: str, options: dict[str, Any], message: str
) -> None:
    path = tmp_path / "t.csv"
    path.write_text(text)
    with refuses(message):
        load(path, **options)


def test_files_that_are_not_there_or_not_data(tmp_path: Path, refuses: Refuses) -> None:
    with refuses(f"there is no file or folder {tmp_path / 'x.csv'}"):
        load(tmp_path / "x.csv")
    with refuses("there is no data set 'minst': did you mean 'mnist'?"):
        load("minst")
    (tmp_path / "x.doc").write_text("text")
    with refuses("is not a data set"):
        load(tmp_path / "x.doc")
    (tmp_path / "x.parquet").write_text("text")
    with refuses("cannot be read as a table"):
        load(tmp_path / "x.parquet")
    (tmp_path / "x.npz").write_text("text")
    with refuses("cannot be read as .npz"):
        load(tmp_path / "x.npz")
    (tmp_path / "empty").mkdir()
    with refuses("there are no images"):
        load(tmp_path / "empty")


def test_npz_with_a_test_split(tmp_path: Path, refuses: Refuses) -> None:
    x = np.arange(24, dtype=np.uint8).reshape(4, 2, 3)
    np.savez(tmp_path / "d.npz", x=x, y=[0, 1, 0, 1], x_test=x[:1], y_test=[1])
    train, test = load(tmp_path / "d.npz"), load(tmp_path / "d.npz", "test")
    assert (train.shape, len(test)) == ((1, 2, 3), 1)
    assert test.mean == train.mean
    np.savez(tmp_path / "e.npz", inputs=np.ones((2, 3)), labels=[0, 1])
    assert load(tmp_path / "e.npz").shape == (3,)
    assert not has_split(tmp_path / "e.npz", "test")
    np.savez(tmp_path / "f.npz", a=x)
    with refuses("no array 'x' or 'inputs': it has a"):
        load(tmp_path / "f.npz")
    np.savez(tmp_path / "g.npz", x=np.array([{}, {}], dtype=object), y=[0, 1])
    with refuses("array 'x' holds Python objects, which are not read"):
        load(tmp_path / "g.npz")


def test_a_folder_of_images_by_class(tmp_path: Path) -> None:
    for split, values in (("train", {"cat": [1, 2], "dog": [3]}), ("test", {"dog": [4]})):
        for word, levels in values.items():
            folder = tmp_path / split / word
            folder.mkdir(parents=True)
            for level in levels:
                (folder / f"{level}.png").write_bytes(png(grey(level)))
    (tmp_path / "train" / "cat" / "notes.txt").write_text("not an image")
    train, test = load(tmp_path), load(tmp_path, "test")
    assert train.inputs[:, 0, 0, 0].tolist() == [1, 2, 3]
    assert train.need_labels().tolist() == [0, 0, 1]
    assert test.need_labels().tolist() == [1]
    assert load(tmp_path / "train").classes == ("cat", "dog")


class Pairs(Dataset[tuple[Any, int]]):
    """A map-style data set as users have them."""

    def __init__(self, items: list[tuple[Any, int]]) -> None:
        self.items = items

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, row: int) -> tuple[Any, int]:
        return self.items[row]


class Stream(IterableDataset[int]):
    """A data set without a length."""

    def __iter__(self) -> Iterator[int]:
        return iter(range(3))


def test_torch_data_sets(refuses: Refuses) -> None:
    images = torch.randn(6, 3, 4, 5)
    labels = torch.tensor([0, 1, 2, 0, 1, 2])
    quick = load(TensorDataset(images, labels))
    slow = load(Pairs([(x, int(y)) for x, y in zip(images, labels, strict=True)]))
    assert quick.fingerprint == slow.fingerprint
    assert torch.equal(quick.rows().inputs(), images)  # floats are taken as they are
    assert (quick.mean, quick.std) == ((0.0,) * 3, (1.0,) * 3)
    pictures = load(Pairs([(Image.fromarray(grey(9)), 0), (Image.fromarray(grey(8)), 1)]))
    assert pictures.shape == (1, 3, 4)
    assert pictures.inputs.dtype == np.uint8
    with refuses("map style"):
        load(Stream())
    with refuses("differ in size"):
        load(Pairs([(torch.zeros(3), 0), (torch.zeros(4), 1)]))
    with refuses("pairs (x, y)"):
        load(Pairs([(1, 2, 3)]))  # type: ignore[list-item]
    with refuses("no items"):
        load(Pairs([]))


def test_pairs_of_arrays(refuses: Refuses) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (4, 3, 8, 8), dtype=np.uint8)
    labels = np.array([0, 1, 1, 0])
    first = load((torch.from_numpy(pixels), torch.from_numpy(labels)))
    last = load((pixels.transpose(0, 2, 3, 1), labels))
    assert first.shape == last.shape == (3, 8, 8)
    assert first.fingerprint == last.fingerprint
    assert load((np.eye(4), ["x", "y", "x", "y"])).classes == ("x", "y")
    assert load((np.eye(4), None)).labels is None
    for wrong, message in (
        ((np.eye(4), [0, 1]), "one label for each row"),
        (
            (np.full((2, 2), np.nan), [0, 1]),
            "missing (NaN), infinite or too large, the first in row 0, column 0",
        ),
        ((np.zeros((0, 2)), []), "no rows"),
        ((np.zeros(3), [0, 1, 0]), "not 1-d"),
        ((np.eye(2), [0.0, 0.5]), "whole numbers"),
        (np.eye(2), "give a pair"),
        (7, "a int is not a data set"),
    ):
        with refuses(message):
            load(wrong)


def test_a_mapping_of_splits(refuses: Refuses) -> None:
    both = {"train": (np.array([[1.0], [3.0]]), ["a", "b"]), "test": (np.array([[5.0]]), ["b"])}
    test: DataSet = load(both, "test")
    assert test.need_labels().tolist() == [1]
    assert test.rows().inputs().tolist() == [[3.0]]  # (5 - 2) / 1
    with refuses("has no test split"):
        load({"train": both["train"]}, "test")
    with refuses("the label 'z' does not occur in the training split"):
        load(both | {"test": (np.array([[5.0]]), ["z"])}, "test")
    with refuses("test rows are 2, but training rows are 1"):
        load(both | {"test": (np.array([[5.0, 1.0]]), ["a"])}, "test")
