"""Paths and files that lead elsewhere, or that are none: links, pipes, devices, folders."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from PIL import Image
from tests.attacks.conftest import Refused, unharmed
from tests.conftest import MakeRun

import polyfed
from polyfed import disk
from polyfed.data import load
from polyfed.errors import CheckpointError, DataError


def paint(path: Path, shade: int = 9) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.full((8, 8), shade, np.uint8)).save(path)
    return path


@pytest.fixture
def run_file(tmp_path: Path, small: dict[str, Any]) -> Path:
    path = tmp_path / "small.yaml"
    path.write_text(yaml.safe_dump(small))
    return path


# -- tables that name files ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "leads_out",
    [
        "../secret.png",
        "a/../../secret.png",
        "/SECRET",
        "linked.png",
        "linked/secret.png",
        "circle/x.png",
        "a\0.png",
    ],
)
@pytest.mark.parametrize("ending", ["parquet", "csv"])
def test_a_path_out_of_the_tables_folder_is_refused_with_its_row(
    tmp_path: Path, leads_out: str, ending: str
) -> None:
    secret = paint(tmp_path / "secret.png")
    folder = tmp_path / "table"
    for name in ("a/1.png", "a/2.png"):
        paint(folder / name)
    (folder / "linked.png").symlink_to(secret)
    (folder / "linked").symlink_to(tmp_path)
    (folder / "circle").symlink_to(folder / "circle")
    paths = ["a/1.png", "a/2.png", leads_out.replace("/SECRET", str(secret))]
    table = folder / f"t.{ending}"
    if ending == "csv":
        if "\0" in leads_out:
            return  # no CSV can hold it
        table.write_text("image,label\n" + "".join(f"{path},{row % 2}\n" for row, path in enumerate(paths)))
    else:
        pq.write_table(pa.table({"image": paths, "label": [0, 1, 0]}), table)
    place = "line 4" if ending == "csv" else "row 2"
    with (
        unharmed(),
        pytest.raises(DataError, match=f"in {place}, which is not inside the table's folder: put images"),
    ):
        load(table, image="image")


def test_links_that_stay_inside_are_followed(tmp_path: Path) -> None:
    for name in ("a/1.png", "b/2.png"):
        paint(tmp_path / name)
    (tmp_path / "b" / "3.png").symlink_to(tmp_path / "a" / "1.png")
    assert len(load(tmp_path)) == 3


# -- folders of images -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("link", "target", "message"),
    [
        ("b/out.png", "../../secret.png", "b/out.png is a link that leads out of"),
        ("b/circle.png", "circle.png", "b/circle.png cannot be read: "),
        ("b/nowhere.png", "nothing.png", "b/nowhere.png cannot be read: No such file"),
        ("c", "../elsewhere", "c is a link to a folder, which is not followed"),
        ("a/up", "..", "a/up is a link to a folder, which is not followed"),
    ],
)
def test_links_in_a_folder_of_images_are_refused(
    tmp_path: Path, link: str, target: str, message: str
) -> None:
    paint(tmp_path / "secret.png")
    paint(tmp_path / "elsewhere" / "4.png")
    root = tmp_path / "images"
    for name in ("a/1.png", "b/2.png"):
        paint(root / name)
    (root / link).symlink_to(target)
    with unharmed(), pytest.raises(DataError, match=message):
        load(root)


def test_a_folder_of_other_things_is_not_searched_for_ever(
    tmp_path: Path, refused: Refused, run_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("polyfed.data.image_folders._MOST_OTHERS", 20)
    for number in range(30):
        (tmp_path / "home" / f"{number}").mkdir(parents=True)
        (tmp_path / "home" / f"{number}" / "notes.txt").touch()
    assert "is this a folder of images?" in refused("run", run_file, "--set", "data.source=home")


# -- what is no file -------------------------------------------------------------------------------------


def pipe(path: Path) -> None:
    os.mkfifo(path)


def device(path: Path) -> None:
    path.symlink_to("/dev/zero")


def folder(path: Path) -> None:
    path.mkdir()


def listening(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(os.path.relpath(path))


KINDS = {"a named pipe": pipe, "a device": device, "a socket": listening, "a folder": folder}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "words",
    [
        "run x.yaml",
        "partition x.yaml",
        "sweep x.yaml",
        "reproduce x.yaml",
        "reproduce x.yaml/table1",
        "run small.yaml --set data.source=x.csv",
        "run small.yaml --set data.source=x.parquet",
        "run small.yaml --set data.source=x.npz",
        "run small.yaml --set data.source=images",
        "run small.yaml --set data.source=with",
        "partition small.yaml -o x.png",
    ],
)
@pytest.mark.usefixtures("run_file")
def test_nothing_but_a_file_is_opened(tmp_path: Path, refused: Refused, kind: str, words: str) -> None:
    for name in ("x.yaml", "x.csv", "x.parquet", "x.npz", "x.png", "images/a/x.png", "with/train.parquet"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        KINDS[kind](tmp_path / name)
    said = refused(*words.split())
    assert kind in said or kind == "a folder" or "no images" in said


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "a folder"])
@pytest.mark.parametrize(
    "words", ["run small.yaml --out x", "sweep small.yaml --out x", "resume x", "compare x x"]
)
@pytest.mark.usefixtures("run_file")
def test_out_and_run_directories_are_folders(tmp_path: Path, refused: Refused, kind: str, words: str) -> None:
    KINDS[kind](tmp_path / "x")
    assert "x is a file, not a folder" in refused(*words.split())


@pytest.mark.parametrize(
    "words", ["resume x", "compare x x", "run small.yaml --out x", "predict x new.csv --client client-0"]
)
@pytest.mark.parametrize("name", ["manifest.json", "config.yaml"])
@pytest.mark.usefixtures("run_file")
def test_a_pipe_in_a_run_directory_is_not_waited_for(
    tmp_path: Path, refused: Refused, words: str, name: str
) -> None:
    (tmp_path / "x").mkdir()
    pipe(tmp_path / "x" / name)
    assert refused(*words.split())


@pytest.mark.usefixtures("run_file")
def test_a_pipe_in_a_sweeps_folder_is_not_waited_for(tmp_path: Path, refused: Refused) -> None:
    (tmp_path / "x").mkdir()
    pipe(tmp_path / "x" / "sweep.json")
    assert "named pipe" in refused("sweep", "small.yaml", "--out", "x")


def link(path: Path) -> None:
    path.symlink_to(next(parent / "precious" for parent in path.parents if (parent / "precious").exists()))


PLACES = [
    "history.jsonl",
    "states.jsonl",
    "manifest.json.tmp",
    "failures.log",
    ".lock",
]


@pytest.mark.parametrize("name", PLACES)
@pytest.mark.parametrize("harm", [pipe, link])
def test_a_run_writes_through_no_link_and_into_no_pipe(
    make_run: MakeRun, tmp_path: Path, name: str, harm: Callable[[Path], None]
) -> None:
    run = make_run("local", rounds=2)
    run.go(lambda now: now.stop())
    run.close()
    (tmp_path / "precious").write_text("precious")
    (run.path / name).unlink(missing_ok=True)
    harm(run.path / name)
    with unharmed(), pytest.raises(CheckpointError, match=f"{name} is a"):
        polyfed.resume(run.path)
    assert (tmp_path / "precious").read_text() == "precious"


@pytest.mark.parametrize("name", ["states/mine", "models/mine"])
@pytest.mark.parametrize("harm", [pipe, link])
def test_what_is_no_part_of_a_run_is_left_alone(
    make_run: MakeRun, tmp_path: Path, name: str, harm: Callable[[Path], None]
) -> None:
    run = make_run("local", rounds=2)
    run.go(lambda now: now.stop())
    run.close()
    (tmp_path / "precious").write_text("precious")
    harm(run.path / name)
    with unharmed():
        assert polyfed.resume(run.path).finished
    assert os.path.lexists(run.path / name)
    assert (tmp_path / "precious").read_text() == "precious"


@pytest.mark.parametrize("harm", [pipe, link])
@pytest.mark.parametrize("name", ["a.csv", "a.csv.tmp"])
def test_a_file_is_replaced_and_what_it_led_to_is_not(
    tmp_path: Path, name: str, harm: Callable[[Path], None]
) -> None:
    (tmp_path / "precious").write_text("precious")
    harm(tmp_path / name)
    with unharmed():
        disk.replace(tmp_path / "a.csv", b"new")
    assert (tmp_path / "a.csv").read_text() == "new"
    assert (tmp_path / "precious").read_text() == "precious"
