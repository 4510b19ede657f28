"""Deep mutual learning (Zhang et al. 2018): two models on one stream of batches, each the other's teacher.

    for every batch:  first  ← step down  own · CE(z₁, y) + other · KL(p₂ ‖ p₁)
                      second ← step down  own · CE(z₂, y) + other · KL(p₁ ‖ p₂)

A peer's answer is a constant: no gradient of a model's loss reaches the other one. KL and cross-entropy to a peer's
probabilities have one gradient, so this is also the mutual learning of papers that write the latter. CE and KL are the
loss and the divergence of a classification; of another task they are that one's.
"""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from polyfed.learn.learner import Learner, batch_count, batches, row_weights
from polyfed.learn.statistics import batch_statistics
from polyfed.learn.training import Training
from polyfed.models import laid_out
from polyfed.tasks import CLASSIFICATION, Task


@dataclass(frozen=True)
class Peer:
    """One of two models that learn from each other, and what it minimises.

    memory: where its optimiser's moments are kept, if the settings say so; each peer needs one of its own.
    correction: added to every gradient (see `Learner`).
    """

    model: nn.Module
    own: float = 1.0
    """The weight of the loss to the labels."""
    other: float = 1.0
    """The weight of the divergence from the other's answer."""
    memory: MutableMapping[str, Any] | None = None
    correction: Mapping[str, Tensor] | None = None

    def learner(self, training: Training, total: int) -> Learner:
        return Learner(self.model, training, self.memory, total=total, correction=self.correction)

    def answer(self, batch: Tensor) -> Tensor:
        """Logits of a batch, which is first brought to the layout that the model is fastest with."""
        logits: Tensor = self.model(laid_out(batch, self.model))
        return logits

    def loss(self, logits: Tensor, labels: Tensor, said: Tensor, task: Task = CLASSIFICATION) -> Tensor:
        """own · CE + other · KL(peer ‖ self), means over rows. `said` are the peer's logits, a constant."""
        mutual = task.divergence(logits, task.answer(said.detach()))
        return self.own * task.loss(logits, labels) + self.other * mutual


def mutual(
    first: Peer,
    second: Peer,
    x: Tensor,
    y: Tensor,
    training: Training,
    generator: torch.Generator,
    *,
    in_turn: bool = False,
    task: Task = CLASSIFICATION,
) -> int:
    """Train two models on the same batches, each towards the labels and the other's answers; returns the steps of each.

    in_turn: the first makes its step and answers anew before the second learns from it, as Zhang et al. print it, which
        takes one forward pass more. By default both losses are of the same two forward passes.
    Both see the same augmented batch, each in its own layout. Without samples nothing is done.
    """
    both, weights = (first.model, second.model), row_weights(y, training)
    total = batch_count(len(x), training, *both)
    one, two = first.learner(training, total), second.learner(training, total)
    for rows, batch in batches(x, training, generator, *both, weights=weights):
        labels = y[rows]
        said, heard = first.answer(batch), second.answer(batch)
        one.step(first.loss(said, labels, heard, task))
        if in_turn:
            # The batch counts once in running statistics, however often it is looked at.
            counted = batch_statistics(first.model) if len(rows) > 1 else nullcontext()
            with torch.no_grad(), counted:
                said = first.answer(batch)
        two.step(second.loss(heard, labels, said, task))
    two.finish()
    return one.finish()
