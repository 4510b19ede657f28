"""Cost by population: rounds of a cohort of 10 among 100 and among 10,000 clients, interleaved.

`python -m benchmarks.population`: prints the ratio of the median round times (target 1.2) and the peak memory; for
FedAvg, for FedAvg that keeps every client's last model on the server, and for clients alone.
"""

from __future__ import annotations

import itertools
import resource
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np

import polyfed

ROUNDS = 30
REPEATS = 3
SIZES = (100, 10_000)
METHODS: dict[str, dict[str, str]] = {
    "fedavg": {"name": "fedavg"},
    "fedavg, cached": {"name": "fedavg", "inactive": "cached"},
    "local": {"name": "local"},
}


def round_times(clients: int, method: dict[str, str], folder: Path) -> list[float]:
    """Seconds of every round but the first, for a small model and 20 samples a client."""
    rng = np.random.default_rng(0)
    x = rng.integers(0, 256, (clients * 20, 1, 8, 8), dtype=np.uint8)
    y = rng.integers(0, 10, len(x))
    config = {
        "method": method,
        "rounds": ROUNDS,
        "data": {"clients": clients, "partition": {"kind": "iid"}},
        "models": {"names": ["mlp-small"]},
        "cohort": {"count": 10},
        "evaluate": {"clients": 10},
    }
    moments: list[float] = []
    data = {"train": (x, y), "test": (x[:200], y[:200])}
    polyfed.run(
        config, data=data, out=folder, workers=2, listener=lambda _run: moments.append(time.perf_counter())
    )
    return [later - earlier for earlier, later in itertools.pairwise(moments)]


def main() -> None:
    for name, method in METHODS.items():
        times: dict[int, list[float]] = {size: [] for size in SIZES}
        with tempfile.TemporaryDirectory() as folder:
            for repeat in range(REPEATS):
                for size in SIZES:
                    times[size] += round_times(size, method, Path(folder) / f"{repeat}-{size}")
        few, many = (statistics.median(times[size]) for size in SIZES)
        print(
            f"{name:<14} a round with {SIZES[0]} clients {few * 1e3:.1f} ms, with {SIZES[1]:,} {many * 1e3:.1f} ms:"
            f" ratio {many / few:.2f} (target 1.20)"
        )
    usage = [resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    print(
        f"peak memory: driver {usage[0] / 1e6:.2f} GB, largest worker {usage[1] / 1e6:.2f} GB (target 1.50)"
    )


if __name__ == "__main__":
    main()
