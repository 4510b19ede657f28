"""What a step costs beside its own work: empty steps for 8 clients, there and back.

`python -m benchmarks.roundtrip`: prints the median over 500 calls for each engine (target 1 ms through the pool).
"""

from __future__ import annotations

import statistics
import tempfile
import time
from pathlib import Path

import polyfed
from polyfed import Client, Declaration, Fields, Fleet, Method, Server, client_step

CALLS = 500


@polyfed.register
class Empty(Method):
    """Clients that do nothing; each keeps a model and is told nothing."""

    name = "empty"

    def declare(self) -> Declaration:
        return Declaration(server=False)

    @client_step
    def nothing(self, me: Client) -> Fields:
        return {}

    def round(self, t: int, fleet: Fleet, server: Server) -> None:
        cohort = fleet.sample()
        times = []
        for _ in range(CALLS):
            started = time.perf_counter()
            fleet.ask(self.nothing, cohort)
            times.append(time.perf_counter() - started)
        server.memory["milliseconds"] = 1e3 * statistics.median(times[CALLS // 10 :])


def main() -> None:
    for title, workers in (("inline", 1), ("pool of 2", 2)):
        with tempfile.TemporaryDirectory() as folder:
            done = polyfed.run(method="empty", rounds=1, out=Path(folder) / "run", workers=workers)
        print(f"{title:<10} empty step, 8 clients: {done.server.memory['milliseconds']:.2f} ms (target 1.00)")


if __name__ == "__main__":
    main()
