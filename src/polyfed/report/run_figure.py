"""One run as a figure: scores over rounds, and what each client has got in the end."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from polyfed.report.drawing import COLOURS, FEW_POINTS, INK, labels, over_rounds, plain, save, style_axes
from polyfed.report.fitting import shortened
from polyfed.report.measures import part_titles, server_title
from polyfed.runs.history import RunRecord
from polyfed.tasks import Task

MOST_CLIENTS = 30  # shown one by one
_LONGEST_NAME = 24
_BAND = 0.12

Points = dict[int, float]
"""Scores in their unit by round."""


def run_figure(record: RunRecord, path: Path | str) -> Path | None:
    """Draw a finished run: scores over rounds, with stages and the server's models where they were measured, and the
    clients of the last round if these are at most thirty. None where nothing was measured.

    path: where to write; the ending (.png, .svg, .pdf) chooses the format.
    """
    lines = _lines(record)
    if not lines:
        return None
    clients = record.last_evaluation["clients"]
    parts = part_titles(record)
    scored = any(parts.keys() & score.keys() for score in clients.values())
    beside = scored and len(clients) <= MOST_CLIENTS
    high = max(3.8, 1.3 + 0.19 * len(clients)) if beside else 3.8
    figure = Figure(figsize=(9.6 if beside else 6.2, high), layout="constrained")
    FigureCanvasAgg(figure)
    figure.get_layout_engine().set(w_pad=0.1, h_pad=0.1)  # type: ignore[union-attr, call-arg]
    panels = figure.subplots(1, 2 if beside else 1, squeeze=False, width_ratios=[1.5, 1][: 1 + beside])[0]
    _draw_lines(panels[0], lines, record)
    if beside:
        _draw_clients(panels[1], clients, record.summary["rounds"], record.task)
    figure.legend(
        loc="outside lower left", ncols=3 if beside else 2, frameon=False, fontsize=8, labelcolor=INK
    )
    summary = record.summary
    about = f": {summary['method']}, {summary['clients']} clients"
    title = plain(shortened(summary["name"], (90 if beside else 55) - len(about)) + about)
    figure.suptitle(title, x=0.02, ha="left", fontsize=10.5, color=INK)
    return save(figure, Path(path))


def _lines(record: RunRecord) -> dict[str, Points]:
    """What was measured over the rounds: on own and whole test sets, at stages, of the server's models."""
    found: dict[str, Points] = {}
    task = record.task

    def note(label: str, number: int, score: float | None) -> None:
        if score is not None:
            found.setdefault(label, {})[number] = task.in_unit(score)

    evaluations, parts = record.evaluations, part_titles(record)
    part, on = list(parts.items())[-1]  # of stages: what says most
    for line in evaluations:
        for each, label in parts.items():
            note(label, line["round"], line["summary"].get(each, {}).get("mean"))
    for line in [record.preparation, *evaluations]:
        for stage, scores in line.get("stages", {}).items():
            note(
                f"{plain(shortened(stage, _LONGEST_NAME))}, {on}",
                line["round"],
                scores.get(part, {}).get("mean"),
            )
        for stage, score in line.get("server", {}).items():
            title = f"{plain(shortened(stage, _LONGEST_NAME))} (server), {server_title(record)}"
            note(title, line["round"], score)
    # A stage after which models do not change any more is the result itself.
    result = found.get(on)
    return {label: points for label, points in found.items() if label in parts.values() or points != result}


def _draw_lines(axes: Axes, lines: Mapping[str, Points], record: RunRecord) -> None:
    parts = part_titles(record)
    colours = dict(zip(dict.fromkeys([*parts.values(), *lines]), itertools.cycle(COLOURS), strict=False))
    for label, points in lines.items():
        is_result = label in parts.values()
        axes.plot(
            list(points),
            list(points.values()),
            color=colours[label],
            linewidth=1.8 if is_result else 1.2,
            linestyle="-" if is_result else (0, (3.5, 1.5)),
            marker="o" if len(points) <= FEW_POINTS else None,
            markersize=3,
            label=label,
            zorder=3,
        )
    _shade_clients(axes, record, COLOURS[0])
    style_axes(axes)
    over_rounds(axes)
    axes.set_title(f"{plain(record.task.title)}, mean over clients", fontsize=9.5, color=INK, loc="left")


def _shade_clients(axes: Axes, record: RunRecord, colour: str) -> None:
    """From the worst client to the best, on own test data."""
    spans = {line["round"]: line["summary"]["own"] for line in record.evaluations if "own" in line["summary"]}
    if len(spans) > 1:
        low, high = ([record.task.in_unit(span[end]) for span in spans.values()] for end in ("worst", "best"))
        axes.fill_between(
            list(spans),
            low,
            high,
            color=colour,
            alpha=_BAND,
            linewidth=0,
            zorder=1,
            label="own, worst to best client",
        )


def _draw_clients(axes: Axes, clients: Mapping[str, Mapping[str, Any]], number: int, task: Task) -> None:
    """A dot per client and test set, the clients below each other in their order."""
    for place, (part, colour) in enumerate(zip(("own", "whole"), COLOURS, strict=False)):
        rows = [row for row, score in enumerate(clients.values()) if part in score]
        scores = [task.in_unit(task.value(score[part])) for score in clients.values() if part in score]
        axes.scatter(scores, rows, s=26 if place == 0 else 16, color=colour, linewidths=0, zorder=3 + place)
    style_axes(axes)
    axes.set_yticks(range(len(clients)), labels(list(clients), _LONGEST_NAME))
    axes.set_ylim(len(clients) - 0.5, -0.5)
    axes.margins(x=0.06)
    axes.set_title(f"each client, round {number}", fontsize=9.5, color=INK, loc="left")
    axes.set_xlabel(plain(task.title), fontsize=9, color=INK)
