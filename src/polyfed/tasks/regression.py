"""A number for each row."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated, Any, Literal, Self

import torch
from pydantic import BaseModel, Field
from torch import Tensor

from polyfed.data import LARGEST_NUMBER, NUMBER_LABELS
from polyfed.errors import TaskError
from polyfed.schema import SECTION
from polyfed.tasks.task import Reading, Tally, Task, Trait, register


class Scale(BaseModel):
    """What all have agreed on: a number y is learnt as (y − mean) / std."""

    model_config = SECTION

    mean: Annotated[float, Field(ge=-LARGEST_NUMBER, le=LARGEST_NUMBER)] = 0.0
    """What is subtracted."""
    std: Annotated[float, Field(gt=0, le=LARGEST_NUMBER)] = 1.0
    """By what the rest is divided."""


@register
class Regression(Task):
    """Each row has a number.

    Models learn it on a scale that all have agreed on, since what they exchange must mean the same; scores and answers
    are in the number's own unit.
    """

    name = "regression"
    summary = "a number for each row"
    measure = "RMSE"
    smaller_is_better = True
    traits = frozenset({Trait.TABLE})
    targets = NUMBER_LABELS

    scale: Scale | Literal["auto", "public", "pooled", "none"] = "auto"
    """On which scale numbers are learnt: {mean: 150, std: 80} as all have agreed; public, by mean and deviation of the
    public rows' labels; none, as they are; pooled, of everybody's training rows, which they then have told each other.
    auto: public where public rows have labels; where not, the scale must be given."""
    unit_name: Annotated[str, Field(max_length=40)] = ""
    """What the numbers are in, for tables and figures: mmHg."""

    def settled(self, given: Tensor | None, public: Tensor | None) -> Self:
        if isinstance(self.scale, Scale):
            return self
        if self.scale == "none":
            return self.model_copy(update={"scale": Scale()})
        if self.scale == "pooled":
            if given is None:
                raise TaskError(
                    "task.scale: pooled needs everybody's labels in one place, and each client has its own data: give"
                    " the scale that all have agreed on, task.scale={mean: …, std: …}, or use public"
                )
            return self.model_copy(update={"scale": _scale_of(given)})
        if public is None:
            raise TaskError(
                "task.scale: clients must agree on the scale of the number that is learnt: give it,"
                " task.scale={mean: 150, std: 80}; or set public, with labelled public rows; or pooled (of everybody's"
                " training rows), or none (as it is)"
            )
        return self.model_copy(update={"scale": _scale_of(public)})

    def left_open(self) -> frozenset[str]:
        return frozenset() if isinstance(self.scale, Scale) else frozenset({"scale"})

    def agreed(self) -> Scale:
        """The scale, where it is known; before a run is set up, numbers as they are."""
        return self.scale if isinstance(self.scale, Scale) else Scale()

    def loss(self, outputs: Tensor, labels: Tensor, *, each: bool = False) -> Tensor:
        scale = self.agreed()
        rows = (outputs[:, 0] - (labels - scale.mean) / scale.std).square()
        return rows if each else rows.mean()

    def answer(self, outputs: Tensor, temperature: float = 1.0) -> Tensor:
        return outputs

    def divergence(self, outputs: Tensor, answer: Tensor, temperature: float = 1.0) -> Tensor:
        """The squared distance: the loss, if the teacher's answers were the labels."""
        return (outputs - answer.detach()).square().sum(dim=1).mean()

    def examples(self, rows: int, outputs: int, stream: torch.Generator) -> Tensor:
        scale = self.agreed()
        return torch.randn(rows, generator=stream) * scale.std + scale.mean

    def tally(self, outputs: Tensor, labels: Tensor) -> Tally:
        wrong = (self.decided(outputs) - labels.double()).square()
        return [float(wrong.sum()), len(labels)]

    def decided(self, outputs: Tensor) -> Tensor:
        """Numbers in their own unit; one that is not finite is as far off as numbers can be."""
        scale = self.agreed()
        said = outputs[:, 0].double() * scale.std + scale.mean
        return said.nan_to_num(LARGEST_NUMBER, LARGEST_NUMBER, -LARGEST_NUMBER).clamp(
            -LARGEST_NUMBER, LARGEST_NUMBER
        )

    def value(self, tally: Sequence[Any]) -> float:
        return math.sqrt(tally[0] / tally[1])

    def admits(self, tally: Any) -> bool:
        return super().admits(tally) and type(tally[0]) is float

    def blind(self, labels: Tensor) -> float:
        """Of saying the mean of every row."""
        return float(labels.double().std(correction=0))

    @property
    def shown_unit(self) -> str:
        return self.unit_name

    def read(self, outputs: Tensor, words: Sequence[str]) -> Reading:
        scale = self.agreed()
        numbers = outputs[:, :1].double() * scale.std + scale.mean
        return Reading(numbers[:, 0].tolist(), [], numbers[:, :0])

    given_as = "numbers"

    def given(self, outputs: Tensor, classes: int) -> Tensor:
        scale = self.agreed()
        return outputs[:, :1] * scale.std + scale.mean

    def answer_title(self, words: Sequence[str]) -> str:
        return words[0]

    def as_told(self, answer: Any) -> str:
        return f"{answer:.9g}"  # all that a float of 32 bits holds

    def tally_of(self, said: Sequence[Any], true: Sequence[Any]) -> Tally:
        pairs = zip(said, true, strict=True)
        return [math.fsum((one - other) ** 2 for one, other in pairs), len(true)]


def _scale_of(labels: Tensor) -> Scale:
    """Mean and deviation, in few digits: they are told to all, and stand in the run file."""
    numbers = labels.double()
    std = float(numbers.std(correction=0))
    mean = float(f"{float(numbers.mean()):.6g}")
    return Scale(mean=mean, std=float(f"{std:.6g}") if std > 0 else 1.0)
