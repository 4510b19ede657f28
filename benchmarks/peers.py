"""FedH2L against a bare loop of the same operations: `python -m benchmarks.peers [ROUNDS]`.

Rotated MNIST (or digits where MNIST is not at hand), four nodes, the paper's LeNet and LeNet-5, batch 32, AMSGrad;
evaluation of all nodes on all domains every 50 rounds is part of it. The loop is tuned as polyfed is: layout, fused
optimiser, kept memory, one thread. Both clocks start when the data have been split. Interleaved, one process a case;
prints ratios (targets: 1.1 on one worker, 0.6 on two).
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.interleaved import CASES, print_ratios, timed
from benchmarks.works import cpu_seconds
from polyfed import data, learn
from polyfed.engines.process_setup import keep_freed_memory
from polyfed.errors import DataError
from polyfed.models import memory_format
from polyfed.runs.config import read_config
from polyfed.runs.federation import Federation
from polyfed.runs.setup import set_up

REPEATS = 3
ROUNDS = 200
EVERY = 50
BATCH = 32
MODELS = ("lenet-caffe", "lenet5")


def config(model: str, rounds: int) -> dict[str, Any]:
    try:
        data.load("mnist", "train")
        source = {"source": "mnist", "per_class": 100}
    except DataError:
        source = {"source": "digits", "size": 28}
    return {
        "method": {"name": "fedh2l", "batches": 1},
        "rounds": rounds,
        "data": {
            **source,
            "partition": {"kind": "rotated", "angles": [0, -20, -40, -60]},
            "validation": 1 / 9,
            "test": 1 / 6,
            "public": {"source": "share", "share": 0.1},
        },
        "models": {"names": [model]},
        "training": {"batch": BATCH, "optimiser": "amsgrad", "lr": 1e-3, "weight_decay": 1e-4},
        "evaluate": {"every": EVERY, "validation": "everyone"},
    }


def polyfed_run(model: str, rounds: int, workers: int) -> dict[str, float]:
    import polyfed  # noqa: PLC0415

    with tempfile.TemporaryDirectory() as folder:
        run = polyfed.prepare(config(model, rounds), out=Path(folder) / "run", workers=workers)
        run.open()
        wall, cpu = time.perf_counter(), cpu_seconds()
        run.go()
        assert run.last is not None
        accuracy = run.last["summary"]["whole"]["mean"]
        return {"wall": time.perf_counter() - wall, "cpu": cpu_seconds() - cpu, "accuracy": accuracy}


class Node:
    """One node of the bare loop."""

    def __init__(self, federation: Federation, index: int) -> None:
        held = federation.holdings.seen_by(index)
        assert held.whole_test is not None
        assert held.public is not None and held.own_public is not None and held.whole_validation is not None
        self.model: nn.Module = federation.population.own_model(index)
        layout = memory_format(self.model)
        self.x, self.y = held.train.tensors(layout)
        self.public_x, self.public_y = held.public.tensors(layout)
        self.own_public = held.own_public
        self.looks = [rows.tensors(layout) for rows in (held.whole_validation, held.test, held.whole_test)]
        self.parameters = list(self.model.parameters())
        self.optimiser = torch.optim.Adam(
            self.parameters, lr=1e-3, weight_decay=1e-4, amsgrad=True, fused=True
        )
        self.random = torch.Generator().manual_seed(index)
        self.local = torch.empty(0)

    def gradient(self, loss: Tensor) -> Tensor:
        """Of a loss, as one vector."""
        return torch.cat([part.reshape(-1) for part in torch.autograd.grad(loss, self.parameters)])

    def step(self, gradient: Tensor) -> None:
        place = 0
        for parameter in self.parameters:
            end = place + parameter.numel()
            # In the parameter's own layout: the fused optimiser walks through memory.
            parameter.grad = torch.empty_like(parameter).copy_(gradient[place:end].view(parameter.shape))
            place = end
        self.optimiser.step()

    def teach(self) -> tuple[Tensor, Tensor, float]:
        rows = torch.randperm(len(self.y), generator=self.random)[:BATCH]
        self.local = self.gradient(F.cross_entropy(self.model(learn.take(self.x, rows)), self.y[rows]))
        self.step(self.local)
        rows = self.own_public[torch.randperm(len(self.own_public), generator=self.random)[:BATCH]]
        self.model.eval()
        with torch.no_grad():
            said = self.model(learn.take(self.public_x, rows)).softmax(dim=1)
        self.model.train()
        return rows, said, (said.argmax(dim=1) == self.public_y[rows]).float().mean().item()

    def study(self, lessons: list[tuple[Tensor, Tensor, float]]) -> None:
        rows = torch.cat([lesson[0] for lesson in lessons])
        said = torch.cat([lesson[1] for lesson in lessons])
        trust = torch.tensor([lesson[2] for lesson in lessons]).repeat_interleave(BATCH)
        logits = self.model(learn.take(self.public_x, rows))
        divergence = F.kl_div(logits.log_softmax(dim=1), said, reduction="none").sum(dim=1)
        labels = F.cross_entropy(logits, self.public_y[rows], reduction="none")
        public = self.gradient((trust * divergence + labels).mean())
        overlap = public.dot(self.local)
        if overlap < 0:
            public = public - overlap / self.local.dot(self.local) * self.local
        self.step(public)

    @torch.no_grad()
    def look(self) -> float:
        self.model.eval()
        shares = [(self.model(x).argmax(dim=1) == y).double().mean() for x, y in self.looks]
        self.model.train()
        return float(shares[-1])


def bare_loop(model: str, rounds: int) -> dict[str, float]:
    """Algorithm 1 by hand in one process on one thread."""
    torch.set_num_threads(1)
    keep_freed_memory()
    federation = set_up(read_config(config(model, rounds)))
    accuracy = 0.0
    wall, cpu = time.perf_counter(), time.process_time()
    nodes = [Node(federation, index) for index in range(len(federation.roster))]
    for number in range(1, rounds + 1):
        lessons = [node.teach() for node in nodes]
        for place, node in enumerate(nodes):
            node.study(lessons[:place] + lessons[place + 1 :])
        if number % EVERY == 0 or number == rounds:
            accuracy = statistics.fmean(node.look() for node in nodes)
    return {"wall": time.perf_counter() - wall, "cpu": time.process_time() - cpu, "accuracy": accuracy}


def compare(model: str, rounds: int) -> None:
    results = timed("benchmarks.peers", str(rounds), model, repeats=REPEATS)
    print(f"FedH2L, 4 nodes, {model}, {rounds} rounds: ratios to a bare loop tuned the same way")
    print_ratios(results)
    shown = ", ".join(
        f"{case} {statistics.median(found['accuracy'] for found in results[case]):.3f}" for case in CASES
    )
    wall = statistics.median(found["wall"] for found in results["bare"])
    print(f"  bare loop {wall / rounds * 1e3:.1f} ms a round; accuracy at the end: {shown}", flush=True)


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else ROUNDS
    if len(sys.argv) > 2:
        model, case = sys.argv[2:]
        found = bare_loop(model, rounds) if case == "bare" else polyfed_run(model, rounds, int(case))
        sys.stdout.write(json.dumps(found) + "\n")
        return
    for model in MODELS:
        compare(model, rounds)


if __name__ == "__main__":
    main()
