"""Scores against bytes, one point per variant. As in `figures`: no pyplot, no window, no global state."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import log10
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from polyfed.federation.message import Kind
from polyfed.report.drawing import COLOURS, INK, labels, plain, save, spaced, style_axes
from polyfed.report.measures import OWN, whole_title
from polyfed.report.tables import amount, pools_data
from polyfed.runs.history import RunRecord, common_task
from polyfed.runs.metrics import SERVER_MODEL, mean_and_spread, received_per_client, sent_per_client
from polyfed.tasks import Task

_BOUND = "#8a8a8a"
_LONGEST_LABEL = 28
_MOST_PANELS = 2
_LINE = 0.18  # inches between two names
_AROUND = 1.5  # inches of the height for what is above and below the axes
_LEAST_HEIGHT, _MOST_HEIGHT = 3.6, 9.5  # inches
_EDGE, _BESIDE = (
    0.05,
    0.22,
)  # decades from the last point of a column to where leaders bend, and on to the names
_COLUMN = 0.4  # decades: points with smaller gaps have their names below each other
_MARGIN = 3.0  # per cent above and below, of scores that are shares
_LEAST_SHARE = 0.08  # of what is drawn, above and below, of other scores


@dataclass(frozen=True)
class _Point:
    """A variant: bytes that a client sent and was sent, and a score in its unit, over seeds."""

    name: str
    size: float
    score: float
    spread: float
    weights: bool
    """Whether weights or gradients left the clients."""
    bound: bool
    """Whether nothing travels, or all data do: a level to compare with."""
    server: bool = False
    """Whether it is the server's own model whose score this is, not the clients'."""


def score_against_bytes(variants: Mapping[str, Sequence[RunRecord]], path: Path | str) -> Path:
    """Draw scores (mean over clients and seeds) against the bytes of a client, up and down.

    On the whole test set; where no run has one, on the clients' own test data.

    Where the server has a model of its own, what that reaches is a ring.

    variants: finished runs of one task by label, one per seed. Those whose clients have other models get a panel of
        their own, unless that were more than two. Where nothing travels, or all data do, the score is a dashed line.
    path: where to write; the ending (.png, .svg, .pdf) chooses the format.
    """
    shown = dict(zip(labels(list(variants), _LONGEST_LABEL), variants.values(), strict=True))
    records = [run for runs in shown.values() for run in runs]
    task = common_task({str(run.path): run.task for run in records})
    part = "whole" if any("whole" in run.summary["last"] for run in records) else "own"
    panels = _panels({name: runs for name, runs in shown.items() if runs and part in runs[0].summary["last"]})
    points = {
        title: [point for name, runs in panel.items() for point in _points(name, runs, part)]
        for title, panel in panels.items()
    }
    if not any(not point.bound for panel in points.values() for point in panel):
        raise ValueError("no run has a score and bytes to draw")
    height = _height(max(map(len, points.values())))
    figure = Figure(figsize=(1.0 + 5.2 * len(points), height), layout="constrained")
    FigureCanvasAgg(figure)
    figure.get_layout_engine().set(w_pad=0.1, h_pad=0.1)  # type: ignore[union-attr, call-arg]
    all_axes = np.ravel(figure.subplots(1, len(points), squeeze=False, sharey=True, sharex=True))
    drawn = [point for panel in points.values() for point in panel]
    low, high = _range(drawn, task)
    apart = _LINE / (height - _AROUND) * (high - low)
    _scale_bytes(all_axes[0], [point.size for point in drawn if not point.bound])
    for axes, (title, panel) in zip(all_axes, points.items(), strict=True):
        _draw_panel(axes, panel, low, high, apart)
        axes.set_title(f"clients' models: {title}" if title else "", fontsize=9.5, color=INK, loc="left")
    all_axes[0].set_ylabel(
        f"{plain(task.title)}, {whole_title(records) or OWN};\nof clients, their mean", fontsize=9, color=INK
    )
    handles = {
        text: mark for axes in all_axes for mark, text in zip(*axes.get_legend_handles_labels(), strict=True)
    }
    figure.legend(
        handles.values(),
        handles.keys(),
        loc="outside lower center",
        ncols=2 * len(points),
        frameon=False,
        fontsize=8,
        labelcolor=INK,
    )
    return save(figure, Path(path))


def _range(points: Sequence[_Point], task: Task) -> tuple[float, float]:
    """What the axis of scores is from and to."""
    low = min(point.score - point.spread for point in points)
    high = max(point.score + point.spread for point in points)
    margin = _MARGIN if task.unit == "%" else _LEAST_SHARE * ((high - low) or abs(high) or 1.0)
    return low - margin, high + margin


def _panels(variants: Mapping[str, Sequence[RunRecord]]) -> dict[str, dict[str, Sequence[RunRecord]]]:
    """Variants by the models that their clients train, if these are not too many kinds."""
    panels: dict[str, dict[str, Sequence[RunRecord]]] = {}
    for name, runs in variants.items():
        trained = dict.fromkeys(group.model for group in runs[0].assignment.groups)
        panels.setdefault(", ".join(trained), {})[name] = runs
    if len(panels) > _MOST_PANELS:
        return {"": dict(variants)}
    if len(panels) == 1:
        return panels
    return {
        title: dict(zip(_without_common_end(list(panel)), panel.values(), strict=True))
        for title, panel in panels.items()
    }


def _points(name: str, runs: Sequence[RunRecord], part: str) -> list[_Point]:
    """What the clients of a variant reach and, where there is one, what the server's own model does."""
    summaries = [run.summary for run in runs]
    sizes = [sent_per_client(summary) + received_per_client(summary) for summary in summaries]
    size = mean_and_spread(sizes)[0]
    weights = bool({Kind.WEIGHTS, Kind.GRADIENTS} & set(summaries[0]["bytes"]["up"]))
    bound = not size or pools_data(summaries[0])

    def point(name: str, scores: Sequence[float], *, server: bool) -> _Point:
        mean, spread = mean_and_spread([runs[0].task.in_unit(score) for score in scores])
        return _Point(name, size, mean, spread or 0.0, weights, bound, server)

    clients = point(name, [summary["last"][part]["mean"] for summary in summaries], server=False)
    own = [summary["last"].get("server", {}).get(SERVER_MODEL) for summary in summaries]
    if bound or None in own:
        return [clients]
    return [clients, point(f"{name}: server", own, server=True)]


def _draw_panel(axes: Axes, points: Sequence[_Point], low: float, high: float, apart: float) -> None:
    style_axes(axes)
    axes.set_ylim(low, high)
    axes.set_xlabel("bytes that a client sent and received", fontsize=9, color=INK)
    for weights, server, words in (
        (True, False, "weights or gradients leave a client"),
        (False, False, "answers or prototypes do"),
        (True, True, "the server's own model"),
        (False, True, "the server's own model"),
    ):
        some = [
            point
            for point in points
            if (point.weights, point.server) == (weights, server) and not point.bound
        ]
        if some:
            axes.errorbar(
                [point.size for point in some],
                [point.score for point in some],
                [point.spread for point in some],
                fmt="o",
                markersize=4.5,
                markerfacecolor="white" if server else None,
                linewidth=0,
                elinewidth=0.8,
                color=_colour(weights),
                label=words,
                zorder=3,
            )
    bounds = [point for point in points if point.bound]
    for number, point in enumerate(bounds):
        label = None if number else "nothing travels, or all data do"
        axes.axhline(point.score, color=_BOUND, linewidth=0.9, linestyle=(0, (4, 2)), zorder=1, label=label)
    _name_points(axes, points, low, high, apart)


def _height(names: int) -> float:
    """Inches that so many names in a panel take, most of which may be in one column, near each other."""
    return min(max(_LEAST_HEIGHT, _AROUND + 1.2 * _LINE * names), _MOST_HEIGHT)


def _without_common_end(names: Sequence[str]) -> list[str]:
    """Names of a panel without the last word (after a hyphen) that all of them have: its title says what it means."""
    ends = {name.rpartition("-")[2] for name in names if name.rpartition("-")[0]}
    if len(names) < 2 or len(ends) > 1 or not all(name.rpartition("-")[0] for name in names):
        return list(names)
    return [name.rpartition("-")[0] for name in names]


def _colour(weights: bool) -> str:
    return COLOURS[0] if weights else COLOURS[1]


def _name_points(axes: Axes, points: Sequence[_Point], low: float, high: float, apart: float) -> None:
    """Names to the right of points, those of points that are near each other in one column, moved apart.

    Leaders go straight to the right of the column and bend there: in the order of the names, so that no two cross.
    """
    columns: list[list[_Point]] = []
    for point in sorted((point for point in points if not point.bound), key=lambda point: point.size):
        if columns and log10(point.size) - log10(columns[-1][-1].size) < _COLUMN:
            columns[-1].append(point)
        else:
            columns.append([point])
    for column in columns:
        edge = max(point.size for point in column) * 10**_EDGE
        at = edge * 10**_BESIDE
        ordered = sorted(column, key=lambda point: -point.score)
        places = spaced([point.score for point in ordered], apart, low + apart / 2, high - apart / 2)
        for point, place in zip(ordered, places, strict=True):
            colour = _colour(point.weights)
            heights = [point.score, point.score, place]
            axes.plot([point.size, edge, at], heights, color=colour, linewidth=0.5, zorder=2)
            text = axes.text(at * 1.03, place, point.name, fontsize=7.5, color=colour, va="center", zorder=4)
            text.set_bbox({"facecolor": "white", "edgecolor": "none", "pad": 0.3, "alpha": 0.8})
    bounds = sorted((point for point in points if point.bound), key=lambda point: -point.score)
    places = spaced([point.score for point in bounds], apart, low, high - apart)
    for point, place in zip(bounds, places, strict=True):
        axes.annotate(
            point.name,
            (0.005, place),
            xycoords=("axes fraction", "data"),
            fontsize=7.5,
            color=_BOUND,
            va="bottom",
            bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.3},
        )


def _scale_bytes(axes: Axes, sizes: Sequence[float]) -> None:
    """Bytes along x, for all panels. Before anything is drawn: all sizes may be the same."""
    axes.set_xscale("log")
    axes.set_xlim(min(sizes) / 10**0.6, max(sizes) * 10**0.9)  # room for names on both sides
    axes.xaxis.set_major_locator(LogLocator(numticks=10))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda size, _place: amount(size).replace(".0 ", " ")))
