"""Images that are damaged or differ in size are named."""

from __future__ import annotations

import io
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from polyfed.data import load

Refuses = Callable[[str], AbstractContextManager[None]]


def encoded(size: tuple[int, int] = (16, 16), kind: str = "PNG") -> bytes:
    pixels = np.random.default_rng(0).integers(0, 256, (*size, 3), dtype=np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, kind)
    return buffer.getvalue()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("cat/1.png", "cat/2.png", "dog/3.png"):
        path = tmp_path / "animals" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(encoded())
    return tmp_path / "animals"


GOOD = encoded()
DAMAGE = {
    "a truncated image": GOOD[:-200],
    "hardly a header": GOOD[:20],
    "flipped bytes": GOOD[:100] + bytes(9) + GOOD[109:],
    "a text": b"no image",
    "nothing": b"",
    "half a JPEG": encoded(kind="JPEG")[:300],
    "half a GIF": encoded(kind="GIF")[:200],
    "half a TIFF": encoded(kind="TIFF")[:300],
    "half a WebP": encoded(kind="WEBP")[:60],
}


@pytest.mark.parametrize("damage", list(DAMAGE))
@pytest.mark.parametrize("victim", ["cat/1.png", "dog/3.png"])
def test_a_damaged_file_is_named(folder: Path, refuses: Refuses, damage: str, victim: str) -> None:
    (folder / victim).write_bytes(DAMAGE[damage])
    with refuses(str(folder / victim)):
        load(folder)


@pytest.mark.parametrize("damage", list(DAMAGE))
def test_a_damaged_image_of_a_table_is_named_by_its_row(
    tmp_path: Path, refuses: Refuses, damage: str
) -> None:
    path = tmp_path / "t.parquet"
    pq.write_table(pa.table({"image": [GOOD, DAMAGE[damage]], "label": [0, 1]}), path)
    with refuses(f"row 1 of {path}"):
        load(path)
    pq.write_table(pa.table({"image": [GOOD, None], "label": [0, 1]}), path)
    with refuses(f"{path}: column 'image' has no image in row 1"):
        load(path)


def test_a_file_that_a_table_names_in_vain(folder: Path, refuses: Refuses) -> None:
    (folder / "t.csv").write_text("file,label\ncat/1.png,0\ncat/9.png,1\n")
    with refuses(f"{folder / 'cat/9.png'}: there is no such file"):
        load(folder / "t.csv", image="file")
    (folder / "t.csv").write_text("file,label\ncat/1.png,0\n,1\n")
    with refuses("column 'file' has no image in line 3"):
        load(folder / "t.csv", image="file")


def test_images_of_different_sizes_are_named_with_what_to_set(folder: Path, refuses: Refuses) -> None:
    (folder / "dog/3.png").write_bytes(encoded((20, 24)))
    both = f"{folder / 'cat/1.png'} is 16×16, {folder / 'dog/3.png'} is 20×24"
    with refuses(f"images differ in size: {both}; data.size: 32 makes all of them 32×32"):
        load(folder)
    assert load(folder, size=32).shape == (3, 32, 32)
