"""FedKF's client update against a bare PyTorch loop of the same operations.

`python -m benchmarks.fusion`: LeNet-5 on 28×28 grey images and ResNet-8 on 32×32 colour images, 128 random images in
batches of 32, in both flavours; one thread, interleaved. The bare loop has fused optimisers and the layout that polyfed
chooses, so what is left is polyfed's own doing: weights in and out, generator and moments in and out of memory.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from polyfed import models
from polyfed.engines.process_setup import keep_freed_memory
from polyfed.federation.message import Weights
from polyfed.federation.nodes import Client, Moment
from polyfed.methods import FedKF
from polyfed.runs.config import read_config
from polyfed.runs.setup import set_up

TARGET = 1.1
REPEATS = 5
ROWS, BATCH, NOISE = 128, 32, 100
LR = 0.01
CASES = {"LeNet-5": ("lenet5", (1, 28, 28)), "ResNet-8": ("resnet8", (3, 32, 32))}
Update = Callable[[], object]


def client(model: str, shape: tuple[int, int, int], flavour: str) -> tuple[FedKF, Client]:
    """One client with random images, as a run would make it."""
    stream = torch.Generator().manual_seed(0)
    x = torch.randint(0, 256, (ROWS, *shape), dtype=torch.uint8, generator=stream)
    y = torch.arange(ROWS) % 10
    config = read_config(
        {
            "method": {"name": "fedkf", "flavour": flavour, "noise": NOISE},
            "data": {"clients": 1, "partition": {"kind": "iid"}, "validation": 0, "test": 0},
            "models": {"names": [model]},
            "training": {"epochs": 1, "batch": BATCH, "lr": LR},
        }
    )
    federation = set_up(config, {"train": (x, y), "test": (x[:10], y[:10])})
    scratch = federation.population.build(model)
    made = federation.population.client(
        0, federation.population.build(model), lambda _architecture, _place=0: scratch
    )
    made.enter(Moment(2, 1))
    assert isinstance(federation.method, FedKF)
    return federation.method, made


def bare(me: Client, weights: Weights, settings: Any) -> Update:
    """The same by hand."""
    x, y = me.tensors(me.train)
    student, teacher = (models.build(me.facts.architecture, me.shape, 10) for _ in range(2))
    layout = models.memory_format(student)
    generator = models.build_generator(me.shape, NOISE, limits=me.train.dataset.limits)
    kept = torch.optim.Adam(generator.parameters(), lr=1e-3, fused=True)
    teacher.eval().requires_grad_(False)
    scale = settings.activation == "mean"

    def loss_of(made: Tensor, features: Tensor, logits: Tensor) -> Tensor:
        mean = logits.softmax(dim=1).mean(dim=0)
        sure = F.cross_entropy(logits, logits.argmax(dim=1))
        size = features.abs().mean() if scale else features.abs().sum(dim=1).mean()
        loss = (mean * mean.log()).sum() + 0.1 * sure - 0.1 * size
        if settings.adversarial:
            student.requires_grad_(False)
            loss = loss - F.kl_div(
                student(made).log_softmax(dim=1), logits.detach().softmax(dim=1), reduction="batchmean"
            )
            student.requires_grad_(True)
        return loss

    def update() -> None:
        nonlocal generator
        adam = kept
        if not settings.keep_generator:
            generator = models.build_generator(me.shape, NOISE, limits=me.train.dataset.limits)
            adam = torch.optim.Adam(generator.parameters(), lr=1e-3, fused=True)
        for model in (student, teacher):
            model.load_state_dict(weights)
        student.train()
        sgd = torch.optim.SGD(student.parameters(), lr=LR, fused=True)
        for rows in torch.randperm(len(x)).split(BATCH):
            noise = torch.randn(BATCH, NOISE)
            made = generator(noise).contiguous(memory_format=layout)
            features = teacher.features(made)
            logits = teacher.head(features)
            seen, answers = made.detach(), logits.detach()
            if settings.first == "generator":
                _step(adam, loss_of(made, features, logits))
                with torch.no_grad():
                    seen = generator(noise).contiguous(memory_format=layout)
                    answers = teacher(seen)
            loss = F.cross_entropy(student(_rows(x, rows)), y[rows])
            told = answers.softmax(dim=1)
            loss = loss + F.kl_div(student(seen).log_softmax(dim=1), told, reduction="batchmean")
            _step(sgd, loss)
            if settings.first == "student":
                _step(adam, loss_of(made, features, logits))

    return update


def _step(optimiser: torch.optim.Optimizer, loss: Tensor) -> None:
    optimiser.zero_grad()
    loss.backward()
    optimiser.step()


def _rows(x: Tensor, rows: Tensor) -> Tensor:
    """A batch in the layout of `x`."""
    if x.is_contiguous():
        return x[rows]
    return x.permute(0, 2, 3, 1)[rows].permute(0, 3, 1, 2)


def seconds(update: Update) -> tuple[float, float]:
    """Wall time and this process's CPU time."""
    wall, cpu = time.perf_counter(), time.process_time()
    update()
    return time.perf_counter() - wall, time.process_time() - cpu


def ratios(name: str, model: str, shape: tuple[int, int, int], flavour: str) -> None:
    method, me = client(model, shape, flavour)
    weights = {key: tensor.clone() for key, tensor in nn.Module.state_dict(me.model).items()}
    steps = ROWS // BATCH if flavour == "authors" else None

    def ours() -> object:
        return method.fuse(me, weights=weights, teacher=weights, steps=steps)

    theirs = bare(me, weights, method.settings)
    for update in (ours, theirs):
        update()
    pairs = [(*seconds(ours), *seconds(theirs)) for _ in range(REPEATS)]
    wall = statistics.median(pair[0] / pair[2] for pair in pairs)
    cpu = statistics.median(pair[1] / pair[3] for pair in pairs)
    own, other = statistics.median(pair[0] for pair in pairs), statistics.median(pair[2] for pair in pairs)
    print(
        f"FedKF's client update, {name}, {flavour}: {own:.2f} s, bare loop {other:.2f} s:"
        f" ratio {wall:.2f}, of CPU time {cpu:.2f} (target {TARGET:.2f})"
    )


def main() -> None:
    torch.set_num_threads(1)
    keep_freed_memory()
    for name, (model, shape) in CASES.items():
        for flavour in ("paper", "authors"):
            ratios(name, model, shape, flavour)


if __name__ == "__main__":
    main()
