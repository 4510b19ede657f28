"""Who hears whom: complete, ring, random pairs each round, star."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypeAlias

import torch

from polyfed.errors import ConfigError, nearest

Neighbours: TypeAlias = dict[int, list[int]]
TopologyName = Literal["complete", "ring", "pairs", "star"]


def complete(nodes: Sequence[int]) -> Neighbours:
    """Everyone hears everyone else."""
    return {node: [other for other in nodes if other != node] for node in nodes}


def ring(nodes: Sequence[int]) -> Neighbours:
    """Everyone hears the one before and the one after (the same one if there are two)."""
    count = len(nodes)
    beside = (sorted({(place - 1) % count, (place + 1) % count} - {place}) for place in range(count))
    return {node: [nodes[place] for place in places] for node, places in zip(nodes, beside, strict=True)}


def pairs(nodes: Sequence[int], generator: torch.Generator) -> Neighbours:
    """Random pairs; with an odd number one node stays alone this time."""
    order = [nodes[int(place)] for place in torch.randperm(len(nodes), generator=generator)]
    heard: Neighbours = {node: [] for node in nodes}
    for one, other in zip(order[::2], order[1::2], strict=False):
        heard[one], heard[other] = [other], [one]
    return heard


def star(nodes: Sequence[int]) -> Neighbours:
    """The first node hears everyone, everyone else hears the first."""
    centre, *others = nodes
    return {centre: others, **{node: [centre] for node in others}}


def neighbours(name: TopologyName, nodes: Sequence[int], generator: torch.Generator) -> Neighbours:
    """The topology of this name over these nodes; only `pairs` draws from the generator."""
    if name == "pairs":
        return pairs(nodes, generator)
    plain = {"complete": complete, "ring": ring, "star": star}
    if name not in plain:
        raise ConfigError(f"no topology '{name}': {nearest(name, [*plain, 'pairs'])}")
    return plain[name](nodes)
