"""FedAvg (McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized Data", 2017).

    server:  w ← initial weights
    each round t:
        S_t ← cohort
        each client k in S_t:   w_k ← SGD(w, D_k)
        w ← Σ_k n_k w_k / Σ_k n_k          (or the plain mean)

With clients of several architectures, `within: architecture` averages among the clients of each.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from torch import nn

from polyfed import learn
from polyfed.errors import ModelError
from polyfed.federation.message import Fields, Kind, Weights
from polyfed.federation.method import Method, MethodSettings, Need, client_step, reads_only, register, stacks
from polyfed.federation.nodes import Client, Facts, Server
from polyfed.learn import WeightedMean

if TYPE_CHECKING:
    from polyfed.federation.fleet import Fleet, Reply


class FedAvgSettings(MethodSettings):
    weighting: Literal["samples", "uniform"] = "samples"
    """Whether a client counts by its number of samples, or all count the same."""
    within: Literal["all", "architecture"] = "all"
    """Average over all clients (one architecture), or among the clients of each architecture."""
    batch_norm: Literal["average", "local", "recompute"] = "average"
    """BatchNorm layers: average all of them; keep each client's own (FedBN); or average what is trained and
    recompute the running statistics of the averaged model on the clients' data."""


def _train_together(self: FedAvg, us: list[Client], payloads: list[dict[str, Any]]) -> list[Fields]:
    for me, payload in zip(us, payloads, strict=True):
        self.start(me, payload["weights"])
    learn.supervised_together(
        [me.model for me in us],
        [me.tensors(me.train) for me in us],
        self.training,
        [me.rng("batches") for me in us],
        proximal=self.proximal,
    )
    return [self.finish(me) for me in us]


@register
class FedAvg(Method):
    """The mean of the clients' weights, round after round."""

    name = "fedavg"
    summary = "the mean of the clients' weights (McMahan et al. 2017)"
    sends: ClassVar = {"weights": Kind.WEIGHTS, "statistics": Kind.STATISTICS}
    Settings = FedAvgSettings
    settings: FedAvgSettings
    proximal = 0.0

    @property
    def needs(self) -> frozenset[Need]:
        return frozenset({Need.COMMON_ARCHITECTURE} if self.settings.within == "all" else ())

    @property
    def keeps(self) -> frozenset[str]:
        return frozenset({"memory"} if self.personal or self.training.keep_optimiser else ())

    @property
    def personal(self) -> bool:
        return self.settings.batch_norm == "local"

    @client_step
    @stacks(_train_together)
    def train(self, me: Client, weights: Weights) -> Fields:
        self.start(me, weights)
        learn.supervised(
            me.model,
            *me.tensors(me.train),
            self.training,
            me.rng("batches"),
            extra=self.penalty(weights),
            memory=me.memory,
        )
        return self.finish(me)

    @client_step
    @reads_only
    def restate(self, me: Client, weights: Weights) -> Fields:
        """The running statistics that the averaged model has on this client's data."""
        learn.load_weights(me.model, weights)
        learn.recompute_statistics(me.model, me.inputs(me.train), self.training.batch)
        own = learn.weights_of(me.model)
        return {"statistics": {name: own[name] for name in own if learn.is_statistic(name)}}

    def start(self, me: Client, weights: Weights) -> None:
        learn.load_weights(me.model, weights)
        self.personalise(me, me.model)

    def personalise(self, me: Client, model: nn.Module) -> None:
        """FedBN: the client's own BatchNorm layers."""
        learn.load_weights(model, me.memory.get("norms", {}), partly=True)

    def finish(self, me: Client) -> Fields:
        me.measure("trained", whole=False)
        weights = learn.weights_of(me.model)
        if self.personal:
            me.memory["norms"] = {name: weights.pop(name) for name in sorted(learn.norm_entries(me.model))}
        return {"weights": weights}

    def penalty(self, weights: Weights) -> learn.ExtraLoss | None:
        """FedProx adds one."""
        return None

    def round(self, t: int, fleet: Fleet, server: Server) -> None:
        models = server.shared_weights()
        cohort = fleet.sample()
        for architecture in dict.fromkeys(facts.architecture for facts in cohort):
            members = [facts for facts in cohort if facts.architecture == architecture]
            model = models[architecture]
            own = learn.norm_entries(server.build(architecture)) if self.personal else frozenset()
            shared = {name: tensor for name, tensor in model.items() if name not in own}
            replies = fleet.stream(self.train, members, weights=model)
            model |= self.mean(fleet, replies, "weights", shared)
            statistics = {name: tensor for name, tensor in model.items() if learn.is_statistic(name)}
            if self.settings.batch_norm == "recompute" and statistics:
                replies = fleet.stream(self.restate, members, weights=model)
                model |= self.mean(fleet, replies, "statistics", statistics)

    def mean(self, fleet: Fleet, replies: Iterable[Reply], field: str, like: Weights) -> Weights:
        """The mean of what the clients sent; what is not like this is left out, with its reason."""
        mean = WeightedMean(like)
        for reply in replies:
            try:
                mean.add(reply.fields.get(field, {}), self.share(reply.client))
            except ModelError as error:
                fleet.reject(reply, str(error))
        return mean.result()

    def share(self, client: Facts) -> float:
        return client.samples if self.settings.weighting == "samples" else 1.0

    def serves(self, server: Server, client: Facts) -> Weights | None:
        return server.shared_weights()[client.architecture]
