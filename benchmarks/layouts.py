"""Which memory layout is faster for each model: `python -m benchmarks.layouts ['res*']`.

Prints the time of a training step in channels-last over that in the default layout (below 1: channels-last is faster)
beside the layout that the model declares. One thread, batch 32, interleaved, the best of several.
"""

from __future__ import annotations

import sys
import time

import torch
from torch import nn
from torch.nn import functional as F

from polyfed import models

REPEATS = 5
BATCH = 32


def step_time(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> float:
    optimiser = torch.optim.SGD(model.parameters(), lr=0.01, fused=True)
    started = time.perf_counter()
    for _ in range(3):
        F.cross_entropy(model(x), y).backward()
        optimiser.step()
        optimiser.zero_grad()
    return time.perf_counter() - started


def main() -> None:
    torch.set_num_threads(1)
    pattern = sys.argv[1] if len(sys.argv) > 1 else "*"
    generator = torch.Generator().manual_seed(0)
    for row in models.table(pattern):
        if row.name.startswith("mlp") or row.size.macs > 2e8:
            continue
        channels = 1 if row.name.startswith("lenet") else 3
        x = torch.randn(BATCH, channels, 32, 32, generator=generator)
        y = torch.arange(BATCH) % 10
        best = {torch.contiguous_format: float("inf"), torch.channels_last: float("inf")}
        for layout in [*best] * REPEATS:
            model = models.build(row.name, (channels, 32, 32), 10)
            model = model.to(memory_format=layout)  # type: ignore[call-overload]
            laid_out = x.contiguous(memory_format=layout)
            step_time(model, laid_out, y)
            best[layout] = min(best[layout], step_time(model, laid_out, y))
        ratio = best[torch.channels_last] / best[torch.contiguous_format]
        print(f"{row.name:<18}{ratio:>6.2f}  declares {'channels-last' if row.channels_last else 'default'}")


if __name__ == "__main__":
    main()
