"""What a generator is told to minimise when it learns, without any data, what a teacher was trained on.

The first three losses are those of FedKF (Eq. 1–4), made of the teacher's answers to a batch of generated
inputs; each is a mean over the rows. The teacher is `frozen`: gradients pass through it and leave it as it is.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, MutableMapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from polyfed.learn.learner import Learner
from polyfed.learn.training import Training
from polyfed.models import FeatureGenerator


def one_hot_loss(logits: Tensor) -> Tensor:
    """How far answers are from one sure class each: their cross-entropy to their own best class (Eq. 1)."""
    return F.cross_entropy(logits, logits.argmax(dim=1))


def balance_loss(logits: Tensor, *, normalised: bool = False) -> Tensor:
    """Σ_c p̄_c log p̄_c, where p̄ is the mean of the rows' probabilities: least if all classes are alike (Eq. 2).

    normalised: 1 + that / log C, which is from 0 to 1.
    """
    # log p̄ by log-sum-exp: a class that nobody names has p̄ = 0 in 32 bits, and the gradient of its logarithm is none.
    log_mean = F.log_softmax(logits, dim=1).logsumexp(dim=0) - math.log(len(logits))
    value = (log_mean.exp() * log_mean).sum()
    return 1 + value / math.log(logits.shape[1]) if normalised else value


def activation_loss(features: Tensor, *, mean: bool = False) -> Tensor:
    """Minus the L1 norm of each row's features (Eq. 3); or minus the mean over the features.

    With 256 features the mean is 256 times smaller.
    """
    return -(features.abs().mean() if mean else features.abs().sum(dim=1).mean())


def diversity_loss(noise: Tensor, made: Tensor) -> Tensor:
    """exp(−mean of |z_i − z_j|² · |x_i − x_j|) over all pairs of rows: 1 if all that is made is alike (FedGen).

    The squared distance of noise and the distance of what is made of it are means over their columns.
    """
    apart = (noise.unsqueeze(0) - noise.unsqueeze(1)).square().mean(dim=2)
    different = (made.unsqueeze(0) - made.unsqueeze(1)).abs().mean(dim=2)
    return (-(apart * different).mean()).exp()


def agree(
    maker: FeatureGenerator,
    heads: Sequence[nn.Module],
    counts: Tensor,
    training: Training,
    stream: torch.Generator,
    memory: MutableMapping[str, Any] | None = None,
) -> None:
    """Train a generator of features until heads take what it makes for what it should be (FedGen).

    It makes `training.steps` steps down  Σ_k mean of (c_k,y / Σ_j c_j,y) CE(head_k(G(noise, y)), y) + diversity,  with
    `training.batch` labels y each, drawn as often as they are in all counts.

    counts: heads × classes, how much each head has seen of each class.
    """
    steps = training.steps or 1
    learner = Learner(maker, training, memory, total=steps)
    total = counts.sum(dim=0)
    device = maker.out.weight.device
    shares = (counts / total.clamp(min=1)).to(device)
    for _ in range(steps):
        labels = torch.multinomial(total, training.batch, replacement=True, generator=stream).to(device)
        noise, features = maker.make(labels, stream)
        loss = diversity_loss(noise, features)
        for share, head in zip(shares, heads, strict=True):
            each = F.cross_entropy(head(features), labels, reduction="none")
            loss = loss + (share[labels] * each).mean()
        learner.step(loss)
    learner.finish()


@contextmanager
def frozen(model: nn.Module) -> Iterator[nn.Module]:
    """No gradients are computed for a model's parameters; they pass through it. Afterwards it is as before."""
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    for parameter in parameters:
        parameter.requires_grad_(False)
    try:
        yield model
    finally:
        for parameter in parameters:
            parameter.requires_grad_(True)
