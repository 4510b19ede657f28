"""FedORION and FedDF timed on this machine, beside what FedORION's appendix B predicts for the same federation.

A few clients with a small and a large residual network on random images, and as many steps of clients and server as the
appendix puts in. Both methods have the same clients, models, batches and rounds; FedDF distils on noise too. What is
measured is CPU time, of one process that does all the work, so it does not depend on what else the machine does.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from polyfed import models
from polyfed.report.cost_model import CostModel
from polyfed.runs import api

SMALL, LARGE = "resnet8", "resnet20"
CLIENTS, SKIPPING = 6, 2  # of which so many have the small model
LOCAL, SERVER = 10, 5  # steps of a client and of the server in a round: I_c and I_s
SIDE, BATCH, ROWS = 16, 32, 64  # of the images; rows of each client
ROUNDS, REPEATS = 1, 3
CLASSES = 10


@dataclass(frozen=True)
class Measured:
    """What both methods took.

    model: the federation as the appendix sees it. feddf, fedorion: seconds of CPU time of a round, one for each time
    that it was measured, in turn.
    """

    model: CostModel
    feddf: tuple[float, ...]
    fedorion: tuple[float, ...]

    @property
    def speed_ups(self) -> list[float]:
        """How many times as long FedDF took as FedORION, from the least to the most."""
        return sorted(one / other for one, other in zip(self.feddf, self.fedorion, strict=True))

    def in_words(self) -> str:
        """One line: what was timed, what it took, and what was predicted for it."""
        model, found = self.model, self.speed_ups
        seconds = {name: statistics.median(getattr(self, name)) for name in ("feddf", "fedorion")}
        return (
            f"measured speed-up on this machine, for N = {model.clients}, P = {model.prototypes},"
            f" M = {model.ratio:.2g}, α = {model.skipping:.2g} ({SMALL} and {LARGE}): {statistics.median(found):.2f}"
            f" ({found[0]:.2f} to {found[-1]:.2f}); a round takes FedDF {seconds['feddf']:.2f} s and FedORION"
            f" {seconds['fedorion']:.2f} s of CPU time. Predicted for this federation: {model.speed_up():.2f}; and"
            f" {model.speed_up(asked_once=True):.2f} where FedDF asks each teacher once a round, as it does here"
        )


def federation(backward: float) -> CostModel:
    """The federation that is timed, with the ratio of the models' parameters, as the appendix takes it."""
    small, large = (
        models.size(name, (3, SIDE, SIDE), CLASSES, batch=BATCH).parameters for name in (SMALL, LARGE)
    )
    return CostModel(CLIENTS, 2, large / small, SKIPPING / CLIENTS, backward, LOCAL, SERVER)


def measure(backward: float) -> Measured:
    """Time both methods in turn, several times. backward: K, for the prediction."""
    names = ("feddf", "fedorion")
    with tempfile.TemporaryDirectory() as folder:
        times = [
            tuple(_seconds(name, Path(folder) / f"{name}-{number}") for name in names)
            for number in range(REPEATS)
        ]
    feddf, fedorion = zip(*times, strict=True)
    return Measured(federation(backward), feddf, fedorion)


def _seconds(method: str, out: Path) -> float:
    """CPU time of a round."""
    stream = torch.Generator().manual_seed(0)
    x = torch.randint(0, 256, (CLIENTS * ROWS, 3, SIDE, SIDE), dtype=torch.uint8, generator=stream)
    y = torch.arange(len(x)) % CLASSES
    distil = {"steps": SERVER, "batch": BATCH}
    settings: dict[str, Any] = {"name": method, "distil": distil}
    if method == "feddf":
        settings["public_rows"] = SERVER * BATCH  # as many as FedORION's teachers see
    config = {
        "method": settings,
        "rounds": ROUNDS,
        "data": {
            "clients": CLIENTS,
            "partition": {"kind": "iid"},
            "validation": 0,
            "test": 0,
            "public": {"source": "noise", "kind": "gaussian", "rows": SERVER * BATCH},
        },
        "models": {"names": [LARGE], "shares": {SMALL: SKIPPING / CLIENTS}},
        "training": {"steps": LOCAL, "batch": BATCH},
        "evaluate": {"every": ROUNDS, "test_rows": CLASSES},
    }
    data = {"train": (x, y), "test": (x[:CLASSES], y[:CLASSES])}
    run = api.prepare(config, data=data, out=out, workers=1)
    run.open()
    started = time.process_time()
    run.go()
    taken = time.process_time() - started
    run.close()
    return taken / ROUNDS
