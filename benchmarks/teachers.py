"""The server's work on all cores: FedDF's teachers answer on public rows through `server.spread`.

`python -m benchmarks.teachers`: ten teachers of two architectures on 1,000 rows, on one worker and on two, interleaved.
"""

from __future__ import annotations

import statistics

import torch

from benchmarks.interleaved import timed_run

TARGET = 0.6
REPEATS = 3


def seconds(workers: int) -> float:
    """A round of FedDF that is nearly all teachers: clients and students make a single step."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randint(0, 256, (1500, 1, 28, 28), dtype=torch.uint8, generator=generator)
    y = torch.randint(0, 10, (1500,), generator=generator)
    config = {
        "method": {"name": "feddf", "public_rows": 1000, "distil": {"steps": 1}},
        "rounds": 1,
        "data": {
            "clients": 10,
            "partition": {"kind": "iid"},
            "validation": 0,
            "test": 0,
            "public": {"source": "share", "share": 0.7},
        },
        "models": {"names": ["resnet20", "wrn-16-1"]},
        "training": {"batch": 32, "steps": 1},
    }
    return timed_run(config, x, y, workers)["wall"]


def main() -> None:
    pairs = [(seconds(1), seconds(2)) for _ in range(REPEATS)]
    ratio = statistics.median(two / one for one, two in pairs)
    one, two = (statistics.median(times) for times in zip(*pairs, strict=True))
    print(
        f"ten teachers: {one:.1f} s on one worker, {two:.1f} s on two: ratio {ratio:.2f} (target {TARGET:.2f})"
    )


if __name__ == "__main__":
    main()
