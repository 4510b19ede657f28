"""Figures in the papers' own style. Nothing here uses pyplot: no window, no global state."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from polyfed.report.drawing import plain

_MOST_CLIENTS = 100
_MOST_X_TICKS = 25
_MOST_Y_TICKS = 40
_FILL, _INK, _GRID = "#3b78b5", "#333333", "#e6e6e6"
_POINTS = 72.0  # per inch
_LEAST_AREA = 0.6  # square points: a single sample is still visible
_WIDEST = 0.4  # inches: the key has room for it


def bubble_chart(
    counts: npt.NDArray[Any],
    class_names: Sequence[str],
    path: Path | str,
    title: str | None = None,
    client_names: Sequence[str] | None = None,
    rows_are: str = "class",
) -> Path:
    """Draw who holds what: clients along x, classes (or groups) along y, a bubble's area is its number of samples.

    counts: clients × classes, as `Partition.class_counts` gives them. Of more than 100 clients the first
        100 are shown, and the figure says so.
    path: where to write; the ending (.png, .svg, .pdf) chooses the format.
    client_names: written along x, where they are given; numbers otherwise.
    rows_are: what stands along y.
    """
    table = np.asarray(counts)
    if table.ndim != 2 or table.shape[1] != len(class_names) or table.size == 0:
        raise ValueError(f"counts are {table.shape}, but must be clients × {len(class_names)} classes")
    shown = table[:_MOST_CLIENTS]
    clients, classes = shown.shape
    wide, high = _extent(clients, 0.30, 3.2, 12.0), _extent(classes, 0.28, 2.4, 9.0)  # of the axes, in inches
    left, right, bottom, top = _margins(class_names, title, client_names)
    figure = Figure(figsize=(left + wide + right, bottom + high + top))
    FigureCanvasAgg(figure)
    width, height = figure.get_size_inches()
    axes = figure.add_axes((left / width, bottom / height, wide / width, high / height))

    # The largest bubble fills its cell, or in narrow cells lies over its neighbours; others follow by area.
    cell = sorted((wide / clients, high / classes))
    widest = 0.92 * min(cell[1], 2.2 * cell[0], _WIDEST) * _POINTS
    largest = max(int(shown.max()), 1)
    client, number = np.nonzero(shown)
    areas = np.maximum(shown[client, number] / largest * widest**2, _LEAST_AREA)
    axes.scatter(client, number, s=areas, c=_FILL, alpha=0.8, linewidths=0, zorder=2, clip_on=False)

    axes.set_xlim(-0.5, clients - 0.5)
    axes.set_ylim(-0.5, classes - 0.5)
    x_ticks, y_ticks = _ticks(clients, _MOST_X_TICKS), _ticks(classes, _MOST_Y_TICKS)
    if client_names is None:
        axes.set_xticks(x_ticks)
    else:
        axes.set_xticks(x_ticks, [_short(client_names[tick]) for tick in x_ticks], rotation=90)
    axes.set_yticks(y_ticks, [_short(class_names[tick]) for tick in y_ticks])
    axes.tick_params(length=0, labelsize=8 if max(len(x_ticks), len(y_ticks)) <= 30 else 7, colors=_INK)
    axes.grid(color=_GRID, linewidth=0.6, zorder=0)
    for side in axes.spines.values():
        side.set_visible(False)
    note = f"client (the first {clients} of {len(table)})" if len(table) > clients else "client"
    axes.set_xlabel(note, fontsize=9, color=_INK)
    axes.set_ylabel(rows_are, fontsize=9, color=_INK)
    if title:
        figure.suptitle(
            plain(title), x=left / width, y=1 - 0.12 / height, ha="left", va="top", fontsize=10, color=_INK
        )
    _size_key(figure, largest, widest, ((left + wide + 0.12) / width, (bottom + high) / height))

    path = Path(path)
    figure.savefig(path, dpi=150, facecolor="white")
    return path


def _extent(number: int, each: float, least: float, most: float) -> float:
    """Inches for a number of cells: a comfortable size for each, within limits."""
    return min(max(number * each, least), most)


def _margins(
    class_names: Sequence[str], title: str | None, client_names: Sequence[str] | None
) -> tuple[float, float, float, float]:
    longest, below = (
        max(len(_short(name)) for name in names or ("",)) for names in (class_names, client_names)
    )
    return 0.55 + 0.068 * longest, 1.0, 0.55 + 0.068 * below, 0.45 if title else 0.2


def _ticks(number: int, most: int) -> list[int]:
    """Every place, or every 2nd, 5th, 10th …, so that labels do not touch."""
    step = next(
        step
        for power in range(9)
        for step in (10**power, 2 * 10**power, 5 * 10**power)
        if number <= step * most
    )
    return list(range(0, number, step))


def _short(name: str) -> str:
    return plain(name if len(name) <= 18 else f"{name[:17]}…")


def _size_key(figure: Figure, largest: int, widest: float, corner: tuple[float, float]) -> None:
    """What the areas mean, at the right edge."""
    samples = sorted({_round_number(largest * share) for share in (1.0, 0.3, 0.1)}, reverse=True)
    marks = [
        Line2D(
            [],
            [],
            linestyle="",
            marker="o",
            color=_FILL,
            alpha=0.8,
            markeredgewidth=0,
            markersize=widest * (n / largest) ** 0.5,
        )
        for n in samples
    ]
    figure.legend(
        marks,
        [f"{n:,}" for n in samples],
        title="samples",
        loc="upper left",
        bbox_to_anchor=corner,
        frameon=False,
        fontsize=8,
        title_fontsize=8,
        labelspacing=max(0.5, widest / 16),
        borderaxespad=0.0,
        labelcolor=_INK,
    )


def _round_number(value: float) -> int:
    """The nearest number below with one leading digit: 437 is 400."""
    if value < 1:
        return 1
    scale = 10 ** int(np.log10(value))
    return int(value // scale * scale)
