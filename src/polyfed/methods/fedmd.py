"""FedMD (Li & Wang, "FedMD: Heterogenous Federated Learning via Model Distillation", 2019), with a server model.
https://arxiv.org/abs/1910.03581

The server's model and Learning without Forgetting are those of Shi, Radu & Yang, "Closing the Gap between Client and
Global Model Performance in Heterogeneous Federated Learning", 2022, https://arxiv.org/abs/2211.03457, Algorithm 1:

    initialise:  every client k:  M_k ← train on D_p (public), then on D_k (private)             → "initial"
    each round:
        server:  draws public rows
        predict: z_k ← logits of M_k on them, on every client
        server:  ẑ ← mean of z_k;   M_g ← minimise ‖ẑ − z_g‖₁  (Eq. 1)                             → "global"
        update:  M_k ← minimise ‖ẑ − z_k‖₁  (Eq. 1), on every client                               → "distilled"
                 M_k ← train on D_k  (Eq. 2), with LwoF also Eq. 3–4                               → "personalised"

`global: false` is plain FedMD. Where the public labels are other classes than the private ones, the models have an
output for each class of both (30 for CIFAR-10 and CIFAR-100's coarse labels), as in FedMD's code.
"""

from __future__ import annotations

import copy
from typing import Annotated, Literal

from pydantic import BaseModel, Field
from torch import Tensor, nn

from polyfed import learn
from polyfed.federation import (
    TABLES,
    Client,
    Declaration,
    Fields,
    Fleet,
    Kind,
    Method,
    Need,
    Server,
    Table,
    client_step,
    reads_only,
    register,
    when,
)
from polyfed.learn import Distillation, Training
from polyfed.methods import local_training
from polyfed.methods import public_distillation as public
from polyfed.schema import SECTION
from polyfed.tasks import Trait


class LwoF(BaseModel):
    """Learning without Forgetting in the local update (Eq. 3–4)."""

    model_config = SECTION

    temperature: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 2.0
    """ρ: the smaller, the more the copy's answers weigh where it is sure. The paper does not say; LwF has 2."""
    weight: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 1.0
    """β; 1 in the paper."""


class FedMDSettings(public.PublicDistillationSettings):
    global_: Annotated[bool, Field(alias="global")] = True
    """Whether the server trains a model of its own (`models.server`); false is plain FedMD."""
    public_training: public.TrainingOnce = Training(epochs=10, batch=64, lr=0.1)
    """First, every client trains on the whole public set with its labels; null leaves that out."""
    private_training: public.TrainingOnce = Training(epochs=10, batch=32, lr=0.1)
    """Then on its own data, before the first round; null leaves that out."""
    distil: Distillation = Distillation(epochs=5, batch=64, lr=0.1, loss="l1", reduce="mean")
    """Eq. 1. `reduce: sum` is the norm as printed, mean what FedMD's code minimises."""
    outputs: Literal["all", "private"] = "all"
    """Which logits travel and are matched: all, or those of the private classes alone."""
    lwof: LwoF | None = None
    """Learning without Forgetting in the local update: {temperature: 2, weight: 1}, or none."""


@register
class FedMD(Method):
    """Clients and server learn from the mean of the clients' logits on public data."""

    name = "fedmd"
    summary = "the mean of the clients' logits on public data teaches clients and server (Shi et al. 2022)"
    Settings = FedMDSettings
    settings: FedMDSettings

    def declare(self) -> Declaration:
        own = self.settings
        return Declaration(
            sends={"logits": Table("rows", "classes" if own.outputs == "private" else "outputs")},
            tells={"rows": Kind.INDICES},
            needs={
                **own.needs(),
                **when(own.public_training, {Need.PUBLIC_LABELS: "method.public_training=null"}),
            },
            stages=("initial", "distilled", "personalised"),
            final_stage="personalised",
            single_replies=False,
            tasks={**TABLES, **when(own.lwof, {Trait.PROBABILITIES: "method.lwof=null"})},
        )

    @client_step
    def initialise(self, me: Client) -> Fields:
        if self.settings.public_training is not None:
            x, y = me.tensors(me.public)
            learn.supervised(
                me.model, x, y, self.settings.public_training, me.rng("public batches"), task=me.task
            )
        public.train_first(me, self.settings.private_training)
        me.measure("initial")
        return {}

    @client_step(sends=("logits",))
    @reads_only
    def predict(self, me: Client, rows: Tensor) -> Fields:
        matched = me.classes if self.settings.outputs == "private" else me.outputs
        return {"logits": public.outputs_on(me, rows)[:, :matched]}

    @client_step
    def update(self, me: Client, rows: Tensor, logits: Tensor) -> Fields:
        """The global update, then the local one."""
        public.distil_client(me, rows, logits, self.settings.distil, given="outputs")
        me.measure("distilled")
        local_training.train(me, self.not_forgetting(me))
        me.measure("personalised")
        me.note_local_loss()
        return {}

    def not_forgetting(self, me: Client) -> learn.ExtraLoss | None:
        """Eq. 3, weighted as in Eq. 4: stay near what the client's model says now, after this round's distillation."""
        lwof = self.settings.lwof
        if lwof is None:
            return None
        teacher = copy.deepcopy(me.model)
        answers = local_training.answers(me, lambda x: learn.predict(teacher, x))

        def regularise(_model: nn.Module, rows: Tensor, x: Tensor, logits: Tensor) -> Tensor:
            soft = me.task.answer(answers(rows, x), lwof.temperature)
            return lwof.weight * me.task.soft_loss(logits, soft, lwof.temperature)

        return regularise

    def prepare(self, fleet: Fleet, server: Server) -> None:
        fleet.ask(self.initialise, fleet.everyone())

    def round(self, t: int, fleet: Fleet, server: Server) -> None:
        cohort = fleet.sample()
        rows = public.draw_rows(server, self.settings.public_rows)
        consensus = fleet.mean(self.predict, cohort, "logits", rows=rows)
        if self.settings.global_:
            public.distil_server(server, rows, consensus, self.settings.distil, given="outputs")
        fleet.ask(self.update, cohort, rows=rows, logits=consensus)
