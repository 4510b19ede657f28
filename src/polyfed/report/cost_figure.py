"""FedORION's Figure 5: the predicted speed-up of FedORION over FedDF. No pyplot, as in `figures`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import cycle
from pathlib import Path

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from polyfed.report.cost_model import CostModel
from polyfed.report.drawing import COLOURS, INK, save, style_axes

STEPS = 101  # shares from 0 to 1


def speed_up_figure(model: CostModel, clients: Sequence[int], path: Path) -> Path:
    """Draw the speed-up over the share of clients that skip mutual learning, a line for each number of clients.

    The model's own point is marked.
    """
    figure = Figure(figsize=(5.6, 3.8), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    style_axes(axes)
    shares = [step / (STEPS - 1) for step in range(STEPS)]
    for number, colour in zip(clients, cycle(COLOURS), strict=False):
        line = [replace(model, clients=number, skipping=share).speed_up() for share in shares]
        axes.plot([100 * share for share in shares], line, color=colour, linewidth=1.6, label=f"N = {number}")
    axes.plot(100 * model.skipping, model.speed_up(), "o", color=INK, markersize=5)
    axes.annotate(
        f"{model.speed_up():.2f}",
        (100 * model.skipping, model.speed_up()),
        xytext=(0, 7),
        textcoords="offset points",
        ha="center",
        fontsize=8,
        color=INK,
    )
    axes.axhline(1, color=INK, linewidth=0.8, linestyle=":")
    axes.set_xlabel("clients that skip mutual learning (100 α), %", fontsize=9, color=INK)
    axes.set_ylabel("work of FedDF / work of FedORION", fontsize=9, color=INK)
    words = f"predicted by appendix B: P = {model.prototypes}, M = {model.ratio:g}, K = {model.backward:g}"
    axes.set_title(words, fontsize=9.5, color=INK, loc="left")
    axes.legend(fontsize=8, frameon=False, labelcolor=INK)
    return save(figure, path)
