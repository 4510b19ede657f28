"""What a client can do in a step."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from tests.conftest import MakeRun
from tests.methods.by_hand import alike
from tests.readers import whole_test
from torch import nn

import polyfed
from polyfed import Client, Declaration, Fields, Fleet, Method, Server, client_step, learn
from polyfed.errors import MethodError


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
    y = whole_test(run.federation).tensors()[1]
    expected = (y == 3).double().mean().item()
    assert run.summary["last"]["stages"]["always 3"]["whole"]["mean"] == pytest.approx(expected)


@pytest.fixture
def server(make_run: MakeRun) -> Server:
    method = {"name": "fedavg", "within": "architecture"}
    return make_run(method, models={"names": ["mlp-small", "cnn-small"]}).server


def test_shared_weights_are_at_first_the_common_initial_ones(server: Server) -> None:
    initial = learn.weights_of(server.build("mlp-small"))
    assert alike(server.weights("mlp-small"), initial)


def test_shared_weights_cannot_be_changed_in_place(server: Server) -> None:
    weights: Any = server.weights("mlp-small")
    with pytest.raises(TypeError):
        weights |= {}
    with pytest.raises(TypeError):
        weights["head.bias"] = torch.zeros(10)


def test_weights_are_put_wholly_or_partly_and_what_was_read_stays(server: Server) -> None:
    before = server.weights("mlp-small")
    other = server.weights("cnn-small")
    bias = torch.full_like(before["head.bias"], 3.0)
    server.put_weights("mlp-small", {"head.bias": bias})
    after = server.weights("mlp-small")
    assert torch.equal(after["head.bias"], bias) and not torch.equal(before["head.bias"], bias)
    assert list(after) == list(before)
    assert all(after[name] is before[name] for name in before if name != "head.bias")
    assert alike(server.weights("cnn-small"), other)
    zeros = {name: torch.zeros_like(tensor) for name, tensor in after.items()}
    server.put_weights("mlp-small", zeros)
    assert alike(server.weights("mlp-small"), zeros)
    server.put_weights("mlp-small", {})
    assert alike(server.memory["weights"]["mlp-small"], zeros)


def test_weights_of_another_architecture_are_not_put(server: Server) -> None:
    before = dict(server.weights("mlp-small"))
    said = "weights of another architecture: 'head.wait' is not in mlp-small"
    with pytest.raises(MethodError, match=said):
        server.put_weights("mlp-small", {"head.bias": torch.zeros(10), "head.wait": torch.zeros(1)})
    assert alike(server.weights("mlp-small"), before)


def test_read_weights_can_be_kept_in_memory(server: Server) -> None:
    server.memory["kept"] = server.weights("mlp-small")
    assert alike(server.state()["memory"]["kept"], server.weights("mlp-small"))


class Keepless(Method):
    """Clients keep nothing; the server says zero to everything."""

    name = "keepless"

    def declare(self) -> Declaration:
        return Declaration(keeps=frozenset())

    @client_step
    def wait(self, me: Client) -> Fields:
        return {}

    def round(self, t: int, fleet: Fleet, server: Server) -> None:
        fleet.ask(self.wait, fleet.sample())
        [architecture] = server.roster.architectures
        weights = server.weights(architecture)
        server.put_weights(architecture, {name: 0 * tensor for name, tensor in weights.items()})


def test_clients_that_keep_no_model_use_the_shared_weights(make_run: MakeRun) -> None:
    run = make_run(Keepless, rounds=1, models={"names": ["mlp-small"]})
    run.go()
    final = load_file(run.path / "models" / "shared_mlp-small.safetensors")
    assert all(not tensor.any() for tensor in final.values())
