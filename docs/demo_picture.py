"""Draws docs/demo.png from the runs of `polyfed demo`: `make picture`.

On the left, accuracy on the whole test set over the rounds; on the right, what it cost: bytes that a client sent.
"""

from __future__ import annotations

import sys
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from polyfed.report.tables import amount
from polyfed.runs.history import RunRecord
from polyfed.runs.metrics import sent_per_client

PICTURE = Path(__file__).with_name("demo.png")
INK, GRID, BOUND = "#333333", "#e6e6e6", "#8a8a8a"
APART = 6.0  # per cent of accuracy between two names
WORDS = {
    "pooled": ("pooled: all data in one place", BOUND),
    "aggregated": ("aggregated: alone, with the public data", BOUND),
    "dsfl": ("DS-FL: probabilities", "#2f9467"),
    "fedmd": ("FedMD: logits", "#3b78b5"),
    "fedavg": ("FedAvg: weights, among equal models", "#d9722e"),
    "local": ("local: every client alone", BOUND),
}


def draw(folder: Path) -> Path:
    """The picture of the demo's runs in a folder."""
    runs = {name: RunRecord(folder / name) for name in WORDS}
    figure = Figure(figsize=(9.4, 3.9), layout="constrained")
    FigureCanvasAgg(figure)
    left, right = figure.subplots(1, 2, width_ratios=[1.45, 1])
    ends = []
    for name, run in runs.items():
        words, colour = WORDS[name]
        rounds = [line["round"] for line in run.evaluations]
        whole = [100 * line["summary"]["whole"]["mean"] for line in run.evaluations]
        is_bound = colour == BOUND
        left.plot(
            rounds,
            whole,
            color=colour,
            linewidth=1.4 if is_bound else 2,
            linestyle=(0, (4, 2)) if is_bound else "-",
            marker="o",
            markersize=2.5 if is_bound else 3.5,
        )
        ends.append((whole[-1], words, colour))
    _label(left, ends, rounds[-1])
    left.set_title(
        "Accuracy on the whole test set, mean of 8 clients (%)", fontsize=10, color=INK, loc="left"
    )
    left.set_xlabel("round", fontsize=9, color=INK)
    left.xaxis.set_major_locator(MaxNLocator(integer=True))
    left.set_xlim(0.7, rounds[-1] * 1.95)
    left.set_xticks(range(1, rounds[-1] + 1))
    left.set_ylim(0, 108)
    left.set_yticks(range(0, 101, 20))

    names = list(reversed(runs))
    sent = {name: sent_per_client(runs[name].summary) for name in names}
    said = {name: amount(size) if size else "nothing" for name, size in sent.items()}
    sent["pooled"], said["pooled"] = 0, "all its data"  # the models stay where all the data are
    bars = right.barh(names, list(sent.values()), color=[WORDS[name][1] for name in names], height=0.6)
    right.bar_label(bars, list(said.values()), padding=4, fontsize=9, color=INK)
    right.set_title("Sent by a client in the whole run", fontsize=10, color=INK, loc="left")
    right.set_xlim(0, 1.25 * max(sent.values()))
    right.set_xticks([])
    for axes in (left, right):
        axes.tick_params(length=0, labelsize=9, colors=INK)
        for side in axes.spines.values():
            side.set_visible(False)
    left.grid(color=GRID, linewidth=0.6)
    left.set_axisbelow(True)
    seed = runs["local"].config["seed"]
    figure.supxlabel(
        f"`make demo`: 1,797 digits, 8 clients with 4 architectures, Dirichlet α = 0.3, one seed ({seed}).",
        fontsize=8,
        color="#6e6e6e",
        x=0.01,
        ha="left",
    )
    figure.savefig(PICTURE, dpi=130, facecolor="white")
    return PICTURE


def _label(axes: Axes, ends: list[tuple[float, str, str]], last: int) -> None:
    """A name beside the end of each line, moved apart where two would touch."""
    ends = sorted(ends, reverse=True)
    places = [end for end, _, _ in ends]
    for _ in range(200):
        for above in range(len(places) - 1):
            missing = APART - (places[above] - places[above + 1])
            if missing > 0:
                places[above] += missing / 2
                places[above + 1] -= missing / 2
    for (end, words, colour), place in zip(ends, places, strict=True):
        axes.plot([last + 0.15, last + 0.75], [end, place], color=colour, linewidth=0.7)
        axes.text(last + 0.9, place, words, fontsize=8.5, color=colour, va="center")


if __name__ == "__main__":
    sys.stdout.write(f"wrote {draw(Path(sys.argv[1]))}\n")
