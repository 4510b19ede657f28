"""q-FFL (Li et al., "Fair Resource Allocation in Federated Learning", ICLR 2020), by q-FedAvg (their Algorithm 2).
https://arxiv.org/abs/1905.10497

Minimises Σ_k F_k^(q+1) / (q+1): the larger q, the more a client with a large loss F_k counts.

    each round t:
        S_t ← cohort
        train:   each client k in S_t:   F_k ← loss of w_t on D_k;   w̄_k ← SGD(w_t, D_k)
                 d_k ← (w_t − w̄_k) / η;   Δ_k ← F_k^q d_k;   h_k ← q F_k^(q−1) ‖d_k‖² + F_k^q / η
        server:  w_{t+1} ← w_t − Σ_k Δ_k / Σ_k h_k

η is the clients' learning rate in this round; the norm is over all trained parameters together, and 1e-10 is added to
F_k, as in the authors' code. Clients do not count by their samples: q = 0 is FedAvg with `weighting: uniform`. The
running statistics of BatchNorm layers are no part of the problem: their plain mean is taken.
"""

from __future__ import annotations

import math
from typing import Annotated, Any

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
    Number,
    Server,
    Weights,
    client_step,
    register,
    stacks,
)
from polyfed.methods import local_training

TINY = 1e-10


class QFFLSettings(MethodSettings):
    q: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.01
    """How much more a client with a large loss counts: 0 is FedAvg, all count the same; 0.001 to 5 in the paper, chosen
    for each data set. The larger, the shorter the server's steps."""


def _is_trained(name: str) -> bool:
    return not learn.is_statistic(name)


def _train_together(self: QFFL, us: list[Client], payloads: list[dict[str, Any]]) -> list[Fields] | None:
    models = [payload["weights"] for payload in payloads]
    losses = [self.begin(me, weights) for me, weights in zip(us, models, strict=True)]
    if not local_training.train_together(us):
        return None
    return [self.trained(*each) for each in zip(us, models, losses, strict=True)]


@register
class QFFL(Method):
    """Averaging in which clients with a large loss count more."""

    name = "qffl"
    summary = "averaging in which a client with a large loss counts more (q-FedAvg, Li et al. 2020)"
    Settings = QFFLSettings
    settings: QFFLSettings

    def declare(self) -> Declaration:
        # A client's steps, times its loss to the power of q: that clients differ is the method's point.
        differ = 10.0 if self.settings.q <= 1 else math.inf
        return Declaration(
            sends={
                "delta": LikeWeights("weights", only=_is_trained, kind=Kind.GRADIENTS, spread=differ),
                "h": Number(least=0, spread=1e7 * differ),
                "statistics": LikeWeights("weights", only=learn.is_statistic, kind=Kind.STATISTICS),
            },
            tells={"weights": Kind.WEIGHTS},
            needs={Need.COMMON_ARCHITECTURE: ""},
            keeps=self.moments,
            stages=("trained",),
            tasks=ANY_TASK,
        )

    def check(self, federation: FederationFacts) -> None:
        local_training.check_rate(self.training, self.name)

    @client_step(sends=("delta", "h"))
    @stacks(_train_together)
    def train(self, me: Client, weights: Weights) -> Fields:
        loss = self.begin(me, weights)
        local_training.train(me)
        return self.trained(me, weights, loss)

    def begin(self, me: Client, weights: Weights) -> float:
        """F_k: the loss on the client's own data of the model that it begins with."""
        learn.load_weights(me.model, weights)
        x, y = me.tensors(me.train)
        return me.task.loss(learn.predict(me.model, x), y).item()

    def trained(self, me: Client, weights: Weights, loss: float) -> Fields:
        me.measure("trained", whole=False)
        q, rate, loss = self.settings.q, me.training.lr, loss + TINY
        own = {name: tensor.cpu() for name, tensor in learn.weights_of(me.model).items()}
        way = {name: (weights[name] - own[name]) / rate for name in own if _is_trained(name)}
        trained = [name for name, _ in me.model.named_parameters() if name in way]
        length = sum(float(way[name].double().square().sum()) for name in trained)
        delta = {name: loss**q * step for name, step in way.items()}
        statistics = {name: own[name] for name in own if learn.is_statistic(name)}
        h = q * loss ** (q - 1) * length + loss**q / rate
        return {"delta": delta, "h": h, **({"statistics": statistics} if statistics else {})}

    def round(self, t: int, fleet: Fleet, server: Server) -> None:
        [architecture] = server.roster.architectures
        model = server.weights(architecture)
        cohort = fleet.sample()
        delta, statistics, h = learn.WeightedMean(), learn.WeightedMean(), 0.0
        for reply in fleet.stream(self.train, cohort, weights=model):
            delta.add(reply["delta"], 1.0)
            h += reply["h"]
            if "statistics" in reply.fields:
                statistics.add(reply["statistics"], 1.0)
        if h:
            moved = {name: model[name] - delta.total / h * step for name, step in delta.result().items()}
            server.put_weights(architecture, {**moved, **statistics.result()})
