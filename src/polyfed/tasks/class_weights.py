"""Classes that count differently in the loss: as is said, or by how rare they are among a client's own rows."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, Self, TypeAlias

import torch
from pydantic import BeforeValidator, Field, PrivateAttr
from torch import Tensor

from polyfed.errors import TaskError, nearest
from polyfed.tasks.task import Task


def _with_words(value: Any) -> Any:
    """Classes as words: YAML reads the 1 of {1: 20} as a number."""
    return {str(key): weight for key, weight in value.items()} if isinstance(value, Mapping) else value


ClassWeights: TypeAlias = Literal["balanced"] | dict[str, Annotated[float, Field(gt=0, le=1e6)]]


class WeighedClasses(Task):
    """A task whose classes may count differently."""

    class_weights: Annotated[ClassWeights | None, BeforeValidator(_with_words)] = None
    """By how much a row that has a class counts in its loss: {malignant: 20}, what is not named counts 1; or balanced,
    by how rare the class is among the client's own training rows. Nothing of it changes scores."""

    _weights: Tensor | None = PrivateAttr(default=None)
    """Of the classes, as whoever learns counts them."""
    _words: tuple[str, ...] = PrivateAttr(default=())

    def for_classes(self, classes: Sequence[str]) -> Self:
        given = self.class_weights if isinstance(self.class_weights, dict) else {}
        for word in given:
            if word not in classes:
                raise TaskError(
                    f"task.class_weights: no class is called '{word:.60}': {nearest(word, classes)}"
                )
        weights = torch.tensor([given.get(word, 1.0) for word in classes]) if given else None
        found = self._counting(weights)
        found._words = tuple(classes)
        return found

    def for_labels(self, labels: Tensor) -> Self:
        if self.class_weights != "balanced" or not len(labels):
            return self
        return self._counting(self.balanced_weights(labels.cpu()))

    @abstractmethod
    def balanced_weights(self, labels: Tensor) -> Tensor:
        """The weight of each class, by how rare it is among these labels; of one that is not there it is 1."""

    @property
    def is_weighted(self) -> bool:
        return self.class_weights is not None

    def _counting(self, weights: Tensor | None) -> Self:
        found = self.model_copy()
        found._weights = weights
        return found
