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
from polyfed.federation.engine import Outcome, Request, Success
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
    """A field of the first client, weights, arrives in another type, or with something else about it changed."""

    def __init__(self, change: Any, field: str = "weights") -> None:
        super().__init__()
        self.change = change
        self.field = field

    def run(self, request: Request) -> Iterator[Outcome]:
        for outcome in super().run(request):
            fields = decode(outcome.reply) if isinstance(outcome, Success) else {}
            if isinstance(outcome, Success) and outcome.client == 0 and self.field in fields:
                sent = fields[self.field]
                fields[self.field] = {name: self.change(tensor) for name, tensor in sent.items()}
                yield dataclasses.replace(outcome, reply=encode(fields))
            else:
                yield outcome


def only_the_first_is_left_out(
    make_run: MakeRun, method: Any, change: Any, field: str = "weights", **changes: Any
) -> None:
    run = make_run(method, Odd(change, field), rounds=2, **changes)
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
    public: dict[str, Any] = {"data": {"public": {"source": "share", "share": 0.2}}}
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


@pytest.mark.parametrize("field", ["weights", "model"])
@pytest.mark.parametrize("name", [*ODD, "float64"])
def test_a_model_that_was_not_sent_to_the_client_must_be_of_its_architecture(
    make_run: MakeRun, name: str, field: str
) -> None:
    """FedORION: the first client sends a copy of the global model (mlp-small) and its own (mlp)."""
    change = {**ODD, "float64": lambda tensor: tensor.double()}[name]
    models = {"names": ["mlp", "mlp-small"]}
    only_the_first_is_left_out(make_run, "fedorion", change, field, models=models)
