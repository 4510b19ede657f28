"""One timed case in a process of its own: `python -m benchmarks.case WORK CASE`; prints one JSON line.

A case is `bare`, `tuned`, `forked`, a number of workers, or `own-` and a number of workers: with the user's own module.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.works import SAMPLES, TEST_ROWS, WORKS, Work, bare_loop, cpu_seconds, forked_loops, source


def polyfed_run(work: Work, workers: int, *, own: bool) -> dict[str, float]:
    """The same work as a user would have it done: config, run directory, checkpoints, evaluation and all."""
    import polyfed  # noqa: PLC0415

    with tempfile.TemporaryDirectory() as folder:
        run = polyfed.prepare(
            {
                "method": "fedavg",
                "rounds": work.rounds,
                "data": {
                    "limit": work.clients * SAMPLES,
                    "clients": work.clients,
                    "partition": {"kind": "iid"},
                    "validation": 0,
                    "test": 0,
                },
                **({} if own else {"models": {"names": [work.model]}}),
                "training": {"epochs": 1, "batch": work.batch, "lr": 0.05},
                "evaluate": {"every": work.rounds, "test_rows": TEST_ROWS},
            },
            data=source(work),
            models={"net": work.own} if own else None,
            out=Path(folder) / "run",
            workers=workers,
        )
        run.open()
        ready = time.time()
        wall, cpu = time.perf_counter(), cpu_seconds()
        run.go()
        elapsed = time.perf_counter() - wall
        assert run.last is not None
        return {
            "wall": elapsed,
            "cpu": cpu_seconds() - cpu,
            "ready": ready,
            "accuracy": run.last["summary"]["whole"]["mean"],
        }


def main() -> None:
    work = WORKS[sys.argv[1]]
    match sys.argv[2]:
        case "bare":
            result = bare_loop(work, tuned=False)
        case "tuned":
            result = bare_loop(work, tuned=True)
        case "forked":
            result = forked_loops(work)
        case workers:
            result = polyfed_run(work, int(workers.removeprefix("own-")), own=workers.startswith("own-"))
    sys.stdout.write(json.dumps(result) + "\n")


if __name__ == "__main__":
    main()
