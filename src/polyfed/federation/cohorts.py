"""Who takes part in a round: how many are drawn, among whom, and which of them drop out."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from polyfed.errors import RunError


@dataclass(frozen=True)
class Cohorts:
    """How many clients are drawn each round, and which of them drop out."""

    count: int
    dropout: float = 0.0
    weak: frozenset[int] | None = None
    """With drop-out by budget: the clients too weak to take part, for good. Else everyone drops out by chance."""

    def draw(self, holders: NDArray[np.int64], rng: np.random.Generator) -> list[int]:
        """The clients of a round, in their order; a `RunError` if there are none.

        holders: the clients that hold training rows. The others have nothing to teach.
        """
        if not len(holders):
            raise RunError(
                "no client holds training rows: lower data.validation and data.test, or use more rows"
            )
        if self.count >= len(holders):
            chosen = holders.tolist()
        else:
            places = rng.choice(len(holders), self.count, replace=False, shuffle=False)
            chosen = sorted(holders[places].tolist())
        absent = self.weak
        if absent is None:
            gone = round(self.dropout * len(chosen))
            absent = frozenset(rng.choice(chosen, gone, replace=False).tolist()) if gone else frozenset()
        present = [index for index in chosen if index not in absent]
        if not present:
            raise RunError("every client dropped out; lower cohort.dropout")
        return present
