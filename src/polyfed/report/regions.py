"""Decision regions of several models in the plane, and the points that each has seen. No pyplot, as in `figures`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure

from polyfed.report.drawing import COLOURS, INK, plain, save

PALE = 0.45  # how strong a region's colour is beside that of a point
_SIDE = 2.3  # inches of a panel


@dataclass(frozen=True, eq=False)
class Panel:
    """One model's answers on a square of points.

    title: whose they are, a line or two. classes: side × side class numbers, from below.
    points, labels: what the model was trained on, rows × 2 and their classes; None for nothing to show.
    """

    title: str
    classes: npt.NDArray[np.int64]
    points: npt.NDArray[Any] | None = None
    labels: npt.NDArray[np.int64] | None = None


def decision_regions(
    rows: Sequence[tuple[str, Sequence[Panel]]], path: Path, title: str, note: str = ""
) -> Path:
    """Draw rows of panels, each row under its name; every panel is the square from −1 to 1.

    note: a line below the picture. path: its ending (.png, .svg, .pdf) chooses the format.
    """
    columns = max(len(panels) for _, panels in rows)
    figure = Figure(figsize=(_SIDE * columns + 0.3, (_SIDE + 0.4) * len(rows) + 0.4), layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(plain(title), fontsize=11, color=INK, x=0.01, ha="left")
    grid = figure.subplots(len(rows), columns, squeeze=False)
    for axes_of_row, (name, panels) in zip(grid, rows, strict=True):
        for axes in axes_of_row[len(panels) :]:
            axes.set_axis_off()
        for axes, panel in zip(axes_of_row, panels, strict=False):
            _draw(axes, panel)
        axes_of_row[0].set_ylabel(plain(name), fontsize=9, color=INK)
    figure.supxlabel(plain(note), fontsize=8, color=INK, x=0.01, ha="left")
    return save(figure, path)


def _draw(axes: Axes, panel: Panel) -> None:
    colours = ListedColormap(COLOURS[:3])
    axes.imshow(
        panel.classes,
        cmap=colours,
        vmin=0,
        vmax=colours.N - 1,
        alpha=PALE,
        origin="lower",
        extent=(-1, 1, -1, 1),
        interpolation="nearest",
    )
    if panel.points is not None:
        x, y = panel.points.T
        axes.scatter(x, y, c=panel.labels, cmap=colours, vmin=0, vmax=colours.N - 1, s=7, linewidths=0)
    axes.set_title("\n".join(map(plain, panel.title.splitlines())), fontsize=8.5, color=INK)
    axes.set_xticks([])
    axes.set_yticks([])
    axes.set(xlim=(-1, 1), ylim=(-1, 1))
    for side in axes.spines.values():
        side.set_visible(False)
