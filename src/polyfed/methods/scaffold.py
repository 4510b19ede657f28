"""SCAFFOLD (Karimireddy et al., "Stochastic Controlled Averaging for Federated Learning", ICML 2020), option II.

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

from typing import Annotated, Literal

import torch
from pydantic import Field

from polyfed import learn
from polyfed.federation import (
    ANY_TASK,
    Client,
    Declaration,
    Facts,
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
from polyfed.methods import control_variates, local_training
from polyfed.schema import Printed


class ScaffoldSettings(MethodSettings):
    weighting: Annotated[Literal["samples", "uniform"], Printed("uniform")] = "samples"
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
        [model] = server.shared_weights().values()
        control = server.memory["control"]
        by_samples = self.settings.weighting == "samples"
        weights, change = learn.WeightedMean(), learn.WeightedMean()
        for reply in fleet.stream(self.train, fleet.sample(), weights=model, control=control):
            share = reply.client.samples if by_samples else 1
            weights.add(reply["weights"], share)
            change.add(reply["change"], share)
        if weights.total:
            mean = weights.result()
            rate = self.settings.server_lr
            model |= mean | {name: torch.lerp(model[name], mean[name], rate) for name in control}
            everyone = server.roster.total_samples if by_samples else len(server.roster)
            part = change.total / everyone
            server.memory["control"] = control_variates.fold(control, change.result(), part)

    def serves(self, server: Server, client: Facts) -> Weights | None:
        return server.shared_weights()[client.architecture]
