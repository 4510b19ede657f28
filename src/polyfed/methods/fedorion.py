"""FedORION ("FedORION: Aggregation-Assisted Proxyless Distillation for Heterogeneous Federated Learning", 2023).
An anonymous submission to ICLR 2024, withdrawn: https://openreview.net/forum?id=ZzeXjCQ5CK

Mutual learning on the clients, then aggregation and distillation from noise on the server.

    server:  θ_g ← initial weights of the global model (`models.server`, the smallest of the clients' by default)
    each round t:
        S_t ← cohort
        learn:      each client i in S_t:  θ_gi ← θ_g;   for each batch:                                 (Algorithm 1)
                        θ_i  ← step down  CE(θ_i, y)  + CE(θ_i, θ_gi's answers)        (Eq. 1)           → "mutual"
                        θ_gi ← step down  CE(θ_gi, y) + CE(θ_gi, θ_i's answers)        (Eq. 2)
                    one whose own model is of the global architecture goes without that: θ_i = θ_gi ← SGD(θ_g, D_i)
        aggregate:  θ_g ← mean of θ_gi
        answer:     p(z) ← Σ n_i softmax(θ_i(z)) / Σ n_i  on noise z
        distil:     θ_g ← minimise CE(θ_g(z), p(z)), a step for each batch z           (Eq. 3)           → "global"

Eq. 3 is linear in the teachers' probabilities, so their weighted mean is all that is needed of them: each answers once,
on whichever core is free, and is let go. In memory are a model per architecture and one table, whatever the cohort.

Noise gets into nobody's running statistics (see `noise_distillation`): those of the global model are the mean of what
its copies saw on real rows; with `aggregate: false` too, which averages nothing else.

The paper writes the teacher's answer first in Eq. 1 to 3; read as printed, the network that learns would be the target.
Answers of the other are constants, and both losses are of the same forward passes unless `updates: in-turn`.
"""

from __future__ import annotations

from typing import Any, Literal

from polyfed import learn
from polyfed.errors import MethodError
from polyfed.federation import (
    TABLES,
    Assistant,
    Client,
    Declaration,
    Facts,
    FederationFacts,
    Fields,
    Fleet,
    Kind,
    LikeWeights,
    Method,
    Need,
    OwnWeights,
    Reply,
    Server,
    Weights,
    client_step,
    register,
    server_step,
    when,
)
from polyfed.learn import TableMean, WeightedMean
from polyfed.methods import averaging, local_training, mutual_training, noise_distillation


class FedORIONSettings(noise_distillation.NoiseSettings):
    mutual: Literal["both", "answers", "none"] = "both"
    """What the copies of the global model learn from: labels and the client's answers (Eq. 2); the answers alone, as
    the paper's text says of its ablation; or there are none, and only clients that train alone are averaged."""
    selective: bool = True
    """Whether clients whose own model is of the global architecture train it alone, beginning with the global one."""
    aggregate: bool = True
    """Whether the global model becomes the mean of its copies before it is distilled into; else it has the mean of
    their running statistics alone."""
    distillation: bool = True
    """Whether the global model learns from the clients' own models; without that they do not leave the clients."""
    weighting: averaging.Weighting = "uniform"
    """Whether copies count by their clients' samples in the mean, or all the same. Teachers always do (Eq. 3)."""
    updates: Literal["at-once", "in-turn"] = "at-once"
    """Whether both losses are of the same two forward passes, or the copy learns from the client's model as it is after
    its step, which takes one pass more."""


@register
class FedORION(Method):
    """Clients teach copies of a global model, which is averaged and then learns from all clients on noise."""

    name = "fedorion"
    summary = (
        "clients teach copies of a global model, which is averaged and distilled from noise (anonymous 2023)"
    )
    Settings = FedORIONSettings
    settings: FedORIONSettings

    def declare(self) -> Declaration:
        return Declaration(
            sends={
                "weights": LikeWeights("weights"),
                **when(self.settings.distillation, {"model": OwnWeights()}),
            },
            tells={"architecture": Kind.CONTROL},
            needs={Need.SERVER_MODEL: ""},
            keeps={"model", *self.moments},
            stages=(mutual_training.STAGE,),
            final_stage=mutual_training.STAGE,
            server_model="smallest",
            tasks=TABLES,
        )

    def exchanged(self, client: Facts, server: str | None) -> str | None:
        return None  # more goes up than down

    def check(self, federation: FederationFacts) -> None:
        if self.settings.distillation:
            noise_distillation.check(self.settings, federation)
        elif not self.settings.aggregate:
            raise MethodError(
                "the global model would never learn: set method.aggregate or method.distillation"
            )

    @client_step
    def learn(self, me: Client, weights: Weights, architecture: str) -> Fields:
        if self.trains_alone(me.facts.architecture, architecture):
            learn.load_weights(me.model, weights)
            self.train(me)
            return {"weights": learn.weights_of(me.model)}  # the copy, and the teacher
        reply: dict[str, Any] = {}
        if self.settings.mutual == "none":
            self.train(me)
        else:
            sent = (1.0 if self.settings.mutual == "both" else 0.0, 1.0)
            in_turn = self.settings.updates == "in-turn"
            reply |= mutual_training.train(me, weights, architecture, sent=sent, in_turn=in_turn)
        if self.settings.distillation:
            reply["model"] = learn.weights_of(me.model)
        return reply

    def trains_alone(self, own: str, shared: str | None) -> bool:
        """Whether a client's own model is a copy of the global one, so that there are not two to teach each other."""
        return self.settings.selective and own == shared

    def train(self, me: Client) -> None:
        local_training.train(me)
        me.measure(mutual_training.STAGE)
        me.note_local_loss()

    @server_step
    def answer(self, helper: Assistant, samples: int, **teacher: Any) -> Fields:
        return {"samples": samples, **noise_distillation.answer(helper, self.settings, **teacher)}

    def round(self, t: int, fleet: Fleet, server: Server) -> None:
        share = averaging.share(self.settings.weighting)
        copies, teacher = WeightedMean(), TableMean()
        noise = noise_distillation.told(server, self.settings) if self.settings.distillation else {}
        with server.spread(
            self.answer, fold=lambda said: teacher.add(said["probabilities"], said["samples"]), **noise
        ) as teachers:
            for reply in fleet.stream(self.learn, fleet.sample(), **mutual_training.told(server)):
                if "weights" in reply.fields:
                    copies.add(reply["weights"], share(reply.client))
                if (own := self.own_model(reply, server)) is not None:
                    client = reply.client
                    teachers.put(architecture=client.architecture, weights=own, samples=client.samples)
        self.aggregate(server, copies.result())
        if teacher.total:
            noise_distillation.distil(server, teacher.result(), self.settings, **noise)
        server.measure("global")

    def own_model(self, reply: Reply, server: Server) -> Weights | None:
        """A client's own model, if it is to teach; of one that trained alone it is its copy of the global model."""
        alone = self.trains_alone(reply.client.architecture, server.architecture)
        return reply.fields.get("weights" if alone else "model") if self.settings.distillation else None

    def aggregate(self, server: Server, mean: Weights) -> None:
        """Put the mean of the copies into the global model; with `aggregate: false` its running statistics alone."""
        assert server.model is not None
        whole = self.settings.aggregate
        taken = {name: mean[name] for name in mean if whole or learn.is_statistic(name)}
        learn.load_weights(server.model, taken, partly=True)
