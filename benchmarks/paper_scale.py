"""What Tables 2 and 3 of `lwof` would cost at the paper's scale, from the CPU time of single training steps.

    python -m benchmarks.paper_scale

Every image that is trained on costs a forward and a backward pass, every image that is only looked at a third of that.
Not in it: moving data, aggregating, and what several processes on one machine take from each other.
"""

from __future__ import annotations

import time

import torch
from torch.nn import functional as F

from polyfed import models
from polyfed.experiments import papers

BATCH, STEPS = 128, 3
OWN, PUBLIC, TEST = (
    45_000,
    50_000,
    10_000,
)  # images: private without the validation share, of CIFAR-100, and of the test set


def seconds_per_image(name: str) -> float:
    """CPU time of a forward and a backward pass on one thread."""
    model = models.build(name, (3, 32, 32), 30)
    x = torch.randn(BATCH, 3, 32, 32).to(memory_format=models.memory_format(model))
    y = torch.randint(0, 10, (BATCH,))
    best = float("inf")
    for _ in range(STEPS + 1):  # the first is slow
        model.zero_grad()
        started = time.process_time()
        F.cross_entropy(model(x), y).backward()
        best = min(best, time.process_time() - started)
    return best / BATCH


def main() -> None:
    torch.set_num_threads(1)
    paper = papers.load("lwof")
    base, fedmd = paper.base, paper.runs["fedmd"]
    rounds = base["rounds"]
    depths = [10] * 6 + [16] * 4 + [22] * 4 + [28] * 4 + [34] * 2  # of the 20 clients
    each = {depth: seconds_per_image(f"wrn-{depth}-1-biased") for depth in sorted({*depths, 40})}
    clients, server = sum(each[depth] for depth in depths), each[40]
    method = fedmd["method"]
    rows, epochs = method["public_rows"], method["distil"]["epochs"]
    before = method["public_training"]["epochs"] * PUBLIC * clients
    before += method["private_training"]["epochs"] * OWN * clients / 20
    distil = rounds * epochs * rows * (clients + server) + rounds * rows * clients / 3
    looks = rounds * TEST * (2 * clients + server) / 3
    print(f"CPU ms per image trained on: {', '.join(f'WRN-{d}-1 {1000 * s:.1f}' for d, s in each.items())}")
    total = 0.0
    for local_epochs in (5, 10):
        local = rounds * local_epochs * OWN * clients / 20
        run = before + distil + looks + local
        average = rounds * local_epochs * OWN * server
        print(f"le = {local_epochs}: FedMD {run / 3600:.0f} CPU hours, FedAvg (100 %) {average / 3600:.0f}")
        total += (
            2 * 3 * (2 * run + (1 + 0.6 + 0.4) * average)
        )  # two α, three seeds; FedMD with and without LwoF
    print(f"Tables 2 and 3, three seeds: {total / 3600:,.0f} CPU hours")


if __name__ == "__main__":
    main()
