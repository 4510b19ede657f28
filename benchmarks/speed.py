"""Speed against the yardstick, interleaved, as ratios: `python -m benchmarks.speed [A B C] [--repeats 3]`."""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import threading
import time
from pathlib import Path

from benchmarks.works import WORKS

CASES = {
    "bare": "bare loop",
    "tuned": "tuned by hand",
    "forked": "bare, 2 forked",
    "1": "polyfed, 1",
    "2": "polyfed, 2",
    "own-1": "own module, 1",
    "own-2": "own module, 2",
}
TARGETS: dict[str, dict[str, float]] = {
    "A": {"1": 0.95, "2": 0.48, "own-1": 1.02, "own-2": 0.48, "memory": 0.45},
    "B": {"1": 1.02, "2": 0.48, "own-1": 1.02, "own-2": 0.50, "memory": 0.45},
    "C": {"1": 0.90, "2": 0.42, "own-1": 1.02, "own-2": 0.42, "memory": 0.95},
}
"""Wall time as a ratio to the bare loop; the peak memory of two workers, PSS in GB."""
START_SECONDS = 3.5  # from launch to the first round


def timed(work: str, case: str, *, memory: bool = False) -> dict[str, float]:
    """One case in a fresh process; with `memory` the peak PSS of the whole process tree is sampled."""
    launched = time.time()
    process = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.case", work, case],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    peak = [0.0]
    watcher = threading.Thread(target=_watch, args=(process.pid, peak, process))
    if memory:
        watcher.start()
    output, _ = process.communicate()
    if process.returncode:
        raise SystemExit(f"case {work} {case} failed")
    if memory:
        watcher.join()
    result: dict[str, float] = json.loads(output.splitlines()[-1])
    result["startup"] = result.pop("ready") - launched
    result["pss"] = peak[0]
    return result


def _watch(root: int, peak: list[float], process: subprocess.Popen[str]) -> None:
    while process.poll() is None:
        total = sum(_pss(pid) for pid in _tree(root))
        peak[0] = max(peak[0], total / 1e9)
        time.sleep(0.05)


def _tree(root: int) -> list[int]:
    found, queue = [], [root]
    while queue:
        pid = queue.pop()
        found.append(pid)
        for task in Path(f"/proc/{pid}/task").glob("*/children"):
            try:
                queue += [int(child) for child in task.read_text().split()]
            except OSError:
                continue
    return found


def _pss(pid: int) -> float:
    try:
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return float(line.split()[1]) * 1024
    except OSError:
        pass
    return 0.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("works", nargs="*", default=list(WORKS))
    parser.add_argument("--repeats", type=int, default=3)
    arguments = parser.parse_args()
    for work in arguments.works:
        runs: dict[str, list[dict[str, float]]] = {case: [] for case in CASES}
        for _ in range(arguments.repeats):
            for case in CASES:
                runs[case].append(timed(work, case))
        memory = timed(work, "2", memory=True)["pss"]
        _print(work, runs, memory)


def _print(work: str, runs: dict[str, list[dict[str, float]]], memory: float) -> None:
    def ratio(case: str, what: str, to: str = "bare") -> float:
        pairs = zip(runs[case], runs[to], strict=True)
        return statistics.median(one[what] / other[what] for one, other in pairs)

    targets = TARGETS[work]
    print(f"\n{WORKS[work].name}: median of {len(runs['bare'])} interleaved runs, ratios to the bare loop")
    print(
        f"{'case':<18}{'wall s':>9}{'ratio':>8}{'target':>8}{'cpu ratio':>11}{'start s':>9}{'accuracy':>10}"
    )
    for case, title in CASES.items():
        wall = statistics.median(run["wall"] for run in runs[case])
        start = statistics.median(run["startup"] for run in runs[case])
        right = statistics.median(run["accuracy"] for run in runs[case])
        print(
            f"{title:<18}{wall:>9.2f}{ratio(case, 'wall'):>8.2f}{targets.get(case, ''):>8}"
            f"{ratio(case, 'cpu'):>11.2f}{start:>9.1f}{right:>10.3f}"
        )
    print(f"polyfed on 1 worker / tuned by hand: {ratio('1', 'wall', 'tuned'):.2f} (target 1.05)")
    print(
        f"start: target {START_SECONDS} s; peak PSS on 2 workers: {memory:.2f} GB (target {targets['memory']})"
    )


if __name__ == "__main__":
    main()
