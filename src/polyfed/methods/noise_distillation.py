"""Many received models of any architecture, distilled into the server's on noise instead of data (FedORION, Eq. 3).

answer:  p_i(z) ← softmax(θ_i(z)) on a round's noise z, batch by batch
distil:  θ_g ← a step down CE(θ_g(z), Σ n_i p_i(z) / Σ n_i) for each batch

Noise is not data: teachers and student normalise it by the statistics of the batch at hand, and none of it gets into
anybody's running statistics.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Annotated, Any, TypeAlias

import torch
from pydantic import Field
from torch import Tensor

from polyfed import learn
from polyfed.data import noise
from polyfed.errors import MethodError
from polyfed.federation import Assistant, FederationFacts, Fields, MethodSettings, Server, Weights
from polyfed.learn import Distillation
from polyfed.models import laid_out

NoiseKind: TypeAlias = noise.Kind
MOST_BYTES = 2**30  # of a round's noise, where it is drawn once and sent to all workers


class NoiseSettings(MethodSettings):
    noise: NoiseKind = "gaussian"
    """What the server distils on: gaussian, dead-leaves or stylegan (images only); new in every round."""
    noise_batches: Annotated[int, Field(ge=1)] = 1
    """Batches of noise in each epoch of the distillation; 1 as in Algorithm 1."""
    distil: Distillation = Distillation(epochs=5, batch=128, lr=1e-3, momentum=0.9, loss="ce")
    """The distillation of the clients' models."""

    def batches(self) -> int:
        """How many batches of noise a round has."""
        return self.distil.steps or self.distil.epochs * self.noise_batches


def check(settings: NoiseSettings, federation: FederationFacts) -> None:
    """Refuse noise that there is not for these inputs, more of it than can be sent around, and batches of one row."""
    if federation.tokens:
        raise MethodError(
            "the server would distil on noise, which is numbers, and the data are token ids (data.inputs: tokens):"
            " set method.distillation=false, or use a method with public data, such as feddf"
        )
    noise.check(settings.noise, federation.shape)
    if settings.distil.batch < 2:
        raise MethodError(
            "noise is normalised by the batch at hand: set method.distil.batch=128, or 2 at least"
        )
    size = 4 * settings.batches() * settings.distil.batch * torch.Size(federation.shape).numel()
    if settings.noise != "gaussian" and size > MOST_BYTES:
        raise MethodError(
            f"a round's noise would be {size / 1e9:.1f} GB: lower method.noise_batches, or set method.noise=gaussian"
        )


def told(server: Server, settings: NoiseSettings) -> dict[str, Any]:
    """A round's noise: the seed of its stream, or all of it where drawing takes long.

    Gaussian noise is drawn again by whoever needs it, which takes less time and room than sending it around.
    """
    stream = server.rng("noise")
    if settings.noise == "gaussian":
        return {"seed": int(torch.randint(2**62, (), generator=stream)), "drawn": None}
    rows = settings.batches() * settings.distil.batch
    return {"seed": 0, "drawn": noise.draw(settings.noise, rows, server.shape, stream, server.limits)}


def answer(
    helper: Assistant,
    settings: NoiseSettings,
    architecture: str,
    weights: Weights,
    seed: int,
    drawn: Tensor | None,
) -> Fields:
    """What a received model says of the round's noise: probabilities, rows × outputs."""
    teacher = helper.scratch_model(architecture)
    learn.load_weights(teacher, weights)
    with learn.evaluating(teacher), learn.batch_statistics(teacher), torch.no_grad():
        answers = [
            helper.task.answer(teacher(laid_out(z.to(helper.device), teacher)), settings.distil.temperature)
            for z in _batches(settings, helper.shape, seed, drawn)
        ]
    return {"probabilities": torch.cat(answers)}


def distil(server: Server, teacher: Tensor, settings: NoiseSettings, seed: int, drawn: Tensor | None) -> None:
    """Eq. 3: a step of the server's model on each batch of noise. `teacher`: the weighted mean of all answers."""
    assert server.model is not None
    how = settings.distil.in_round(server.round)
    loss = learn.knowledge_loss(how, given="answers", task=server.task)
    memory = server.memory.setdefault("distil", {}) if how.keep_optimiser else None
    learner = learn.Learner(server.model, how, memory, total=settings.batches())
    answers: Iterable[Tensor] = teacher.to(server.device).split(how.batch)
    with learn.batch_statistics(server.model):
        for z, said in zip(_batches(settings, server.shape, seed, drawn), answers, strict=True):
            learner.step(loss(server.model(laid_out(z.to(server.device), server.model)), said))
    learner.finish()


def _batches(
    settings: NoiseSettings, shape: tuple[int, ...], seed: int, drawn: Tensor | None
) -> Iterator[Tensor]:
    """The round's noise, batch by batch."""
    if drawn is not None:
        yield from drawn.split(settings.distil.batch)
        return
    stream = torch.Generator().manual_seed(seed)
    for _ in range(settings.batches()):
        yield noise.draw("gaussian", settings.distil.batch, shape, stream)
