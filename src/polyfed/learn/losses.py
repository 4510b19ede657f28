"""What a student is told to minimise when it learns from another's answers.

Every loss takes the student's logits and the teacher's answer (logits, or probabilities where it says so), rows ×
outputs each, and is a mean over the rows. Over the outputs it is summed, as the papers' norms and divergences are
written, or averaged, as `nn.L1Loss` and FedMD's code do it: with 30 outputs that is 30 times the gradient, so the
choice is a setting and never a default of the framework. The teacher is a constant: no gradient reaches it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Literal, Self, TypeAlias

import torch
from pydantic import Field, model_validator
from torch import Tensor
from torch.nn import functional as F

from polyfed.learn.schedule import Schedule
from polyfed.learn.training import Training

KnowledgeLoss: TypeAlias = Callable[[Tensor, Tensor], Tensor]
LossName: TypeAlias = Literal["l1", "l2", "ce", "kl"]
Temperature: TypeAlias = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class Distillation(Training):
    """How a student learns from answers on public data: training, and the loss it minimises."""

    loss: LossName = "kl"
    """l1, l2: distance of the logits. ce, kl: of the softened probabilities (equal gradients, other values)."""
    reduce: Literal["mean", "sum"] = "sum"
    """Over the outputs; over the rows it is always a mean. With 30 outputs, sum is 30 times the mean."""
    temperature: Temperature = 1.0
    """Softens teacher and student alike (ce and kl). There is no factor T²: multiply `lr` if you want one."""
    cosine: bool = False
    """Short for `within: cosine`: the learning rate falls along a cosine over the steps of one round (FedDF)."""

    @model_validator(mode="after")
    def _check_distillation(self) -> Self:
        if self.cosine and self.within.changes:
            raise ValueError("`cosine` is short for `within: cosine`: set cosine=false to have another")
        if self.sampling != "all":
            raise ValueError(
                "`sampling` is for labelled rows, and here answers are learnt from: leave it out"
            )
        return self

    @property
    def within_round(self) -> Schedule | None:
        return Schedule(kind="cosine") if self.cosine else super().within_round


def soften(logits: Tensor, temperature: float = 1.0) -> Tensor:
    """Probabilities at a temperature: softmax(z / T)."""
    return F.softmax(logits / temperature, dim=1)


def are_probabilities(table: Tensor) -> bool:
    """Whether no number is below 0 and every row adds up to 1, as exactly as its precision allows."""
    # Half precision is right to 1 in 2048, and what is in 32 bits now may have travelled in it.
    exact = 1e-3 if table.dtype == torch.float32 else 1e-2
    rows = table.float().numpy(force=True)  # numpy takes a quarter of torch's time for a few numbers
    # NaN is neither above nor below anything; what is above 2 might add up to infinity.
    return bool((rows >= 0).all() and (rows <= 2).all() and (abs(rows.sum(axis=1) - 1) <= exact).all())


def cross_entropy(logits: Tensor, probabilities: Tensor, temperature: float = 1.0) -> Tensor:
    """−Σ p log softmax(z / T), a mean over rows (LwF; Shi, Radu and Yang 2022, Eq. 3: no factor T²)."""
    return -(probabilities.detach() * F.log_softmax(logits / temperature, dim=1)).sum(dim=1).mean()


def kl(logits: Tensor, probabilities: Tensor, temperature: float = 1.0) -> Tensor:
    """KL(teacher ‖ student) = Σ p (log p − log softmax(z / T)), a mean over rows."""
    target = probabilities.detach()
    return F.kl_div(F.log_softmax(logits / temperature, dim=1), target, reduction="batchmean")


def entropy(probabilities: Tensor) -> Tensor:
    """−Σ p log p of every row, in nats; 0 log 0 is 0."""
    each: Tensor = torch.special.entr(probabilities)
    return each.sum(dim=1)


def knowledge_loss(settings: Distillation, *, given: Literal["logits", "probabilities"]) -> KnowledgeLoss:
    """The loss that the settings name, for a teacher that answers with logits or with probabilities.

    With probabilities, l1 and l2 are distances between probabilities, and the teacher has softened them itself.
    """
    return _knowledge_loss(settings.loss, settings.reduce, settings.temperature, given == "probabilities")


def _knowledge_loss(name: LossName, reduce: str, temperature: float, probable: bool) -> KnowledgeLoss:
    distance = {"l1": torch.abs, "l2": torch.square}.get(name)
    divergence = cross_entropy if name == "ce" else kl

    def loss(logits: Tensor, answer: Tensor) -> Tensor:
        if distance is not None:
            student = soften(logits, temperature) if probable else logits
            value = distance(student - answer.detach()).sum(dim=1).mean()
        else:
            target = answer if probable else soften(answer, temperature)
            value = divergence(logits, target, temperature)
        return value / logits.shape[1] if reduce == "mean" else value

    return loss
