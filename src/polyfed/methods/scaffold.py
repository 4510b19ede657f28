"""SCAFFOLD (Karimireddy et al., "SCAFFOLD: Stochastic Controlled Averaging for Federated Learning", ICML 2020).
https://arxiv.org/abs/1910.06378

Option II:

    server:  w ← initial weights;  c ← 0, and c_i ← 0 for every client
    each round t:
        S ← cohort
        train:   each client i in S:   w_i ← SGD(w, D_i) along  g + c − c_i
                 c_i⁺ ← c_i − c + (w − w_i) / (a η)                   (sent: w_i and c_i⁺ − c_i)
        server:  w ← w + η_g · mean over S of (w_i − w)
                 c ← c + |S|/N · mean over S of (c_i⁺ − c_i)

a is the number of steps; with momentum what it amounts to: see `control_variates`. As printed, all clients count the
same (`weighting: uniform`). By default they count by their samples in both means, as in FedAvg, and |S|/N is the
cohort's part of all samples: so c stays the mean of all c_i, weighted as what is minimised is. Running statistics of
BatchNorm layers have no gradient: their mean is taken. Twice as much travels as in FedAvg, up and down.
"""

from __future__ import annotations

from typing import Annotated

import torch
from pydantic import Field

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
    MethodSettings,
    Need,
    Server,
    Weights,
    client_step,
    register,
)
from polyfed.learn import WeightedMean
from polyfed.methods import averaging, control_variates, local_training
from polyfed.schema import Printed


class ScaffoldSettings(MethodSettings):
    weighting: Annotated[averaging.Weighting, Printed("uniform")] = "samples"
    """Whether a client counts by its number of samples, or all count the same."""
    server_lr: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1.0
    """η_g, how far the server goes towards the mean of the clients' weights; 1 is all the way."""


@register
class Scaffold(Method):
    """Averaging of weights whose clients' gradients are corrected towards everybody's."""

    name = "scaffold"
    summary = "averaging whose clients' gradients are corrected towards everybody's (Karimireddy et al. 2020)"
    Settings = ScaffoldSettings
    settings: ScaffoldSettings

    def declare(self) -> Declaration:
        return Declaration(
            sends={
                "weights": LikeWeights("weights"),
                "change": LikeWeights("control", kind=Kind.GRADIENTS),
            },
            tells={"control": Kind.GRADIENTS},
            needs={Need.COMMON_ARCHITECTURE: ""},
            keeps={"memory"},
            stages=("trained",),
            tasks=ANY_TASK,
        )

    def check(self, federation: FederationFacts) -> None:
        local_training.check_steps(self.training, self.name)

    @client_step(sends=("weights", "change"))
    def train(self, me: Client, weights: Weights, control: Weights) -> Fields:
        learn.load_weights(me.model, weights)
        steps = local_training.train(me, correction=control_variates.correction(me, control))
        me.measure("trained", whole=False)
        own = learn.weights_of(me.model)
        return {"weights": own, "change": control_variates.update(me, control, weights, own, steps)}

    def prepare(self, fleet: Fleet, server: Server) -> None:
        [architecture] = server.roster.architectures
        server.memory["control"] = control_variates.zeros(server.build(architecture))

    def round(self, t: int, fleet: Fleet, server: Server) -> None:
        [architecture] = server.roster.architectures
        model, control = server.weights(architecture), server.memory["control"]
        share, weights, change = averaging.share(self.settings.weighting), WeightedMean(), WeightedMean()
        for reply in fleet.stream(self.train, fleet.sample(), weights=model, control=control):
            weights.add(reply["weights"], share(reply.client))
            change.add(reply["change"], share(reply.client))
        if weights.total:
            mean, rate = weights.result(), self.settings.server_lr
            moved = {name: torch.lerp(model[name], mean[name], rate) for name in control}
            server.put_weights(architecture, {**mean, **moved})
            everyone = averaging.everyone(server, self.settings.weighting)
            server.memory["control"] = control_variates.fold(control, change, everyone)
