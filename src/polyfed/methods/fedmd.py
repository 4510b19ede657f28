"""FedMD (Li & Wang 2019) with a server model and Learning without Forgetting.

Shi, Radu & Yang, "Closing the Gap between Client and Global Model Performance in Heterogeneous Federated Learning",
2022 (paper 000). Algorithm 1:

    before:      every client k:  M_k ← train on D_p (public), then on D_k (private)             → "initial"
    each round:
        server:  draws public rows
        client:  z_k ← logits of M_k on them
        server:  ẑ ← mean of z_k;   M_g ← minimise ‖ẑ − z_g‖₁  (Eq. 1)                             → "global"
        client:  M_k ← minimise ‖ẑ − z_k‖₁  (Eq. 1)                                                → "distilled"
                 M_k ← train on D_k  (Eq. 2), with LwoF also Eq. 3–4                               → "personalised"

`global: false` is plain FedMD. Where the public labels are other classes than the private ones, the models have an
output for each class of both (30 for CIFAR-10 and CIFAR-100's coarse labels), as in FedMD's code.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor, nn

from polyfed import learn
from polyfed.data import Rows
from polyfed.federation.message import Fields
from polyfed.federation.method import Need, client_step, register
from polyfed.federation.nodes import Client, Server
from polyfed.learn import Distillation, Training
from polyfed.methods.public_distillation import ThroughPublic, ThroughPublicSettings, mean

if TYPE_CHECKING:
    from polyfed.federation.fleet import Fleet


class LwoF(BaseModel):
    """Learning without Forgetting in the local update (Eq. 3–4)."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    temperature: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 2.0
    """ρ: the smaller, the more the copy's answers weigh where it is sure. The paper does not say; LwF has 2."""
    weight: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 1.0
    """β; 1 in the paper."""


class FedMDSettings(ThroughPublicSettings):
    global_: Annotated[bool, Field(alias="global")] = True
    """Whether the server trains a model of its own (`models.server`); false is plain FedMD."""
    public_training: Training | None = Training(epochs=10, batch=64, lr=0.1)
    """First, every client trains on the whole public set with its labels; null leaves that out."""
    private_training: Training | None = Training(epochs=10, batch=32, lr=0.1)
    """Then on its own data, before the first round; null leaves that out."""
    distil: Distillation = Distillation(epochs=5, batch=64, lr=0.1, loss="l1", reduce="mean")
    """Eq. 1. `reduce: sum` is the norm as printed, mean what FedMD's code minimises."""
    outputs: Literal["all", "private"] = "all"
    """Which logits travel and are matched: all, or those of the private classes alone."""
    lwof: LwoF | None = None
    """Learning without Forgetting in the local update: {temperature: 2, weight: 1}, or none."""


@register
class FedMD(ThroughPublic):
    """Clients and server learn from the mean of the clients' logits on public data."""

    name = "fedmd"
    summary = "the mean of the clients' logits on public data teaches clients and server (Shi et al. 2022)"
    final_stage = "personalised"
    Settings = FedMDSettings
    settings: FedMDSettings

    @property
    def needs(self) -> frozenset[Need]:
        return super().needs | ({Need.PUBLIC_LABELS} if self.settings.public_training else frozenset())

    def begin(self, me: Client) -> None:
        """Train on the public data, then on the client's own."""
        if self.settings.public_training is not None:
            x, y = me.tensors(me.public)
            learn.supervised(me.model, x, y, self.settings.public_training, me.rng("public batches"))
        super().begin(me)

    def answered(self, me: Client, rows: Tensor) -> Tensor:
        return super().answered(me, rows)[:, : self.matched(me.public)]

    def width(self, server: Server) -> int:
        assert server.public is not None
        return self.matched(server.public) or super().width(server)

    def matched(self, public: Rows) -> int | None:
        """How many of the first outputs are matched; None is all."""
        return public.dataset.first_class or None if self.settings.outputs == "private" else None

    @client_step
    def update(self, me: Client, rows: Tensor, logits: Tensor) -> Fields:
        """Global update, then local update."""
        self.distil(me, rows, logits)
        self.train(me, self.not_forgetting(me))
        return {}

    def not_forgetting(self, me: Client) -> learn.ExtraLoss | None:
        """Eq. 3, weighted as in Eq. 4: stay near what the client's model says now, after this round's distillation."""
        lwof = self.settings.lwof
        if lwof is None:
            return None
        teacher = copy.deepcopy(me.model)
        fixed = None if self.training.augment else learn.predict(teacher, me.inputs(me.train))

        def regularise(_model: nn.Module, rows: Tensor, x: Tensor, logits: Tensor) -> Tensor:
            said = learn.predict(teacher, x) if fixed is None else fixed[rows]
            return lwof.weight * learn.cross_entropy(
                logits, learn.soften(said, lwof.temperature), lwof.temperature
            )

        return regularise

    def prepare(self, fleet: Fleet, server: Server) -> None:
        fleet.ask(self.initialise, fleet.everyone())

    def round(self, t: int, fleet: Fleet, server: Server) -> None:
        cohort = fleet.sample()
        rows = self.draw(server)
        replies = fleet.stream(self.answer, cohort, rows=rows)
        consensus = mean(self.collect(fleet, server, replies, rows))
        self.distil_server(server, rows, consensus)
        fleet.ask(self.update, cohort, rows=rows, logits=self.packed(consensus))
