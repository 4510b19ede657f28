"""What methods that average have in common: by how much each client counts, and who averages with whom."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, TypeAlias

from polyfed.federation import Facts, Server

Weighting: TypeAlias = Literal["samples", "uniform"]
Share: TypeAlias = Callable[[Facts], float]


def share(weighting: Weighting = "samples") -> Share:
    """By how much a client counts in a mean: by its number of samples, or all the same."""
    return (lambda client: client.samples) if weighting == "samples" else (lambda client: 1.0)


def everyone(server: Server, weighting: Weighting) -> float:
    """How much all clients count together: N, if all count the same."""
    return server.roster.total_samples if weighting == "samples" else len(server.roster)


def by_architecture(cohort: Sequence[Facts]) -> dict[str, list[Facts]]:
    """The clients of each architecture, in the order in which they come."""
    groups: dict[str, list[Facts]] = {}
    for client in cohort:
        groups.setdefault(client.architecture, []).append(client)
    return groups
