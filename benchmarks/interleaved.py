"""Cases of one work timed one after the other, over and over, each in a process of its own: their ratios."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence

Results = Mapping[str, Sequence[Mapping[str, float]]]
TARGETS = {"1": 1.1, "2": 0.6}
"""By the number of workers, of the bare loop's wall time."""
CASES = ("bare", *TARGETS)


def timed(module: str, *arguments: str, repeats: int) -> Results:
    """What `python -m MODULE ARGUMENTS… CASE` prints as one JSON line, for each case as often as told."""
    results: dict[str, list[dict[str, float]]] = {case: [] for case in CASES}
    for _ in range(repeats):
        for case in CASES:
            command = [sys.executable, "-m", module, *arguments, case]
            said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
            results[case].append(json.loads(said.splitlines()[-1]))
    return results


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
