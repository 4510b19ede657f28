"""DS-FL (Itahara et al., "Distillation-Based Semi-Supervised Federated Learning for Communication-Efficient
Collaborative Training with Non-IID Private Data", 2020).
https://arxiv.org/abs/2008.06180

    initialise:  every client k:  M_k ← train on D_k, if `private_training` says so          → "initial"
    each round:
        update:  every client k:  M_k ← train on D_k                                          → "personalised"
                 p_k ← probabilities of M_k on this round's public rows
        server:  p ← mean of p_k;   p̂ ← softmax(p / T)          entropy-reduction aggregation (ERA)
                 M_g ← minimise the loss to p̂                                                 → "global"
        distil:  every client k:  M_k ← minimise the loss to p̂                                → "distilled"

What is sharpened are probabilities, not logits: with T = 0.1 a flat peak of 0.3 becomes 0.5, one of 0.5 becomes 0.9.
Settings follow a public re-implementation, as the authors published no code.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field
from torch import Tensor

from polyfed.federation import (
    LABELS,
    Client,
    Declaration,
    Fields,
    Fleet,
    Kind,
    Method,
    Probabilities,
    Server,
    client_step,
    register,
)
from polyfed.learn import Distillation
from polyfed.methods import local_training
from polyfed.methods import public_distillation as public


class DSFLSettings(public.PublicDistillationSettings):
    public_rows: Annotated[int, Field(ge=1)] = 1000
    """Public rows per round, drawn anew each time; all of them if there are fewer."""
    sharpen: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = 0.1
    """T of the entropy reduction; null averages and leaves it at that (the paper's SA)."""
    distil: Distillation = Distillation(epochs=5, batch=50, lr=0.1, loss="kl")


@register
class DSFL(Method):
    """Clients and server learn from the sharpened mean of the clients' probabilities on public data."""

    name = "dsfl"
    summary = "the sharpened mean of the clients' probabilities on public data teaches (Itahara et al. 2020)"
    Settings = DSFLSettings
    settings: DSFLSettings

    def declare(self) -> Declaration:
        return Declaration(
            sends={"posteriors": Probabilities("rows", "outputs")},
            tells={"rows": Kind.INDICES},
            needs=self.settings.needs(),
            stages=("initial", "personalised", "distilled"),
            final_stage="distilled",
            single_replies=False,
            tasks=LABELS,
        )

    @client_step
    def initialise(self, me: Client) -> Fields:
        public.train_first(me, self.settings.private_training)
        me.measure("initial")
        return {}

    @client_step(sends=("posteriors",))
    def update(self, me: Client, rows: Tensor) -> Fields:
        local_training.train(me)
        me.measure("personalised")
        me.note_local_loss()
        return {"posteriors": public.answers_on(me, rows, self.settings.distil.temperature)}

    @client_step
    def distil(self, me: Client, rows: Tensor, posteriors: Tensor) -> Fields:
        public.distil_client(me, rows, posteriors, self.settings.distil)
        me.measure("distilled")
        return {}

    def prepare(self, fleet: Fleet, server: Server) -> None:
        if self.settings.private_training is not None:
            fleet.ask(self.initialise, fleet.everyone())

    def round(self, t: int, fleet: Fleet, server: Server) -> None:
        cohort = fleet.sample()
        rows = public.draw_rows(server, self.settings.public_rows)
        average = fleet.mean(self.update, cohort, "posteriors", rows=rows)
        sharpen = self.settings.sharpen
        consensus = average if sharpen is None else server.task.sharpened(average, sharpen)
        if self.settings.global_:
            public.distil_server(server, rows, consensus, self.settings.distil)
        fleet.ask(self.distil, cohort, rows=rows, posteriors=consensus)
