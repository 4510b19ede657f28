"""Sheets of images: what a generator makes, a row for each class; noise, rows for each kind."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from torch import Tensor

from polyfed.report.drawing import INK, labels, plain, save
from polyfed.runs.generated import Generated

COLUMNS = 10
MOST_CLASSES = 30
_CELL, _LEFT, _TOP, _BOTTOM, _GAP = 0.72, 1.3, 0.5, 0.15, 0.14  # inches
_LEAST_WIDTH = 5.6  # inches: the explanation fits


def sheet(found: Generated, title: str, path: Path) -> Path:
    """Draw the first images of each class that the generator makes, and below each how sure the model is of it.

    Classes that it never makes are named at the end. Of more than 30 classes the first 30 are shown.
    """
    words = labels(found.words[:MOST_CLASSES], 14)
    rows = {word: (found.classes == place).nonzero().flatten().tolist() for place, word in enumerate(words)}
    never = [" ".join(word.split()) for word, mine in rows.items() if not mine]
    rows = {word: mine for word, mine in rows.items() if mine}
    told = [
        f"left: how many of {len(found.classes)} images the served model takes for the class",
        "below an image: how sure it is, in %",
        *(textwrap.wrap(f"never made: {', '.join(never)}", 80) if never else []),
    ]
    top = _TOP + 0.17 * len(told)
    wide = max(_LEFT + max(map(len, rows.values()), default=0) * _CELL + 0.15, _LEAST_WIDTH)
    wide = min(wide, _LEFT + COLUMNS * _CELL + 0.15)
    high = top + len(rows) * (_CELL + 0.12) + _BOTTOM
    figure = Figure(figsize=(wide, high))
    FigureCanvasAgg(figure)
    figure.text(0.15 / wide, 1 - 0.3 / high, plain(title), fontsize=10.5, color=INK)
    figure.text(0.15 / wide, 1 - 0.42 / high, "\n".join(told), fontsize=8, color=INK, va="top")
    for place, (word, mine) in enumerate(rows.items()):
        bottom = high - top - (place + 1) * (_CELL + 0.12)
        share = f"{word}\n{100 * len(mine) / len(found.classes):.0f} % of images"
        figure.text(0.15 / wide, (bottom + 0.45) / high, share, fontsize=8, color=INK, va="center")
        for column, row in enumerate(mine[:COLUMNS]):
            axes = _image(figure, found.images[row], _LEFT + column * _CELL, bottom + 0.16)
            sure = f"{100 * float(found.confidence[row]):.0f} %"
            axes.text(
                0.5, -0.03, sure, transform=axes.transAxes, ha="center", va="top", fontsize=6, color=INK
            )
    return save(figure, path)


def noise_sheet(kinds: Mapping[str, Tensor], title: str, path: Path) -> Path:
    """Draw the images of each kind, ten in a row; they are images × height × width × channels, from 0 to 1."""
    rows = {kind: -(-len(images) // COLUMNS) for kind, images in kinds.items()}
    wide = _LEFT + COLUMNS * _CELL + 0.15
    high = _TOP + sum(rows.values()) * _CELL + (len(kinds) - 1) * _GAP + _BOTTOM
    figure = Figure(figsize=(wide, high))
    FigureCanvasAgg(figure)
    figure.text(0.15 / wide, 1 - 0.3 / high, plain(title), fontsize=10.5, color=INK)
    top = high - _TOP
    for kind, images in kinds.items():
        figure.text(0.15 / wide, (top - 0.3) / high, kind, fontsize=8, color=INK, va="center")
        for place, image in enumerate(images):
            row, column = divmod(place, COLUMNS)
            _image(figure, image, _LEFT + column * _CELL, top - (row + 1) * _CELL)
        top -= rows[kind] * _CELL + _GAP
    return save(figure, path)


def _image(figure: Figure, image: Tensor, left: float, bottom: float) -> Axes:
    """An image, height × width × channels, at this place in inches; one that is not of three channels is grey."""
    wide, high = figure.get_size_inches()
    side = 0.9 * _CELL
    axes = figure.add_axes((left / wide, bottom / high, side / wide, side / high))
    if image.shape[-1] == 3:
        axes.imshow(image.numpy(), interpolation="nearest")
    else:
        axes.imshow(image.mean(dim=-1).numpy(), cmap="gray", vmin=0, vmax=1, interpolation="nearest")
    axes.set_axis_off()
    return axes
