"""What every training loop is made of: a stream of batches, and learners that step on it.

    learner = Learner(model, training, memory)
    for rows, batch in batches(x, training, generator, model):
        learner.step(loss_of(model(batch), rows))
    learner.finish()

Several learners can step on one stream (mutual learning, a generator and its student), and a loss may be anything
that has a gradient in the learner's model: features, corrected gradients, another model's answers.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, MutableMapping
from typing import Any

import torch
from torch import Tensor, nn

from polyfed.data import augment
from polyfed.learn.optimiser import Optimiser, recall, remember
from polyfed.learn.training import Training, freeze_norms, has_batch_norm, shuffled_batches, take


def batches(
    x: Tensor, training: Training, generator: torch.Generator, *models: nn.Module
) -> Iterator[tuple[Tensor, Tensor]]:
    """Shuffled batches of `x` as the settings say: row numbers, and inputs (augmented, if so set).

    models: those that will see the batches. If one has BatchNorm layers, a last batch of a single row joins the batch
        before it; where every batch is a single row, these layers use their running statistics.
    Without samples there are no batches.
    """
    samples = len(x)
    if samples == 0:
        return
    if samples == 1 or training.batch == 1:
        for model in models:
            freeze_norms(model)
    merge_single = any(has_batch_norm(model) for model in models)
    for rows in shuffled_batches(samples, training, generator, merge_single=merge_single):
        yield rows, _augmented(take(x, rows), training, generator)


def draw_batch(
    x: Tensor, training: Training, generator: torch.Generator, augmenting: torch.Generator
) -> tuple[Tensor, Tensor]:
    """One random batch of `x`: row numbers, and inputs (augmented by the second generator, if so set)."""
    rows = torch.randperm(len(x), generator=generator)[: training.batch]
    return rows, _augmented(take(x, rows), training, augmenting)


def _augmented(batch: Tensor, training: Training, generator: torch.Generator) -> Tensor:
    return augment.standard(batch, generator) if training.augment and batch.dim() == 4 else batch


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
    cosine_steps: the learning rate falls to zero along a cosine over so many steps.
    correction: added to the gradient at each step, after clipping, by the parameters' names (SCAFFOLD's c − c_i).
    The model is put in training mode and is left there.
    """

    def __init__(
        self,
        model: nn.Module,
        training: Training,
        memory: MutableMapping[str, Any] | None = None,
        *,
        cosine_steps: int | None = None,
        correction: Mapping[str, Tensor] | None = None,
    ) -> None:
        model.train()
        self.model = model
        self.training = training
        self.steps = 0
        self._memory = memory
        self._cosine_steps = cosine_steps
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
        if self._cosine_steps is not None:
            self._optimiser.lr = (
                self.training.lr * (1 + math.cos(math.pi * self.steps / self._cosine_steps)) / 2
            )
        loss.backward()
        if self.training.clip is not None:
            nn.utils.clip_grad_norm_(self.model.parameters(), self.training.clip)
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
