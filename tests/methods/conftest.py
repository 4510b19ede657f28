"""A federation of three clients on a few rows, small enough to be done by hand."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.methods.by_hand import BATCH, LR, Prepare
from torch import nn

import polyfed
from polyfed.runs.rounds import Run


@pytest.fixture
def federate(tmp_path: Path) -> Iterator[Prepare]:
    """`federate([factory], method=…)`: three clients and a public third of 120 rows of three classes."""
    made: list[Run] = []

    def make(models: list[Callable[[], nn.Module]], *, server: bool = True, **settings: Any) -> Run:
        stream = torch.Generator().manual_seed(0)
        x = torch.randn(120, 5, generator=stream)
        y = (x @ torch.randn(5, 3, generator=stream)).argmax(dim=1)
        config: dict[str, Any] = {
            "rounds": 1,
            "data": {
                "clients": 3,
                "partition": {"kind": "quantity", "alpha": 2.0},
                "public": {"source": "share", "share": 0.3},
            },
            "models": {
                "names": [maker.__name__ for maker in models],
                "server": models[0].__name__ if server else None,
            },
            "training": {"lr": LR, "batch": BATCH, "epochs": 1},
            "checkpoint_seconds": 0,
        }
        out = tmp_path / f"federated-{len(made)}"
        made.append(polyfed.prepare({**config, **settings}, data=(x, y), models=models, out=out, workers=1))
        return made[-1]

    yield make
    for run in made:
        run.close()


@pytest.fixture
def other_classes(tmp_path: Path) -> Path:
    """A public set of 20 classes that are not digits: 200 images of 8×8, ten a class."""
    return write_other_classes(tmp_path / "other.npz", 200)


def write_other_classes(path: Path, rows: int, classes: int = 20) -> Path:
    images = np.random.default_rng(0).integers(256, size=(rows, 8, 8), dtype=np.uint8)
    words = np.array([f"thing-{row % classes:02}" for row in range(rows)])
    np.savez(path, x=images, y=words)
    return path
