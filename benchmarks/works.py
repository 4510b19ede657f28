"""The works that speed is measured on, and the yardstick: a plain hand-written PyTorch loop.

A: LeNet-5 on MNIST, 20 clients × 500, batch 32, 5 rounds.   B: the same with an MLP 784-128-128-10.
C: ResNet-8 (16-32-64, BatchNorm) on CIFAR-10, 8 clients × 500, batch 64, 2 rounds.
All clients every round, 1 local epoch, SGD 0.05, sample-weighted mean, one evaluation of 2,000 images at the end.
"""

from __future__ import annotations

import copy
import dataclasses
import multiprocessing
import resource
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.own import MLP, LeNet5, ResNet8
from polyfed import data, models
from polyfed.engines.process_setup import keep_freed_memory
from polyfed.errors import DataError
from polyfed.seeds import Seeds

TEST_ROWS = 2000
SAMPLES = 500


@dataclass(frozen=True)
class Work:
    name: str
    model: str
    source: str
    shape: tuple[int, int, int]
    clients: int
    batch: int
    rounds: int
    own: Callable[[], nn.Module]
    """Makes the same architecture as a user's own module."""


WORKS = {
    "A": Work("A LeNet-5", "lenet5", "mnist", (1, 28, 28), 20, 32, 5, LeNet5),
    "B": Work("B MLP", "mlp", "mnist", (1, 28, 28), 20, 32, 5, MLP),
    "C": Work("C ResNet-8", "resnet8", "cifar10", (3, 32, 32), 8, 64, 2, ResNet8),
}


def source(work: Work) -> object:
    """The named set where it is at hand, else random images of the same shape."""
    try:
        data.load(work.source, "test")
        data.load(work.source, "train")
    except DataError:
        generator = torch.Generator().manual_seed(0)
        rows = work.clients * SAMPLES
        channels, height, width = work.shape

        def images(count: int) -> tuple[Tensor, Tensor]:
            x = torch.randint(
                0, 256, (count, channels, height, width), dtype=torch.uint8, generator=generator
            )
            return x, torch.randint(0, 10, (count,), generator=generator)

        return {"train": images(rows), "test": images(TEST_ROWS)}
    return work.source


def tensors(work: Work, layout: torch.memory_format) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Normalised train and test tensors."""
    where = source(work)
    train = data.load(where, "train", limit=work.clients * SAMPLES)
    test = data.load(where, "test")
    x, y = train.rows().tensors(layout)
    x_test, y_test = test.rows(list(range(TEST_ROWS))).tensors(layout)
    return x, y, x_test, y_test


def forked_loops(work: Work) -> dict[str, float]:
    """Two forked processes, each the bare loop for half of the clients: what two cores give by themselves."""
    half = dataclasses.replace(work, clients=work.clients // 2)
    torch.set_num_threads(1)
    source(work)
    torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.05)
    context = multiprocessing.get_context("fork")
    results: multiprocessing.SimpleQueue[dict[str, float]] = context.SimpleQueue()
    ready = time.time()
    processes = [context.Process(target=lambda: results.put(bare_loop(half, tuned=False))) for _ in range(2)]
    for process in processes:
        process.start()
    found = [results.get() for _ in processes]
    for process in processes:
        process.join()
    return {
        "wall": max(result["wall"] for result in found),
        "cpu": sum(result["cpu"] for result in found),
        "ready": ready,
        "accuracy": found[0]["accuracy"],
    }


def bare_loop(work: Work, *, tuned: bool) -> dict[str, float]:
    """FedAvg by hand in one process on one thread: default layout, a batch is one index into a tensor.

    `tuned` uses what polyfed uses: the layout that measured fastest for the model, a fused optimiser, and memory that
    is kept for the next step. It does not stack clients, which polyfed does for MLPs.
    """
    torch.set_num_threads(1)
    if tuned:
        keep_freed_memory()
    initial = Seeds(0).torch("model", work.model)  # the same as in a run with seed 0
    model: nn.Module = models.build(work.model, work.shape, 10, generator=initial)
    layout = models.memory_format(model) if tuned else torch.contiguous_format
    model = model.to(memory_format=layout)  # type: ignore[call-overload]
    x, y, x_test, y_test = tensors(work, layout)
    order = torch.randperm(len(y), generator=torch.Generator().manual_seed(1))
    shares = [part.clone() for part in order.split(SAMPLES)]
    clients = [(_rows(x, share), y[share]) for share in shares]
    torch.optim.SGD(model.parameters(), lr=0.05)  # imports torch._dynamo, before the clock starts
    ready = time.time()
    wall, cpu = time.perf_counter(), time.process_time()
    weights = copy.deepcopy(model.state_dict())
    for _ in range(work.rounds):
        total: dict[str, Tensor] = {}
        for x_client, y_client in clients:
            model.load_state_dict(weights)
            model.train()
            optimiser = torch.optim.SGD(model.parameters(), lr=0.05, fused=tuned or None)
            for rows in torch.randperm(len(y_client)).split(work.batch):
                loss = F.cross_entropy(model(_rows(x_client, rows)), y_client[rows])
                optimiser.zero_grad()
                loss.backward()
                optimiser.step()
            for name, tensor in model.state_dict().items():
                total[name] = total[name] + tensor if name in total else tensor.clone()
        weights = {name: tensor / len(clients) for name, tensor in total.items()}
    model.load_state_dict(weights)
    model.eval()
    with torch.no_grad():
        right = 0
        for part, answer in zip(x_test.split(256), y_test.split(256), strict=True):
            right += int((model(part).argmax(1) == answer).sum())
    return {
        "wall": time.perf_counter() - wall,
        "cpu": time.process_time() - cpu,
        "ready": ready,
        "accuracy": right / len(y_test),
    }


def _rows(x: Tensor, rows: Tensor) -> Tensor:
    if x.is_contiguous():
        return x[rows]
    return x.permute(0, 2, 3, 1)[rows].permute(0, 3, 1, 2)


def cpu_seconds() -> float:
    """CPU time of this process and of its children that ended."""
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)
