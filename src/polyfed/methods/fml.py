"""FML (Shen et al., "Federated Mutual Learning", 2020).
https://arxiv.org/abs/2006.16765

    server:  θ_g ← initial weights of the meme model (`models.server`)
    each round t:
        S_t ← cohort
        learn:   each client k in S_t:  θ_g,k ← θ_g;   for each batch b, both from one forward pass of each:
                     θ_k   ← step down  α CE(θ_k; b) + (1 − α) KL(θ_g,k ‖ θ_k)                       → "mutual"
                     θ_g,k ← step down  β CE(θ_g,k; b) + (1 − β) KL(θ_k ‖ θ_g,k)
        merge:   θ_g ← mean of θ_g,k                                                                → "global"

A client keeps its own model θ_k, of any architecture; only the meme model travels. Its moments are those of one round
unless the run keeps moments. BatchNorm layers of the meme model are averaged like all others. With α = β = ½, as the
paper prints them, half of every loss is gone as long as the other model has little to say.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from polyfed.federation import (
    ANY_TASK,
    Client,
    Declaration,
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
from polyfed.methods import averaging, mutual_training
from polyfed.schema import Printed


class FMLSettings(MethodSettings):
    alpha: Annotated[float, Field(ge=0, le=1), Printed(0.5)] = 0.8
    """α, how much a client's model minds the labels, and 1 − α the meme model's answers."""
    beta: Annotated[float, Field(ge=0, le=1), Printed(0.5)] = 0.8
    """β, how much the meme model minds the labels, and 1 − β the answers of the client's model."""
    weighting: averaging.Weighting = "uniform"
    """Whether a client's meme model counts by the client's number of samples, or all count the same."""


@register
class FML(Method):
    """Every client and a small model that travels teach each other; the small one is averaged."""

    name = "fml"
    summary = "each client's model and an averaged one that travels teach each other (Shen et al. 2020)"
    Settings = FMLSettings
    settings: FMLSettings

    def declare(self) -> Declaration:
        return Declaration(
            sends={"weights": LikeWeights("weights")},
            tells={"architecture": Kind.CONTROL},
            needs={Need.SERVER_MODEL: ""},
            keeps={"model", *self.moments},
            stages=(mutual_training.STAGE,),
            final_stage=mutual_training.STAGE,
            single_replies=False,
            tasks=ANY_TASK,
        )

    @client_step(sends=("weights",))
    def learn(self, me: Client, weights: Weights, architecture: str) -> Fields:
        alpha, beta = self.settings.alpha, self.settings.beta
        return mutual_training.train(me, weights, architecture, own=(alpha, 1 - alpha), sent=(beta, 1 - beta))

    def round(self, t: int, fleet: Fleet, server: Server) -> None:
        share, told = averaging.share(self.settings.weighting), mutual_training.told(server)
        mean = fleet.mean(self.learn, fleet.sample(), "weights", share=share, default={}, **told)
        mutual_training.merge(server, mean)
