"""Scores over rounds, one line per variant or run. As in `figures`: no pyplot, no window, no global state."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from polyfed.report.drawing import COLOURS, FEW_POINTS, INK, labels, over_rounds, plain, save, style_axes
from polyfed.report.measures import OWN, whole_title
from polyfed.runs.history import RunRecord, common_task
from polyfed.runs.metrics import mean_and_spread
from polyfed.tasks import Task

MOST_LINES = 12
PANELS = ("own", "whole")
_OTHERS = "#c8c8c8"
_LONGEST_LABEL = 44


@dataclass(frozen=True)
class _Line:
    """One variant in one panel, in the unit of scores."""

    rounds: npt.NDArray[Any]
    mean: npt.NDArray[Any]
    spread: npt.NDArray[Any] | None


def score_curves(
    variants: Mapping[str, Sequence[RunRecord]],
    path: Path | str,
    legend: str | None = None,
) -> Path:
    """Draw scores (mean over clients and seeds) over rounds; the band is the standard deviation over seeds.

    variants: finished runs of one task by label, one per seed. Of more than twelve, those that are best on validation
        at the last round are in colour, the others grey.
    legend: the title of the legend.
    path: where to write; the ending (.png, .svg, .pdf) chooses the format.
    """
    variants = dict(zip(labels(list(variants), _LONGEST_LABEL), variants.values(), strict=True))
    panels = {
        part: {label: line for label, runs in variants.items() if (line := _line(runs, part)) is not None}
        for part in PANELS
    }
    panels = {part: lines for part, lines in panels.items() if lines}
    if not panels:
        raise ValueError("no run has an evaluation to draw")
    task = common_task({str(run.path): run.task for runs in variants.values() for run in runs})
    shown = _worth_a_colour({label: runs for label, runs in variants.items() if runs}, task)
    figure = Figure(
        figsize=(0.4 + 4.1 * len(panels) + legend_width([*shown, legend or ""]), 3.7), layout="constrained"
    )
    FigureCanvasAgg(figure)
    figure.get_layout_engine().set(w_pad=0.1, h_pad=0.1)  # type: ignore[union-attr, call-arg]
    all_axes = np.ravel(figure.subplots(1, len(panels), squeeze=False, sharey=True))
    for axes, (part, lines) in zip(all_axes, panels.items(), strict=True):
        _draw_panel(axes, lines, shown)
        title = OWN if part == "own" else whole_title(run for runs in variants.values() for run in runs)
        axes.set_title(title, fontsize=9.5, color=INK, loc="left")
    all_axes[0].set_ylabel(plain(task.title), fontsize=9, color=INK)
    add_legend(figure, all_axes, len(variants) - len(shown), legend)
    return save(figure, Path(path))


def _line(runs: Sequence[RunRecord], part: str) -> _Line | None:
    """Mean and spread over runs at every round that was evaluated in all of them."""
    found = [
        {line["round"]: line["summary"][part]["mean"] for line in run.evaluations if part in line["summary"]}
        for run in runs
    ]
    rounds = sorted(set.intersection(*(set(values) for values in found))) if found else []
    if not rounds:
        return None
    in_unit = runs[0].task.in_unit
    points = [mean_and_spread([in_unit(values[number]) for values in found]) for number in rounds]
    means, spreads = zip(*points, strict=True)
    return _Line(np.array(rounds), np.array(means), None if spreads[0] is None else np.array(spreads))


def _worth_a_colour(variants: Mapping[str, Sequence[RunRecord]], task: Task) -> list[str]:
    """The labels that are drawn in colour, in the order given; never chosen on test data."""

    nothing = math.inf if task.smaller_is_better else 0.0

    def validation(label: str) -> float:
        last = [run.summary["last"].get("validation", nothing) for run in variants[label]]
        return float(np.mean(last))

    best = set(sorted(variants, key=validation, reverse=not task.smaller_is_better)[:MOST_LINES])
    return [label for label in variants if label in best]


def _draw_panel(axes: Axes, lines: Mapping[str, _Line], shown: Sequence[str]) -> None:
    for label, line in lines.items():
        if label not in shown:
            axes.plot(line.rounds, line.mean, color=_OTHERS, linewidth=0.8, zorder=1)
    for number, label in enumerate(shown):
        if label not in lines:
            continue
        line = lines[label]
        colour = COLOURS[number % len(COLOURS)]
        if line.spread is not None:
            low, high = line.mean - line.spread, line.mean + line.spread
            axes.fill_between(line.rounds, low, high, color=colour, alpha=0.13, linewidth=0, zorder=2)
        axes.plot(
            line.rounds,
            line.mean,
            color=colour,
            linestyle="-" if number < len(COLOURS) else (0, (3.5, 1.5)),
            linewidth=1.6,
            marker="o" if len(line.rounds) <= FEW_POINTS else None,
            markersize=3,
            label=label,
            zorder=3,
        )
    style_axes(axes)
    over_rounds(axes)


def legend_width(texts: Sequence[str]) -> float:
    """Inches."""
    return 0.7 + 0.075 * max(len(line) for text in texts for line in text.split("\n"))


def add_legend(figure: Figure, panels: Iterable[Axes], others: int, title: str | None) -> None:
    """Beside the panels, the line that ends highest (in the last panel in which it is) first."""
    marks: dict[str, Line2D] = {}
    for axes in panels:
        for mark, text in zip(*axes.get_legend_handles_labels(), strict=True):
            assert isinstance(mark, Line2D)
            marks[text] = mark
    order = sorted(marks, key=lambda text: -float(np.asarray(marks[text].get_ydata())[-1]))
    heading = [title] if title else []
    heading += [f"({others} others: grey)"] if others else []
    figure.legend(
        [marks[text] for text in order],
        order,
        title="\n".join(heading) or None,
        loc="outside right center",
        frameon=False,
        fontsize=8,
        title_fontsize=8,
        labelcolor=INK,
        alignment="left",
    )
