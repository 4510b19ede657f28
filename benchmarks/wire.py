"""What each packing saves and what it costs: bytes and accuracy on the digits, seeds 0, 1 and 2.

`python -m benchmarks.wire`: FedAvg with a CNN (weights) and DS-FL with two MLPs (posteriors), eight clients, Dirichlet
α = 0.3. Accuracy is that of the last round on the whole test set, mean ± standard deviation over seeds; bytes are those
of one run, up and down. The models are small, so names and small tensors, which are not packed, weigh more than
elsewhere.
"""

from __future__ import annotations

import statistics
import tempfile
from pathlib import Path
from typing import Any

import polyfed

SEEDS = (0, 1, 2)
BASE: dict[str, Any] = {
    "rounds": 15,
    "data": {
        "clients": 8,
        "partition": {"kind": "dirichlet", "alpha": 0.3},
        "public": {"source": "share", "share": 0.2, "labels": "none"},
    },
    "training": {"epochs": 2, "batch": 16, "lr": 0.05},
    "evaluate": {"every": 15},
}
METHODS: dict[str, tuple[str, dict[str, Any]]] = {
    "fedavg": ("weights", {"models": {"names": ["cnn-small"]}}),
    "dsfl": ("posteriors", {"models": {"names": ["mlp-small", "mlp"]}}),
}
WAYS = {
    "plain": ("plain", "plain"),
    "half up and down": ("half", "half"),
    "8 bits up and down": ("int8", "int8"),
    "top 5 % up, 8 bits down": ("top-0.05", "int8"),
    "top 1 % up, 8 bits down": ("top-0.01", "int8"),
}


def measured(method: str, wire: dict[str, Any], folder: Path) -> tuple[list[float], int, int]:
    """The accuracy of each seed; bytes up and down of the last."""
    reached, bytes_ = [], (0, 0)
    for seed in SEEDS:
        config = {**BASE, **METHODS[method][1], "wire": wire, "seed": seed}
        done = polyfed.run(config, method=method, out=folder / f"{seed}", workers=2)
        reached.append(100 * done.summary["last"]["whole"]["mean"])
        counts = done.summary["bytes"]
        bytes_ = tuple(sum(counts[way].values()) for way in ("up", "down"))
    return reached, *bytes_


def main() -> None:
    for method, (kind, _) in METHODS.items():
        print(f"\n{method}, {kind}: {'up MB':>20} {'down MB':>9} {'saves':>7} {'accuracy':>15}")
        whole = 0
        for name, (up, down) in WAYS.items():
            if up.startswith("top") and kind != "weights":
                continue
            wire = {"up": {kind: up}, "down": {kind: down}}
            with tempfile.TemporaryDirectory() as folder:
                reached, sent, received = measured(method, wire, Path(folder))
            whole = whole or sent + received
            spread = f"{statistics.mean(reached):.1f} ± {statistics.stdev(reached):.1f} %"
            saves = 1 - (sent + received) / whole
            print(f"  {name:<28} {sent / 1e6:>9.2f} {received / 1e6:>9.2f} {saves:>7.0%} {spread:>15}")


if __name__ == "__main__":
    main()
