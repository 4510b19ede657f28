"""What every training loop is made of: a stream of batches, and learners that step on it.

    learner = Learner(model, training, memory)
    for rows, batch in batches(x, training, generator, model):
        learner.step(loss_of(model(batch), rows))
    learner.finish()

Several learners can step on one stream (mutual learning, a generator and its student), and a loss may be anything
that has a gradient in the learner's model: features, corrected gradients, another model's answers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping
from typing import Any

import torch
from torch import Tensor, nn

from polyfed.learn.augmentation import load_augmentation
from polyfed.learn.optimiser import Optimiser, recall, remember
from polyfed.learn.sampling import balancing_weights, random_order
from polyfed.learn.training import (
    Training,
    clip_gradient,
    freeze_norms,
    has_batch_norm,
    shuffled_batches,
    take,
)


def batches(
    x: Tensor,
    training: Training,
    generator: torch.Generator,
    *models: nn.Module,
    weights: Tensor | None = None,
) -> Iterator[tuple[Tensor, Tensor]]:
    """Shuffled batches of `x` as the settings say: row numbers, and inputs (augmented, if so set).

    weights: how often each row is drawn, if not each once an epoch (see `row_weights`).
    models: those that will see the batches. If one has BatchNorm layers, a last batch of a single row joins the batch
        before it; where every batch is a single row, these layers use their running statistics.
    Without samples there are no batches.
    """
    samples = len(x)
    if weights is None and training.sampling != "all":
        raise ValueError(
            f"training.sampling is {training.sampling}, and nobody has said which rows count how much: pass"
            " weights=learn.row_weights(y, training), or set training.sampling=all"
        )
    if samples == 0:
        return
    if samples == 1 or training.batch == 1:
        for model in models:
            freeze_norms(model)
    merge_single = any(has_batch_norm(model) for model in models)
    augment = load_augmentation(training.augment)
    for rows in shuffled_batches(samples, training, generator, merge_single=merge_single, weights=weights):
        batch = take(x, rows)
        yield rows, batch if augment is None else augment(batch, generator)


def draw_batch(
    x: Tensor,
    y: Tensor,
    training: Training,
    generator: torch.Generator,
    augmenting: torch.Generator,
) -> tuple[Tensor, Tensor]:
    """One random batch of `x`, labelled `y`: row numbers, and inputs (augmented by the second generator, if so set)."""
    rows = random_order(len(x), generator, row_weights(y, training))[: training.batch]
    batch, augment = take(x, rows), load_augmentation(training.augment)
    return rows, batch if augment is None else augment(batch, augmenting)


def row_weights(labels: Tensor, training: Training) -> Tensor | None:
    """How often rows with these labels are drawn, for `batches`; nothing where each is drawn once an epoch."""
    return balancing_weights(labels) if training.sampling == "balanced" else None


def batch_count(samples: int, training: Training, *models: nn.Module) -> int:
    """How many batches `batches` gives."""
    return training.batches(samples, merge_single=any(has_batch_norm(model) for model in models))


def effective_steps(steps: int, momentum: float = 0.0) -> float:
    """By how many times lr · gradient SGD moves a model in so many steps down a gradient that does not change.

    Without momentum as many as there are steps; with momentum ρ, (K − ρ(1 − ρ^K) / (1 − ρ)) / (1 − ρ), FedNova's a_i.
    """
    return (steps - momentum * (1 - momentum**steps) / (1 - momentum)) / (1 - momentum)


class Learner:
    """A model and its optimiser. `step(loss)` makes one step; `finish()` keeps the optimiser's moments.

    memory: where the moments are kept between uses, if the settings say `keep_optimiser`.
    total: how many steps it will make; needed where the settings let the learning rate change within a round.
    correction: added to the gradient at each step, after clipping, by the parameters' names (SCAFFOLD's c − c_i).
    The model is put in training mode and is left there.
    """

    def __init__(
        self,
        model: nn.Module,
        training: Training,
        memory: MutableMapping[str, Any] | None = None,
        *,
        total: int | None = None,
        correction: Mapping[str, Tensor] | None = None,
    ) -> None:
        model.train()
        self.model = model
        self.training = training
        self.steps = 0
        self._clips = training.clips
        self._memory = memory
        self._within, self._total = training.within_round, total
        if self._within is not None and total is None:
            raise ValueError(
                "training.within changes the learning rate within a round, and nobody has said how many steps it has:"
                " pass total=learn.batch_count(len(x), training, model), or set training.within=constant"
            )
        self._corrections = [
            (parameter, correction[name].to(parameter.device))
            for name, parameter in model.named_parameters()
            if correction is not None and parameter.requires_grad
        ]
        self._optimiser = Optimiser(model.parameters(), training)
        if training.keep_optimiser:
            recall(self._optimiser, memory)

    def step(self, loss: Tensor) -> None:
        """One step down the gradient of a loss."""
        if self._within is not None:
            self._optimiser.lr = self.training.lr * self._within.share(self.steps, self._total)
        loss.backward()
        if self._clips:
            clip_gradient(self.model.parameters(), self.training)
        for parameter, correction in self._corrections:
            if parameter.grad is not None:
                parameter.grad.add_(correction)
        self._optimiser.step()
        self._optimiser.zero_grad()
        self.steps += 1

    def finish(self) -> int:
        """Keep the moments for the next time, if so set; returns the steps made."""
        if self.training.keep_optimiser and self.steps:
            remember(self._optimiser, self._memory)
        return self.steps
