"""FedAvg (McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized Data", 2017).
https://arxiv.org/abs/1602.05629

    server:  w ← initial weights
    each round t:
        S_t ← cohort
        train:   each client k in S_t:   w_k ← SGD(w, D_k)
        mean:    w ← Σ_k n_k w_k / Σ_k n_k          (or the plain mean)

With clients of several architectures, `within: architecture` averages among the clients of each. BatchNorm layers are
averaged like all others, or each client keeps its own (FedBN, Li et al. 2021, https://arxiv.org/abs/2102.07623), or
their statistics are recomputed: restate: each client runs the averaged model over its data, and the mean of the
statistics is taken.

With `inactive: cached` the server keeps every client's last model (T1 of FedKF, see `last_models`): clients go on from
the mean of the cohort's, and what is served is the mean of everybody's.

A method that is FedAvg with another local loss is a subclass that defines `local_loss`; `also_sent` if the loss needs
more from the server than the weights, `remember` if it needs something of the client's last round.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, Self

from pydantic import model_validator
from torch import nn

from polyfed import learn
from polyfed.federation import (
    ANY_TASK,
    Client,
    Declaration,
    Facts,
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
    reads_only,
    register,
    stacks,
    when,
)
from polyfed.methods import averaging, last_models, local_training


class FedAvgSettings(MethodSettings):
    weighting: averaging.Weighting = "samples"
    """Whether a client counts by its number of samples, or all count the same."""
    within: Literal["all", "architecture"] = "all"
    """Average over all clients (one architecture), or among the clients of each architecture."""
    batch_norm: Literal["average", "local", "recompute"] = "average"
    """BatchNorm layers: average all of them; keep each client's own (FedBN); or average what is trained and
    recompute the running statistics of the averaged model on the clients' data."""
    inactive: Literal["ignore", "cached"] = "ignore"
    """What clients that are not in a round's cohort count: nothing; or cached, the server keeps everybody's last model,
    and the mean of all of them is what is used (FedKF's active-inactive aggregation)."""
    unseen: Literal["initial", "left-out"] = "initial"
    """With `inactive: cached`, what counts for clients that never took part: the initial weights, as the paper prints
    it, or nothing, as in its code; take the latter if there are many more clients than take part."""

    @model_validator(mode="after")
    def _check_statistics(self) -> Self:
        if (self.inactive, self.batch_norm) == ("cached", "recompute"):
            raise ValueError(last_models.NOTHING_RECOMPUTED)
        return self


def _train_together(self: FedAvg, us: list[Client], payloads: list[dict[str, Any]]) -> list[Fields] | None:
    for me, payload in zip(us, payloads, strict=True):
        self.load(me, payload["weights"])
    losses = [self.local_loss(me, **payload) for me, payload in zip(us, payloads, strict=True)]
    return [self.trained(me) for me in us] if local_training.train_together(us, losses) else None


@register
class FedAvg(Method):
    """The mean of the clients' weights, round after round."""

    name = "fedavg"
    summary = "the mean of the clients' weights (McMahan et al. 2017)"
    Settings = FedAvgSettings
    settings: FedAvgSettings

    def declare(self) -> Declaration:
        own = self.settings
        norms = own.batch_norm == "local"
        statistics = {"statistics": LikeWeights("weights", only=learn.is_statistic, kind=Kind.STATISTICS)}
        return Declaration(
            sends={"weights": LikeWeights("weights"), **when(own.batch_norm == "recompute", statistics)},
            needs=when(own.within == "all", {Need.COMMON_ARCHITECTURE: "method.within=architecture"}),
            keeps={"memory"} if norms else self.moments,
            stages=("trained",),
            single_replies=own.inactive == "cached",
            personal=norms,
            tasks=ANY_TASK,
        )

    # -- on the client ---------------------------------------------------------------------------------------

    @client_step(sends=("weights",))
    @stacks(_train_together)
    def train(self, me: Client, weights: Weights, *_: Any, **told: Any) -> Fields:
        self.load(me, weights)
        local_training.train(me, self.local_loss(me, weights, **told))
        return self.trained(me)

    def local_loss(self, me: Client, weights: Weights, *_: Any, **told: Any) -> learn.LocalLoss | None:
        """What is added to the cross-entropy of each batch: nothing. `told` is what `also_sent` sent."""
        return None

    def remember(self, me: Client) -> None:
        """What a client that has trained keeps in its memory for the next time: nothing."""

    def load(self, me: Client, weights: Weights) -> None:
        learn.load_weights(me.model, weights, partly=self.declared.personal)
        self.personalise(me, me.model)

    def personalise(self, me: Client, model: nn.Module) -> None:
        """FedBN: the client's own BatchNorm layers."""
        learn.load_weights(model, me.memory.get("norms", {}), partly=True)

    def trained(self, me: Client) -> Fields:
        me.measure("trained", whole=False)
        self.remember(me)
        weights = learn.weights_of(me.model)
        if self.declared.personal:
            me.memory["norms"] = {name: weights.pop(name) for name in sorted(learn.norm_entries(me.model))}
        return {"weights": weights}

    @client_step(sends=("statistics",))
    @reads_only
    def restate(self, me: Client, weights: Weights) -> Fields:
        """The running statistics that the averaged model has on this client's data."""
        learn.load_weights(me.model, weights)
        learn.recompute_statistics(me.model, me.inputs(me.train), me.training.batch)
        own = learn.weights_of(me.model).items()
        return {"statistics": {name: tensor for name, tensor in own if learn.is_statistic(name)}}

    # -- on the server ---------------------------------------------------------------------------------------

    def round(self, t: int, fleet: Fleet, server: Server) -> None:
        for architecture, members in averaging.by_architecture(fleet.sample()).items():
            self.average(fleet, server, architecture, members)
            if self.settings.batch_norm == "recompute":
                self.recompute(fleet, server, architecture, members)

    def average(self, fleet: Fleet, server: Server, architecture: str, members: Sequence[Facts]) -> None:
        """Put the mean of what an architecture's clients have trained; it stays as it is if nobody answered."""
        cached = self.settings.inactive == "cached"
        source = last_models.Caching(fleet, server, self.settings.unseen) if cached else fleet
        told = {"weights": self.shared(server, architecture), **self.also_sent(server, architecture)}
        server.put_weights(
            architecture, source.mean(self.train, members, "weights", **self.counted(), **told)
        )

    def recompute(self, fleet: Fleet, server: Server, architecture: str, members: Sequence[Facts]) -> None:
        """Put the mean of the statistics that the averaged model has on the clients' data."""
        model = server.weights(architecture)
        if any(map(learn.is_statistic, model)):
            mean = fleet.mean(self.restate, members, "statistics", **self.counted(), weights=model)
            server.put_weights(architecture, mean)

    def counted(self) -> dict[str, Any]:
        """How a mean is taken: by how much each client counts, and nothing if nobody answered."""
        return {"share": averaging.share(self.settings.weighting), "default": {}}

    def shared(self, server: Server, architecture: str) -> Weights:
        """What goes down to an architecture's clients: all weights, but for the layers that are each client's own."""
        own = learn.norm_entries(server.build(architecture)) if self.declared.personal else frozenset()
        return {name: tensor for name, tensor in server.weights(architecture).items() if name not in own}

    def also_sent(self, server: Server, architecture: str) -> dict[str, Any]:
        """What else goes down to an architecture's clients, once for all of them: nothing."""
        return {}

    def serves(self, server: Server, client: Facts) -> Weights | None:
        return last_models.served(server, client.architecture)
