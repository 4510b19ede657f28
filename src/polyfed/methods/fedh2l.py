"""FedH2L (Li et al., "FedH2L: A Federated Learning Approach with Model and Statistical Heterogeneity", 2021).
https://arxiv.org/abs/2101.11296

Peers of different models and domains teach each other; there is no server, and no parameters travel. Algorithm 1:

    each round, `batches` times, every node i:
        local step:   g_loc ← ∇ CE on a private batch;   θ_i ← θ_i − β g_loc                          (Eq. 1–2)
        every E steps:
        broadcast:    rows of an own public batch, posteriors on them, accuracy on them
        mutual step:  g_pub ← ∇ mean over peers j of  Acc_j KL(p_j ‖ p_i) + CE  on j's public batch   (Eq. 3–6)
                      if ⟨g_loc, g_pub⟩ < 0:  g_pub ← the nearest g with ⟨g_loc, g⟩ = 0                (Eq. 7–14)
                      θ_i ← θ_i − η g_pub

Where the paper is open: one optimiser per node takes both steps (AMSGrad sees the projected gradient) and is kept from
round to round; with E > 1, g_loc is the sum of the local gradients since the last mutual step; all peers' batches go
through the model together. A node that has no public rows of its own learns from the others and teaches nothing.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import torch
from pydantic import Field, model_validator
from torch import Tensor

from polyfed import learn
from polyfed.federation import (
    LABELS,
    Client,
    Declaration,
    FederationFacts,
    Fields,
    Fleet,
    Indices,
    Method,
    MethodSettings,
    Need,
    Number,
    Probabilities,
    Server,
    TopologyName,
    client_step,
    register,
    when,
)
from polyfed.methods import local_training
from polyfed.schema import Printed

Lesson = dict[str, Any]
"""What one peer broadcast: rows, posteriors and, with labels, its accuracy on them."""


class FedH2LSettings(MethodSettings):
    batches: Annotated[int, Field(ge=1), Printed(1)] = 20
    """Local steps of every node in a round of the run. With 1 a round is one of the paper, which has thousands."""
    interval: Annotated[int, Field(ge=1)] = 1
    """E: a mutual step after every so many local steps."""
    topology: TopologyName = "complete"
    """Who hears whom: complete, ring, star, or pairs drawn anew each time (the paper's asynchronous variant)."""
    public_batch: Annotated[int, Field(ge=1)] = 32
    """Rows of the own public data that a node teaches on, drawn anew each time."""
    labels: bool = True
    """Whether the labels of the public data are used: without, KL alone, and every teacher counts the same."""
    kl: bool = True
    """Whether peers' posteriors are learnt from; without, their labels alone (Table V)."""
    conflict: Literal["project", "ignore", "pcgrad"] = "project"
    """Where the gradients disagree: project the mutual one (the paper), let it be, or symmetric PCGrad (Table V)."""

    @model_validator(mode="after")
    def _learn_from_something(self) -> FedH2LSettings:
        if not (self.labels or self.kl):
            raise ValueError("without labels and without kl there is nothing to learn from peers")
        return self


@register
class FedH2L(Method):
    """Peers teach each other with posteriors on public data, without undoing what each learnt at home."""

    name = "fedh2l"
    summary = "peers teach each other by posteriors on public batches, without a server (Li et al. 2022)"
    Settings = FedH2LSettings
    settings: FedH2LSettings

    def declare(self) -> Declaration:
        labels = self.settings.labels
        return Declaration(
            sends={
                "rows": Indices("public"),
                "posteriors": Probabilities("rows", "outputs"),
                **when(labels, {"accuracy": Number(0, 1)}),
            },
            needs={Need.PUBLIC: "", **when(labels, {Need.PUBLIC_LABELS: "method.labels=false"})},
            notes=("mutual-ce", "mutual-kl"),
            server=False,
            tasks=LABELS,
        )

    def check(self, federation: FederationFacts) -> None:
        local_training.check_single_steps(self.training, self.name)

    @client_step
    def local_step(self, me: Client) -> Fields:
        x, y = me.tensors(me.train)
        rows, batch = learn.draw_batch(x, y, me.training, me.rng("batch"), me.rng("augment"))
        loss = me.task.loss(learn.logits_of(me.model, batch), y[rows])
        local = learn.flat_gradient(loss, me.model)
        learn.flat_step(me.model, local, me.training, me.memory)
        # With those of the rounds since the last mutual step.
        me.memory["local"] = local + me.memory.get("local", torch.zeros_like(local)).to(local.device)
        me.note("local-loss", loss)
        return {}

    @client_step(sends=("rows", "posteriors", "accuracy"))
    def broadcast(self, me: Client) -> Fields:
        """The local step, and what the model then says of a batch of the node's own public rows."""
        self.local_step(me)
        if not len(me.own_public):
            return {}
        order = torch.randperm(len(me.own_public), generator=me.rng("public batch"))
        rows = me.own_public[order[: self.settings.public_batch]]
        outputs = learn.predict(me.model, learn.take(me.inputs(me.public), rows))
        lesson: Fields = {"rows": rows.int(), "posteriors": me.task.answer(outputs)}
        if not self.settings.labels:
            return lesson
        score = me.task.tally(outputs.cpu(), me.public.labels[rows])
        return {**lesson, "accuracy": torch.tensor(score[0] / score[1], dtype=torch.float32).item()}

    @client_step
    def mutual_step(self, me: Client, heard: list[tuple[str, Lesson]]) -> Fields:
        public = learn.flat_gradient(self.mutual_loss(me, [lesson for _, lesson in heard]), me.model)
        local = me.memory.pop("local", torch.zeros_like(public)).to(public.device)
        if self.settings.conflict != "ignore":
            resolve = learn.project if self.settings.conflict == "project" else learn.project_both
            public = resolve(public, local)
        learn.flat_step(me.model, public, me.training, me.memory)
        return {}

    def mutual_loss(self, me: Client, lessons: list[Lesson]) -> Tensor:
        """Eq. 3 + Eq. 5: the mean over the peers heard, of each a mean over its batch. Their answers are constants."""
        rows = [lesson["rows"].long() for lesson in lessons]
        logits = learn.logits_of(me.model, learn.take(me.inputs(me.public), torch.cat(rows)))
        kl = ce = torch.zeros((), device=me.device)
        for lesson, mine, part in zip(lessons, rows, logits.split([*map(len, rows)]), strict=True):
            if self.settings.kl:
                # Without labels a peer's accuracy is not known, and every teacher counts the same.
                trust = lesson.get("accuracy", 1.0) / len(lessons)
                kl = kl + trust * me.task.divergence(part, lesson["posteriors"].to(me.device))
            if self.settings.labels:
                ce = ce + me.task.loss(part, me.public.labels[mine].to(me.device)) / len(lessons)
        if self.settings.kl:
            me.note("mutual-kl", kl)
        if self.settings.labels:
            me.note("mutual-ce", ce)
        return kl + ce

    def round(self, t: int, fleet: Fleet, server: Server) -> None:
        peers = fleet.sample()
        for batch in range(1, self.settings.batches + 1):
            if ((t - 1) * self.settings.batches + batch) % self.settings.interval == 0:
                fleet.gossip(self.broadcast, self.mutual_step, self.settings.topology, peers)
            else:
                fleet.ask(self.local_step, peers)
