"""A class for each place of a row: a task in a module of its own, of which polyfed knows nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from polyfed.data import DataSet, LabelSource
from polyfed.tasks import Reading, Tally, Task

TAGS = ("low", "high", "rising")


@dataclass(frozen=True)
class TagLabels:
    """A tag for each place: rows × places."""

    kind: ClassVar[str] = "tags"
    several_columns: ClassVar[bool] = True

    def read(self, found: LabelSource) -> tuple[Any, tuple[str, ...]]:
        return np.asarray(found.values, dtype=np.int64), TAGS

    def notes(self, labels: Any, classes: Sequence[str], where: str) -> tuple[str, ...]:
        return ()

    def agreed(self, sets: Mapping[str, Sequence[DataSet]], listed: Sequence[str]) -> tuple[str, ...]:
        return TAGS

    def meant(self, values: Sequence[Any], classes: Sequence[str]) -> list[Any]:
        return [tuple(TAGS[int(tag)] for tag in row) for row in values]


class Tagging(Task):
    """Outputs are rows × places × tags."""

    name = "tagging"
    summary = "a tag for each place of a row"
    measure = "tags right"
    unit = "%"
    targets = TagLabels()
    most = 1.0

    def admits_outputs(self, shape: Sequence[int], outputs: int) -> bool:
        return len(shape) == 2 and shape[1] == outputs

    def loss(self, outputs: Tensor, labels: Tensor, *, each: bool = False) -> Tensor:
        rows = F.cross_entropy(outputs.transpose(1, 2), labels, reduction="none").mean(dim=1)
        return rows if each else rows.mean()

    def answer(self, outputs: Tensor, temperature: float = 1.0) -> Tensor:
        return F.softmax(outputs / temperature, dim=2)

    def divergence(self, outputs: Tensor, answer: Tensor, temperature: float = 1.0) -> Tensor:
        said = F.log_softmax(outputs / temperature, dim=2)
        return F.kl_div(said, answer.detach(), reduction="batchmean") / outputs.shape[1]

    def tally(self, outputs: Tensor, labels: Tensor) -> Tally:
        right = (outputs.argmax(dim=2) == labels).double().mean(dim=1)
        return [float(right.sum()), len(labels)]

    def blind(self, labels: Tensor) -> float:
        return float(torch.bincount(labels.flatten()).max() / labels.numel())

    def read(self, outputs: Tensor, words: Sequence[str]) -> Reading:
        answers = [tuple(words[tag] for tag in row) for row in outputs.argmax(dim=2).tolist()]
        return Reading(answers, [], outputs.flatten(1)[:, :0])

    def as_labels(self, answers: Sequence[Any], words: Sequence[str]) -> Tensor:
        return torch.tensor([[words.index(tag) for tag in row] for row in answers])

    def tally_of(self, said: Sequence[Any], true: Sequence[Any]) -> Tally:
        shares = [
            np.mean([a == b for a, b in zip(one, other, strict=True)])
            for one, other in zip(said, true, strict=True)
        ]
        return [float(sum(shares)), len(shares)]
