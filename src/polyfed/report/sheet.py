"""Sheets of images: what a generator makes, a row for each class; noise, rows for each kind."""

from __future__ import annotations

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


def sheet(found: Generated, title: str, path: Path) -> Path:
    """Draw the first images of each class, and below each how sure the model is of it, in per cent.

    A class that the generator never makes has an empty row. Of more than 30 classes the first 30 are shown.
    """
    count = min(len(found.words), MOST_CLASSES)
    wide, high = _LEFT + COLUMNS * _CELL + 0.15, _TOP + count * (_CELL + 0.12) + _BOTTOM
    figure = Figure(figsize=(wide, high))
    FigureCanvasAgg(figure)
    figure.text(0.15 / wide, 1 - 0.3 / high, plain(title), fontsize=10.5, color=INK)
    for place, word in enumerate(labels(found.words[:count], 14)):
        mine = (found.classes == place).nonzero().flatten().tolist()
        top = high - _TOP - (place + 1) * (_CELL + 0.12)
        share = 100 * len(mine) / len(found.classes)
        figure.text(
            0.15 / wide, (top + 0.45) / high, f"{word}\n{share:.0f} %", fontsize=8, color=INK, va="center"
        )
        for column, row in enumerate(mine[:COLUMNS]):
            axes = _image(figure, found.images[row], _LEFT + column * _CELL, top + 0.16)
            axes.text(
                0.5,
                -0.03,
                f"{100 * float(found.confidence[row]):.0f}",
                transform=axes.transAxes,
                ha="center",
                va="top",
                fontsize=6,
                color=INK,
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
