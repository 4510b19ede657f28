"""Local training, the lower bound that every federation must beat (called IND in FedH2L's tables).

each round:  every client k:  w_k ← SGD(w_k, D_k)      nothing travels
"""

from __future__ import annotations

from typing import Any

from polyfed.federation import (
    ANY_TASK,
    Client,
    Declaration,
    Fields,
    Fleet,
    Method,
    Server,
    client_step,
    register,
    stacks,
)
from polyfed.methods import local_training


def _train_together(self: Local, us: list[Client], payloads: list[dict[str, Any]]) -> list[Fields] | None:
    if not local_training.train_together(us):
        return None
    for me in us:
        me.note_local_loss()
    return [{} for _ in us]


@register
class Local(Method):
    """Every client trains its own model on its own data. Nothing leaves a client."""

    name = "local"
    summary = "every client alone: the lower bound"

    def declare(self) -> Declaration:
        return Declaration(single_replies=False, server=False, tasks=ANY_TASK)

    @client_step
    @stacks(_train_together)
    def train(self, me: Client) -> Fields:
        local_training.train(me)
        me.note_local_loss()
        return {}

    def round(self, t: int, fleet: Fleet, server: Server) -> None:
        fleet.ask(self.train, fleet.sample())
