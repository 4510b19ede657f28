"""FD-meta (Liu et al., "Communication-Efficient Federated Distillation with Active Data Sampling", ICC 2022).
https://arxiv.org/abs/2203.06900

Our reading, by the abstract alone: a loop of federated distillation in which informative public samples are selected.
Selection rule, losses and order are ours:

    initialise:  every client k:  M_k ← train on D_k, if `private_training` says so          → "initial"
    each round:
        draw:    candidates among the public rows; those of which the server's model is least sure are kept
                 (in the first round, when it knows nothing, any)
        update:  every client k:  M_k ← train on D_k                                        → "personalised"
                 p_k ← probabilities of M_k on the rows kept
        server:  p̂ ← mean of p_k;   M_g ← minimise the loss to p̂                            → "global"
        distil:  every client k:  M_k ← minimise the loss to p̂                              → "distilled"

The server's model has learnt the ensemble's answers, so its doubt stands for the ensemble's, without anything sent.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field
from torch import Tensor

from polyfed import learn
from polyfed.federation import (
    LABELS,
    Client,
    Declaration,
    Fields,
    Fleet,
    Kind,
    Method,
    Need,
    Probabilities,
    Server,
    client_step,
    register,
    when,
)
from polyfed.learn import Distillation
from polyfed.methods import local_training
from polyfed.methods import public_distillation as public
from polyfed.tasks import CLASSIFICATION, Task, Trait


class FDMetaSettings(public.PublicDistillationSettings):
    global_: Annotated[Literal[True], Field(alias="global")] = True
    """There is always a server model (`models.server`): it says which rows are informative."""
    public_rows: Annotated[int, Field(ge=1)] = 1000
    """Public rows kept per round."""
    sharpen: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    """T of DS-FL's entropy reduction; null is the plain mean."""
    candidates: Annotated[float, Field(ge=1, le=1e6)] = 4.0
    """So many times `public_rows` are looked at each round."""
    sampling: Literal["entropy", "margin", "random"] = "entropy"
    """The rows with the largest entropy; with the smallest margin between the two best classes; or any."""
    distil: Distillation = Distillation(epochs=5, batch=50, lr=0.1, loss="kl")


@register
class FDMeta(Method):
    """DS-FL's loop on the public rows of which the server's model is least sure (our reading of FD-meta)."""

    name = "fdmeta"
    summary = "answers on the public rows that are least certain teach (our reading of Liu et al. 2022)"
    Settings = FDMetaSettings
    settings: FDMetaSettings

    def declare(self) -> Declaration:
        margin = self.settings.sampling == "margin"
        return Declaration(
            sends={"posteriors": Probabilities("rows", "outputs")},
            tells={"rows": Kind.INDICES},
            needs={Need.PUBLIC: "", Need.SERVER_MODEL: ""},
            stages=("initial", "personalised", "distilled"),
            final_stage="distilled",
            single_replies=False,
            tasks={**LABELS, **when(margin, {Trait.ONE_CLASS: "method.sampling=entropy"})},
        )

    @client_step
    def initialise(self, me: Client) -> Fields:
        public.train_first(me, self.settings.private_training)
        me.measure("initial")
        return {}

    def draw(self, server: Server) -> Tensor:
        """This round's public rows."""
        assert server.model is not None and server.public is not None
        wanted = self.settings.public_rows
        if self.settings.sampling == "random" or server.round == 1:
            return public.draw_rows(server, wanted)
        looked_at = public.shuffled_rows(server)[: int(wanted * self.settings.candidates)].sort().values
        logits = learn.predict(server.model, server.inputs(server.public[looked_at]))
        doubt = doubts(server.task.answer(logits), self.settings.sampling, server.task)
        most = doubt.argsort(descending=True, stable=True)[:wanted]
        return looked_at[most.cpu()].sort().values.int()

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
        rows = self.draw(server)
        average = fleet.mean(self.update, cohort, "posteriors", rows=rows)
        sharpen = self.settings.sharpen
        consensus = average if sharpen is None else server.task.sharpened(average, sharpen)
        public.distil_server(server, rows, consensus, self.settings.distil)
        fleet.ask(self.distil, cohort, rows=rows, posteriors=consensus)


def doubts(probabilities: Tensor, rule: Literal["entropy", "margin"], task: Task = CLASSIFICATION) -> Tensor:
    """How unsure each row's answer is; larger is less sure."""
    if rule == "entropy":
        return task.entropy(probabilities)
    best = probabilities.topk(2, dim=1).values
    return best[:, 1] - best[:, 0]
