"""Scores over rounds, and beside them over the megabytes that had travelled, with the target as a line."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from polyfed.report.communication import Course
from polyfed.report.curves import add_legend, legend_width
from polyfed.report.drawing import COLOURS, FEW_POINTS, INK, labels, over_rounds, plain, save, style_axes
from polyfed.report.measures import OWN, whole_title
from polyfed.report.tables import with_unit
from polyfed.runs.metrics import mean_and_spread

MOST_LINES = 12
_LONGEST_LABEL = 44
_FAINT = "#8a8a8a"
_MEGABYTE = 1e6
_WIDE_APART = 8.0  # how many times more the dearest run may have sent before the axis is logarithmic


@dataclass(frozen=True)
class _Curve:
    """A setup: mean over seeds at the rounds that all of them have; scores in their unit."""

    rounds: npt.NDArray[Any]
    megabytes: npt.NDArray[Any] | None
    """None where nothing travels, or all data are in one place."""
    mean: npt.NDArray[Any]
    spread: npt.NDArray[Any] | None
    smaller_is_better: bool

    def first_at(self, goal: float) -> int | None:
        """The place of the first point as good as a goal, or better."""
        there = np.flatnonzero(self.mean <= goal if self.smaller_is_better else self.mean >= goal)
        return int(there[0]) if len(there) else None


def communication_figure(found: Sequence[Course], target: float, path: Path) -> Path:
    """Draw scores over rounds and over megabytes (up and down, all clients), mean over seeds.

    The first point of a line that is as good as the target, or better, is marked. Of more than twelve setups the first
    twelve are drawn.
    """
    drawn = [each for each in found if each.points][:MOST_LINES]
    names = labels([_name(each, drawn) for each in drawn], _LONGEST_LABEL)
    curves = list(zip(names, map(_curve, drawn), strict=True))
    task = drawn[0].task
    about = f"target {plain(with_unit(task, target))}"
    figure = Figure(
        figsize=(8.8 + legend_width([*names, about, "target 100.0 %"]), 3.9), layout="constrained"
    )
    FigureCanvasAgg(figure)
    figure.get_layout_engine().set(w_pad=0.1, h_pad=0.1)  # type: ignore[union-attr, call-arg]
    left, right = figure.subplots(1, 2, sharey=True)
    goal = task.in_unit(target)
    for number, (name, curve) in enumerate(curves):
        colour, dashed = COLOURS[number % len(COLOURS)], number >= len(COLOURS)
        _draw(left, curve.rounds, curve, name, colour, goal, dashed=dashed)
        if curve.megabytes is not None:
            _draw(right, curve.megabytes, curve, name, colour, goal, dashed=dashed)
    for axes in (left, right):
        style_axes(axes)
        axes.axhline(goal, color=_FAINT, linewidth=1, linestyle=(0, (4, 3)), zorder=1)
    over_rounds(left)
    _over_megabytes(right, [curve for _, curve in curves])
    left.set_title(plain(f"{_whose(drawn)} over rounds"), fontsize=9.5, color=INK, loc="left")
    right.set_title("and over what had travelled", fontsize=9.5, color=INK, loc="left")
    silent = [name for name, curve in curves if curve.megabytes is None]
    if silent:
        high, side = (0.98, "top") if task.smaller_is_better else (0.02, "baseline")  # where lines begin
        right.text(
            0.99, high, f"nothing is sent: {', '.join(silent)}", transform=right.transAxes, ha="right", va=side,
            fontsize=7.5, color=_FAINT,
        )  # fmt: skip
    add_legend(figure, (right, left), 0, f"- -  {about}\n○  first there")
    return save(figure, path)


def _whose(drawn: Sequence[Course]) -> str:
    whole = whole_title(run for each in drawn for run in each.runs)
    task = drawn[0].task
    parts = {"own": f", {OWN}", "all": f", {whole}"}
    words = {each.words for each in drawn}
    part = parts.get(words.pop(), "") if len(words) == 1 else ""
    return f"{task.measure}{part} in %" if task.unit == "%" else f"{task.title}{part},"


def _name(each: Course, drawn: Sequence[Course]) -> str:
    return each.name if len({other.words for other in drawn}) == 1 else f"{each.name}: {each.words}"


def _curve(each: Course) -> _Curve:
    by_round = [{point.round: point for point in points} for points in each.points]
    rounds = sorted(set.intersection(*(set(points) for points in by_round)))
    columns = [[points[number] for points in by_round] for number in rounds]
    over_seeds = [mean_and_spread([each.task.in_unit(point.score) for point in column]) for column in columns]
    sent = np.array([np.mean([point.bytes for point in column]) for column in columns]) / _MEGABYTE
    spreads = [spread for _, spread in over_seeds if spread is not None]
    return _Curve(
        np.array(rounds),
        None if each.is_silent else sent,
        np.array([mean for mean, _ in over_seeds]),
        np.array(spreads) if len(by_round) > 1 else None,
        each.task.smaller_is_better,
    )


def _draw(
    axes: Axes, x: npt.NDArray[Any], curve: _Curve, name: str, colour: str, goal: float, *, dashed: bool
) -> None:
    if curve.spread is not None:
        low, high = curve.mean - curve.spread, curve.mean + curve.spread
        axes.fill_between(x, low, high, color=colour, alpha=0.13, linewidth=0, zorder=2)
    axes.plot(
        x,
        curve.mean,
        color=colour,
        linestyle=(0, (3.5, 1.5)) if dashed else "-",
        linewidth=1.6,
        marker="o" if len(x) <= FEW_POINTS else None,
        markersize=2.5,
        label=name,
        zorder=3,
    )
    there = curve.first_at(goal)
    if there is not None:
        axes.plot(
            x[there], curve.mean[there], marker="o", markersize=7.5, color="white", markeredgecolor=colour,
            markeredgewidth=1.6, zorder=4,
        )  # fmt: skip


def _over_megabytes(axes: Axes, curves: Sequence[_Curve]) -> None:
    sent = [curve.megabytes for curve in curves if curve.megabytes is not None]
    axes.set_xlabel("megabytes, up and down, all clients", fontsize=9, color=INK)
    axes.margins(x=0.02)
    ends = [megabytes[-1] for megabytes in sent]
    if ends and min(ends) > 0 and max(ends) > _WIDE_APART * min(ends):
        axes.set_xscale("log")
        decades = np.log10(max(ends) / min(each[each > 0][0] for each in sent))
        axes.xaxis.set_major_locator(LogLocator(subs=(1.0,) if decades > 2 else (1.0, 2.0, 5.0)))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
        axes.xaxis.set_minor_formatter(NullFormatter())
        axes.tick_params(which="minor", length=0)
    elif not ends:
        axes.set_xticks([])
