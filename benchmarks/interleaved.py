"""Cases of one work timed one after the other, over and over, each in a process of its own: their ratios."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

import polyfed
from benchmarks.works import cpu_seconds

Results = Mapping[str, Sequence[Mapping[str, float]]]
TARGETS = {"1": 1.1, "2": 0.6}
"""By the number of workers, of the bare loop's wall time."""
CASES = ("bare", *TARGETS)
TEST_ROWS = 64


def timed(module: str, *arguments: str, repeats: int) -> Results:
    """What `python -m MODULE ARGUMENTS… CASE` prints as one JSON line, for each case as often as told."""
    results: dict[str, list[dict[str, float]]] = {case: [] for case in CASES}
    for _ in range(repeats):
        for case in CASES:
            command = [sys.executable, "-m", module, *arguments, case]
            said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
            results[case].append(json.loads(said.splitlines()[-1]))
    return results


def timed_run(config: Mapping[str, Any], x: Tensor, y: Tensor, workers: int) -> dict[str, float]:
    """Wall and CPU seconds of polyfed's rounds on these rows, 64 of which are the test set; start-up is not counted."""
    with tempfile.TemporaryDirectory() as folder:
        run = polyfed.prepare(
            config,
            data={"train": (x, y), "test": (x[:TEST_ROWS], y[:TEST_ROWS])},
            out=Path(folder) / "run",
            workers=workers,
        )
        run.open()
        wall, cpu = time.perf_counter(), cpu_seconds()
        run.go()
        elapsed = time.perf_counter() - wall
        run.close()  # its workers end, and with that their CPU time is known
        return {"wall": elapsed, "cpu": cpu_seconds() - cpu}


def print_ratios(results: Results) -> None:
    """Wall and CPU time on one worker and on two, as shares of the bare loop's."""
    for case, target in TARGETS.items():
        pairs = list(zip(results[case], results["bare"], strict=True))
        walls, cpus = ([one[what] / other[what] for one, other in pairs] for what in ("wall", "cpu"))
        print(
            f"  {case} worker{'s' if case != '1' else ''}: wall {statistics.median(walls):.2f}"
            f" ({min(walls):.2f}–{max(walls):.2f}, target {target}), CPU {statistics.median(cpus):.2f}",
            flush=True,
        )
