"""Figures: a paper's table as measured beside what the paper prints, its curves, its models' features."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import matplotlib as mpl
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.legend import Legend
from matplotlib.text import Text
from matplotlib.ticker import EngFormatter, MaxNLocator, NullFormatter

from polyfed.experiments.papers.numbers import Number, sign_of, values_of
from polyfed.experiments.papers.paper import TableColumn, TableRow, Unit
from polyfed.experiments.papers.results import MeasuredTable
from polyfed.experiments.reproduce.formats import UNIT_NAMES
from polyfed.experiments.reproduce.tables import by_group, heading
from polyfed.runs.metrics import mean_and_spread

INK, GRID = "#333333", "#e6e6e6"
HERE, PAPER = "#3b78b5", "#d1495b"
COLOURS = ("#3b78b5", "#d1495b", "#2e8b57", "#8a8a8a", "#e08e2b", "#7b5ea7", "#17a2a2", "#a0522d")
MOST_ACROSS = 4  # panels side by side
MANY = 1000  # counts, such as parameters, are drawn by decades from here on; rounds are not
EDGE = 0.12  # inches around title and key

Curve = Mapping[int, tuple[float, float | None]]


@dataclass(frozen=True)
class CurvesPanel:
    """One panel of a figure of curves: mean and spread by round, for each row."""

    title: str
    curves: Mapping[str, Curve]
    quantity: str = ""
    """The label of the y axis, if each panel has its own."""


@dataclass(frozen=True)
class FeaturesPanel:
    """One panel of a figure of features: a point for each row of the test set."""

    title: str
    points: npt.NDArray[Any]  # rows × 2


_no_formulas = mpl.rc_context({"text.parse_math": False})  # in names from papers' files and data sets


@_no_formulas
def draw_table(measured: MeasuredTable, path: Path) -> Path | None:
    """The measured values with their spread over seeds beside the paper's: one panel per column, one line per row.

    Rows of another unit have panels of their own. Ratios are plain numbers beside values in some unit, and left out: of
    nothing but ratios there is no picture.
    """
    rows = [row for row in measured.rows if row.ratio is None]
    if not rows:
        return None
    blocks = by_unit(rows)
    columns, across = laid_out(measured.columns)
    down = -(-len(columns) // across)
    names = 0.5 + 0.075 * max(len(row.name) for row in rows)
    lines = [len(block) for block in blocks for _ in range(down)]
    figure = _figure((names + 2.5 * max(across, 2) + 0.2, sum(0.34 * many + 0.75 for many in lines)))
    panels = figure.subplots(len(lines), across, squeeze=False, gridspec_kw={"height_ratios": lines})
    for number, block in enumerate(blocks):
        _draw_block(panels[number * down : (number + 1) * down], measured, block, columns)
    _lay_out(
        figure,
        _head(figure, heading(measured), panels[0, 0]),
        figure.supxlabel(UNIT_NAMES[measured.unit] if measured.unit else "", fontsize=9, color=INK),
        left=names,
        right=0.2,
        bottom=0.5,
        wspace=0.08,
        hspace=0.6 * len(blocks) / (0.34 * len(rows)),
    )
    figure.savefig(path, dpi=150, facecolor="white")
    return path


def by_unit(rows: Sequence[TableRow]) -> list[list[TableRow]]:
    """The rows that have a unit of their own, such as rounds and bytes, apart from each other and from the rest."""
    blocks: dict[Unit | None, list[TableRow]] = {}
    for row in rows:
        blocks.setdefault(row.unit, []).append(row)
    return list(blocks.values())


def _draw_block(
    panels: Any, measured: MeasuredTable, rows: Sequence[TableRow], columns: Sequence[TableColumn]
) -> None:
    """Rows of one unit, or with those of their columns: a panel per column, side by side and below each other."""
    units = [measured.table.unit_of(rows[0], column) for column in columns]
    alike = len(set(units)) == 1
    first = panels[0, 0]
    _share("x", panels.flat, units)
    _share("y", panels.flat, ["rows"] * panels.size)
    across = panels.shape[1]
    for place, panel in enumerate(panels.flat):
        if place >= len(columns):
            panel.set_visible(False)
            continue
        _draw_column(panel, measured, rows, columns[place])
        is_above_another = place + across < len(columns)
        panel.tick_params(labelleft=place % across == 0, labelbottom=not (alike and is_above_another))
        if not is_above_another and measured.unit is None and alike:
            panel.set_xlabel(UNIT_NAMES[units[place]], fontsize=8, color=INK)
    first.set_yticks(range(len(rows)), [row.name for row in rows])
    first.set_ylim(len(rows) - 0.4, -0.6)
    most = max(panel.dataLim.x1 for panel in panels.flat)
    if alike and (units[0] == "bytes" or (units[0] == "count" and most >= MANY)):
        _by_decades(first)


def _share(axis: Literal["x", "y"], panels: Iterable[Axes], quantities: Sequence[str]) -> None:
    """One scale for all panels of the same quantity."""
    first: dict[str, Axes] = {}
    for panel, quantity in zip(panels, quantities, strict=False):
        leader = first.setdefault(quantity, panel)
        if leader is not panel:
            (panel.sharex if axis == "x" else panel.sharey)(leader)


def _by_decades(axes: Axes) -> None:
    """A logarithmic x axis with whole decades, of which at least one is seen."""
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    axes.xaxis.set_minor_formatter(NullFormatter())
    low, high = axes.get_xlim()
    if high < 10 * low:
        axes.set_xlim(10 ** math.floor(math.log10(low)), 10 ** math.ceil(math.log10(high)))


def laid_out(columns: Sequence[TableColumn]) -> tuple[list[TableColumn], int]:
    """The columns in the order of drawing, and how many are side by side: a group's columns are below each other."""
    groups = by_group(columns)
    if len(groups) > 1 and len({len(group) for group in groups}) == 1:
        return [column for line in zip(*groups, strict=True) for column in line], len(groups)
    return list(columns), min(len(columns), MOST_ACROSS)


def _draw_column(axes: Axes, measured: MeasuredTable, rows: Sequence[TableRow], column: TableColumn) -> None:
    _bare(axes)
    axes.grid(axis="x", color=GRID, linewidth=0.6)
    axes.set_title(measured.paper.column_name(column), fontsize=9, color=INK, loc="left")
    for place, row in enumerate(rows):
        if place % 2 == 0:
            axes.axhspan(place - 0.5, place + 0.5, color="#f6f6f6", linewidth=0, zorder=0)
        cell = measured.cells[row.key, column.key]
        _draw_seeds(axes, cell.last, place + 0.16)
        label = "here, last round (mean ± spread; small: each seed)" if measured.is_run else "here"
        _draw_mean(axes, cell.last, place + 0.16, label, HERE, 5.5)
        label = "here, round chosen on validation"
        _draw_mean(axes, cell.chosen, place + 0.36, label, "#9cbfe0", 3.5)
    printed = _printed(rows, column)
    axes.plot(
        list(printed.values()),
        [place - 0.16 for place in printed],
        linestyle="",
        marker="D",
        markersize=5,
        markerfacecolor="white",
        markeredgecolor=PAPER,
        markeredgewidth=1.3,
        label="paper" if any(row.paper for row in measured.rows) else None,
        zorder=3,
    )


def _printed(rows: Sequence[TableRow], column: TableColumn) -> dict[int, float]:
    """The paper's numbers, by place."""
    given = {place: row.paper.get(column.key) for place, row in enumerate(rows)}
    return {place: number.value for place, number in given.items() if number is not None}


def _draw_seeds(axes: Axes, number: Number, height: float) -> None:
    values = values_of(number)
    if len(values) > 1:
        axes.plot(values, [height] * len(values), ".", color=HERE, alpha=0.35, markersize=4, zorder=2)


def _draw_mean(
    axes: Axes, number: Number, height: float, label: str | None, colour: str, size: float
) -> None:
    values = values_of(number)
    if not values:
        return
    mean, spread = mean_and_spread(values)
    bound = sign_of(values)  # `>`: a run did not reach a target, so the mean is somewhere to the right
    axes.errorbar(
        mean,
        height,
        xerr=None if bound else spread or None,
        fmt={">": ">", "<": "<"}.get(bound, "o"),
        color=colour,
        markersize=size,
        elinewidth=1.4,
        capsize=2,
        label=label,
        zorder=3,
    )


@_no_formulas
def draw_curves(
    panels: Sequence[CurvesPanel], title: str, quantity: str, path: Path, across: int = MOST_ACROSS
) -> Path:
    """Means over the rounds with a band of their spread over seeds; a single value is a dotted line.

    Panels of the same quantity have the same y axis; `quantity` is said of all of them together.
    """
    across = min(len(panels), across)
    quantities = [panel.quantity for panel in panels]
    is_one = len(set(quantities)) == 1
    down = -(-len(panels) // across)
    figure = _figure((0.8 + 2.7 * max(across, 2), 2.5 * down))
    grid = figure.subplots(down, across, sharex=True, sharey=is_one, squeeze=False)
    if not is_one:
        _share("y", grid.flat, quantities)
    for place, axes in enumerate(grid.flat):
        if place < len(panels):
            _draw_panel(axes, panels[place])
        else:
            axes.set_visible(False)
    below = figure.supxlabel("round", fontsize=9, color=INK)
    figure.supylabel(quantity, fontsize=9, color=INK, x=0.08 / figure.get_figwidth())
    head = _head(figure, title, grid[0, 0])
    between = 0.08 if is_one else 0.2  # where there are ticks of every panel
    _lay_out(figure, head, below, left=0.65, right=0.15, bottom=0.55, wspace=between, hspace=0.35)
    figure.savefig(path, dpi=150, facecolor="white")
    return path


@_no_formulas
def draw_lines(panels: Sequence[CurvesPanel], title: str, along: str, path: Path) -> Path:
    """As `draw_curves`, with panels that share nothing but the quantity along x."""
    figure = _figure((0.3 + 3.6 * max(len(panels), 2), 3.0))
    for axes, panel in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
        _draw_panel(axes, panel)
        axes.set_xlabel(along, fontsize=9, color=INK)
        axes.set_ylabel(panel.quantity, fontsize=9, color=INK)
        if panel.curves:
            axes.legend(frameon=False, fontsize=8, labelcolor=INK)
    _lay_out(figure, _head(figure, title), left=0.6, right=0.15, bottom=0.5, wspace=0.25)
    figure.savefig(path, dpi=150, facecolor="white")
    return path


@_no_formulas
def draw_features(
    panels: Sequence[FeaturesPanel], labels: npt.NDArray[Any], classes: Sequence[str], title: str, path: Path
) -> Path:
    """Rows of the test set in two dimensions, one panel per model, one colour per class."""
    figure = _figure((0.2 + 3.3 * max(len(panels), 2) + 0.9, 3.3))
    colours = mpl.colormaps["tab10" if len(classes) <= 10 else "tab20"]
    grid = figure.subplots(1, len(panels), squeeze=False)[0]
    for axes, panel in zip(grid, panels, strict=True):
        _bare(axes)
        axes.set_title(panel.title, fontsize=9, color=INK, loc="left")
        axes.set_xticks([])
        axes.set_yticks([])
        axes.set_facecolor("#f6f6f6")
        for number, name in enumerate(classes):
            x, y = panel.points[labels == number].T
            colour = colours(number % colours.N)
            axes.scatter(x, y, s=7, color=colour, alpha=0.75, linewidths=0, label=name)
    head = _head(figure, title)
    _lay_out(figure, head, left=0.15, right=0.95, bottom=0.15, wspace=0.05)
    width, high = figure.get_size_inches()
    figure.legend(
        *grid[0].get_legend_handles_labels(),
        loc="upper right",
        bbox_to_anchor=(1 - 0.1 / width, 1 - (head.height - 0.05) / high),
        frameon=False,
        fontsize=8,
        labelcolor=INK,
        markerscale=1.8,
    )
    figure.savefig(path, dpi=150, facecolor="white")
    return path


def _draw_panel(axes: Axes, panel: CurvesPanel) -> None:
    _bare(axes)
    axes.grid(color=GRID, linewidth=0.6)
    axes.set_title(panel.title, fontsize=9, color=INK, loc="left")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=6))
    for place, (name, curve) in enumerate(panel.curves.items()):
        colour = COLOURS[place % len(COLOURS)]
        rounds = list(curve)
        means = [mean for mean, _ in curve.values()]
        if len(rounds) == 1:
            axes.axhline(means[0], color=colour, linestyle=":", linewidth=1.6, label=name)
            continue
        axes.plot(rounds, means, color=colour, linewidth=1.6, label=name, marker=".", markersize=4)
        spreads = [spread or 0.0 for _, spread in curve.values()]
        low = [mean - spread for mean, spread in zip(means, spreads, strict=True)]
        high = [mean + spread for mean, spread in zip(means, spreads, strict=True)]
        axes.fill_between(rounds, low, high, color=colour, alpha=0.18, linewidth=0)


def _figure(size: tuple[float, float]) -> Figure:
    figure = Figure(figsize=size)
    FigureCanvasAgg(figure)
    return figure


def _bare(axes: Axes) -> None:
    axes.tick_params(which="both", length=0, labelsize=8, colors=INK)
    axes.set_axisbelow(True)
    for side in axes.spines.values():
        side.set_visible(False)


@dataclass(frozen=True)
class _Head:
    """The title and the key above the panels, and the height in inches that each takes."""

    title: Text
    title_height: float
    key: Legend | None = None
    key_height: float = 0.0

    @property
    def height(self) -> float:
        return 2 * EDGE + self.title_height + self.key_height + 0.2  # and the titles of the first panels


def _head(figure: Figure, title: str, axes: Axes | None = None) -> _Head:
    """Write the title, and the key with every label of `axes` once, on as many lines as they need."""
    width = figure.get_figwidth() - 2 * EDGE
    text = figure.suptitle("", x=EDGE / figure.get_figwidth(), ha="left", va="top", fontsize=10, color=INK)
    for letters in range(len(title), 10, -1):
        text.set_text(textwrap.fill(title, letters))
        if text.get_window_extent().width / figure.dpi <= width:
            break
    height = text.get_window_extent().height / figure.dpi
    if axes is None:
        return _Head(text, height)
    key = _key(figure, axes, width)
    return _Head(text, height, key, key.get_window_extent().height / figure.dpi)


def _key(figure: Figure, axes: Axes, width: float) -> Legend:
    """Every label once, in as many columns as fit."""
    handles, labels = axes.get_legend_handles_labels()
    once = dict(reversed(list(zip(labels, handles, strict=True))))
    for across in range(max(len(once), 1), 0, -1):
        key = figure.legend(
            list(once.values())[::-1],
            list(once)[::-1],
            loc="upper left",
            ncols=across,
            frameon=False,
            fontsize=8,
            labelcolor=INK,
            borderaxespad=0,
            borderpad=0.2,
        )
        if across == 1 or key.get_window_extent().width / figure.dpi <= width:
            break
        key.remove()
    return key


def _lay_out(
    figure: Figure,
    head: _Head,
    below: Text | None = None,
    *,
    left: float,
    right: float,
    bottom: float,
    wspace: float,
    hspace: float = 0.2,
) -> None:
    """Make the figure higher by its head, and place everything.

    below: what is said of all x axes together.
    left, right, bottom: around the panels, in inches; the spaces between panels are shares of their sizes.
    """
    width, body = figure.get_size_inches()
    high = body + head.height
    figure.set_size_inches(width, high)
    figure.subplots_adjust(
        left=left / width,
        right=1 - right / width,
        top=1 - head.height / high,
        bottom=bottom / high,
        wspace=wspace,
        hspace=hspace,
    )
    head.title.set_y(1 - EDGE / high)
    if head.key is not None:
        head.key.set_bbox_to_anchor((0.06 / width, 1 - (1.5 * EDGE + head.title_height) / high))
    if below is not None:
        below.set_y(0.08 / high)
