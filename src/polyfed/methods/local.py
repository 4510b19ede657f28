"""Local training, the lower bound that every federation must beat (called IND in FedH2L's tables).

each round:  every client k:  w_k ← SGD(w_k, D_k)      nothing travels
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from polyfed import learn
from polyfed.federation.message import Fields
from polyfed.federation.method import Method, client_step, register, stacks
from polyfed.federation.nodes import Client, Server

if TYPE_CHECKING:
    from polyfed.federation.fleet import Fleet


def _train_together(self: Local, us: list[Client], payloads: list[dict[str, Any]]) -> list[Fields]:
    learn.supervised_together(
        [me.model for me in us],
        [me.tensors(me.train) for me in us],
        self.training,
        [me.rng("batches") for me in us],
    )
    for me in us:
        me.note_local_loss(self.training.batch)
    return [{} for _ in us]


@register
class Local(Method):
    """Every client trains its own model on its own data. Nothing leaves a client."""

    name = "local"
    summary = "every client alone: the lower bound"
    server = False

    @client_step
    @stacks(_train_together)
    def train(self, me: Client) -> Fields:
        learn.supervised(me.model, *me.tensors(me.train), self.training, me.rng("batches"), memory=me.memory)
        me.note_local_loss(self.training.batch)
        return {}

    def round(self, t: int, fleet: Fleet, server: Server) -> None:
        fleet.ask(self.train, fleet.sample())
