"""Runs of one federation in one picture: scores over rounds, and what it cost. No pyplot, as in `figures`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import cycle
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from polyfed.report.drawing import plain, spaced
from polyfed.report.tables import pools_data, sent_words
from polyfed.runs.history import RunRecord, common_task
from polyfed.runs.metrics import sent_per_client
from polyfed.tasks import Task

_INK, _GRID, _BOUND, _FAINT = "#333333", "#e6e6e6", "#8a8a8a", "#6e6e6e"
_COLOURS = ("#2f9467", "#3b78b5", "#d9722e", "#b8448a", "#7a64b5", "#8a6d2f")
_BOUNDS = ("local", "aggregated", "pooled")  # methods that say what others are to be measured by
_APART = 1 / 18  # of the axis of scores, between two names


def score_and_cost(runs: Mapping[str, RunRecord], path: Path | str, caption: str = "") -> Path:
    """Draw scores on the whole test set over rounds (mean over clients) and the bytes that a client sent.

    runs: finished runs of one task by what is to be said of each, in the order of the bars from above. Bounds (`local`,
        `aggregated`, `pooled`) are grey and dashed.
    path: where to write; the ending (.png, .svg, .pdf) chooses the format.
    """
    methods = [words for words, run in runs.items() if run.summary["method"] not in _BOUNDS]
    colours = dict.fromkeys(runs, _BOUND) | dict(zip(methods, cycle(_COLOURS), strict=False))
    figure = Figure(figsize=(9.4, 3.9), layout="constrained")
    FigureCanvasAgg(figure)
    left, right = figure.subplots(1, 2, width_ratios=[1.45, 1])
    _draw_scores(left, runs, colours, common_task({words: run.task for words, run in runs.items()}))
    _draw_cost(right, runs, colours)
    for axes in (left, right):
        axes.tick_params(length=0, labelsize=9, colors=_INK)
        for side in axes.spines.values():
            side.set_visible(False)
    figure.supxlabel(caption, fontsize=8, color=_FAINT, x=0.01, ha="left")
    path = Path(path)
    figure.savefig(path, dpi=130, facecolor="white")
    return path


def _draw_scores(axes: Axes, runs: Mapping[str, RunRecord], colours: Mapping[str, str], task: Task) -> None:
    ends, last = [], 1
    for words, run in runs.items():
        scored = [line for line in run.evaluations if "whole" in line["summary"]]
        rounds = [line["round"] for line in scored]
        scores = [task.in_unit(line["summary"]["whole"]["mean"]) for line in scored]
        if not rounds:
            raise ValueError(f"{run.path} has no {task.measure} on the whole test set to draw")
        is_bound = colours[words] == _BOUND
        axes.plot(
            rounds,
            scores,
            color=colours[words],
            linewidth=1.4 if is_bound else 2,
            linestyle=(0, (4, 2)) if is_bound else "-",
            marker="o",
            markersize=2.5 if is_bound else 3.5,
        )
        ends.append((scores[-1], words, colours[words]))
        last = max(last, rounds[-1])
    if task.unit == "%":
        axes.set_ylim(0, 108)
        axes.set_yticks(range(0, 101, 20))
    _name_lines(axes, ends, last)
    clients = next(iter(runs.values())).summary["clients"]
    unit = f" ({task.shown_unit})" if task.shown_unit else ""
    measure = task.measure[:1].upper() + task.measure[1:]
    title = f"{measure} on the whole test set, mean of {clients} clients{unit}"
    axes.set_title(plain(title), fontsize=10, color=_INK, loc="left")
    axes.set_xlabel("round", fontsize=9, color=_INK, loc="left")
    ticks = MaxNLocator(integer=True, nbins=10, steps=[1, 2, 5, 10]).tick_values(1, last)
    axes.set_xticks([tick for tick in ticks if 1 <= tick <= last])
    axes.set_xlim(1 - 0.03 * last, 1.95 * last)
    axes.grid(color=_GRID, linewidth=0.6)
    axes.set_axisbelow(True)


def _draw_cost(axes: Axes, runs: Mapping[str, RunRecord], colours: Mapping[str, str]) -> None:
    order = list(runs)[::-1]  # the first bar is the lowest
    summaries = [runs[words].summary for words in order]
    sent = [0.0 if pools_data(summary) else sent_per_client(summary) for summary in summaries]
    bars = axes.barh(range(len(order)), sent, color=[colours[words] for words in order], height=0.6)
    axes.bar_label(bars, [sent_words(summary) for summary in summaries], padding=4, fontsize=9, color=_INK)
    axes.set_yticks(range(len(order)), [summary["method"] for summary in summaries])
    axes.set_title("Sent by a client in the whole run", fontsize=10, color=_INK, loc="left")
    axes.set_xlim(0, 1.25 * max(*sent, 1.0))
    axes.set_xticks([])


def _name_lines(axes: Axes, ends: Sequence[tuple[float, str, str]], last: int) -> None:
    """What is to be said of each line beside its end, moved apart where two would touch."""
    ends = sorted(ends, reverse=True)
    low, high = axes.get_ylim()
    places = spaced([end for end, _, _ in ends], _APART * (high - low))
    for (end, words, colour), place in zip(ends, places, strict=True):
        axes.plot([1.015 * last, 1.075 * last], [end, place], color=colour, linewidth=0.7)
        text = axes.text(1.09 * last, place, words, fontsize=8.5, color=colour, va="center")
        text.set_bbox({"facecolor": "white", "edgecolor": "none", "pad": 0.5})
