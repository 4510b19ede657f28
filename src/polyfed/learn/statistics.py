"""BatchNorm's running statistics, computed anew on given data."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from polyfed.learn.training import BATCH_NORMS


def recompute_statistics(model: nn.Module, x: Tensor, batch: int) -> None:
    """Set the running mean and variance of every BatchNorm layer to their plain average over these rows."""
    layers = [module for module in model.modules() if isinstance(module, BATCH_NORMS)]
    momenta = [layer.momentum for layer in layers]
    training = model.training
    for layer in layers:
        layer.reset_running_stats()
        layer.momentum = None  # cumulative average
    model.train()
    with torch.no_grad():
        for part in x.split(batch):
            if len(part) > 1:
                model(part)
    for layer, momentum in zip(layers, momenta, strict=True):
        layer.momentum = momentum
    model.train(training)
