"""What a client can do in a step."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from tests.conftest import MakeRun
from torch import nn

import polyfed
from polyfed import Client, Declaration, Fields, client_step


class Always(nn.Module):
    """Answers with one class, whatever it is asked."""

    def __init__(self, answer: int) -> None:
        super().__init__()
        self.answer = answer

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        logits = torch.zeros(len(x), 10)
        logits[:, self.answer] = 1
        return logits


class Comparing(polyfed.methods.Local):
    """Measures a module that is not the client's model."""

    name = "comparing"

    def declare(self) -> Declaration:
        return replace(super().declare(), stages=("always 3",))

    @client_step
    def train(self, me: Client) -> Fields:
        me.measure("always 3", model=Always(3))
        return {}


def test_another_model_than_the_clients_is_measured(make_run: MakeRun) -> None:
    run = make_run(Comparing, rounds=1)
    run.go()
    y = run.federation.whole_test.tensors()[1]
    expected = (y == 3).double().mean().item()
    assert run.summary["last"]["stages"]["always 3"]["whole"]["mean"] == pytest.approx(expected)
