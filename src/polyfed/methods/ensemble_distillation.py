"""Many received networks of one architecture, distilled as an ensemble into the server's on public data.

answer:  z_k ← what network k says of the public rows
merge:   Θ ← element-wise maximum of z_k, their mean, or the share of votes for each class
distil:  θ_g ← minimise KL(softmax(Θ) ‖ softmax(θ_g))
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from typing import Annotated, Literal, TypeAlias

from pydantic import Field
from torch import Tensor
from torch.nn import functional as F

from polyfed import learn
from polyfed.federation import CLASSES, LABELS, TABLES, Assistant, Fields, MethodSettings, Server, Weights
from polyfed.learn import AnswerForm, Distillation, TableMax, TableMean, WeightedMean
from polyfed.methods import public_distillation as public
from polyfed.schema import Printed
from polyfed.tasks import Trait

Merged: TypeAlias = TableMax | TableMean


class EnsembleSettings(MethodSettings):
    ensemble: Literal["max", "mean", "vote"] = "max"
    """The ensemble's answer: element-wise maximum (Eq. 5) or mean of the logits, or each class's share of the votes, so
    that of a tie each has its part."""
    centre: bool = False
    """Whether each network's logits are first shifted to mean 0 on every row: a constant added to all logits changes no
    probability, but it does change the maximum."""
    start: Annotated[Literal["global", "average"], Printed("global", "the authors' code")] = "average"
    """What is distilled into: the last global network, or the mean of the received ones, as in FedDF."""
    statistics: Literal["public", "clients"] = "public"
    """BatchNorm's running statistics after distillation: those of the public rows, or the mean of the clients'."""
    labels: bool = False
    """Whether half of the server's loss is the cross-entropy to the labels of the public rows (authors: true)."""
    public_rows: Annotated[int, Field(ge=1)] = 5000
    """Public rows per round, drawn anew each time; all of them if there are fewer."""
    distil: Distillation = Distillation(epochs=5, batch=64, lr=0.05, cosine=True)
    """The distillation of the ensemble. The paper has one η for clients and server, so the default is that of
    `training.lr`; the authors' code takes 0.01, with which a network hardly learns where public rows are few, and as
    many epochs as a client makes."""

    def tasks(self) -> Mapping[Trait, str]:
        """What a task must have: votes and shifted logits are of one class each, and a maximum is of probabilities."""
        if self.ensemble == "vote":
            return {**CLASSES, Trait.ONE_CLASS: "method.ensemble=mean"}
        if self.centre:
            return {**CLASSES, Trait.ONE_CLASS: "method.centre=false"}
        return {**LABELS, Trait.PROBABILITIES: "method.ensemble=mean"} if self.ensemble == "max" else TABLES

    def merging(self) -> Merged:
        """What answers are added to as they come: one table in memory, however many there are."""
        return TableMax() if self.ensemble == "max" else TableMean()


def answer(
    helper: Assistant, weights: Weights, architecture: str, rows: Tensor, settings: EnsembleSettings
) -> Fields:
    """What a received network adds to the ensemble's answer on the public rows: logits, or a vote for each row."""
    logits = public.received_outputs(helper, architecture, weights, rows)
    if settings.ensemble == "vote":
        return {"answers": F.one_hot(logits.argmax(dim=1), logits.shape[1]).to(logits.dtype)}
    return {"answers": logits - logits.mean(dim=1, keepdim=True) if settings.centre else logits}


def distil(
    server: Server, rows: Tensor, teacher: Merged, mean: WeightedMean, settings: EnsembleSettings
) -> None:
    """Fit the server's network to the ensemble's answer on the public rows; without teachers it stays as it is.

    mean: of the received networks, for what begins with it or is taken from it.
    """
    assert server.model is not None
    if not teacher.total:
        server.measure("global")
        return
    of_clients = settings.statistics == "clients"
    taken = {
        name: tensor
        for name, tensor in mean.result().items()
        if settings.start == "average" or (of_clients and learn.is_statistic(name))
    }
    learn.load_weights(server.model, taken, partly=True)
    server.model.train()
    given: AnswerForm = "answers" if settings.ensemble == "vote" else "outputs"
    with learn.batch_statistics(server.model) if of_clients else nullcontext():
        public.distil_server(server, rows, teacher.result(), settings.distil, given, labels=settings.labels)
