"""FedKEM against a bare loop of the same operations: `python -m benchmarks.mutual`.

Six clients with 256 random images each train ResNet-8 or LeNet-5 beside a smaller knowledge network for one epoch in
batches of 32; the networks answer on 512 public rows, and the server distils the ensemble for two epochs; two rounds.
The loop is tuned as polyfed is: layout, fused optimiser, kept memory, one thread. polyfed also evaluates one client and
the server's network on 64 images at the end. Interleaved, one process a case; prints ratios of wall and of CPU time
(targets: 1.1 on one worker, 0.6 on two).
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.interleaved import print_ratios, timed, timed_run
from polyfed import models
from polyfed.engines.process_setup import keep_freed_memory
from polyfed.learn import take

REPEATS = 3
ROUNDS = 2
CLIENTS, ROWS, PUBLIC, BATCH = 6, 256, 512, 32
DISTIL_EPOCHS, DISTIL_BATCH = 2, 64
LR = 0.01
WORKS = {
    "ResNet-8": ("resnet8", "cnn-small", (3, 32, 32)),
    "LeNet-5": ("lenet5", "cnn-small", (1, 28, 28)),
}
UPDATES = ("in-turn", "at-once")


def images(shape: tuple[int, int, int]) -> tuple[Tensor, Tensor]:
    stream = torch.Generator().manual_seed(0)
    count = CLIENTS * ROWS + PUBLIC
    x = torch.randint(0, 256, (count, *shape), dtype=torch.uint8, generator=stream)
    return x, torch.randint(0, 10, (count,), generator=stream)


def polyfed_run(work: str, updates: str, workers: int) -> dict[str, float]:
    model, network, shape = WORKS[work]
    x, y = images(shape)
    distil = {"epochs": DISTIL_EPOCHS, "batch": DISTIL_BATCH, "lr": LR}
    config: dict[str, Any] = {
        "method": {
            "name": "fedkem",
            "start": "global",
            "updates": updates,
            "public_rows": PUBLIC,
            "distil": distil,
        },
        "rounds": ROUNDS,
        "data": {
            "clients": CLIENTS,
            "partition": {"kind": "iid"},
            "validation": 0,
            "test": 0,
            "public": {"source": "share", "share": PUBLIC / len(y), "labels": "none"},
        },
        "models": {"names": [model], "server": network},
        "training": {"epochs": 1, "batch": BATCH, "lr": LR},
        "evaluate": {"every": ROUNDS, "clients": 1},
    }
    return timed_run(config, x, y, workers)


class BareLoop:
    """Algorithms 1 and 2 by hand in one process on one thread."""

    def __init__(self, work: str, updates: str) -> None:
        torch.set_num_threads(1)
        keep_freed_memory()
        model, network, shape = WORKS[work]
        self.in_turn = updates == "in-turn"
        self.own = [self.laid_out(model, shape) for _ in range(CLIENTS)]
        self.network, self.server = (self.laid_out(network, shape) for _ in range(2))
        x, self.y = images(shape)
        pixels = x.float() / 255
        mean, spread = pixels.mean(dim=(0, 2, 3), keepdim=True), pixels.std(dim=(0, 2, 3), keepdim=True)
        self.x = ((pixels - mean) / spread).contiguous(memory_format=models.memory_format(self.own[0]))
        self.layout = models.memory_format(self.network)
        self.public = self.x[-PUBLIC:].contiguous(memory_format=self.layout)
        torch.optim.SGD(self.server.parameters(), lr=LR)  # imports torch._dynamo, before the clock starts

    def laid_out(self, name: str, shape: tuple[int, int, int]) -> nn.Module:
        model: nn.Module = models.build(name, shape, 10)
        return model.to(memory_format=models.memory_format(model))  # type: ignore[call-overload,no-any-return]

    def round(self) -> None:
        start = {name: tensor.clone() for name, tensor in self.server.state_dict().items()}
        ensemble: Tensor | None = None
        for client in range(CLIENTS):
            self.network.load_state_dict(start)
            self.extract(client)
            self.network.eval()
            with torch.no_grad():
                said = torch.cat([self.network(part) for part in self.public.split(256)])
            ensemble = said if ensemble is None else torch.maximum(ensemble, said)
        assert ensemble is not None
        target = ensemble.softmax(dim=1)
        self.server.train()
        optimiser = torch.optim.SGD(self.server.parameters(), lr=LR, fused=True)
        for _ in range(DISTIL_EPOCHS):
            for rows in torch.randperm(PUBLIC).split(DISTIL_BATCH):
                z = self.server(take(self.public, rows)).log_softmax(dim=1)
                step(optimiser, F.kl_div(z, target[rows], reduction="batchmean"))

    def extract(self, client: int) -> None:
        own, network = self.own[client].train(), self.network.train()
        one, two = (torch.optim.SGD(model.parameters(), lr=LR, fused=True) for model in (own, network))
        for rows in (torch.randperm(ROWS) + client * ROWS).split(BATCH):
            batch, y = take(self.x, rows), self.y[rows]
            other = batch.contiguous(memory_format=self.layout)
            z, heard = own(batch), network(other)
            step(one, mutual_loss(z, y, heard))
            if self.in_turn:
                with torch.no_grad():
                    z = own(batch)
            step(two, mutual_loss(heard, y, z))


def mutual_loss(z: Tensor, y: Tensor, peer: Tensor) -> Tensor:
    told = peer.detach().softmax(dim=1)
    return F.cross_entropy(z, y) + F.kl_div(z.log_softmax(dim=1), told, reduction="batchmean")


def step(optimiser: torch.optim.Optimizer, loss: Tensor) -> None:
    optimiser.zero_grad()
    loss.backward()
    optimiser.step()


def bare_loop(work: str, updates: str) -> dict[str, float]:
    loop = BareLoop(work, updates)
    wall, cpu = time.perf_counter(), time.process_time()
    for _ in range(ROUNDS):
        loop.round()
    return {"wall": time.perf_counter() - wall, "cpu": time.process_time() - cpu}


def compare(work: str, updates: str) -> None:
    results = timed("benchmarks.mutual", work, updates, repeats=REPEATS)
    wall = statistics.median(found["wall"] for found in results["bare"])
    print(f"FedKEM, {CLIENTS} clients, {work}, {updates}: bare loop {wall / ROUNDS:.2f} s a round")
    print_ratios(results)


def main() -> None:
    if len(sys.argv) > 1:
        work, updates, case = sys.argv[1:]
        found = bare_loop(work, updates) if case == "bare" else polyfed_run(work, updates, int(case))
        sys.stdout.write(json.dumps(found) + "\n")
        return
    for work in WORKS:
        for updates in UPDATES:
            compare(work, updates)


if __name__ == "__main__":
    main()
