"""FedGen (Zhu et al., "Data-Free Knowledge Distillation for Heterogeneous Federated Learning", ICML 2021).
https://arxiv.org/abs/2105.10056

The server learns to make features of each class that the clients' heads agree on; clients learn from these.

    server:  w ← initial weights;  generator G(noise, label) → features
    each round t:
        S_t ← cohort
        train:  each client k in S_t:  w_k ← SGD on  CE(z, y)
                + α CE(head(G(noise, ŷ)), ŷ)              for labels ŷ drawn from all that the server knows of
                + β KL(head(G(noise, y)) ‖ softmax(z))    for the labels y of the batch, the first a constant
                (from round 2 on); c_k,y ← how many rows of class y it has
        G ← for some steps, Adam on  Σ_k mean of (c_k,y / Σ_j c_j,y) CE(head_k(G(noise, y)), y) + diversity,
                with labels y drawn by Σ_k c_k,y                                              (see `learn.agree`)
        w ← Σ_k n_k w_k / Σ_k n_k

Where the authors' code differs: it draws noise evenly from 0 to 1, here it is normal, as in the paper. It counts the
labels of the batches that a client has seen in a round, from 1 for every class; here the counts are those of the
client's rows. It draws the generator's labels evenly from the classes that somebody in the cohort has seen, here by the
counts; and the clients' labels ŷ from all classes that there are, here from those that the last cohort held. It lets α
and β fall no lower than 1e-4, leaves generated features out after 20 local epochs, and multiplies α by the ratio of the
two batch sizes, which here is 1. Of the generator's losses the adversarial one is left out, whose weight in the code is
0. All layers are averaged. The models need a body and a head: built-in ones, or `Network`s.
"""

from __future__ import annotations

import copy
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from polyfed import learn
from polyfed.errors import MethodError
from polyfed.federation import (
    Client,
    Counts,
    Declaration,
    Fields,
    Fleet,
    Indices,
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
from polyfed.methods import local_training
from polyfed.methods.imitation import Strength
from polyfed.models import FeatureGenerator, Network, feature_count, seeded


class FedGenSettings(MethodSettings):
    alpha: Strength = 1.0
    """α, the weight of generated features with their labels; the authors take 10, with a small learning rate."""
    beta: Strength = 1.0
    """β, the weight of answers like those to generated features; the authors take 10, or 1 for EMNIST."""
    decay: Annotated[float, Field(gt=0, le=1)] = 0.98
    """α and β are multiplied by this after every round."""
    noise: Annotated[int, Field(ge=1, le=65_536)] = 32
    """Numbers of noise that features are made of."""
    width: Annotated[int, Field(ge=2, le=65_536)] = 256
    """Neurons of the generator's hidden layer."""
    generator: learn.Training = learn.Training(
        optimiser="adam", lr=3e-4, weight_decay=1e-2, steps=50, decay=0.98, keep_optimiser=True
    )
    """How the server trains the generator in each round: so many `steps`, on `batch` labels each."""


@register
class FedGen(Method):
    """FedAvg whose clients also learn from generated features of every class."""

    name = "fedgen"
    summary = "clients also learn from features of each class that the server generates (Zhu et al. 2021)"
    Settings = FedGenSettings
    settings: FedGenSettings

    def declare(self) -> Declaration:
        return Declaration(
            sends={
                "weights": LikeWeights("weights"),
                "held": Indices("classes", distinct=True),
                "counts": Counts("held"),
            },
            tells={"generator": Kind.WEIGHTS, "known": Kind.INDICES},
            needs={Need.COMMON_ARCHITECTURE: ""},
            keeps=self.moments,
            stages=("trained",),
        )

    @client_step(sends=("weights", "held", "counts"))
    def train(self, me: Client, weights: Weights, generator: Weights, known: Tensor) -> Fields:
        learn.load_weights(me.model, weights)
        local_training.train(me, self.from_features(me, generator, known) if len(known) else None)
        me.measure("trained", whole=False)
        held, counts = me.train.labels.unique(return_counts=True)
        return {"weights": learn.weights_of(me.model), "held": held, "counts": counts}

    def from_features(self, me: Client, generator: Weights, known: Tensor) -> learn.ExtraLoss:
        maker = self.maker(me, me.model).to(me.device).eval().requires_grad_(False)
        learn.load_weights(maker, generator)
        labels, stream = me.tensors(me.train)[1], me.rng("features")
        strength = self.settings.decay ** (me.round - 1)

        def loss(model: nn.Module, rows: Tensor, _x: Tensor, logits: Tensor) -> Tensor:
            head = model.get_submodule("head")
            drawn = known[torch.randint(len(known), (me.training.batch,), generator=stream)].to(me.device)
            right = F.cross_entropy(head(maker.make(drawn, stream)[1]), drawn)
            with torch.no_grad():
                answers = learn.soften(head(maker.make(labels[rows], stream)[1]))
            both = self.settings.alpha * right + self.settings.beta * learn.kl(logits, answers)
            return strength * both

        return loss

    def maker(self, node: Client | Server, model: nn.Module) -> FeatureGenerator:
        settings = self.settings
        return FeatureGenerator(
            feature_count(model, node.shape), node.outputs, settings.noise, settings.width
        )

    def prepare(self, fleet: Fleet, server: Server) -> None:
        [architecture] = server.roster.architectures
        model = server.build(architecture)
        if not isinstance(model, Network):
            raise MethodError(f"fedgen needs models with a body and a head: make '{architecture}' a Network")
        with seeded(server.seeds.number("generator")):
            server.memory["generator"] = learn.weights_of(self.maker(server, model))
        server.memory["known"] = torch.empty(0, dtype=torch.int64)

    def round(self, t: int, fleet: Fleet, server: Server) -> None:
        [architecture] = server.roster.architectures
        model, mean, heads, counts = server.build(architecture), learn.WeightedMean(), [], []
        generator = server.memory["generator"]
        told = {"weights": server.weights(architecture), "known": server.memory["known"]}
        told["generator"] = generator if t > 1 else {}
        for reply in fleet.stream(self.train, fleet.sample(), **told):
            mean.add(reply["weights"], reply.client.samples)
            learn.load_weights(model, reply["weights"])
            heads.append(copy.deepcopy(model.get_submodule("head")).eval().requires_grad_(False))
            counts.append(torch.bincount(reply["held"], reply["counts"].float(), server.outputs))
        if heads:
            maker, seen = self.maker(server, model).to(server.device), torch.stack(counts)
            learn.load_weights(maker, generator)
            training = self.settings.generator.in_round(t)
            learn.agree(maker, heads, seen, training, server.rng("features"), server.memory)
            server.memory |= {"generator": learn.weights_of(maker), "known": seen.sum(0).nonzero().flatten()}
            server.put_weights(architecture, mean.result())
