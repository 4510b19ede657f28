"""A sheet of generated images: a row for each class."""

from __future__ import annotations

from pathlib import Path

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from polyfed.report.drawing import INK, labels, plain, save
from polyfed.runs.generated import Generated

COLUMNS = 10
MOST_CLASSES = 30
_CELL, _LEFT, _TOP, _BOTTOM = 0.72, 1.3, 0.5, 0.15  # inches


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
            corner = (_LEFT + column * _CELL) / wide, (top + 0.16) / high
            axes = figure.add_axes((*corner, 0.9 * _CELL / wide, 0.9 * _CELL / high))
            image = found.images[row].numpy()
            if image.shape[-1] == 3:
                axes.imshow(image, interpolation="nearest")
            else:
                axes.imshow(image.mean(axis=-1), cmap="gray", vmin=0, vmax=1, interpolation="nearest")
            axes.set_axis_off()
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
