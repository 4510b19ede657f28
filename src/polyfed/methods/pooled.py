"""Training on everybody's data in one place: the upper bound, fine in a simulation, refused by a deployment.

each round, for every architecture a:  w_a ← SGD(w_a, D_1 ∪ … ∪ D_N)
"""

from __future__ import annotations

from polyfed import learn
from polyfed.federation import (
    ANY_TASK,
    Client,
    Declaration,
    Fields,
    Fleet,
    LikeWeights,
    Method,
    Need,
    Server,
    Weights,
    client_step,
    register,
)


@register
class Pooled(Method):
    """One model per architecture, trained on the data of all clients together."""

    name = "pooled"
    summary = "one model per architecture on everybody's data: the upper bound"

    def declare(self) -> Declaration:
        return Declaration(
            sends={"weights": LikeWeights()}, needs={Need.ALL_DATA: ""}, keeps=self.moments, tasks=ANY_TASK
        )

    @client_step(sends=("weights",))
    def train(self, me: Client, weights: Weights) -> Fields:
        """One client stands in for the data centre that trains its architecture."""
        learn.load_weights(me.model, weights)
        assert me.data.everyone is not None
        x, y = me.tensors(me.data.everyone)
        learn.supervised(me.model, x, y, me.training, me.rng("batches"), memory=me.memory, task=me.task)
        return {"weights": learn.weights_of(me.model)}

    def round(self, t: int, fleet: Fleet, server: Server) -> None:
        first = {facts.architecture: facts for facts in reversed(fleet.everyone())}
        leads = sorted(first.values(), key=lambda facts: facts.index)
        told = {lead.index: {"weights": server.weights(lead.architecture)} for lead in leads}
        for reply in fleet.stream(self.train, leads, each=lambda lead: told[lead.index]):
            server.put_weights(reply.client.architecture, reply["weights"])
