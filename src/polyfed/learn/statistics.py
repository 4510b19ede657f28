"""BatchNorm's running statistics: computed anew on given data, or left alone while other inputs pass."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from polyfed.learn.training import BATCH_NORMS
from polyfed.models import is_frozen_norm


def recompute_statistics(model: nn.Module, x: Tensor, batch: int) -> None:
    """Set the running mean and variance of every BatchNorm layer (but frozen ones) to the average over batches of
    these rows.

    A batch takes every n-th row, so that rows sorted by class are mixed, and counts by its size. A single
    row has no variance: then the statistics stay what they are.
    """
    if len(x) < 2:
        return
    count = max(1, len(x) // max(batch, 2))
    norms = (module for module in model.modules() if isinstance(module, BATCH_NORMS))
    layers = [norm for norm in norms if not is_frozen_norm(norm)]
    momenta = [layer.momentum for layer in layers]
    training = model.training
    for layer in layers:
        layer.reset_running_stats()
    model.train()
    seen = 0
    with torch.no_grad():
        for part in (x[place::count] for place in range(count)):
            seen += len(part)
            for layer in layers:
                layer.momentum = len(part) / seen
            model(part)
    for layer, momentum in zip(layers, momenta, strict=True):
        layer.momentum = momentum
    model.train(training)


@contextmanager
def batch_statistics(*models: nn.Module) -> Iterator[None]:
    """BatchNorm layers normalise by the batch they are given, and their running statistics stay as they are.

    For inputs that are not data, such as noise: teachers in evaluation mode would normalise them by statistics of real
    rows, and a student in training would learn statistics that are wrong for real rows. Nothing but BatchNorm layers is
    touched (dropout stays off in a teacher), and afterwards each is in the mode it was in. A batch needs two rows.
    """
    layers = [part for model in models for part in model.modules() if isinstance(part, BATCH_NORMS)]
    before = [(layer, layer.training, layer.track_running_stats) for layer in layers]
    for layer in layers:
        # In training mode, and with nothing to keep track of: running statistics, counter and momentum are not read.
        layer.training, layer.track_running_stats = True, False
    try:
        yield
    finally:
        for layer, training, tracks in before:
            layer.training, layer.track_running_stats = training, tracks
