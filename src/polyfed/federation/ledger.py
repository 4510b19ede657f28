"""Everything that travels is counted: bytes by round, client, direction, kind and purpose."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any, Literal, NamedTuple, TypeAlias

from polyfed.federation.message import Direction, Kind

Purpose = Literal["training", "evaluation"]
LedgerLine: TypeAlias = dict[str, Any]


class Entry(NamedTuple):
    """One line of the ledger: so many bytes of one kind went one way between a client and the others."""

    round: int
    client: str
    direction: Direction
    kind: str
    purpose: Purpose
    bytes: int


class Ledger:
    """Counts the encoded size of every message. Up is from a client, down is to it.

    What a method's rounds need is `training`; what only serves to look at the models is `evaluation`.
    """

    def __init__(self) -> None:
        self._open: defaultdict[tuple[str, Direction, str, Purpose], int] = defaultdict(int)
        self._totals: defaultdict[tuple[Direction, str, Purpose], int] = defaultdict(int)

    def count(
        self, client: str, direction: Direction, sizes: Mapping[Kind, int], purpose: Purpose, times: int = 1
    ) -> None:
        """Add one message's bytes by kind, sent `times` times."""
        for kind, size in sizes.items():
            self._open[client, direction, kind, purpose] += size * times
            self._totals[direction, kind, purpose] += size * times

    def close_round(self, number: int) -> LedgerLine | None:
        """The round's line for the ledger file, or nothing if nothing travelled."""
        if not self._open:
            return None
        rows = [[*key, size] for key, size in self._open.items()]
        self._open.clear()
        return {"round": number, "rows": rows}

    def total(
        self,
        direction: Direction | None = None,
        kind: str | None = None,
        purpose: Purpose | None = "training",
    ) -> int:
        """Bytes so far, over all rounds and clients."""
        wanted = (direction, kind, purpose)
        return sum(
            size
            for key, size in self._totals.items()
            if all(want is None or want == have for want, have in zip(wanted, key, strict=True))
        )

    def by_kind(self) -> dict[str, dict[str, int]]:
        """Training bytes as {direction: {kind: bytes}}."""
        table: dict[str, dict[str, int]] = {"up": {}, "down": {}}
        for (direction, kind, purpose), size in sorted(self._totals.items()):
            if purpose == "training":
                table[direction][kind] = size
        return table

    def replay(self, line: LedgerLine) -> None:
        """Take back a line written by `close_round` (when a run is resumed)."""
        for _client, direction, kind, purpose, size in line["rows"]:
            self._totals[direction, kind, purpose] += size


def entries(line: LedgerLine) -> Iterator[Entry]:
    """A ledger file's line, entry by entry."""
    for client, direction, kind, purpose, size in line["rows"]:
        yield Entry(line["round"], client, direction, kind, purpose, size)
