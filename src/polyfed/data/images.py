"""Encoded images into arrays: one size and one colour mode for all of a set.

An image may come from anybody. Only common formats are tried, since Pillow would start other programs for some; its
size is in its header, and is bounded before anything is decoded. Of an animated image the first frame is taken.
"""

from __future__ import annotations

import io
import logging
import struct
import warnings
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from PIL import Image, UnidentifiedImageError

from polyfed.data.arrays import Array
from polyfed.data.dataset import Mode
from polyfed.data.storage import new_inputs
from polyfed.disk import check_regular
from polyfed.errors import DataError, system_reason

log = logging.getLogger(__name__)

_GREY = {"1", "L", "LA", "I", "I;16", "F"}
_REPORT_EVERY = 20_000
_FORMATS = ("PNG", "JPEG", "BMP", "WEBP", "GIF", "TIFF", "PPM")  # Pillow's PPM is PGM as well
MOST_PIXELS = 50_000_000  # a photograph of 8000×6000; decoding it takes 500 MB, of a WebP 850 MB
# What Pillow's decoders raise for broken files, besides OSError.
_DAMAGED = (
    OSError,
    SyntaxError,
    ValueError,
    EOFError,
    IndexError,
    KeyError,
    TypeError,
    MemoryError,
    OverflowError,
    struct.error,
    zlib.error,
)


def open_image(source: bytes | Path, called: str = "an image") -> Image.Image:
    """An image from its encoded bytes or its path; only the header is read yet.

    called: what to call it in messages.
    """
    try:
        if isinstance(source, Path):
            check_regular(source)
        with _quietly():
            image = Image.open(io.BytesIO(source) if isinstance(source, bytes) else source, formats=_FORMATS)
    except FileNotFoundError as error:
        raise DataError(f"{called}: there is no such file") from error
    except UnidentifiedImageError as error:
        raise DataError(
            f"{called} cannot be read as an image: PNG, JPEG, BMP, WebP, GIF, TIFF, PPM and PGM can"
        ) from error
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise _too_large(called) from error
    except _DAMAGED as error:
        raise _told(called, "cannot be read as an image", error) from error
    if image.width * image.height > MOST_PIXELS:
        image.close()
        raise _too_large(called)
    return image


@contextmanager
def _quietly() -> Iterator[None]:
    """Pillow warns of what it mends in files that are damaged: of nothing that a user could do something about."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        yield


def _too_large(called: str) -> DataError:
    return DataError(f"{called} has more than {MOST_PIXELS:,} pixels, the most that is read: make it smaller")


def colour_mode(sources: Iterable[bytes | Path], where: str = "the set") -> Mode:
    """Grey if all images are grey, colour as soon as one is not."""
    for row, source in enumerate(sources):
        with open_image(source, _called(source, row, where)) as image:
            if image.mode not in _GREY:
                return "RGB"
    return "L"


def decode_image(
    source: bytes | Path, mode: Mode, size: tuple[int, int] | None = None, called: str = "an image"
) -> Array:
    """An image as H×W×C uint8; `size` (height, width) resizes it."""
    with open_image(source, called) as opened:
        try:
            with _quietly():
                image = _to_8_bit(opened)
                image.load()
                image = image if image.mode == mode else image.convert(mode)
        except _DAMAGED as error:
            raise _told(called, "is damaged", error) from error
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
        mode = colour_mode(sources(), where)
    inputs: Array | None = None
    first = ""
    for row, source in enumerate(sources()):
        called = _called(source, row, where)
        pixels = decode_image(source, mode, size, called)
        if transposed:
            pixels = pixels.swapaxes(0, 1)
        if inputs is None:
            log.info("%s: decoding %d images of %s", where, count, "×".join(map(str, pixels.shape)))
            inputs, first = new_inputs(folder, (count, *pixels.shape), np.uint8), called
        if pixels.shape != inputs.shape[1:]:
            sizes = ["×".join(map(str, shape[:2])) for shape in (inputs.shape[1:], pixels.shape)]
            raise DataError(
                f"images differ in size: {first} is {sizes[0]}, {called} is {sizes[1]}; "
                "data.size: 32 makes all of them 32×32"
            )
        inputs[row] = pixels
        if (row + 1) % _REPORT_EVERY == 0:
            log.info("%s: %d of %d images decoded", where, row + 1, count)
    if inputs is None:
        raise DataError(f"{where}: there are no images in it")
    return inputs


def _called(source: bytes | Path, row: int, where: str) -> str:
    return f"row {row} of {where}" if isinstance(source, bytes) else str(source)


def _told(called: str, what: str, error: Exception) -> DataError:
    if system_reason(error):
        return DataError(f"{called} cannot be read: {system_reason(error)}")
    words = error.strerror if isinstance(error, OSError) else None
    return DataError(f"{called} {what}: {words or ' '.join(str(error).split()) or type(error).__name__}")


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
        return Image.fromarray((np.asarray(image) >> 8).clip(0, 255).astype(np.uint8))
    return image
