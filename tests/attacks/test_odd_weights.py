"""Weights of another type, from whichever client comes first, cost that client its contribution and nothing else."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from tests.conftest import MakeRun
from torch import Tensor

from polyfed.engines import Inline
from polyfed.federation.engine import Outcome, Success, Task
from polyfed.federation.message import decode, encode

TYPES = [
    torch.int64,
    torch.int8,
    torch.bool,
    torch.complex64,
    torch.float64,
    torch.float16,
    torch.float8_e5m2,
]


class Odd(Inline):
    """The first client's weights arrive in another type, or with something else about them changed."""

    def __init__(self, change: Any) -> None:
        super().__init__()
        self.change = change

    def run(self, task: Task) -> Iterator[Outcome]:
        for outcome in super().run(task):
            fields = decode(outcome.reply) if isinstance(outcome, Success) else {}
            if isinstance(outcome, Success) and outcome.client == 0 and "weights" in fields:
                fields["weights"] = {name: self.change(tensor) for name, tensor in fields["weights"].items()}
                yield dataclasses.replace(outcome, reply=encode(fields))
            else:
                yield outcome


def only_the_first_is_left_out(make_run: MakeRun, method: Any, change: Any, **changes: Any) -> None:
    run = make_run(method, Odd(change), rounds=2, **changes)
    run.go()
    assert run.finished
    lines = [json.loads(line) for line in (run.path / "history.jsonl").read_text().splitlines()]
    failed = [failure["client"] for line in lines for failure in line.get("failures", ())]
    assert failed == ["client-0"] * 2


@pytest.mark.parametrize("kind", TYPES, ids=str)
@pytest.mark.parametrize(
    "method", ["fedavg", {"name": "fedavg", "inactive": "cached"}], ids=["plain", "cached"]
)
def test_weights_of_another_type_are_left_out(make_run: MakeRun, method: Any, kind: torch.dtype) -> None:
    only_the_first_is_left_out(make_run, method, lambda tensor: tensor.to(kind))


@pytest.mark.parametrize("method", ["fedprox", "feddf", "fedkf", "fedgkd"])
def test_every_method_that_sends_weights_leaves_them_out(make_run: MakeRun, method: str) -> None:
    public = {"data": {"public": {"source": "share", "share": 0.2}}}
    only_the_first_is_left_out(make_run, method, lambda tensor: tensor.to(torch.int32), **public)


ODD: dict[str, Any] = {
    "empty": lambda tensor: tensor[:0],
    "flat": lambda tensor: tensor.flatten()[:-1],
    "infinite": lambda tensor: tensor / 0,
    "a text": lambda _tensor: "weights",
    "nested": lambda tensor: {"inner": tensor},
}


@pytest.mark.parametrize("name", ODD)
def test_weights_of_another_form_are_left_out(make_run: MakeRun, name: str) -> None:
    change = ODD[name]

    def spoilt(tensor: Tensor) -> Any:
        return change(tensor)

    only_the_first_is_left_out(make_run, "fedavg", spoilt)
