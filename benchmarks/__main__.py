"""All benchmarks, one after the other: `make bench`. Each prints ratios taken in one run."""

from __future__ import annotations

import sys

from benchmarks import fusion, mutual, noise, peers, population, roundtrip, shelf, speed, teachers, wire


def main() -> None:
    sys.argv = [sys.argv[0]]
    speed.main()
    print()
    roundtrip.main()
    population.main()
    peers.main()
    teachers.main()
    shelf.main()
    fusion.main()
    mutual.main()
    noise.main()
    wire.main()


if __name__ == "__main__":
    main()
