"""FedDF (Lin et al., "Ensemble Distillation for Robust Model Fusion in Federated Learning", 2020).

    server:      w_a ← initial weights, one set an architecture a
    each round:
        client:  w_k ← SGD(w_a, D_k)
        server:  teacher ← mean of the logits, on public data, of *all* received models of every architecture
                 for each architecture a:
                     w_a ← mean of its clients' w_k;   w_a ← minimise KL(softmax(teacher) ‖ softmax(z_a))
                 scored with the mean of the logits of all w_a, as paper 002 does             → "ensemble"

Teachers stay as they are while students learn, so each answers once on a round's public rows, and is then let go: in
memory are one model an architecture and one table of logits, whatever the cohort. The authors stop early by the
accuracy on labelled training data held out on the server, which a server here does not have: the number of steps is
a setting.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from polyfed import learn
from polyfed.data import Rows
from polyfed.errors import ModelError, RunError
from polyfed.federation.message import Kind, Weights
from polyfed.federation.method import Need, register
from polyfed.federation.nodes import Server
from polyfed.learn import Distillation
from polyfed.methods.fedavg import FedAvg, FedAvgSettings

if TYPE_CHECKING:
    from polyfed.federation.fleet import Fleet, Reply


class FedDFSettings(FedAvgSettings):
    weighting: Literal["samples", "uniform"] = "uniform"
    within: Literal["architecture"] = "architecture"
    """Always among the clients of each architecture."""
    batch_norm: Literal["average"] = "average"
    """Always averaged: a teacher needs all of its weights."""
    public_rows: Annotated[int, Field(ge=1)] = 5000
    """Public rows a round, drawn anew each time; all of them if there are fewer."""
    distil: Distillation = Distillation(epochs=5, optimiser="adam", lr=1e-3, batch=64, clip=5.0, cosine=True)
    """The fusion. The authors take up to 10,000 steps a round."""
    teacher: Literal["logits", "probabilities"] = "logits"
    """What is averaged over the teachers."""


@register
class FedDF(FedAvg):
    """One model an architecture, fused from all clients' models by distillation on public data."""

    name = "feddf"
    summary = "models fused on the server by distillation from all clients' models (Lin et al. 2020)"
    sends: ClassVar = {"weights": Kind.WEIGHTS}
    Settings = FedDFSettings
    settings: FedDFSettings

    @property
    def needs(self) -> frozenset[Need]:
        return frozenset({Need.PUBLIC})

    def round(self, t: int, fleet: Fleet, server: Server) -> None:
        assert server.public is not None
        order = torch.randperm(len(server.public), generator=server.rng("public rows"))
        teachers = Teachers(server, server.public[order[: self.settings.public_rows].sort().values])
        models = server.shared_weights()
        cohort = fleet.sample()
        present = dict.fromkeys(facts.architecture for facts in cohort)
        for architecture in present:
            members = [facts for facts in cohort if facts.architecture == architecture]
            replies = fleet.stream(self.train, members, weights=models[architecture])
            replies = self.listened(fleet, replies, teachers)
            models[architecture] |= self.mean(fleet, replies, "weights", models[architecture])
        for architecture in present:
            models[architecture] = self.fused(architecture, models[architecture], teachers)
        server.measure("ensemble", models)

    def listened(self, fleet: Fleet, replies: Iterable[Reply], teachers: Teachers) -> Iterator[Reply]:
        """The replies as they come, once their models have taught; what does not fit is left out, with its reason."""
        for reply in replies:
            try:
                teachers.listen(reply.client.architecture, reply.fields.get("weights"), self.settings)
            except ModelError as error:
                fleet.reject(reply, str(error))
            else:
                yield reply

    def fused(self, architecture: str, start: Weights, teachers: Teachers) -> Weights:
        """One architecture's mean model, fitted to all teachers."""
        student = teachers.model(architecture)
        learn.load_weights(student, start)
        learn.distil(
            student,
            teachers.inputs(student),
            teachers.mean(),
            self.settings.distil,
            teachers.server.rng(f"fusion {architecture}"),
            given=self.settings.teacher,
        )
        return learn.weights_of(student)


class Teachers:
    """What all received models say of a round's public rows, added up as they come in."""

    def __init__(self, server: Server, rows: Rows) -> None:
        self.server = server
        self.rows = rows
        self.total: Tensor | None = None
        self.count = 0
        self._models: dict[str, nn.Module] = {}

    def model(self, architecture: str) -> nn.Module:
        """A model of this architecture to load weights into."""
        if architecture not in self._models:
            self._models[architecture] = self.server.build(architecture)
        return self._models[architecture]

    def inputs(self, model: nn.Module) -> Tensor:
        return self.server.inputs(self.rows, model)

    def listen(self, architecture: str, weights: Any, settings: FedDFSettings) -> None:
        """Add one model's answers; `ModelError` if the weights do not fit."""
        model = self.model(architecture)
        learn.load_weights(model, weights)
        logits = learn.predict(model, self.inputs(model))
        answers = (
            logits if settings.teacher == "logits" else learn.soften(logits, settings.distil.temperature)
        )
        self.total = answers if self.total is None else self.total + answers
        self.count += 1

    def mean(self) -> Tensor:
        if self.total is None:
            raise RunError(f"round {self.server.round}: not one usable model was received")
        return self.total / self.count
