"""Private plus public data (AGG in FedH2L's tables): what a client gains from the public data alone.

each round:  every client k:  w_k ← SGD(w_k, D_k ∪ D_public)      nothing travels
"""

from __future__ import annotations

import torch

from polyfed import learn
from polyfed.federation import (
    ANY_TASK,
    Client,
    Declaration,
    Fields,
    Fleet,
    Method,
    Need,
    Server,
    client_step,
    register,
)


@register
class Aggregated(Method):
    """Every client trains on its own data and on the labelled public data."""

    name = "aggregated"
    summary = "every client alone, with the labelled public data added to its own"

    def declare(self) -> Declaration:
        return Declaration(
            needs={Need.PUBLIC: "", Need.PUBLIC_LABELS: ""},
            single_replies=False,
            server=False,
            tasks=ANY_TASK,
        )

    @client_step
    def train(self, me: Client) -> Fields:
        own, public = me.tensors(me.train), me.tensors(me.public)
        x, y = (torch.cat(parts) for parts in zip(own, public, strict=True))
        learn.supervised(me.model, x, y, me.training, me.rng("batches"), memory=me.memory, task=me.task)
        me.note_local_loss()
        return {}

    def round(self, t: int, fleet: Fleet, server: Server) -> None:
        fleet.ask(self.train, fleet.sample())
