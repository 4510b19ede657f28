"""`polyfed samples`: a sheet of what a client's generator makes; one line where there is none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from tests.conftest import Command

import polyfed
from polyfed.errors import UserError
from polyfed.report.sheet import COLUMNS, sheet
from polyfed.runs.generated import Generated, generated

KEEPING = {"name": "fedkf", "flavour": "authors", "noise": 8, "width": 8}


def run(path: Path, small: dict[str, Any], **changes: Any) -> Path:
    config = {**small, "method": KEEPING, "models": {"names": ["mlp-small"]}, "rounds": 2, **changes}
    return polyfed.run(config, out=path, workers=1).path


def test_a_sheet_is_drawn_and_the_classes_are_counted(
    tmp_path: Path, small: dict[str, Any], command: Command
) -> None:
    directory = run(tmp_path / "run", small)
    said = command("samples", str(directory), "--client", "client-1", "-o", str(tmp_path / "sheet.png"))
    assert said.code == 0, said
    assert "500 images of client-1's generator" in said.out and "of 10 classes" in said.out
    with Image.open(tmp_path / "sheet.png") as picture:
        assert min(picture.size) > 500


def test_images_are_as_they_would_be_seen_and_always_the_same(tmp_path: Path, small: dict[str, Any]) -> None:
    directory = run(tmp_path / "run", small)
    once, again = (generated(directory, "client-0", 40) for _ in range(2))
    assert once.images.shape == (40, 8, 8, 1)
    assert 0 <= once.images.min() < once.images.max() <= 1
    assert torch.equal(once.images, again.images) and torch.equal(once.classes, again.classes)
    assert not torch.equal(once.images, generated(directory, "client-1", 40).images)


@pytest.mark.parametrize(
    ("changes", "client", "said"),
    [
        ({"method": "fedavg"}, "client-0", "keeps a generator \\(its method is fedavg\\): use a run of"),
        ({"method": {**KEEPING, "keep_generator": False}}, "client-0", "method.keep_generator=true"),
        ({"rounds": 1}, "client-0", "has trained no generator in .* yet: it needs a second round"),
        ({}, "nobody", "no final model 'nobody'"),
    ],
    ids=["another method", "not kept", "only one round", "no client"],
)
def test_where_there_is_no_generator_one_line_says_so(
    changes: dict[str, Any], client: str, said: str, tmp_path: Path, small: dict[str, Any]
) -> None:
    directory = run(tmp_path / "run", small, **changes)
    with pytest.raises(UserError, match=said) as caught:
        generated(directory, client)
    assert "\n" not in str(caught.value)


def test_rows_of_a_table_cannot_be_drawn(tmp_path: Path) -> None:
    x = np.random.default_rng(0).normal(size=(60, 4))
    config = {"method": KEEPING, "rounds": 2, "data": {"clients": 2}, "models": {"names": ["mlp-small"]}}
    polyfed.run(config, data=(x, (x[:, 0] > 0).astype(int)), out=tmp_path / "run", workers=1)
    with pytest.raises(UserError, match="make rows of a table, not images"):
        generated(tmp_path / "run", "client-0")


def test_a_sheet_explains_its_numbers_and_has_no_rows_of_classes_that_are_never_made(tmp_path: Path) -> None:
    count = COLUMNS + 2
    classes = torch.tensor([0] * count + [2])
    images = torch.rand(count + 1, 10, 14, 3)
    found = Generated(images, classes, torch.full((count + 1,), 0.14), ("cat", "$dog$", "bird"))
    drawn = sheet(found, "colour", tmp_path / "sheet.svg").read_text()
    said = ("how many of 13 images the served model takes", "how sure it is, in %", "92 % of images", "14 %")
    assert all(words in drawn for words in said)
    assert "never made: $dog$" in drawn.replace("\\", "")
    assert sheet(found, "colour", tmp_path / "sheet.png").stat().st_size > 5000
    few = Generated(images[:1], classes[:1], torch.ones(1), ("cat",))
    sheet(few, "one", tmp_path / "few.png")
    with Image.open(tmp_path / "sheet.png") as wide, Image.open(tmp_path / "few.png") as narrow:
        assert narrow.width < wide.width and narrow.height < wide.height


def test_a_file_that_is_no_figure_is_not_written_over(tmp_path: Path, command: Command) -> None:
    precious = tmp_path / "precious.png"
    precious.write_text("mine")
    said = command("samples", str(tmp_path), "--client", "client-0", "-o", str(precious))
    assert said.code == 2 and "choose another name" in said.err
    assert precious.read_text() == "mine"
