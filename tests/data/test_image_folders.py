"""Folders of images: which folders are the classes, and what is said where they cannot be."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from polyfed.data import load

Refuses = Callable[[str], AbstractContextManager[None]]


def paint(root: Path, places: str) -> Path:
    """Images in folders such as `cat/`, two in each, or by their own names such as `x.png`."""
    rng = np.random.default_rng(0)
    for place in places.split():
        names = [place] if place.endswith(".png") else [f"{place}1.png", f"{place}2.png"]
        for name in names:
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(rng.integers(0, 256, (4, 4), dtype=np.uint8)).save(root / name)
    return root


@pytest.mark.parametrize(
    ("places", "message"),
    [
        (
            "n/cat/ n/dog/ s/cat/ s/dog/",
            "folders of folders of images, such as n/cat and s/cat, where one folder",
        ),
        ("n/cat/ n/dog/ s/dog/ s/x.png y.png", "put all images of a class directly into one folder"),
        (
            "train/n/cat/ train/n/dog/ train/s/cat/ train/s/dog/",
            "train: folders of folders of images, such as n/cat",
        ),
        ("cat/images/ cat/masks/ dog/images/ dog/masks/", "such as cat/images and dog/images"),
        ("Train/cat/ Train/dog/ Test/cat/ Test/dog/", "Test, Train look like parts of one data set"),
        ("training/a/ training/b/ val/a/ val/b/ test1/a/", "call the folders train and test"),
        ("test/cat/ test/dog/", "has test, but no train"),
        ("test/cat/ cat/ dog/", "has test, but no train"),
        ("data/cat/ data/dog/", "so there is one class; cat, dog are in ROOT/data: give that folder"),
        ("a/b/train/cat/ a/b/test/cat/", "test, train are in ROOT/a/b: give that folder"),
        (
            "cat/",
            "all images are in its folder cat, so there is one class; a folder for each class is expected",
        ),
        ("x.png y.png", "its images are in no folder of their own (x.png): one folder for each class"),
        ("", "there are no images in it (one folder for each class is expected)"),
    ],
)
def test_folders_that_cannot_be_the_classes_are_refused(
    tmp_path: Path, refuses: Refuses, places: str, message: str
) -> None:
    with refuses(message.replace("ROOT", str(tmp_path))):
        load(paint(tmp_path, places))


def test_a_folder_of_tables_says_how_they_become_one(tmp_path: Path, refuses: Refuses) -> None:
    for name in ("north.csv", "south.csv"):
        (tmp_path / name).write_text("a,label\n1,0\n2,1\n")
    with refuses(
        "it has north.csv, south.csv, but no train.csv: give one of the files; put all rows into one table"
    ):
        load(tmp_path)


@pytest.mark.parametrize(
    ("places", "notes"),
    [
        ("cat/ dog/", []),
        ("train/cat/ train/dog/ test/cat/ notes/x.png", []),
        ("n1/images/ n2/images/", []),
        ("cat/ dog/ .hidden/ .x.png", []),
        (
            "benign/p1/ benign/p2/ malign/p3/ malign/p4/",
            ["(benign/p1 as 'benign'): if those are the classes"],
        ),
        ("cat/ cat/more/ dog/", ["(cat/more as 'cat')"]),
        ("cat/ dog/ x.png", ["images that lie beside the class folders are left out (x.png)"]),
        ("cat/ Cat/ dog/ A/ a/", ["'Cat', 'cat' are 2 classes, and look like one"]),
    ],
)
def test_folders_that_may_be_the_classes_are_read_with_a_word_on_what_looks_odd(
    tmp_path: Path, places: str, notes: list[str]
) -> None:
    data = load(paint(tmp_path, places))
    assert len(data.notes) == len(notes)
    assert all(part in note for part, note in zip(notes, data.notes, strict=True))


def test_a_folder_that_became_empty_is_told_also_of_a_set_in_the_cache(tmp_path: Path) -> None:
    paint(tmp_path, "cat/ dog/")
    assert load(tmp_path).notes == ()
    (tmp_path / "__MACOSX").mkdir()
    (tmp_path / "bird").mkdir()
    (tmp_path / "bird" / "scan.dcm").write_bytes(b"")
    assert "no class for folders without images (bird): images end in .bmp" in load(tmp_path).notes[0]


def test_a_test_folder_may_have_one_class_alone(tmp_path: Path) -> None:
    assert load(paint(tmp_path, "train/cat/ train/dog/ test/dog/"), "test").need_labels().tolist() == [1, 1]
