"""What all attacks have in common: a folder, chance, time, and a tally of what was tried and what failed."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from polyfed.federation.declaration import Need
from polyfed.federation.method import registered
from polyfed.learn import Training


@dataclass
class Tally:
    """What was tried of one kind, and what failed."""

    what: str
    tried: int = 0
    failures: list[str] = field(default_factory=list)

    def count(self, failure: str | None) -> None:
        self.tried += 1
        if failure:
            self.failures.append(failure)


class Chaos:
    """Attacks in a folder of their own, each kind for its share of the time."""

    def __init__(self, folder: Path, seed: int, seconds: float) -> None:
        self.folder = folder
        self.chance = random.Random(seed)
        self.seconds = seconds
        self.number = 0

    def path(self, name: str) -> Path:
        self.number += 1
        return self.folder / f"{name}-{self.number}"

    def until_time_is_up(self) -> Iterator[None]:
        """At least once, then as long as there is time."""
        end = time.monotonic() + self.seconds
        yield
        while time.monotonic() < end:
            yield

    def configs(self) -> dict[str, dict[str, Any]]:
        """A small run of every method."""
        found = {}
        for name, kind in registered().items():
            needs = kind(kind.Settings(), Training()).declared.needs
            content: dict[str, Any] = {
                "method": name,
                "rounds": 4,
                "data": {"limit": 300, "clients": 4, "public": {"source": "share", "share": 0.2}},
                "models": {"names": ["mlp-small", "cnn-small"], "features": 16, "server": "mlp-small"},
                "training": {"epochs": 1, "batch": 16, "momentum": 0.9},
                "cohort": {"fraction": 0.75},
                "checkpoint_seconds": self.chance.choice([0, 0.2]),
            }
            if Need.COMMON_ARCHITECTURE in needs:
                content["models"]["names"] = ["mlp-small"]
            found[name] = content
        return found

    def spoilt(self, data: bytes) -> bytes:
        """These bytes with a few changed, some lost, or some from elsewhere."""
        kind = self.chance.randrange(6)
        if kind == 0:
            return data[: self.chance.randrange(len(data) + 1)]
        if kind == 1:
            return self.chance.randbytes(self.chance.randrange(200))
        if kind == 2:
            place, length = self.chance.randrange(len(data) + 1), self.chance.randrange(40)
            return data[:place] + data[place + length :]
        if kind == 3:
            place = self.chance.randrange(len(data) + 1)
            return data[:place] + self.chance.randbytes(self.chance.randrange(1, 20)) + data[place:]
        changed = bytearray(data)
        for _ in range(self.chance.randrange(1, 6)):
            if changed:
                changed[self.chance.randrange(len(changed))] ^= 1 << self.chance.randrange(8)
        return bytes(changed)
