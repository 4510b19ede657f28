"""Who trains which model and why, as it stands in a run directory from the start (`assignment.json`).

Clients with the same model, budget and reason are a group; a client is the number of its group. So what is written of a
client is a digit or two, however many there are.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

import numpy as np
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    model_validator,
)

MOST = 10**18  # of anything that is counted: far above any

Text = Annotated[str, Field(max_length=1000)]
Count = Annotated[int, Field(ge=0, le=MOST)]


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class ModelSize(_Part):
    """How big a model is (see `models.size`); memory is that of a training step with the run's batch."""

    parameters: Count
    macs: Count | None = None
    memory_bytes: Count | None = None
    """None, as MACs, where the model could not be tried."""
    weights_bytes: Count
    """Parameters and buffers: what travels where a method sends weights."""


class Limits(_Part):
    """A client's budget; None is unlimited."""

    parameters: Count | None = None
    macs: Count | None = None
    memory_bytes: Count | None = None


class Group(_Part):
    """Clients that train the same model for the same reason."""

    model: Text
    clients: Annotated[int, Field(ge=1, le=MOST)]
    why: Text
    budget: Limits | None = None
    """None where the run has no budgets."""
    exchanged: Text | None = None
    """The model whose weights such a client and the server exchange; None where something else travels."""


class Assignment(_Part):
    """Which model each client trains, how big each is, what the client can afford, and the reason in words."""

    batch: Count
    """The batch for which memory is counted."""
    models: dict[Text, ModelSize]
    """Every model of the run, the server's too."""
    groups: Annotated[list[Group], Field(min_length=1)]
    clients: list[Count]
    """The group of every client, in the clients' order; empty if there is one group."""

    @model_validator(mode="after")
    def _agrees(self) -> Assignment:
        names = {name for group in self.groups for name in (group.model, group.exchanged or group.model)}
        if not names <= self.models.keys():
            raise ValueError("a group has a model of which there is no size")
        if len(self.groups) == 1 and not self.clients:
            return self
        if not self.clients or max(self.clients) >= len(self.groups):  # first: what is counted must be small
            raise ValueError("a client is of a group that there is not")
        counts = np.bincount(self.clients, minlength=len(self.groups))
        if counts.tolist() != [group.clients for group in self.groups]:
            raise ValueError("the groups' sizes are not those of their clients")
        return self

    def group_of(self, client: int) -> Group:
        """A client's group, by its number."""
        return self.groups[self.clients[client] if self.clients else 0]

    @property
    def count(self) -> int:
        """How many clients there are."""
        return sum(group.clients for group in self.groups)

    @property
    def exchanged_bytes(self) -> float | None:
        """The size of the model that a client exchanges with the server, mean over clients; None without one."""
        sizes = [
            (group.clients, self.models[group.exchanged].weights_bytes)
            for group in self.groups
            if group.exchanged is not None
        ]
        if sum(clients for clients, _ in sizes) != self.count:
            return None
        return sum(clients * size for clients, size in sizes) / self.count


def limits_in_words(budget: Mapping[str, int | None]) -> str:
    """`300,000 parameters, 1.5 M MACs, 20 MB of memory`: what is limited, and nothing else."""
    parameters, macs, memory = (budget[key] for key in ("parameters", "macs", "memory_bytes"))
    words = [
        "" if parameters is None else f"{_exactly(parameters)} parameters",
        "" if macs is None else f"{_exactly(macs)} MACs",
        "" if memory is None else f"{memory / 1e6:,g} MB of memory",
    ]
    return ", ".join(word for word in words if word)


def _exactly(number: int) -> str:
    return f"{number / 1e6:,g} M" if number >= 1e6 and number % 100_000 == 0 else f"{number:,}"


def in_millions(number: int) -> str:
    """A large number in few characters; a small one as it is."""
    return f"{number / 1e6:,.1f} M" if number >= 1e5 else f"{number:,}"
