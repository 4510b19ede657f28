"""FedDF (Lin et al., "Ensemble Distillation for Robust Model Fusion in Federated Learning", 2020).

    server:      w_a ← initial weights, one set per architecture a
    each round:
        train:   every client k:  w_k ← SGD(w_a, D_k)
        answer:  teacher ← mean of the logits, on public data, of *all* received models of every architecture
        fuse:    for each architecture a:
                     w_a ← mean of its clients' w_k;   w_a ← minimise KL(softmax(teacher) ‖ softmax(z_a))
                 scored with the mean of the logits of all w_a, as paper 002 does             → "ensemble"

Teachers stay as they are while students learn, so each answers once on a round's public rows, on whichever core is
free, and is then let go: in memory are a few models and one table of logits, whatever the cohort. The authors stop
early by the accuracy on labelled training data held out on the server, which a server here does not have: the number of
steps is a setting.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Annotated, Any, Literal

from pydantic import Field
from torch import Tensor

from polyfed import learn
from polyfed.errors import RunError
from polyfed.federation import (
    ANY_TASK,
    LABELS,
    Assistant,
    Client,
    Declaration,
    Facts,
    Fields,
    Fleet,
    LikeWeights,
    Method,
    MethodSettings,
    Need,
    Reply,
    Server,
    Weights,
    client_step,
    register,
    server_step,
    stacks,
)
from polyfed.learn import Distillation, TableMean, WeightedMean
from polyfed.methods import local_training
from polyfed.methods import public_distillation as public
from polyfed.schema import Printed


class FedDFSettings(MethodSettings):
    weighting: Annotated[Literal["samples", "uniform"], Printed("uniform", "the authors' code")] = "samples"
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
        own = self.settings
        distances = own.teacher == "logits" and own.distil.loss in ("l1", "l2")  # else classes are compared
        return Declaration(
            sends={"weights": LikeWeights("weights")},
            needs={Need.PUBLIC: ""},
            keeps=self.moments,
            stages=("trained",),
            tasks=ANY_TASK if distances else LABELS,
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

    def received(self, replies: Iterable[Reply], mean: WeightedMean) -> Iterator[Fields]:
        """The clients' models, each added to the mean on its way to teaching."""
        for reply in replies:
            samples = self.settings.weighting == "samples"
            mean.add(reply["weights"], reply.client.samples if samples else 1.0)
            yield {"architecture": reply.client.architecture, "weights": reply["weights"]}

    @server_step
    def answer(self, helper: Assistant, architecture: str, weights: Weights, rows: Tensor) -> Fields:
        """What a received model says of the public rows."""
        assert helper.public is not None
        model = helper.scratch_model(architecture)
        learn.load_weights(model, weights)
        logits = learn.predict(model, helper.inputs(helper.public[rows], model))
        soft = self.settings.teacher == "probabilities"
        return {"answers": learn.soften(logits, self.settings.distil.temperature) if soft else logits}

    def fuse(
        self, server: Server, architecture: str, start: Weights, rows: Tensor, teacher: Tensor
    ) -> Weights:
        """One architecture's mean model, fitted to all teachers."""
        assert server.public is not None
        student = server.build(architecture)
        learn.load_weights(student, start)
        x = server.inputs(server.public[rows], student)
        settings = self.settings.distil.in_round(server.round)
        rng = server.rng(f"fusion {architecture}")
        learn.distil(student, x, teacher.to(server.device), settings, rng, given=self.settings.teacher)
        return learn.weights_of(student)

    def round(self, t: int, fleet: Fleet, server: Server) -> None:
        rows = public.draw_rows(server, self.settings.public_rows)
        models = server.shared_weights()
        cohort = fleet.sample()
        present = dict.fromkeys(facts.architecture for facts in cohort)
        teacher = TableMean()
        for architecture in present:
            members = [facts for facts in cohort if facts.architecture == architecture]
            replies = fleet.stream(self.train, members, weights=models[architecture])
            mean = WeightedMean()
            for said in server.spread(self.answer, self.received(replies, mean), rows=rows):
                teacher.add(said["answers"], 1.0)
            if mean.total:
                models[architecture] |= mean.result()
        if not teacher.total:
            raise RunError(f"round {t}: no client sent a model that is of use")
        for architecture in present:
            models[architecture] = self.fuse(
                server, architecture, models[architecture], rows, teacher.result()
            )
        server.measure("ensemble", models)

    def serves(self, server: Server, client: Facts) -> Weights | None:
        return server.shared_weights()[client.architecture]
