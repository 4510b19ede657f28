"""FedKF (Zhou et al., "Handling Data Heterogeneity in Federated Learning via Knowledge Fusion", 2022).
https://arxiv.org/abs/2207.11447

Clients fuse what their own data say with what the teacher knows, without any public data (T2): a generator learns to
make inputs of which the teacher is sure, and the student learns from both.

    server:  w^S, w^T, w̄_k ← initial weights, for every client k                                         (s1, s2)
    each round t:
        S_t ← cohort                                                                                         (s3)
        fuse:  each client k in S_t:  student w ← w^S, generator θ ← θ_0                             (s4, c1, c2)
               for each batch b of D_k, in each epoch:                                                       (c3)
                   Z ← noise                                                                                 (c4)
                   θ ← Adam on  L_G = L_IE + λ1 L_CE + λ2 L_A  of the teacher's answers to G(θ; Z)    (c5, Eq. 4)
                   w ← SGD on  L_S = CE(w; b) + γ KL(teacher ‖ student) on G(θ; Z)                    (c6, Eq. 7)
        w̄_k ← w_k for k in S_t                                                                               (s5)
        w^S ← Σ_k n_k w_k / Σ_k n_k over S_t (ACA);   w^T ← Σ_k n_k w̄_k / Σ_k n_k over all clients (OCA)     (s6)
    w^T is what is served                                                                                    (s7)

The teacher is the mean of everybody's last model (T1, see `last_models`); with `inactive: ignore` it is that of the
cohort's, which is the start too: the authors' "FedKF-". Both go down once for all clients, and one only if they are the
same.

`flavour: authors` sets what differs in the authors' code (see `AUTHORS`); each is a setting of its own. Two are left to
the user, since there they depend on the data: `noise: 1000` for CIFAR, and `adversarial: false` for EMNIST. In neither
flavour as in their code: it leaves out a last batch that is not full, here it counts; two BatchNorm layers of its
generator have an epsilon of 0.8, here the usual 1e-5. Where the student steps first, one pass of generator and teacher
serves both steps; where the generator does, the student learns from what the changed generator makes, which takes a
second pass.

The paper's models have no BatchNorm. Where there is some, the student normalises generated inputs among themselves and
keeps them out of its running statistics, which are those of the clients' data; the teacher, in evaluation mode,
normalises them by its running statistics.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import torch
from pydantic import model_validator
from torch import Tensor, nn

from polyfed import learn
from polyfed.federation import (
    Client,
    Declaration,
    Facts,
    FederationFacts,
    Fields,
    Fleet,
    Kind,
    LikeWeights,
    Method,
    Need,
    Server,
    Weights,
    client_step,
    register,
)
from polyfed.methods import averaging, imitation, last_models
from polyfed.models import features_and_logits

AUTHORS = {
    **{"keep_generator": True, "entropy": "normalised", "activation": "mean", "adversarial": True},
    **{"equal_steps": True, "first": "student", "plain_first_round": True, "unseen": "left-out"},
}


class FedKFSettings(imitation.ImitationSettings):
    flavour: Literal["paper", "authors"] = "paper"
    """Where the paper and its authors' code differ, settings that are not given are as in the one or the other."""
    inactive: Literal["cached", "ignore"] = "cached"
    """What clients that are not in a round's cohort count: the teacher is the mean of everybody's last model, or of the
    cohort's alone."""
    unseen: last_models.Unseen = "initial"
    """With `inactive: cached`, what counts for clients that never took part: the initial weights, or nothing (authors:
    left-out)."""
    equal_steps: bool = False
    """Whether all clients make as many steps as the mean client has whole batches in its epochs (authors: true)."""
    plain_first_round: bool = False
    """Whether clients learn from their own data alone in the first round (authors: true)."""

    @model_validator(mode="before")
    @classmethod
    def _fill_flavour(cls, given: Any) -> Any:
        coded = isinstance(given, Mapping) and given.get("flavour") == "authors"
        return {**AUTHORS, **given} if coded else given


@register
class FedKF(Method):
    """Local and global knowledge, fused on the client without public data."""

    name = "fedkf"
    summary = "clients also learn the global model's answers to inputs that they generate (Zhou et al. 2022)"
    Settings = FedKFSettings
    settings: FedKFSettings

    def declare(self) -> Declaration:
        return Declaration(
            sends={"weights": LikeWeights("weights")},
            tells={"teacher": Kind.WEIGHTS, "steps": Kind.CONTROL},
            needs={Need.COMMON_ARCHITECTURE: ""},
            keeps={"memory"} if self.settings.keep_generator else self.moments,
            stages=("fused",),
            notes=("generator-bytes",),
            single_replies=self.settings.inactive == "cached",
        )

    def check(self, federation: FederationFacts) -> None:
        imitation.check(federation)

    @client_step(sends=("weights",))
    def fuse(self, me: Client, weights: Weights, teacher: Weights, steps: int | None) -> Fields:
        learn.load_weights(me.model, weights)
        training = me.training if steps is None else me.training.model_copy(update={"steps": steps})
        if self.settings.plain_first_round and me.round == 1:
            learn.supervised(
                me.model, *me.tensors(me.train), training, me.rng("batches"), memory=me.memory, task=me.task
            )
        else:
            model = me.scratch_model(me.facts.architecture)
            learn.load_weights(model, teacher or weights)
            with learn.evaluating(model), learn.frozen(model):
                self.client_update(me, model, training)
        me.measure("fused", whole=False)
        return {"weights": learn.weights_of(me.model)}

    def client_update(self, me: Client, teacher: nn.Module, training: learn.Training) -> None:
        x, y = me.tensors(me.train)
        imitator = imitation.Imitator(me, self.settings)
        total = learn.batch_count(len(x), training, me.model)
        student = learn.Learner(me.model, training, me.memory, total=total)
        weights = learn.row_weights(y, training)

        def step_student(rows: Tensor, batch: Tensor, seen: Tensor, answers: Tensor) -> None:  # c6, Eq. 7
            own = me.task.loss(me.model(batch), y[rows])
            student.step(own + self.settings.gamma * imitation.divergence(me.model, seen, answers))

        for rows, batch in learn.batches(x, training, me.rng("batches"), me.model, weights=weights):
            noise = imitator.noise(training.batch)
            made = imitator.imitate(noise)
            features, logits = features_and_logits(teacher, made)
            if (
                self.settings.first == "generator"
            ):  # as printed: c5, and c6 on what the changed generator makes
                imitator.learn(made, features, logits, me.model)
                with torch.no_grad():
                    again = imitator.imitate(noise)
                    answers = teacher(again)
                step_student(rows, batch, again, answers)
            else:  # the authors' code: one pass serves both
                step_student(rows, batch, made.detach(), logits.detach())
                imitator.learn(made, features, logits, me.model)
        student.finish()
        me.note("generator-bytes", imitator.finish())

    def prepare(self, fleet: Fleet, server: Server) -> None:
        samples = sum(facts.samples for facts in server.roster)
        whole = samples // (len(server.roster) * self.training.batch)
        equal = self.settings.equal_steps and self.training.steps is None
        server.memory["steps"] = max(1, self.training.epochs * whole) if equal else None

    def round(self, t: int, fleet: Fleet, server: Server) -> None:
        if not (cohort := fleet.sample()):
            return
        [architecture] = server.roster.architectures
        cached = self.settings.inactive == "cached"
        source = last_models.Caching(fleet, server, self.settings.unseen) if cached else fleet
        overall = last_models.served(server, architecture) if cached and t > 1 else {}
        told = {"weights": server.weights(architecture), "teacher": overall, "steps": server.memory["steps"]}
        active = source.mean(self.fuse, cohort, "weights", share=averaging.share(), default={}, **told)
        server.put_weights(architecture, active)

    def serves(self, server: Server, client: Facts) -> Weights | None:
        return last_models.served(server, client.architecture)
