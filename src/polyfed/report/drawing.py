"""What figures have in common: colours, axes, and how a figure is written: whole, and over no file of another kind."""

from __future__ import annotations

import io
import textwrap
from collections.abc import Sequence
from math import inf
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from polyfed import disk
from polyfed.errors import ConfigError, visible
from polyfed.report.fitting import distinct

INK, GRID = "#333333", "#e6e6e6"
COLOURS = ("#3b78b5", "#d9722e", "#2f9467", "#b8448a", "#7a64b5", "#8a6d2f")  # then again, dashed
FEW_POINTS = 15  # each of them is marked
FORMATS = (".png", ".svg", ".pdf")
_MARK = "drawn by polyfed"


def style_axes(axes: Axes) -> None:
    """A light grid, and nothing that is not needed."""
    axes.tick_params(length=0, labelsize=8, colors=INK)
    axes.grid(color=GRID, linewidth=0.6, zorder=0)
    axes.set_axisbelow(True)
    for side in axes.spines.values():
        side.set_visible(False)


def over_rounds(axes: Axes) -> None:
    """Rounds along x: whole numbers, also where there is only one."""
    axes.set_xlabel("round", fontsize=9, color=INK)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=8, steps=[1, 2, 5, 10]))
    axes.margins(x=0.02)
    first, last = axes.dataLim.intervalx
    if first == last:
        axes.set_xlim(first - 1, last + 1)


def plain(name: str) -> str:
    """A name from outside as matplotlib shows it: no formula, no control characters, not left out of a legend."""
    text = visible(" ".join(name.replace("$", r"\$").split()))
    return f" {text}" if text.startswith("_") else text


def labels(names: Sequence[str], width: int) -> list[str]:
    """Names from outside as labels of at most so many characters a line; two of them never look the same."""
    fitting = distinct(names, width)
    return ["\n".join(plain(line) for line in textwrap.wrap(name, width)) for name in fitting]


def spaced(values: Sequence[float], apart: float, low: float = -inf, high: float = inf) -> list[float]:
    """Places for names beside falling values, moved so that no two touch and, if there is room, all are inside."""
    places = list(values)
    for _ in range(500):
        for above in range(len(places) - 1):
            missing = apart - (places[above] - places[above + 1])
            if missing > 0:
                places[above] += missing / 2
                places[above + 1] -= missing / 2
    for place in reversed(range(len(places))):
        places[place] = max(places[place], low + apart * (len(places) - 1 - place))
    for place in range(len(places)):
        places[place] = min(places[place], high - apart * place)
    return places


def check_writable(path: Path) -> None:
    """Refuse a figure over a file that is none of ours, and a format that cannot be drawn, before anything is done."""
    if path.suffix.lower() not in FORMATS:
        raise ConfigError(f"{path}: a figure's name ends in {', '.join(FORMATS)}")
    if path.exists() and not drawn_by_polyfed(path):
        raise ConfigError(f"{path} is there already and is no figure of polyfed: choose another name")


def drawn_by_polyfed(path: Path) -> bool:
    """Whether a file is a figure that `save` wrote."""
    return path.is_file() and _MARK.encode() in path.read_bytes()


def save(figure: Figure, path: Path) -> Path:
    """Write a figure, whole or not at all; the ending (.png, .svg, .pdf) chooses the format."""
    content = io.BytesIO()
    form = path.suffix[1:].lower()
    figure.savefig(content, format=form, dpi=150, facecolor="white", metadata={"Creator": _MARK})
    disk.replace(path, content.getvalue())
    return path
