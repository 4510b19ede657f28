"""Learning what a teacher knows, without data: a client's generator of inputs, its settings and its loss (FedKF)."""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import Annotated, Any, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from polyfed import learn
from polyfed.data import Limits
from polyfed.errors import MethodError
from polyfed.federation import Client, FederationFacts, MethodSettings
from polyfed.models import Shape, build_generator, laid_out

Strength = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class ImitationSettings(MethodSettings):
    gamma: Strength = 1.0
    """γ, the weight of the teacher's answers beside the client's own labels; the paper: 1, once 0.001."""
    lambda1: Strength = 0.1
    """λ1, the weight of sure answers in the generator's loss (Eq. 1); the paper: 0.1 for CIFAR-10, else 0.01."""
    lambda2: Strength = 0.1
    """λ2, the weight of high activations in the generator's loss (Eq. 3); the paper: 0.1."""
    generator_lr: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1e-3
    """Learning rate of the generator's Adam; typically 0.001."""
    noise: Annotated[int, Field(ge=1, le=65_536)] = 100
    """How many numbers of noise an input is made of; the authors: 100 for EMNIST, 1000 for CIFAR."""
    width: Annotated[int, Field(ge=2, le=4096)] = 128
    """Channels of the generator's first maps; for feature vectors the neurons of its hidden layers."""
    keep_generator: bool = False
    """Whether a client's generator and its moments last from round to round, in the client's memory (authors: true);
    otherwise it begins anew each time."""
    entropy: Literal["plain", "normalised"] = "plain"
    """Of the mean answer in the generator's loss: Eq. 2, or 1 + Eq. 2 / log C (authors: normalised)."""
    activation: Literal["norm", "mean"] = "norm"
    """Of the features in the generator's loss: the L1 norm of Eq. 3, or the mean over them (authors: mean)."""
    adversarial: bool = False
    """Whether the generator also seeks inputs on which student and teacher differ, with weight γ (authors: true, but
    false for EMNIST)."""
    first: Literal["generator", "student"] = "generator"
    """Who steps first on a batch (authors: student)."""


def check(federation: FederationFacts) -> None:
    """Refuse inputs that no generator makes."""
    if federation.tokens:
        raise MethodError(
            "fedkf learns from inputs that it generates, which are numbers, and the data are token ids"
            " (data.inputs: tokens): use a method without a generator, such as fedavg"
        )


class Imitator:
    """A client's generator during a step: a new one, or the one that it keeps.

        imitator = Imitator(me, settings)
        made = imitator.imitate(imitator.noise(rows))
        imitator.learn(made, *features_and_logits(teacher, made), student)
        imitator.finish()

    A generator that is kept begins with weights that are the same for all clients.
    """

    def __init__(self, me: Client, settings: ImitationSettings) -> None:
        self.settings = settings
        keep = settings.keep_generator
        self._memory: MutableMapping[str, Any] = me.memory.setdefault("generator", {}) if keep else {}
        self._rng, self._device = me.rng("noise"), me.device
        self._student = me.model
        stream = me.seeds.torch("generator") if keep else me.rng("generator")
        self.model = generator(settings, me.shape, me.train.dataset.limits, stream).to(me.device)
        if self._memory:
            learn.load_weights(self.model, self._memory["weights"])
        adam = learn.Training(optimiser="adam", lr=settings.generator_lr, keep_optimiser=keep)
        self._learner = learn.Learner(self.model, adam, self._memory)

    def noise(self, rows: int) -> Tensor:
        """Standard normal noise for so many inputs; for two at least, since BatchNorm has no variance of one."""
        return torch.randn(max(rows, 2), self.settings.noise, generator=self._rng).to(self._device)

    def imitate(self, noise: Tensor) -> Tensor:
        """Inputs in the normalised space of the data, in the layout of the client's model."""
        inputs: Tensor = self.model(noise)
        return laid_out(inputs, self._student)

    def learn(self, made: Tensor, features: Tensor, logits: Tensor, student: nn.Module) -> None:
        """Step down L_G = L_IE + λ1 L_CE + λ2 L_A (Eq. 4) of what a frozen teacher says of what was made.

        With `adversarial`, minus γ KL(teacher ‖ student), whose gradient reaches the generator alone.
        """
        settings = self.settings
        loss = learn.balance_loss(logits, normalised=settings.entropy == "normalised")
        loss = loss + settings.lambda1 * learn.one_hot_loss(logits)
        loss = loss + settings.lambda2 * learn.activation_loss(features, mean=settings.activation == "mean")
        if settings.adversarial:
            with learn.frozen(student):
                loss = loss - settings.gamma * divergence(student, made, logits)
        self._learner.step(loss)

    def finish(self) -> int:
        """Keep the generator and its moments, if so set; how many bytes they are."""
        self._learner.finish()
        if self.settings.keep_generator:
            self._memory["weights"] = learn.weights_of(self.model)
        return _bytes(self._memory)


def generator(
    settings: ImitationSettings, shape: Shape, limits: Limits | None, stream: torch.Generator | None = None
) -> nn.Module:
    """A new generator of inputs of this shape, between these limits."""
    return build_generator(shape, settings.noise, width=settings.width, limits=limits, generator=stream)


def divergence(student: nn.Module, made: Tensor, answers: Tensor) -> Tensor:
    """KL(teacher ‖ student) on generated inputs (Eq. 5), which leave no trace in running statistics.

    answers: the teacher's logits; it is a constant.
    """
    with learn.batch_statistics(student):
        return learn.kl(student(made), learn.soften(answers))


def _bytes(kept: Any) -> int:
    """The size of all tensors in a memory."""
    if isinstance(kept, Tensor):
        return kept.nbytes
    return sum(map(_bytes, kept.values())) if isinstance(kept, dict) else 0
