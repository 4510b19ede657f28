"""What a generator is told to minimise when it learns, without any data, what a teacher was trained on.

All losses are those of FedKF (paper 001, Eq. 1–4), made of the teacher's answers to a batch of generated inputs; each
is a mean over the rows. The teacher is `frozen`: gradients pass through it and leave it as it is.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager

from torch import Tensor, nn
from torch.nn import functional as F

from polyfed.learn.training import BATCH_NORMS


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


@contextmanager
def keeping_statistics(model: nn.Module) -> Iterator[None]:
    """BatchNorm layers use the statistics of a batch and do not add them to their running ones.

    For inputs that are not data: a model that has also seen generated ones is judged on real ones.
    """
    layers = [
        layer
        for layer in model.modules()
        if isinstance(layer, BATCH_NORMS) and layer.training and layer.track_running_stats
    ]
    for layer in layers:
        layer.track_running_stats = False
    try:
        yield
    finally:
        for layer in layers:
            layer.track_running_stats = True
