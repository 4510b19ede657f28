"""Which client trains which model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from torch import nn

from polyfed.errors import ModelError, nearest
from polyfed.models.layers import Norm, Shape
from polyfed.models.sizes import Size, size

AssignmentRule = Literal["round-robin", "random", "budget"]

NO_LIMIT = np.iinfo(np.int64).max


@dataclass(frozen=True)
class Budget:
    """The most that a client can afford; None means unlimited.

    MACs are those of the forward pass of one input, memory is that of one training step.
    """

    parameters: int | None = None
    macs: int | None = None
    memory_bytes: int | None = None


def assign_models(
    names: Sequence[str],
    clients: int,
    how: AssignmentRule,
    *,
    rng: np.random.Generator,
    budgets: Sequence[Budget] | None = None,
    shape: Shape,
    outputs: int,
    norm: Norm = "batch",
    batch: int = 1,
    features: int | None = None,
    own: Mapping[str, nn.Module] | None = None,
) -> NDArray[np.int64]:
    """For each client the index of its model in `names`.

    how: 'round-robin' assigns the names in turn; 'random' draws each client's uniformly; 'budget' gives each
        client the largest model that its budget allows (most parameters, then most MACs, then first in
        `names`), as FedKEM does (§4.4 of its paper).
    rng: used by 'random' only.
    budgets: assigned to the clients in turn; used by 'budget' only.
    batch: the batch size for which memory is counted.
    features: that every named model is given (see `build`).
    own: the user's modules, by those of the `names` that are not registered.
    """
    if not names or clients < 1:
        raise ModelError(
            f"cannot assign {len(names)} models to {clients} clients: at least one of each is needed"
        )
    if how == "round-robin":
        return np.arange(clients, dtype=np.int64) % len(names)
    if how == "random":
        return rng.integers(len(names), size=clients, dtype=np.int64)
    if how != "budget":
        raise ModelError(
            f"unknown way to assign models '{how}'; {nearest(how, ('round-robin', 'random', 'budget'))}"
        )
    if not budgets:
        raise ModelError(f"'budget' needs budgets to assign to the clients: {clients} clients, 0 budgets")
    sizes = [size((own or {}).get(name, name), shape, outputs, norm, batch, features) for name in names]
    return _largest_that_fit(names, sizes, budgets, clients)


def _largest_that_fit(
    names: Sequence[str], sizes: list[Size], budgets: Sequence[Budget], clients: int
) -> NDArray[np.int64]:
    order = sorted(range(len(names)), key=lambda i: (-sizes[i].parameters, -sizes[i].macs, i))
    needs = np.array([_needs(sizes[i]) for i in order], dtype=np.int64)  # models × 3, the largest first
    limits = np.array([_limits(budget) for budget in budgets], dtype=np.int64)  # budgets × 3
    fits: NDArray[np.bool_] = np.all(needs[None] <= limits[:, None], axis=2)  # budgets × models
    budget_of = np.arange(clients) % len(budgets)
    without = np.flatnonzero(~fits[budget_of].any(axis=1))
    if without.size:
        least = order[-1]
        need = sizes[least]
        raise ModelError(
            f"no model fits the budget of client {without[0]} ({without.size} such clients); the smallest, "
            f"'{names[least]}', needs {need.parameters:,} parameters, {need.macs:,} MACs and "
            f"{need.memory_bytes:,} bytes of memory"
        )
    chosen: NDArray[np.int64] = np.array(order, dtype=np.int64)[fits.argmax(axis=1)][budget_of]
    return chosen


def _needs(size: Size) -> tuple[int, int, int]:
    return size.parameters, size.macs, size.memory_bytes


def _limits(budget: Budget) -> tuple[int, int, int]:
    # A limit larger than an int64 limits no model.
    parameters, macs, memory = (
        NO_LIMIT if limit is None else min(limit, NO_LIMIT)
        for limit in (budget.parameters, budget.macs, budget.memory_bytes)
    )
    return parameters, macs, memory
