"""The server's shelf: a LeNet-5 for each of 10,000 clients, a cohort of 10 that changes theirs in each round.

`python -m benchmarks.shelf`: prints what a checkpoint writes and takes, and how much the process grows (target
under 200 MB). It needs 3 GB of disk in the folder for temporary files.
"""

from __future__ import annotations

import random
import re
import statistics
import tempfile
import time
from pathlib import Path

from polyfed import learn, models
from polyfed.federation.shelf import Shelf
from polyfed.runs.checkpoint import RunDirectory

SLOTS = 10_000
COHORT = 10
ROUNDS = 20


def memory(line: str) -> float:
    """Megabytes of this process: `VmRSS` now, `VmHWM` at most so far."""
    found = re.search(rf"{line}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None
    return int(found[1]) / 1e3


def commit(directory: RunDirectory, shelf: Shelf, number: int) -> tuple[int, int, float]:
    """Save as a run does. Files and bytes of slots written, and seconds."""
    started = time.perf_counter()
    saved = shelf.save(directory.path / "states", str(number))
    directory.commit(number, str(number), {}, saved, {})
    seconds = time.perf_counter() - started
    files = [directory.path / "states" / state.file for state in saved if state.file is not None]
    return len(files), sum(file.stat().st_size for file in files), seconds


def main() -> None:
    weights = learn.weights_of(models.build("lenet5", (1, 28, 28), 10))
    clients = random.Random(0)
    with tempfile.TemporaryDirectory() as folder:
        directory = RunDirectory(Path(folder) / "run", new=True)
        directory.write_config({})
        shelf = Shelf(directory.scratch / "shelf")
        before = memory("VmRSS")
        started = time.perf_counter()
        for number in range(SLOTS):
            next(iter(weights.values())).fill_(number)  # no two are the same
            shelf[f"client-{number}"] = {"weights": weights, "round": 0}
        filled = time.perf_counter() - started
        files, written, seconds = commit(directory, shelf, 0)
        print(f"{SLOTS:,} slots set in {filled:.1f} s; the checkpoint of them all: {files:,} files,", end=" ")
        print(f"{written / 1e6:,.0f} MB, {seconds:.1f} s")

        found, rounds = [], []
        for number in range(1, ROUNDS + 1):
            started = time.perf_counter()
            for client in clients.sample(range(SLOTS), COHORT):
                kept = shelf[f"client-{client}"]
                kept["weights"] = {name: tensor + 1 for name, tensor in kept["weights"].items()}
                shelf[f"client-{client}"] = {**kept, "round": number}
            rounds.append(time.perf_counter() - started)
            found.append(commit(directory, shelf, number))
        print(
            f"a round of {COHORT}: reads and sets them in {1e3 * statistics.median(rounds):.1f} ms;"
            f" its checkpoint: {max(files for files, _, _ in found)} files,"
            f" {max(size for _, size, _ in found) / 1e6:.2f} MB,"
            f" {1e3 * statistics.median(seconds for _, _, seconds in found):.1f} ms"
        )
        print(
            f"memory: {before:.0f} MB before, {memory('VmRSS') - before:.0f} MB more now,"
            f" {memory('VmHWM') - before:.0f} MB more at most (target 200)"
        )
        started = time.perf_counter()
        directory.rewind()
        shelf.restore(directory.shelf_files())
        print(f"going back, with every file verified: {time.perf_counter() - started:.1f} s")
        directory.close()


if __name__ == "__main__":
    main()
