"""SPATL (Yu et al., "SPATL: Salient Parameter Aggregation and Transfer Learning for Heterogeneous Federated
Learning", SC 2022).
https://arxiv.org/abs/2111.14345

Clients share an encoder, each has a predictor of its own, and only the encoder's salient filters go to the server:

    server:  w ← initial encoder;  c ← 0, and c_i ← 0 for every client
    each round t:
        S ← cohort
        train:   each client i in S:   w_i, its own head ← SGD(w, D_i), the encoder along  g + c − c_i
                 I_i ← of each layer the share `keep` of the filters, those that changed most (L2 norm of w_i − w)
                 c_i⁺ ← c_i − c + (w − w_i) / (a η) in I_i, elsewhere c_i    (sent: w_i and c_i⁺ − c_i in I_i, and I_i)
        server:  filter by filter:  w ← Σ n_i w_i / Σ n_i over those who sent it; one that nobody sent stays
                 c ← the mean of all c_i

The encoder is a model's body, the predictor its head. A filter is one output of a convolution or linear layer of the
body, with its bias. All else of the body (BatchNorm layers and their statistics) is small and travels whole. The
encoder goes down whole. See `control_variates` for a; `gradient_control: false` leaves c out.

Simplified: in the paper an agent, trained by reinforcement on a graph of the model, chooses for each layer how many
filters are salient; here `keep` is the same for all layers and clients. In the authors' code the filters that are not
chosen are averaged in as zeros, and the first convolution of a ResNet stays with the client; here it is as the paper
says. The code ranks filters by the norm of their weights (`rank: weights`), as papers on pruning do: there a model has
been trained. In the first rounds of a federation it is the initial weights that make a filter large, so the same ones
would be sent in every round and the others never learn from anybody.
"""

from __future__ import annotations

from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import nn

from polyfed import learn
from polyfed.errors import MethodError
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
    RowNumbers,
    Server,
    Weights,
    client_step,
    register,
    when,
)
from polyfed.learn import RowMean, WeightedMean
from polyfed.methods import averaging, control_variates, local_training
from polyfed.models import Network
from polyfed.schema import Printed

ENCODER = "body."


class SPATLSettings(MethodSettings):
    keep: Annotated[float, Field(gt=0, le=1)] = 0.5
    """The share of each layer's filters that a client sends; typically 0.3 to 0.8. With 1 all of them travel."""
    rank: Annotated[Literal["change", "weights"], Printed("weights", "the authors' code")] = "change"
    """Which filters are sent: those that the client changed most in this round, or those with the largest weights."""
    gradient_control: bool = True
    """Whether the encoder's gradients are corrected by control variates, as in SCAFFOLD."""
    weighting: averaging.Weighting = "samples"
    """Whether a client counts by its number of samples, or all count the same."""


@register
class SPATL(Method):
    """A shared encoder of which only salient filters travel up, and a head for every client."""

    name = "spatl"
    summary = "a shared encoder, its salient filters averaged; each client has its own head (Yu et al. 2022)"
    Settings = SPATLSettings
    settings: SPATLSettings

    def declare(self) -> Declaration:
        controlled = self.settings.gradient_control
        return Declaration(
            sends={
                "weights": LikeWeights("weights", rows="rows"),
                "rows": RowNumbers("filters", of="weights"),
                **when(controlled, {"change": LikeWeights("control", rows="rows", kind=Kind.GRADIENTS)}),
            },
            tells={"filters": Kind.CONTROL, **when(controlled, {"control": Kind.GRADIENTS})},
            needs={Need.COMMON_ARCHITECTURE: ""},
            keeps={"memory"},
            stages=("trained",),
            personal=True,
            tasks=ANY_TASK,
        )

    def check(self, federation: FederationFacts) -> None:
        if self.settings.gradient_control:
            local_training.check_steps(self.training, "spatl with method.gradient_control")

    @client_step(sends=("weights", "rows", "change"))
    def train(
        self, me: Client, weights: Weights, filters: dict[str, int], control: Weights | None = None
    ) -> Fields:
        learn.load_weights(me.model, weights, partly=True)
        self.personalise(me, me.model)
        steps = local_training.train(me, correction=self.correction(me, control) if control else None)
        me.measure("trained", whole=False)
        own = learn.weights_of(me.model)
        me.memory["head"] = {name: own.pop(name) for name in [*own] if not name.startswith(ENCODER)}
        rows = learn.largest_filters(own, filters, since=weights if self.settings.rank == "change" else None)
        reply = {"weights": learn.take_rows(own, rows), "rows": rows}
        if control:
            change = control_variates.update(me, control, weights, own, steps, only=rows)
            reply["change"] = learn.take_rows(change, rows)
        return reply

    def correction(self, me: Client, control: Weights) -> Weights:
        """The head is the client's own: nothing corrects it."""
        head = {name: torch.zeros_like(tensor) for name, tensor in me.model.named_parameters()}
        return {**head, **control_variates.correction(me, control)}

    def personalise(self, me: Client, model: nn.Module) -> None:
        learn.load_weights(model, me.memory.get("head", {}), partly=True)

    def prepare(self, fleet: Fleet, server: Server) -> None:
        [architecture] = server.roster.architectures
        model = server.build(architecture)
        if not isinstance(model, Network):
            raise MethodError(f"spatl needs models with a body and a head: make '{architecture}' a Network")
        if not any(name.startswith(ENCODER) for name in learn.named_tensors(model)):
            raise MethodError(
                "spatl shares the body of a model, and all of it is frozen: use fedavg, which shares the head"
            )
        counts = learn.filter_counts(model, self.settings.keep) if self.settings.keep < 1 else {}
        control = control_variates.zeros(model) if self.settings.gradient_control else {}
        server.memory["filters"] = {name: counts[name] for name in counts if name.startswith(ENCODER)}
        server.memory["control"] = {name: control[name] for name in control if name.startswith(ENCODER)}

    def round(self, t: int, fleet: Fleet, server: Server) -> None:
        [architecture] = server.roster.architectures
        model = server.weights(architecture)
        encoder = {name: model[name] for name in model if name.startswith(ENCODER)}
        control: Weights = server.memory["control"]
        told = {"filters": server.memory["filters"], **({"control": control} if control else {})}
        share, mean, change = averaging.share(self.settings.weighting), RowMean(encoder), WeightedMean()
        for reply in fleet.stream(self.train, fleet.sample(), weights=encoder, **told):
            mean.add(reply["weights"], reply["rows"], share(reply.client))
            if control:
                whole = learn.spread_rows(reply["change"], reply["rows"], control)
                change.add(whole, share(reply.client))
        if mean.total:
            server.put_weights(architecture, mean.result())
        if change.total:
            everyone = averaging.everyone(server, self.settings.weighting)
            server.memory["control"] = control_variates.fold(control, change, everyone)
