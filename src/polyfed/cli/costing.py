"""How much less FedORION computes than FedDF: by the cost model of the FedORION paper, and as measured here."""

from __future__ import annotations

import math
from dataclasses import astuple, replace
from pathlib import Path

from polyfed.cli.screen import console, say, tell
from polyfed.errors import ConfigError
from polyfed.report.cost_model import CostModel, cost_table

OTHERS = (20, 30, 50, 100)
"""Numbers of clients beside the one that was asked for, in the table and in the figure."""


def cost(model: CostModel, figure: Path | None, *, measured: bool) -> None:
    """Print the predicted work of both methods and the speed-up, draw Figure 5, and time both if so asked."""
    if not all(map(math.isfinite, astuple(model))):
        raise ConfigError("an option is infinite: give numbers")
    if model.local + model.server == 0:
        raise ConfigError("--local 0 --server 0: nothing is computed, so there is nothing to compare")
    if figure is not None:
        from polyfed.report.drawing import check_writable  # noqa: PLC0415

        check_writable(figure)
        if not figure.parent.is_dir():
            raise ConfigError(f"--figure {figure}: there is no folder {figure.parent}")
    clients = sorted({*OTHERS, model.clients})
    console.print(cost_table([replace(model, clients=number) for number in clients]))
    tell(
        f"predicted speed-up for N = {model.clients}, P = {model.prototypes}, M = {model.ratio:g},"
        f" α = {model.skipping:g}: {model.speed_up():.2f}"
    )
    tell(
        "It counts work by the formulas of appendix B, of all clients and the server together"
        f"{'' if measured else '; nothing was measured'}."
    )
    if measured:
        # Imported only where something is timed: PyTorch takes seconds of every launch.
        from polyfed.experiments.measured_cost import measure  # noqa: PLC0415

        tell(measure(model.backward).in_words())
    if figure is not None:
        from polyfed.report.cost_figure import speed_up_figure  # noqa: PLC0415

        say(f"wrote {speed_up_figure(model, clients, figure)}")
