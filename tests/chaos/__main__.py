"""The long version of the attacks: `make chaos`. Prints what was tried and what failed, and fails if anything did.

    python -m tests.chaos --minutes 10 --seed 0 [--only kills,messages]

Runs are killed at random moments and before every change that they make to a file, over all methods and both engines,
and so are their workers and sweeps; what finishes must equal the undisturbed run bit for bit. Messages, run
directories, tables, images and run files are spoilt at random; what comes of it is an error of one line, or the same
result.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table
from tests.chaos import hostile, kills
from tests.chaos.attack import Chaos, Tally

ATTACKS: dict[str, Callable[[Chaos], Iterator[Tally]]] = {
    "kills": kills.kills,
    "file-operations": kills.file_operations,
    "sweeps": kills.sweeps,
    "messages": hostile.messages,
    "directories": hostile.directories,
    "data": hostile.data,
    "run-files": hostile.run_files,
}
SHARES = {
    "kills": 4.0,
    "file-operations": 3.0,
    "sweeps": 2.0,
    "messages": 2.0,
}  # of the time; of all others 1


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0, help="how long it may take, in all")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default=",".join(ATTACKS), help=f"of {', '.join(ATTACKS)}")
    wanted = parser.parse_args()
    names = wanted.only.split(",")
    whole = sum(SHARES.get(name, 1.0) for name in names)
    tallies: list[Tally] = []
    with tempfile.TemporaryDirectory() as folder:
        os.environ["POLYFED_CACHE"] = f"{folder}/cache"
        for name in names:
            seconds = 60 * wanted.minutes * SHARES.get(name, 1.0) / whole
            chaos = Chaos(Path(folder), wanted.seed, seconds)
            chaos.folder = Path(folder) / name
            chaos.folder.mkdir()
            for tally in ATTACKS[name](chaos):
                sys.stdout.write(f"{tally.what}: {tally.tried} tried, {len(tally.failures)} failed\n")
                sys.stdout.flush()
                tallies.append(tally)
    table = Table("what", "tried", "failed", box=box.SIMPLE_HEAD)
    for tally in tallies:
        table.add_row(tally.what, f"{tally.tried:,}", f"{len(tally.failures):,}")
    console = Console()
    console.print(table)
    for tally in tallies:
        for failure in tally.failures[:20]:
            console.print(f"{tally.what}: {failure}", markup=False, soft_wrap=True)
    return int(any(tally.failures for tally in tallies))


if __name__ == "__main__":
    sys.exit(main())
