"""Images from anybody: other formats, bombs, and what is cut off, in folders and in tables."""

from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image
from tests.attacks.conftest import unharmed

from polyfed.data import load
from polyfed.data.images import MOST_PIXELS, decode_image
from polyfed.errors import DataError


def encoded(form: str, size: tuple[int, int] = (8, 8)) -> bytes:
    content = io.BytesIO()
    shade = Image.fromarray(np.full((*size, 3), 90, np.uint8))
    shade.save(content, form)
    return content.getvalue()


def chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png_of(width: int, height: int, rows: bytes = b"") -> bytes:
    """A PNG that says how large it is, whatever it holds."""
    head = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", head)
        + chunk(b"IDAT", zlib.compress(rows))
        + chunk(b"IEND", b"")
    )


def tiff_of(width: int, height: int) -> bytes:
    tags = [
        (256, width),
        (257, height),
        (258, 8),
        (259, 1),
        (262, 1),
        (273, 8),
        (277, 1),
        (278, height),
        (279, 1),
    ]
    entries = b"".join(struct.pack("<HHII", tag, 4, 1, value) for tag, value in tags)
    return b"II*\0" + struct.pack("<I", 8) + struct.pack("<H", len(tags)) + entries + struct.pack("<I", 0)


SCRIPT = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\n%%EndComments\n(touched) print\n%%EOF\n"

FOREIGN = {
    "eps": SCRIPT,
    "pdf": b"%PDF-1.4\n%%EOF\n",
    "ico": encoded("ICO"),
    "pcx": encoded("PCX"),
    "sgi": encoded("SGI"),
    "jpeg 2000": b"\0\0\0\x0cjP  \r\n\x87\n" + b"\0" * 40,
    "text": b"not an image",
    "nothing": b"",
}


@pytest.mark.parametrize("kind", FOREIGN)
def test_other_formats_are_not_even_tried(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "subprocess.Popen", None
    )  # a program that is started would fail the test in another way
    with pytest.raises(
        DataError, match=r"^row 3 cannot be read as an image: PNG, JPEG, BMP, WebP, GIF, TIFF, PPM and PGM"
    ):
        decode_image(FOREIGN[kind], "RGB", called="row 3")


@pytest.mark.parametrize("form", ["PNG", "JPEG", "BMP", "WEBP", "GIF", "TIFF", "PPM"])
def test_common_formats_are_read(form: str) -> None:
    assert decode_image(encoded(form), "RGB").shape == (8, 8, 3)


def webp_of(side: int) -> bytes:
    body = b"VP8X" + struct.pack("<I", 10) + b"\x02\0\0\0" + 2 * (side - 1).to_bytes(3, "little")
    return b"RIFF" + struct.pack("<I", len(body) + 4) + b"WEBP" + body


BOMBS: dict[str, Callable[[], bytes]] = {
    "a png of 50,000² that is whole": lambda: png_of(50_000, 50_000, bytes(50_001 * 1000)),
    "a png just above the limit": lambda: png_of(MOST_PIXELS // 1000 + 1, 1000),
    "a png that Pillow would only warn of": lambda: png_of(10_000, 10_000),
    "a png of 2³¹ columns": lambda: png_of(2**31 - 1, 2**31 - 1),
    "a gif": lambda: (
        b"GIF89a"
        + struct.pack("<HHBBB", 65535, 65535, 0, 0, 0)
        + b","
        + struct.pack("<HHHHB", 0, 0, 65535, 65535, 0)
        + b"\x02\0;"
    ),
    "a bmp": lambda: (
        b"BM" + struct.pack("<IHHIIiiHHIIiiII", 54, 0, 0, 54, 40, 60_000, 60_000, 1, 24, 0, 0, 0, 0, 0, 0)
    ),
    "a ppm": lambda: b"P6 60000 60000 255\n",
    "a tiff": lambda: tiff_of(60_000, 60_000),
}


@pytest.mark.parametrize("kind", BOMBS)
def test_too_many_pixels_are_refused_before_they_are_decoded(
    kind: str, recwarn: pytest.WarningsRecorder
) -> None:
    with (
        unharmed(),
        pytest.raises(
            DataError, match=r"^row 3 has more than 50,000,000 pixels, the most that is read: make it sm"
        ),
    ):
        decode_image(BOMBS[kind](), "RGB", called="row 3")
    assert not recwarn.list


def cut(form: str, side: int, end: int) -> bytes:
    return encoded(form, (side, side))[:end]


DAMAGED: dict[str, Callable[[], bytes]] = {
    "large and empty": lambda: png_of(7_000, 7_000),
    "a webp of 16,383² with nothing in it": lambda: webp_of(16_383),
    "a png of texts that would fill the memory": lambda: png_of(8, 8).replace(
        chunk(b"IEND", b""),
        b"".join(chunk(b"zTXt", b"a\0\0" + zlib.compress(bytes(900_000))) for _ in range(200)),
    ),
    **{f"{form}, cut off": partial(cut, form, 64, -40) for form in ("PNG", "JPEG", "BMP", "PPM")},
    **{
        f"{form}, its head alone": partial(cut, form, 8, 20)
        for form in ("PNG", "JPEG", "GIF", "TIFF", "WEBP")
    },
}


@pytest.mark.parametrize("kind", DAMAGED)
def test_what_is_damaged_is_one_line(kind: str) -> None:
    with unharmed(), pytest.raises(DataError, match=r"^row 3 [^\n]+$"):
        decode_image(DAMAGED[kind](), "RGB", called="row 3")


def test_flipped_bits_are_pixels_or_one_line() -> None:
    rng = np.random.default_rng(0)
    for form in ("PNG", "JPEG", "GIF", "TIFF", "WEBP", "BMP", "PPM"):
        whole = np.frombuffer(encoded(form), np.uint8)
        for _ in range(60):
            content = whole.copy()
            content[rng.integers(len(whole), size=3)] ^= rng.integers(1, 256, size=3, dtype=np.uint8)
            try:
                decode_image(content.tobytes(), "L")
            except DataError as error:
                assert "\n" not in str(error)


def test_the_first_frame_of_an_animation_is_taken() -> None:
    frames = [Image.fromarray(np.full((4, 4), shade, np.uint8)) for shade in (10, 200, 250)]
    for form in ("GIF", "WEBP", "TIFF", "PNG"):
        content = io.BytesIO()
        frames[0].save(content, form, save_all=True, append_images=frames[1:], lossless=True)
        assert np.abs(decode_image(content.getvalue(), "L").astype(int) - 10).max() <= 1


def test_a_table_names_the_row_and_a_folder_the_file(tmp_path: Path) -> None:
    good = encoded("PNG")
    pq.write_table(pa.table({"image": [good, SCRIPT, good], "label": [0, 1, 1]}), tmp_path / "t.parquet")
    with pytest.raises(DataError, match=r"^row 1 of \S+t\.parquet cannot be read as an image"):
        load(tmp_path / "t.parquet")
    for name, content in (("a/1.png", good), ("b/2.png", png_of(50_000, 50_000))):
        file = tmp_path / "images" / name
        file.parent.mkdir(parents=True)
        file.write_bytes(content)
    with pytest.raises(DataError, match=r"^\S+images/b/2\.png has more than 50,000,000 pixels"):
        load(tmp_path / "images")
