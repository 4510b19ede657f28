"""One of several classes for each row."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, Self

import torch
from pydantic import BeforeValidator, Field
from torch import Tensor
from torch.nn import functional as F

from polyfed.errors import TaskError, nearest
from polyfed.tasks import probabilities
from polyfed.tasks.class_weights import WeighedClasses
from polyfed.tasks.task import Reading, Tally, Trait, register


@register
class Classification(WeighedClasses):
    """Each row is of one of several classes."""

    name = "classification"
    summary = "one of several classes for each row"
    measure = "accuracy"
    unit = "%"
    traits = frozenset(Trait)
    most = 1.0

    def balanced_weights(self, labels: Tensor) -> Tensor:
        counts = torch.bincount(labels, minlength=len(self._words)).float()
        present = int((counts > 0).sum())
        return torch.where(counts > 0, len(labels) / (present * counts.clamp(min=1)), 1.0)

    def loss(self, outputs: Tensor, labels: Tensor, *, each: bool = False) -> Tensor:
        weights = self._weights
        if weights is not None:
            # Outputs that stand for a public set's classes come behind the private ones, and count 1.
            weights = F.pad(weights, (0, outputs.shape[1] - len(weights)), value=1.0).to(outputs.device)
        return F.cross_entropy(outputs, labels, weight=weights, reduction="none" if each else "mean")

    def answer(self, outputs: Tensor, temperature: float = 1.0) -> Tensor:
        return probabilities.soften(outputs, temperature)

    def divergence(self, outputs: Tensor, answer: Tensor, temperature: float = 1.0) -> Tensor:
        return probabilities.kl(outputs, answer, temperature)

    def soft_loss(self, outputs: Tensor, answer: Tensor, temperature: float = 1.0) -> Tensor:
        return probabilities.cross_entropy(outputs, answer, temperature)

    def sure(self, labels: Tensor, outputs: int) -> Tensor:
        return F.one_hot(labels, outputs).float()

    def sharpened(self, answer: Tensor, temperature: float) -> Tensor:
        return probabilities.soften(answer, temperature)

    def entropy(self, answer: Tensor) -> Tensor:
        return probabilities.entropy(answer)

    def is_answer(self, table: Tensor) -> bool:
        return probabilities.are_probabilities(table)

    def mended(self, answer: Tensor) -> Tensor:
        """Adding up to 1 again."""
        positive = answer.clamp(min=0)
        return positive / positive.sum(dim=-1, keepdim=True)

    def chosen(self, outputs: Tensor) -> Tensor:
        """The number of the class that outputs say."""
        return outputs.argmax(dim=1)

    def decided(self, outputs: Tensor) -> Tensor:
        return self.chosen(outputs)

    def tally(self, outputs: Tensor, labels: Tensor) -> Tally:
        right = (self.chosen(outputs) == labels) & ~outputs.amax(dim=1).isnan()
        return [int(right.sum()), len(labels)]

    def admits(self, tally: Any) -> bool:
        return super().admits(tally) and type(tally[0]) is int

    def blind(self, labels: Tensor) -> float:
        """The share of the most frequent class."""
        return float(torch.bincount(labels).max() / len(labels))

    def read(self, outputs: Tensor, words: Sequence[str]) -> Reading:
        outputs = outputs[:, : len(words)]
        answers = [words[place] for place in self.chosen(outputs).tolist()]
        return Reading(answers, [f"p({word})" for word in words], torch.softmax(outputs, dim=1))

    def tally_of(self, said: Sequence[Any], true: Sequence[Any]) -> Tally:
        return [sum(bool(one == other) for one, other in zip(said, true, strict=True)), len(true)]

    def told(self, tally: Tally) -> str:
        return f"{self.measure} {self.shown(self.value(tally))} % ({tally[0]} of {tally[1]} rows)"


def _as_word(value: Any) -> Any:
    """A class that is a number, as its word."""
    return str(value) if type(value) in (int, float) else value


@register
class Binary(Classification):
    """One of two classes, of which one is looked for."""

    name = "binary"
    summary = "one of two classes for each row, by a threshold"
    traits: ClassVar[frozenset[Trait]] = frozenset(Trait) - {Trait.MANY_CLASSES}

    positive: Annotated[str | None, BeforeValidator(_as_word)] = None
    """The class that is looked for; the second one by default."""
    threshold: Annotated[float, Field(gt=0, lt=1)] = 0.5
    """The probability of that class from which on it is the answer."""

    def for_classes(self, classes: Sequence[str]) -> Self:
        if len(classes) != 2:
            raise TaskError(
                f"task=binary: the data have {len(classes)} classes ({', '.join(classes[:8])}), and two are needed:"
                " set task=classification"
            )
        if self.positive is not None and self.positive not in classes:
            raise TaskError(
                f"task.positive: no class is called '{self.positive:.60}': {nearest(self.positive, classes)}"
            )
        return super().for_classes(classes)

    @property
    def positive_place(self) -> int:
        """The output of the class that is looked for."""
        return 1 if self.positive is None or not self._words else self._words.index(self.positive)

    def chosen(self, outputs: Tensor) -> Tensor:
        place = self.positive_place
        found = torch.softmax(outputs[:, :2], dim=1)[:, place] >= self.threshold
        return torch.where(found, place, 1 - place)

    def readable(self, outputs: Tensor) -> Tensor:
        return super().readable(outputs[:, :2])

    def decides(self, words: Sequence[str]) -> dict[str, str]:
        return {"positive": words[self.positive_place], "threshold": f"{self.threshold:g}"}

    def read(self, outputs: Tensor, words: Sequence[str]) -> Reading:
        own = self if self._words else self.for_classes(words)
        return super(Binary, own).read(outputs, words)


CLASSIFICATION = Classification()
