"""What a student is told to minimise when it learns from another's answers.

Every loss takes the student's outputs and what the teacher says (its outputs, or the answer that the task makes of
them, such as probabilities), rows × outputs each, and is a mean over the rows. Over the outputs it is summed, as the
papers' norms and divergences are written, or averaged, as `nn.L1Loss` and FedMD's code do it: with 30 outputs that is
30 times the gradient, so the choice is a setting and never a default of the framework. The teacher is a constant: no
gradient reaches it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Literal, Self, TypeAlias

import torch
from pydantic import Field, model_validator
from torch import Tensor

from polyfed.learn.schedule import Schedule
from polyfed.learn.training import Training
from polyfed.tasks import CLASSIFICATION, Task

KnowledgeLoss: TypeAlias = Callable[[Tensor, Tensor], Tensor]
AnswerForm: TypeAlias = Literal["outputs", "answers"]
LossName: TypeAlias = Literal["l1", "l2", "ce", "kl"]
Temperature: TypeAlias = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class Distillation(Training):
    """How a student learns from answers on public data: training, and the loss it minimises."""

    loss: LossName = "kl"
    """l1, l2: distance of the outputs (logits). kl: the task's divergence, of the softened probabilities; ce: the same
    gradient with another value. Where a number is learnt, both are the squared distance."""
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


def knowledge_loss(
    settings: Distillation, *, given: AnswerForm, task: Task = CLASSIFICATION
) -> KnowledgeLoss:
    """The loss that the settings name, for a teacher that gives its outputs or its answers.

    With answers, l1 and l2 are distances between answers, and the teacher has softened them itself.
    """
    return _knowledge_loss(settings.loss, settings.reduce, settings.temperature, given == "answers", task)


def _knowledge_loss(
    name: LossName, reduce: str, temperature: float, answered: bool, task: Task
) -> KnowledgeLoss:
    distance = {"l1": torch.abs, "l2": torch.square}.get(name)
    divergence = task.soft_loss if name == "ce" else task.divergence

    def loss(outputs: Tensor, answer: Tensor) -> Tensor:
        if distance is not None:
            student = task.answer(outputs, temperature) if answered else outputs
            value = distance(student - answer.detach()).sum(dim=1).mean()
        else:
            target = answer if answered else task.answer(answer, temperature)
            value = divergence(outputs, target, temperature)
        return value / outputs.shape[1] if reduce == "mean" else value

    return loss
