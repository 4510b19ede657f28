"""The way over the hub, with a client module of our own that serves local files."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from polyfed.data import load

Refuses = Callable[[str], AbstractContextManager[None]]


class Hub:
    """What a repository on the hub holds, and who asked for what."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.files: list[str] = []
        self.asked: list[str] = []
        self.down = False

    def put(self, file: str, columns: dict[str, list[Any]]) -> None:
        path = self.root / file
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.table(columns), path)
        self.files.append(file)

    def list_repo_files(self, repo_id: str, *, repo_type: str) -> list[str]:
        assert repo_type == "dataset"
        if self.down:
            raise RuntimeError("name or service not known")
        self.asked.append(repo_id)
        return ["README.md", *self.files]

    def download(self, repo_id: str, filename: str, *, repo_type: str) -> str:
        assert repo_type == "dataset"
        self.asked.append(filename)
        return str(self.root / filename)


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Hub:
    served = Hub(tmp_path / "hub")
    module = ModuleType("huggingface_hub")
    module.HfApi = lambda: served  # type: ignore[attr-defined]
    module.hf_hub_download = served.download  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "huggingface_hub", module)
    monkeypatch.setenv("POLYFED_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("POLYFED_DATA", raising=False)
    return served


def cell(value: int, shape: tuple[int, ...] = (28, 28)) -> dict[str, Any]:
    pixels = np.zeros(shape, dtype=np.uint8)
    pixels[0, 1] = value
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG")
    return {"bytes": buffer.getvalue(), "path": None}


def test_all_files_of_a_split_are_taken_in_order_and_only_once(hub: Hub) -> None:
    hub.put("mnist/train-00001-of-00002.parquet", {"image": [cell(3)], "label": [1]})
    hub.put("mnist/train-00000-of-00002.parquet", {"image": [cell(1), cell(2)], "label": [0, 1]})
    hub.put("mnist/test-00000-of-00001.parquet", {"image": [cell(4)], "label": [1]})
    train, test = load("mnist"), load("mnist", "test")
    assert train.inputs[:, 0, 1, 0].tolist() == [1, 2, 3]
    assert test.inputs[:, 0, 1, 0].tolist() == [4]
    assert hub.asked.count("ylecun/mnist") == 2
    hub.down = True
    assert load("mnist").fingerprint == train.fingerprint  # later runs need no network


def test_the_test_split_of_tiny_imagenet_is_called_valid_and_grey_becomes_colour(hub: Hub) -> None:
    colour = cell(9, (64, 64, 3))
    hub.put("data/train-00000-of-00001.parquet", {"image": [colour, cell(5, (64, 64))], "label": [0, 1]})
    hub.put("data/valid-00000-of-00001.parquet", {"image": [cell(6, (64, 64))], "label": [1]})
    assert load("tiny_imagenet").inputs[1, 0, 1].tolist() == [5, 5, 5]
    assert load("tiny_imagenet", "test").inputs[0, 0, 1].tolist() == [6, 6, 6]


def test_the_hubs_emnist_is_turned_upright_and_counts_from_0(hub: Hub) -> None:
    images, labels = [cell(n) for n in range(1, 27)], list(range(1, 27))
    hub.put("emnist-letters/train-00000-of-00001.parquet", {"image": images, "label": labels})
    hub.put("other/train-00000-of-00001.parquet", {"image": images, "label": labels})
    data = load("emnist")
    assert len(data) == 26  # of its own folder alone
    assert data.inputs[4, 1, 0, 0] == 5  # pixel (0, 1) of the file is pixel (1, 0)
    assert data.need_labels().tolist() == list(range(26))
    assert data.classes[:3] == ("A", "B", "C")


def test_further_columns_are_kept_where_the_hub_has_them(hub: Hub) -> None:
    columns: dict[str, list[Any]] = {"image": [cell(1), cell(2)], "writer_id": ["w9", "w1"], "hsf_id": [4, 0]}
    hub.put("data/train-00000-of-00001.parquet", columns | {"character": [0, 61]})
    data = load("femnist")
    assert data.column_names == {"writer_id": ("w1", "w9"), "hsf_id": ("0", "4")}
    assert len(data.classes) == 62


def test_a_further_column_with_gaps_is_left_out_unless_it_is_asked_for(hub: Hub, refuses: Refuses) -> None:
    columns: dict[str, list[Any]] = {
        "image": [cell(1), cell(2)],
        "writer_id": ["w9", "w1"],
        "hsf_id": [4, None],
        "character": [0, 61],
    }
    hub.put("data/train-00000-of-00001.parquet", columns)
    assert load("femnist").column_names == {"writer_id": ("w1", "w9")}
    with refuses("column 'hsf_id' has no value in row 1"):
        load("femnist", columns=["hsf_id"])


def test_office_home_comes_in_one_size(hub: Hub) -> None:
    images = [cell(1, (50, 70, 3)), cell(1, (90, 60, 3))]
    hub.put("data/train-0.parquet", {"image": images, "domain": ["Art", "Real World"], "label": [0, 1]})
    assert load("office_home").shape == (3, 64, 64)
    assert load("office_home", size=32).shape == (3, 32, 32)


def test_a_hub_that_is_out_of_reach_is_one_line(hub: Hub, refuses: Refuses) -> None:
    hub.down = True
    with refuses("could not be downloaded from ylecun/mnist (RuntimeError): try again, or set POLYFED_DATA"):
        load("mnist")
    hub.down = False
    with refuses("no parquet files of its split 'train'"):
        load("mnist")


def test_without_files_and_without_the_hub_both_ways_are_named(
    refuses: Refuses, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("POLYFED_CACHE", str(tmp_path))
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    monkeypatch.delenv("POLYFED_DATA", raising=False)
    with refuses("mnist/train.parquet, or install 'polyfed[hub]' to download ylecun/mnist"):
        load("mnist")
