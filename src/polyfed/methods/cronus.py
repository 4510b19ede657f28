"""Cronus (Chang et al., "Cronus: Robust and Heterogeneous Collaborative Learning with Black-Box Knowledge Transfer",
2019).
https://arxiv.org/abs/1912.11279

    initialise:  every client k:  M_k ← train on D_k, if `private_training` says so          → "initial"
    each round:
        answer:  every client k:  p_k ← probabilities of M_k on this round's public rows
        server:  p̂ ← robust mean of p_k, row by row
        update:  every client k:  M_k ← train on D_k and on the public rows with p̂ for labels, mixed → "updated"

The robust mean is the filter of Diakonikolas et al. 2017 (`learn/robust.py`): along the direction in which the answers
to a row vary most, those go that lie farther from the median than honest ones would. If at most the share `poisoned` of
a round's answers is bad, the result is within a few times R of the honest mean, R being how far honest answers lie from
it (3.6 R for a fifth). So where honest clients agree, bad ones cannot change the answer; where they differ as widely as
their leading classes do, bad ones still can. There is no author code: we take the filter for sub-Gaussian points, which
supposes that R is known; here it is given, or measured on every row. `private_training` is there so that first answers
mean something.
"""

from __future__ import annotations

from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from polyfed import learn
from polyfed.errors import MethodError
from polyfed.federation import (
    LABELS,
    Client,
    Declaration,
    FederationFacts,
    Fields,
    Fleet,
    Kind,
    Method,
    Probabilities,
    Server,
    client_step,
    reads_only,
    register,
)
from polyfed.learn import Distillation, Training
from polyfed.methods import public_distillation as public


class CronusSettings(public.PublicDistillationSettings):
    poisoned: Annotated[float, Field(ge=0, lt=0.5)] = 0.2
    """ε, the share of a round's answers that may be bad: of n, the whole part of ε n can be left out; 0: plain mean."""
    spread: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None
    """R, how far honest answers to a row lie from their mean (at most 1.41, opposite certainties); null: measured."""
    private_training: public.TrainingOnce = Training(epochs=5)
    """What a client does with its own data before the first round."""
    distil: Distillation = Distillation(epochs=5, batch=64, lr=0.1, loss="ce")
    """How the server's model learns, with `global: true`; clients learn as `training` says."""


@register
class Cronus(Method):
    """Clients learn from a mean of their probabilities on public data that leaves out what stands apart."""

    name = "cronus"
    summary = "a robust mean of the clients' probabilities on public data teaches (Chang et al. 2019)"
    Settings = CronusSettings
    settings: CronusSettings

    def declare(self) -> Declaration:
        return Declaration(
            sends={"posteriors": Probabilities("rows", "outputs")},
            tells={"rows": Kind.INDICES},
            needs=self.settings.needs(),
            stages=("initial", "updated"),
            final_stage="updated",
            tasks=LABELS,
        )

    def check(self, federation: FederationFacts) -> None:
        if self.training.sampling != "all":
            raise MethodError(
                "cronus trains on a client's own rows and on public ones at once, whose classes nobody knows: set"
                " training.sampling=all"
            )

    @client_step
    def initialise(self, me: Client) -> Fields:
        public.train_first(me, self.settings.private_training)
        me.measure("initial")
        return {}

    @client_step(sends=("posteriors",))
    @reads_only
    def answer(self, me: Client, rows: Tensor) -> Fields:
        return {"posteriors": public.answers_on(me, rows, self.settings.distil.temperature)}

    @client_step
    def update(self, me: Client, rows: Tensor, posteriors: Tensor) -> Fields:
        """One training on both: the client's own rows with their labels, the public ones with the answers."""
        own, labels = me.tensors(me.train)
        x = torch.cat([own, me.inputs(me.public[rows])])
        targets = torch.cat([me.task.sure(labels, me.outputs), posteriors.to(me.device)])
        settings = Distillation(**me.training.model_dump(), loss="ce")
        learn.distil(
            *(me.model, x, targets, settings, me.rng("batches")),
            given="answers",
            memory=me.memory,
            task=me.task,
        )
        me.measure("updated")
        return {}

    def prepare(self, fleet: Fleet, server: Server) -> None:
        if self.settings.private_training is not None:
            fleet.ask(self.initialise, fleet.everyone())

    def round(self, t: int, fleet: Fleet, server: Server) -> None:
        cohort = fleet.sample()
        rows = public.draw_rows(server, self.settings.public_rows)
        _, answers = public.gather(fleet.stream(self.answer, cohort, rows=rows), "posteriors")
        consensus = learn.robust_mean(answers, self.settings.poisoned, self.settings.spread)
        if self.settings.global_:
            public.distil_server(server, rows, consensus, self.settings.distil)
        fleet.ask(self.update, cohort, rows=rows, posteriors=consensus)
