"""Three hospitals that bring their own tables: other units, another order of columns, a test file apart."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

UNITS = {"north": 1.0, "south": 100.0, "west": 0.01}
COLUMNS = ("age", "dose", "size", "colour")


def patients(name: str, rows: int = 60, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Features in the hospital's own units, and what they are ill with."""
    rng = np.random.default_rng([seed, *name.encode()])
    x = rng.normal(3.0, 1.0, (rows, 4))
    y = np.where(x[:, 0] + x[:, 1] + rng.normal(0, 0.3, rows) > 6, "malignant", "benign")
    return x * UNITS.get(name, 1.0), y


def write(path: Path, x: np.ndarray, y: np.ndarray, columns: tuple[str, ...] = COLUMNS) -> str:
    """A CSV file whose columns are in this order."""
    order = [COLUMNS.index(column) for column in columns]
    lines = [",".join([*map(repr, map(float, row[order])), word]) for row, word in zip(x, y, strict=True)]
    path.write_text("\n".join([",".join([*columns, "diagnosis"]), *lines]) + "\n")
    return str(path)


def hospitals(folder: Path) -> dict[str, Any]:
    """A run file over the three, written into a folder."""
    south = write(folder / "south.csv", *patients("south"), COLUMNS[::-1])
    test = write(folder / "west-test.csv", *patients("west", 30, seed=1))
    return {
        "method": "local",
        "rounds": 2,
        "data": {
            "clients": {
                "north": write(folder / "north.csv", *patients("north")),
                "south": south,
                "west": {"train": write(folder / "west.csv", *patients("west")), "test": test},
            },
            "label": "diagnosis",
            "public": {"source": "share", "share": 0.2},
        },
        "models": {"names": ["mlp-small", "mlp"], "server": "mlp-small"},
        "training": {"epochs": 2, "batch": 16},
        "checkpoint_seconds": 0,
    }
