"""BatchNorm's running statistics, computed anew on given data."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from polyfed.learn.training import BATCH_NORMS


def recompute_statistics(model: nn.Module, x: Tensor, batch: int) -> None:
    """Set the running mean and variance of every BatchNorm layer to the average over batches of these rows.

    A batch takes every n-th row, so that rows sorted by class are mixed, and counts by its size. A single
    row has no variance: then the statistics stay what they are.
    """
    if len(x) < 2:
        return
    count = max(1, len(x) // max(batch, 2))
    layers = [module for module in model.modules() if isinstance(module, BATCH_NORMS)]
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
