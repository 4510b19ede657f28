"""FedDF (Lin et al., "Ensemble Distillation for Robust Model Fusion in Federated Learning", 2020).
https://arxiv.org/abs/2006.07242

    server:      w_a ← initial weights, one set per architecture a
    each round:
        train:   every client k:  w_k ← SGD(w_a, D_k)
        answer:  teacher ← mean of the logits, on public data, of *all* received models of every architecture
        fuse:    for each architecture a:
                     w_a ← mean of its clients' w_k;   w_a ← minimise KL(softmax(teacher) ‖ softmax(z_a))
                 scored with the mean of the logits of all w_a, as in FedORION's paper        → "ensemble"

Teachers stay as they are while students learn, so each answers once on a round's public rows, on whichever core is
free, and is then let go: in memory are a few models and one table of logits, whatever the cohort. The authors stop
early by the accuracy on labelled training data held out on the server, which a server here does not have: the number of
steps is a setting.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field
from torch import Tensor

from polyfed import learn
from polyfed.errors import RunError
from polyfed.federation import (
    TABLES,
    Assistant,
    Client,
    Declaration,
    Fields,
    Fleet,
    LikeWeights,
    Method,
    MethodSettings,
    Need,
    Server,
    Weights,
    client_step,
    register,
    server_step,
    stacks,
)
from polyfed.learn import Distillation, TableMean, WeightedMean
from polyfed.methods import averaging, local_training
from polyfed.methods import public_distillation as public
from polyfed.schema import Printed


class FedDFSettings(MethodSettings):
    weighting: Annotated[averaging.Weighting, Printed("uniform", "the authors' code")] = "samples"
    """Whether a client counts by its number of samples in the mean of the weights, or all count the same."""
    public_rows: Annotated[int, Field(ge=1)] = 5000
    """Public rows per round, drawn anew each time; all of them if there are fewer."""
    distil: Distillation = Distillation(epochs=5, optimiser="adam", lr=1e-3, batch=64, clip=5.0, cosine=True)
    """The fusion. The authors take up to 10,000 steps per round."""
    teacher: Literal["logits", "probabilities"] = "logits"
    """What is averaged over the teachers."""


def _train_together(self: FedDF, us: list[Client], payloads: list[dict[str, Any]]) -> list[Fields] | None:
    for me, payload in zip(us, payloads, strict=True):
        learn.load_weights(me.model, payload["weights"])
    return [self.trained(me) for me in us] if local_training.train_together(us) else None


@register
class FedDF(Method):
    """One model per architecture, fused from all clients' models by distillation on public data."""

    name = "feddf"
    summary = "models fused on the server by distillation from all clients' models (Lin et al. 2020)"
    Settings = FedDFSettings
    settings: FedDFSettings

    def declare(self) -> Declaration:
        return Declaration(
            sends={"weights": LikeWeights("weights")},
            needs={Need.PUBLIC: ""},
            keeps=self.moments,
            stages=("trained",),
            tasks=TABLES,
        )

    @client_step(sends=("weights",))
    @stacks(_train_together)
    def train(self, me: Client, weights: Weights) -> Fields:
        learn.load_weights(me.model, weights)
        local_training.train(me)
        return self.trained(me)

    def trained(self, me: Client) -> Fields:
        me.measure("trained", whole=False)
        return {"weights": learn.weights_of(me.model)}

    @server_step
    def answer(self, helper: Assistant, architecture: str, weights: Weights, rows: Tensor) -> Fields:
        """What a received model says of the public rows."""
        outputs = public.received_outputs(helper, architecture, weights, rows)
        soft = self.settings.teacher == "probabilities"
        return {"answers": helper.task.answer(outputs, self.settings.distil.temperature) if soft else outputs}

    def round(self, t: int, fleet: Fleet, server: Server) -> None:
        rows = public.draw_rows(server, self.settings.public_rows)
        groups = averaging.by_architecture(fleet.sample())
        share, teacher = averaging.share(self.settings.weighting), TableMean()
        with server.spread(
            self.answer, fold=lambda said: teacher.add(said["answers"], 1.0), rows=rows
        ) as teachers:
            for architecture, members in groups.items():
                mean = WeightedMean()
                for reply in fleet.stream(self.train, members, weights=server.weights(architecture)):
                    mean.add(reply["weights"], share(reply.client))
                    teachers.put(architecture=architecture, weights=reply["weights"])
                server.put_weights(architecture, mean.result())
        if not teacher.total:
            raise RunError(f"round {t}: no client sent a model that is of use")
        for architecture in groups:
            self.fuse(server, architecture, rows, teacher.result())
        server.measure("ensemble", {name: server.weights(name) for name in server.roster.architectures})

    def fuse(self, server: Server, architecture: str, rows: Tensor, teacher: Tensor) -> None:
        """One architecture's mean model, fitted to all teachers."""
        assert server.public is not None
        student = server.build(architecture)
        learn.load_weights(student, server.weights(architecture))
        x = server.inputs(server.public[rows], student)
        settings = self.settings.distil.in_round(server.round)
        rng = server.rng(f"fusion {architecture}")
        given: learn.AnswerForm = "answers" if self.settings.teacher == "probabilities" else "outputs"
        learn.distil(student, x, teacher.to(server.device), settings, rng, given=given, task=server.task)
        server.put_weights(architecture, learn.weights_of(student))
