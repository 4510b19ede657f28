"""FedNova (Wang et al., "Tackling the Objective Inconsistency Problem in Heterogeneous Federated Optimization", 2020).
https://arxiv.org/abs/2007.07481

In FedAvg a client that makes more steps counts more than its data do. Here every client's way is divided by its steps
before it is averaged:

    each round t:
        S ← cohort;  p_i ← n_i / Σ_S n_j
        train:   each client i in S:   w_i ← SGD(w, D_i), in a_i effective steps;   d_i ← (w − w_i) / a_i
        server:  w ← w − (Σ_S p_i a_i) · Σ_S p_i d_i

a_i is the number of steps K; with momentum ρ it is (K − ρ (1 − ρ^K) / (1 − ρ)) / (1 − ρ), see `learn.effective_steps`.
The momentum begins at zero in every round. Where all make equally many steps, this is FedAvg.

A client sends d_i, as large as the weights, and one number: as much as in FedAvg. (FedKEM's paper counts twice as much,
for gradients sent beside the weights.) The running statistics of BatchNorm layers, and other buffers, are averaged by
samples. Of the paper's variants of local training, those with a proximal term are left out, and so is momentum on the
server.
"""

from __future__ import annotations

from typing import Any

from polyfed import learn
from polyfed.federation import (
    ANY_TASK,
    Client,
    Declaration,
    FederationFacts,
    Fields,
    Fleet,
    Kind,
    LikeWeights,
    Method,
    Need,
    Number,
    Server,
    Weights,
    client_step,
    register,
    stacks,
)
from polyfed.methods import local_training


def _train_together(self: FedNova, us: list[Client], payloads: list[dict[str, Any]]) -> list[Fields] | None:
    for me, payload in zip(us, payloads, strict=True):
        learn.load_weights(me.model, payload["weights"] | payload["buffers"])
    if not local_training.train_together(us):
        return None
    return [self.trained(me, **payload) for me, payload in zip(us, payloads, strict=True)]


@register
class FedNova(Method):
    """Averaging of the clients' ways, each divided by its steps."""

    name = "fednova"
    summary = "averaging in which no client counts more for making more steps (Wang et al. 2020)"

    def declare(self) -> Declaration:
        return Declaration(
            sends={
                "direction": LikeWeights("weights", kind=Kind.GRADIENTS),
                "steps": Number(least=0),
                "buffers": LikeWeights("buffers", kind=Kind.STATISTICS),
            },
            tells={"weights": Kind.WEIGHTS},
            needs={Need.COMMON_ARCHITECTURE: ""},
            keeps=frozenset(),
            stages=("trained",),
            tasks=ANY_TASK,
        )

    def check(self, federation: FederationFacts) -> None:
        local_training.check_steps(self.training, self.name)

    @client_step(sends=("direction", "steps"))
    @stacks(_train_together)
    def train(self, me: Client, weights: Weights, buffers: Weights) -> Fields:
        learn.load_weights(me.model, {**weights, **buffers})
        local_training.train(me)
        return self.trained(me, weights, buffers)

    def trained(self, me: Client, weights: Weights, buffers: Weights) -> Fields:
        me.measure("trained", whole=False)
        steps = learn.batch_count(len(me.train), me.training, me.model)
        a = learn.effective_steps(steps, me.training.momentum)
        own = {name: tensor.cpu() for name, tensor in learn.weights_of(me.model).items()}
        direction = {name: (tensor - own[name]) / a for name, tensor in weights.items()}
        kept = {name: own[name] for name in buffers}
        return {"direction": direction, "steps": a, **({"buffers": kept} if kept else {})}

    def round(self, t: int, fleet: Fleet, server: Server) -> None:
        [architecture] = server.roster.architectures
        model = server.weights(architecture)
        names = dict(server.build(architecture).named_parameters(remove_duplicate=False))
        weights = {name: model[name] for name in names if name in model}
        others = {name: model[name] for name in model if name not in names}
        cohort = fleet.sample()
        direction, buffers, way = learn.WeightedMean(), learn.WeightedMean(), 0.0
        for reply in fleet.stream(self.train, cohort, weights=weights, buffers=others):
            direction.add(reply["direction"], reply.client.samples)
            way += reply.client.samples * reply["steps"]
            if others:
                buffers.add(reply["buffers"], reply.client.samples)
        if direction.total:
            effective = way / direction.total
            moved = {name: model[name] - effective * step for name, step in direction.result().items()}
            server.put_weights(architecture, {**moved, **buffers.result()})
