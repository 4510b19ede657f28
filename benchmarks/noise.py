"""FedORION's server against a bare loop of the same operations: `python -m benchmarks.noise`.

Nine teachers of five models, the smallest of which is the global one, answer on 5 batches of 128 rows of Gaussian
noise, 3×32×32, and the global model makes a step on each: as many as in the paper's H-Het, of small relatives that
keep its proportions (a step of the global model costs a tenth of what all teachers' answers do; in the paper 7 %).
Clients make a single step of 32 images, so that nearly all of a round is the server's. The loop draws a batch, asks
all teachers and makes the step, as Algorithm 1 does; it is tuned as polyfed is: layout, fused optimiser, kept memory,
one thread. Four rounds: the first is slower, as the process that distils has not had its memory before, and at the end
polyfed also scores one client and the global model on 64 images and writes all models, which the loop does not.
With the default `server_threads: 1` the steps of the global model, one after the other, are one core's; with 2 they are
not. Interleaved, one process a case; prints ratios of wall and of CPU time (targets: 1.1 on one worker, 0.6 on two).
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
from benchmarks.mutual import mutual_loss, step
from polyfed import models
from polyfed.engines.process_setup import keep_freed_memory
from polyfed.learn import batch_statistics

REPEATS = 3
ROUNDS = 4
SERVER_THREADS = (1, 2)
SHAPE = (3, 32, 32)
GLOBAL = "resnet8"
TEACHERS = (
    GLOBAL,
    "resnet20",
    "resnet32",
    "wrn-16-1",
    "wrn-16-2",
    GLOBAL,
    "resnet20",
    "resnet32",
    "wrn-16-1",
)
BATCHES, NOISE_BATCH = 5, 128
BATCH, LR = 32, 0.001


def images() -> tuple[Tensor, Tensor]:
    stream = torch.Generator().manual_seed(0)
    count = len(TEACHERS) * BATCH
    x = torch.randint(0, 256, (count, *SHAPE), dtype=torch.uint8, generator=stream)
    return x, torch.randint(0, 10, (count,), generator=stream)


def polyfed_run(workers: int, threads: int) -> dict[str, float]:
    x, y = images()
    distil = {"epochs": 1, "batch": NOISE_BATCH, "lr": LR, "momentum": 0.0}
    config: dict[str, Any] = {
        "method": {"name": "fedorion", "noise_batches": BATCHES, "distil": distil},
        "rounds": ROUNDS,
        "data": {"clients": len(TEACHERS), "partition": {"kind": "iid"}, "validation": 0, "test": 0},
        "models": {
            "names": list(dict.fromkeys(TEACHERS)),
            "clients": {str(client): name for client, name in enumerate(TEACHERS)},
        },
        "training": {"batch": BATCH, "lr": LR, "steps": 1},
        "evaluate": {"every": ROUNDS, "clients": 1},
        "server_threads": threads,
    }
    return timed_run(config, x, y, workers)


def bare_loop() -> dict[str, float]:
    """Algorithm 1 by hand in one process on one thread."""
    torch.set_num_threads(1)
    keep_freed_memory()
    teachers, student = [_laid_out(name) for name in TEACHERS], _laid_out(GLOBAL)
    pixels, y = images()
    x = (pixels.float() / 255 - 0.5) / 0.29
    torch.optim.SGD(student.parameters(), lr=LR)  # imports torch._dynamo, before the clock starts
    wall, cpu = time.perf_counter(), time.process_time()
    for _ in range(ROUNDS):
        bare_round(teachers, student, x, y)
    return {"wall": time.perf_counter() - wall, "cpu": time.process_time() - cpu}


def bare_round(teachers: list[nn.Module], student: nn.Module, x: Tensor, y: Tensor) -> None:
    copies = [_learn(teachers, student, client, x, y) for client in range(len(TEACHERS))]
    student.load_state_dict(
        {name: torch.stack([copy[name] for copy in copies]).float().mean(dim=0) for name in copies[0]}
    )
    optimiser = torch.optim.SGD(student.train().parameters(), lr=LR, fused=True)
    with batch_statistics(student, *teachers):
        for _ in range(BATCHES):
            z = torch.randn(NOISE_BATCH, *SHAPE)
            with torch.no_grad():
                told = [model(models.laid_out(z, model)).softmax(dim=1) for model in teachers]
            logits = student(models.laid_out(z, student))
            step(optimiser, F.cross_entropy(logits, torch.stack(told).mean(dim=0)))


def _laid_out(name: str) -> nn.Module:
    model: nn.Module = models.build(name, SHAPE, 10)
    return model.to(memory_format=models.memory_format(model))  # type: ignore[call-overload,no-any-return]


def _learn(
    teachers: list[nn.Module], student: nn.Module, client: int, x: Tensor, y: Tensor
) -> dict[str, Tensor]:
    """One step of a client: alone, if its model is of the global architecture, else beside a copy of that."""
    own, rows = teachers[client].train(), slice(client * BATCH, (client + 1) * BATCH)
    batch, labels = models.laid_out(x[rows], own), y[rows]
    one = torch.optim.SGD(own.parameters(), lr=LR, fused=True)
    if TEACHERS[client] == GLOBAL:
        own.load_state_dict(student.state_dict())
        step(one, F.cross_entropy(own(batch), labels))
        return {name: tensor.clone() for name, tensor in own.state_dict().items()}
    network = _laid_out(GLOBAL).train()
    network.load_state_dict(student.state_dict())
    two = torch.optim.SGD(network.parameters(), lr=LR, fused=True)
    z, heard = own(batch), network(models.laid_out(batch, network))
    step(one, mutual_loss(z, labels, heard))
    step(two, mutual_loss(heard, labels, z))
    return network.state_dict()


def main() -> None:
    if len(sys.argv) > 1:
        threads, case = int(sys.argv[1]), sys.argv[2]
        found = bare_loop() if case == "bare" else polyfed_run(int(case), threads)
        sys.stdout.write(json.dumps(found) + "\n")
        return
    for threads in SERVER_THREADS:
        results = timed("benchmarks.noise", str(threads), repeats=REPEATS)
        wall = statistics.median(found["wall"] for found in results["bare"])
        print(
            f"distillation from noise, {len(TEACHERS)} teachers, server_threads: {threads}:"
            f" bare loop {wall / ROUNDS:.1f} s a round"
        )
        print_ratios(results)


if __name__ == "__main__":
    main()
