"""Several classes at once: each is there or not, whatever the others are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional as F

from polyfed.data import SEVERAL_LABELS
from polyfed.tasks import probabilities
from polyfed.tasks.class_weights import WeighedClasses
from polyfed.tasks.task import Reading, Tally, Trait, register


@register
class MultiLabel(WeighedClasses):
    """Each row has any number of classes; each class is a question of its own.

    Losses and divergences are sums over the classes, as those of a classification are.
    """

    name = "multilabel"
    summary = "any number of classes for each row"
    measure = "F1 of a row"
    unit = "%"
    traits = frozenset({Trait.TABLE, Trait.PROBABILITIES})
    targets = SEVERAL_LABELS
    most = 1.0

    threshold: Annotated[float, Field(gt=0, lt=1)] = 0.5
    """The probability from which on a class is said to be there."""

    def balanced_weights(self, labels: Tensor) -> Tensor:
        has = labels.sum(dim=0)
        return torch.where(has > 0, (len(labels) - has) / has.clamp(min=1), 1.0).clamp(min=1e-3)

    def loss(self, outputs: Tensor, labels: Tensor, *, each: bool = False) -> Tensor:
        weights = None if self._weights is None else self._weights.to(outputs.device)
        rows = F.binary_cross_entropy_with_logits(
            outputs, labels.to(outputs.dtype), pos_weight=weights, reduction="none"
        ).sum(dim=1)
        return rows if each else rows.mean()

    def answer(self, outputs: Tensor, temperature: float = 1.0) -> Tensor:
        return torch.sigmoid(outputs / temperature)

    def divergence(self, outputs: Tensor, answer: Tensor, temperature: float = 1.0) -> Tensor:
        """KL(teacher ‖ student) of each class being there or not."""
        answer = answer.detach()
        return self.soft_loss(outputs, answer, temperature) - self.entropy(answer).mean()

    def soft_loss(self, outputs: Tensor, answer: Tensor, temperature: float = 1.0) -> Tensor:
        target = answer.detach().clamp(0, 1)
        each = F.binary_cross_entropy_with_logits(outputs / temperature, target, reduction="none")
        return each.sum(dim=1).mean()

    def sure(self, labels: Tensor, outputs: int) -> Tensor:
        return labels.float()

    def sharpened(self, answer: Tensor, temperature: float) -> Tensor:
        """softmax of p / T and (1 − p) / T, for each class."""
        return torch.sigmoid((2 * answer - 1) / temperature)

    def entropy(self, answer: Tensor) -> Tensor:
        return probabilities.entropy(answer) + probabilities.entropy((1 - answer).clamp(min=0))

    def is_answer(self, table: Tensor) -> bool:
        return probabilities.are_in_range(table)

    def mended(self, answer: Tensor) -> Tensor:
        return answer.clamp(0, 1)

    def examples(self, rows: int, outputs: int, stream: torch.Generator) -> Tensor:
        return torch.randint(2, (rows, outputs), generator=stream).float()

    def tally(self, outputs: Tensor, labels: Tensor) -> Tally:
        """The mean over rows of 2 |said and true| / (|said| + |true|); 1 where both are empty."""
        said, true = torch.sigmoid(outputs) >= self.threshold, labels > 0
        sizes = said.sum(dim=1) + true.sum(dim=1)
        shared = 2 * (said & true).sum(dim=1).double()
        rows = torch.where(sizes > 0, shared / sizes.clamp(min=1), 1.0)
        rows = torch.where(outputs.isnan().any(dim=1), 0.0, rows)
        return [float(rows.sum()), len(labels)]

    def admits(self, tally: Any) -> bool:
        return super().admits(tally) and type(tally[0]) is float

    def blind(self, labels: Tensor) -> float:
        """Of saying the same classes of every row: the most frequent ones, however many are best."""
        order = labels.sum(dim=0).argsort(descending=True)
        said = torch.full_like(labels, -1.0)
        scores = [self.value(self.tally(said, labels))]
        for place in order.tolist():
            said[:, place] = 100.0
            scores.append(self.value(self.tally(said, labels)))
        return max(scores)

    def read(self, outputs: Tensor, words: Sequence[str]) -> Reading:
        shares = torch.sigmoid(outputs)
        said = (shares >= self.threshold).tolist()
        answers = [tuple(word for word, one in zip(words, row, strict=True) if one) for row in said]
        return Reading(answers, [f"p({word})" for word in words], shares)

    def decided(self, outputs: Tensor) -> Tensor:
        return (torch.sigmoid(outputs) >= self.threshold).float()

    def answer_title(self, words: Sequence[str]) -> str:
        return "classes"

    def decides(self, words: Sequence[str]) -> dict[str, str]:
        return {"threshold": f"{self.threshold:g}"}

    def as_told(self, answer: Any) -> str:
        return " + ".join(answer)

    def tally_of(self, said: Sequence[Any], true: Sequence[Any]) -> Tally:
        found = 0.0
        for one, other in zip(said, true, strict=True):
            size = len(one) + len(other)
            found += 2 * len(set(one) & set(other)) / size if size else 1.0
        return [found, len(true)]
