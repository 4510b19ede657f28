"""FedH2L (Li et al., "FedH2L: A Federated Learning Approach with Model and Statistical Heterogeneity", paper 004).

Peers of different models and domains teach each other; there is no server, and no parameters travel. Algorithm 1:

    each round, every node i:
        local step:    g_loc ← ∇ CE on a private batch;   θ_i ← θ_i − β g_loc                          (Eq. 1–2)
        every E rounds:
        broadcast:     rows of an own public batch, posteriors on them, accuracy on them
        mutual step:   g_pub ← ∇ mean over peers j of  Acc_j KL(p_j ‖ p_i) + CE  on j's public batch   (Eq. 3–6)
                       if ⟨g_loc, g_pub⟩ < 0:  g_pub ← the nearest g with ⟨g_loc, g⟩ = 0                (Eq. 7–14)
                       θ_i ← θ_i − η g_pub

Where the paper is open: one optimiser a node takes both steps (AMSGrad sees the projected gradient) and is kept from
round to round; with E > 1, g_loc is the sum of the local gradients since the last mutual step; all peers' batches go
through the model together. A node that has no public rows of its own learns from the others and teaches nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import torch
from pydantic import Field, model_validator
from torch import Tensor
from torch.nn import functional as F

from polyfed import learn
from polyfed.data import augment
from polyfed.federation.message import Fields, Kind
from polyfed.federation.method import Method, MethodSettings, Need, client_step, register
from polyfed.federation.nodes import Client, Server
from polyfed.federation.topology import TopologyName

if TYPE_CHECKING:
    from polyfed.federation.fleet import Fleet

logger = logging.getLogger(__name__)

Heard = list[tuple[str, dict[str, Any]]]


class FedH2LSettings(MethodSettings):
    interval: Annotated[int, Field(ge=1)] = 1
    """E: a mutual step every so many rounds; a local step in each."""
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
    summary = (
        "peers teach each other by their posteriors on public batches, without a server (Li et al. 2022)"
    )
    sends: ClassVar = {"rows": Kind.INDICES, "posteriors": Kind.POSTERIORS, "accuracy": Kind.METRICS}
    server = False
    Settings = FedH2LSettings
    settings: FedH2LSettings

    @property
    def needs(self) -> frozenset[Need]:
        return frozenset({Need.PUBLIC} | ({Need.PUBLIC_LABELS} if self.settings.labels else set()))

    @client_step
    def train(self, me: Client) -> Fields:
        """The local step."""
        x, y = me.tensors(me.train)
        rows = torch.randperm(len(y), generator=me.rng("batch"))[: self.training.batch]
        batch = learn.take(x, rows)
        if self.training.augment and batch.dim() == 4:
            batch = augment.standard(batch, me.rng("augment"))
        loss = F.cross_entropy(logits_of(me, batch), y[rows])
        local = learn.flat_gradient(loss, me.model)
        learn.flat_step(me.model, local, self.training, me.memory)
        if "local" in me.memory:
            local = local + me.memory["local"].to(local.device)
        me.memory["local"] = local
        me.note("local-loss", loss)
        return {}

    @client_step
    def teach(self, me: Client) -> Fields:
        """The local step, and what the model then says of a batch of the node's own public rows."""
        self.train(me)
        if not len(me.own_public):
            return {}
        order = torch.randperm(len(me.own_public), generator=me.rng("public batch"))
        rows = me.own_public[order[: self.settings.public_batch]]
        posteriors = learn.soften(learn.predict(me.model, learn.take(me.inputs(me.public), rows)))
        lesson: Fields = {"rows": rows.int(), "posteriors": posteriors}
        if not self.settings.labels:
            return lesson
        right = posteriors.argmax(dim=1).cpu() == me.public.labels[rows]
        return {**lesson, "accuracy": right.float().mean().item()}

    @client_step
    def study(self, me: Client, heard: Heard) -> Fields:
        """The mutual step."""
        lessons = [
            Lesson(fields["rows"], fields["posteriors"], fields["accuracy"] if self.settings.labels else 1.0)
            for _, fields in heard
            if self.makes_sense(fields, len(me.public), me.outputs)
        ]
        if len(lessons) < len(heard):
            me.note("lessons-refused", float(len(heard) - len(lessons)))
        if not lessons:
            return {}
        loss = self.mutual_loss(me, lessons)
        public = learn.flat_gradient(loss, me.model)
        local = me.memory.pop("local", torch.zeros_like(public)).to(public.device)
        if self.settings.conflict == "project":
            public = learn.project(public, local)
        elif self.settings.conflict == "pcgrad":
            public = learn.project_both(public, local)
        learn.flat_step(me.model, public, self.training, me.memory)
        return {}

    def makes_sense(self, fields: Mapping[str, Any], public_rows: int, outputs: int) -> bool:
        """Whether a peer's message can be learnt from: one peer's nonsense must not cost the others their step."""
        rows, posteriors = fields.get("rows"), fields.get("posteriors")
        accuracy = fields.get("accuracy") if self.settings.labels else 1.0
        return bool(
            isinstance(rows, Tensor)
            and isinstance(posteriors, Tensor)
            and rows.dtype in (torch.int32, torch.int64)
            and rows.dim() == 1
            and len(rows) > 0
            and 0 <= rows.min() <= rows.max() < public_rows
            and posteriors.dtype == torch.float32
            and posteriors.shape == (len(rows), outputs)
            and learn.are_probabilities(posteriors)
            and isinstance(accuracy, int | float)
            and 0 <= accuracy <= 1
        )

    def mutual_loss(self, me: Client, lessons: list[Lesson]) -> Tensor:
        """Eq. 3 + Eq. 5: the mean over the peers heard, of each a mean over its batch. Their answers are constants."""
        rows = torch.cat([lesson.rows.long() for lesson in lessons])
        targets = torch.cat([lesson.posteriors for lesson in lessons]).detach()
        sizes = torch.tensor([len(lesson.rows) for lesson in lessons])
        share = (1 / (len(lessons) * sizes)).repeat_interleave(sizes)
        trust = torch.tensor([lesson.accuracy for lesson in lessons]).repeat_interleave(sizes)
        logits = logits_of(me, learn.take(me.inputs(me.public), rows))
        share = share.to(me.device)
        loss = torch.zeros((), device=me.device)
        if self.settings.kl:
            each = F.kl_div(F.log_softmax(logits, dim=1), targets.to(me.device), reduction="none")
            kl = share @ (trust.to(me.device) * each.sum(dim=1))
            me.note("mutual-kl", kl)
            loss = loss + kl
        if self.settings.labels:
            ce = share @ F.cross_entropy(logits, me.public.labels[rows].to(me.device), reduction="none")
            me.note("mutual-ce", ce)
            loss = loss + ce
        return loss

    def prepare(self, fleet: Fleet, server: Server) -> None:
        if self.training.epochs != 1 or self.training.steps is not None:
            logger.warning(
                "fedh2l makes one local step a round: training.epochs and training.steps are not used"
            )

    def round(self, t: int, fleet: Fleet, server: Server) -> None:
        peers = fleet.sample()
        if t % self.settings.interval == 0:
            fleet.gossip(self.teach, self.study, self.settings.topology, peers)
        else:
            fleet.ask(self.train, peers)


@dataclass(frozen=True)
class Lesson:
    """What one peer broadcast."""

    rows: Tensor
    posteriors: Tensor
    accuracy: float = 1.0
    """The weight of its posteriors: 1 where there are no labels to know its accuracy by."""


def logits_of(me: Client, x: Tensor) -> Tensor:
    """The model's logits of a batch, which may be a single row."""
    if len(x) == 1:
        learn.freeze_norms(me.model)
    logits: Tensor = me.model(x)
    return logits
