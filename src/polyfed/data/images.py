"""Encoded images into arrays: one size and one colour mode for all of a set."""

from __future__ import annotations

import io
import logging
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Literal

import numpy as np
from PIL import Image

from polyfed.data.dataset import Array
from polyfed.data.storage import new_inputs
from polyfed.errors import DataError

log = logging.getLogger(__name__)

Mode = Literal["L", "RGB"]  # Pillow's words for grey and colour
_GREY = {"1", "L", "LA", "I", "I;16", "F"}
_REPORT_EVERY = 20_000


def open_image(source: bytes | Path) -> Image.Image:
    """An image from its encoded bytes or its path; only the header is read yet."""
    try:
        return Image.open(io.BytesIO(source) if isinstance(source, bytes) else source)
    except OSError as error:
        what = f"{len(source)} bytes" if isinstance(source, bytes) else str(source)
        raise DataError(f"{what} cannot be read as an image") from error


def colour_mode(sources: Iterable[bytes | Path]) -> Mode:
    """Grey if all images are grey, colour as soon as one is not."""
    for source in sources:
        with open_image(source) as image:
            if image.mode not in _GREY:
                return "RGB"
    return "L"


def decode_image(source: bytes | Path, mode: Mode, size: tuple[int, int] | None = None) -> Array:
    """An image as H×W×C uint8; `size` (height, width) resizes it."""
    with open_image(source) as opened:
        try:
            image = _to_8_bit(opened).convert(mode)
        except OSError as error:
            raise DataError(f"an image is damaged: {error}") from error
    if size is not None and image.size != size[::-1]:
        image = image.resize(size[::-1], Image.Resampling.BILINEAR, reducing_gap=2.0)
    pixels = np.asarray(image)
    return pixels[:, :, None] if mode == "L" else pixels


def decode_all(
    sources: Callable[[], Iterable[bytes | Path]],
    count: int,
    folder: Path,
    *,
    where: str,
    mode: Mode | None = None,
    size: tuple[int, int] | None = None,
    transposed: bool = False,
) -> Array:
    """Decode `count` images into a mapped array in the folder. `sources` gives a fresh pass at each call."""
    if mode is None:
        mode = colour_mode(sources())
    inputs: Array | None = None
    for row, source in enumerate(sources()):
        pixels = decode_image(source, mode, size)
        if transposed:
            pixels = pixels.swapaxes(0, 1)
        if inputs is None:
            log.info("%s: decoding %d images of %s", where, count, "×".join(map(str, pixels.shape)))
            inputs = new_inputs(folder, (count, *pixels.shape), np.uint8)
        if pixels.shape != inputs.shape[1:]:
            first, this = inputs.shape[1:3], pixels.shape[:2]
            raise DataError(
                f"{where}: images differ in size ({first[0]}×{first[1]}, but {this[0]}×{this[1]} "
                f"in row {row}): give one size to resize them to"
            )
        inputs[row] = pixels
        if (row + 1) % _REPORT_EVERY == 0:
            log.info("%s: %d of %d images decoded", where, row + 1, count)
    if inputs is None:
        raise DataError(f"{where}: there are no images in it")
    return inputs


def resize_images(images: Array, mode: Mode, size: tuple[int, int], out: Array) -> None:
    """Images N×H×W×C uint8 into `out`, in another size or colour mode."""
    for row, pixels in enumerate(images):
        image = as_image(pixels).convert(mode)
        if image.size != size[::-1]:
            image = image.resize(size[::-1], Image.Resampling.BILINEAR)
        out[row] = np.asarray(image).reshape(out.shape[1:])


def as_image(pixels: Array) -> Image.Image:
    """A Pillow image of H×W×C uint8 pixels."""
    return Image.fromarray(np.ascontiguousarray(pixels[:, :, 0] if pixels.shape[2] == 1 else pixels))


def _to_8_bit(image: Image.Image) -> Image.Image:
    # Pillow clips 16-bit grey at 255 when it converts; scale it instead.
    if image.mode.startswith("I"):
        return Image.fromarray((np.asarray(image).astype(np.int64) >> 8).clip(0, 255).astype(np.uint8))
    return image
