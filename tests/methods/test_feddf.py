"""FedDF against a loop written out by hand: means an architecture, one teacher for all, the fusion."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from tests.conftest import MakeRun
from tests.methods.by_hand import (
    ONCE,
    PUBLIC_ROWS,
    Bench,
    Prepare,
    close,
    descend,
    normed,
    one_layer,
    plain,
    said,
    soft,
    towards,
)
from tests.readers import whole_test
from torch import Tensor, nn

from polyfed import learn
from polyfed.errors import RunError
from polyfed.federation.message import Fields, Weights, encode
from polyfed.federation.method import client_step
from polyfed.federation.nodes import Client
from polyfed.methods.feddf import FedDF
from polyfed.runs.rounds import Run

FUSION = {**ONCE, "optimiser": "sgd", "clip": None, "cosine": False}
FEDDF: dict[str, Any] = {
    "name": "feddf",
    "weighting": "uniform",
    "public_rows": PUBLIC_ROWS,
    "distil": FUSION,
}


class ByHand(Bench):
    """Algorithm 1 of FedDF, with one epoch of SGD everywhere."""

    def __init__(
        self, run: Run, averaged: str = "logits", *, teachers: str = "all", temperature: float = 1.0
    ) -> None:
        super().__init__(run)
        self.names = run.federation.roster.architectures
        self.models = {name: run.federation.population.build(name) for name in self.names}
        self.averaged = averaged
        self.teachers = teachers
        self.temperature = temperature
        for number in range(1, run.config.rounds + 1):
            self.round(number)

    def round(self, number: int) -> None:
        x = self.public(number)
        received: dict[str, list[nn.Module]] = {}
        for sequence, name in enumerate(self.names, start=1):
            members = [index for index in range(3) if self.federation.roster.architecture(index) == name]
            received[name] = [self.trained(name, index, number, sequence) for index in members]
        for name in self.names:
            heard = [
                model for other, models in received.items() for model in models if self.listens(name, other)
            ]
            answers = torch.stack([said(model, x) for model in heard])
            if self.averaged == "logits":
                target = (answers.mean(dim=0) / self.temperature).softmax(dim=1)
            else:
                target = (answers / self.temperature).softmax(dim=2).mean(dim=0)
            states = [model.state_dict() for model in received[name]]
            mean = {
                key: torch.stack([state[key].float() for state in states]).mean(dim=0) for key in states[0]
            }
            self.models[name].load_state_dict(mean)
            stream = self.server_stream(f"fusion {name}", number)
            descend(self.models[name], x, soft(target, self.temperature), stream)

    def listens(self, name: str, other: str) -> bool:
        return self.teachers == "all" or name == other

    def trained(self, name: str, client: int, number: int, sequence: int) -> nn.Module:
        model = self.federation.population.build(name)
        model.load_state_dict(self.models[name].state_dict())
        x, y = self.own(client)
        descend(model, x, towards(y), self.stream("batches", client, number, sequence))
        return model

    def agrees(self, run: Run) -> bool:
        found: dict[str, Weights] = run.server.memory["weights"]
        return all(close(counted(found[name]), uncounted(model)) for name, model in self.models.items())


def counted(weights: Weights) -> Weights:
    """Without BatchNorm's batch counter, of which no mean is taken."""
    return {
        name: torch.zeros_like(tensor) if "num_batches" in name else tensor
        for name, tensor in weights.items()
    }


def uncounted(model: nn.Module) -> nn.Module:
    for name, buffer in model.named_buffers():
        if "num_batches" in name:
            buffer.zero_()
    return model


@pytest.mark.parametrize("averaged", ["logits", "probabilities"])
@pytest.mark.parametrize("models", [[one_layer, plain], [normed, one_layer]], ids=["one-layer", "normed"])
def test_rounds_equal_a_loop_by_hand(federate: Prepare, models: list[Any], averaged: str) -> None:
    """The teacher is the mean of all received models, the student the mean of its own architecture's.

    Teachers answer in evaluation mode; the student's running statistics follow the public data.
    """
    run = federate(models, method={**FEDDF, "teacher": averaged}, rounds=2)
    run.go()
    assert [run.federation.roster.architecture(index) for index in range(3)] == [
        models[0].__name__,
        models[1].__name__,
        models[0].__name__,
    ]
    assert ByHand(run, averaged).agrees(run)
    other = "probabilities" if averaged == "logits" else "logits"
    assert not ByHand(run, other).agrees(run)
    assert not ByHand(run, averaged, teachers="own architecture").agrees(run)


@pytest.mark.parametrize("averaged", ["logits", "probabilities"])
def test_a_temperature_softens_teachers_and_students_alike(federate: Prepare, averaged: str) -> None:
    method = {**FEDDF, "teacher": averaged, "distil": {**FUSION, "temperature": 3.0}}
    run = federate([one_layer, plain], method=method)
    run.go()
    assert ByHand(run, averaged, temperature=3.0).agrees(run)


def test_the_fusion_by_hand_in_numbers(federate: Prepare) -> None:
    """One step over all rows: w_a ← mean - lr (q - p)ᵀ x / rows, with p the softmax of the mean of three logits."""
    fusion = {**FUSION, "batch": PUBLIC_ROWS}
    run = federate([one_layer, plain], method={**FEDDF, "distil": fusion})
    run.go()
    bench = Bench(run)
    x = bench.public(1)
    received = []
    for client, (name, sequence) in enumerate([("one_layer", 1), ("plain", 2), ("one_layer", 1)]):
        model = run.federation.population.build(name)
        descend(
            model,
            bench.own(client)[0],
            towards(bench.own(client)[1]),
            bench.stream("batches", client, 1, sequence),
        )
        received.append(model)
    p = ((said(received[0], x) + said(received[1], x) + said(received[2], x)) / 3).softmax(dim=1)
    weight = (received[0].get_parameter("weight") + received[2].get_parameter("weight")).detach() / 2
    bias = (received[0].get_parameter("bias") + received[2].get_parameter("bias")).detach() / 2
    slope = ((x @ weight.T + bias).softmax(dim=1) - p) / len(x)
    found = run.server.memory["weights"]["one_layer"]
    assert torch.allclose(found["weight"], weight - 0.1 * slope.T @ x, atol=1e-6)
    assert torch.allclose(found["bias"], bias - 0.1 * slope.sum(dim=0), atol=1e-6)


def test_the_ensemble_is_scored_by_the_mean_of_its_logits(federate: Prepare) -> None:
    run = federate([normed, one_layer], method=FEDDF, rounds=2)
    run.go()
    x, y = whole_test(run.federation).tensors()
    logits = []
    for name, weights in run.server.memory["weights"].items():
        model = run.federation.population.build(name)
        learn.load_weights(model, weights)
        logits.append(said(model, x))
    right = (torch.stack(logits).mean(dim=0).argmax(dim=1) == y).double().mean().item()
    assert run.summary["last"]["server"]["ensemble"] == pytest.approx(right, abs=1e-9)
    alone = [(each.argmax(dim=1) == y).double().mean().item() for each in logits]
    by_architecture = run.summary["last"]["architectures"]
    assert [by_architecture[name]["whole"] for name in ("normed", "one_layer")] == pytest.approx(alone)


# -- weights that do not fit ---------------------------------------------------------------------------------


def shorter(weights: dict[str, Tensor]) -> dict[str, Any]:
    return {**weights, "bias": torch.zeros(2)}


def fewer(weights: dict[str, Tensor]) -> dict[str, Any]:
    return {"weight": weights["weight"]}


def renamed(weights: dict[str, Tensor]) -> dict[str, Any]:
    return {"weight": weights["weight"], "slant": weights["bias"]}


def a_text(weights: dict[str, Tensor]) -> dict[str, Any]:
    return {**weights, "bias": "none"}


def no_weights(_weights: dict[str, Tensor]) -> Any:
    return torch.zeros(3)


def failing(_weights: dict[str, Tensor]) -> Any:
    raise RuntimeError("broken")


def give(run: Run, method: FedDF) -> None:
    """Let a run that is not yet open have another method."""
    run.method = run.federation.method = method  # type: ignore[misc]
    run.program = run.fleet.program = replace(run.program, method=method)


def spoilt(fault: Any, who: int) -> type[FedDF]:
    class Spoilt(FedDF):
        @client_step
        def train(self, me: Client, weights: Weights) -> Fields:
            fields = dict(super().train(me, weights))
            return {"weights": fault(fields["weights"])} if me.facts.index == who else fields

    return Spoilt


@pytest.mark.parametrize("who", [0, 2], ids=["first", "last"])
@pytest.mark.parametrize("fault", [shorter, fewer, renamed, a_text, no_weights])
def test_a_client_whose_weights_do_not_fit_is_refused_and_no_teacher(
    federate: Prepare, fault: Any, who: int
) -> None:
    """The others fuse as if it had not answered at all."""
    found = []
    for each in (fault, failing):
        run = federate([one_layer, plain], method=FEDDF, stack=1)
        method = spoilt(each, who)(run.method.settings, run.method.training)
        give(run, method)
        run.go()
        assert run.last is not None
        assert [failure["client"] for failure in run.last["failures"]] == [f"client-{who}"]
        found.append(run.server.memory["weights"])
    assert encode(found[0]) == encode(found[1])


def test_without_one_usable_model_the_run_says_so(make_run: MakeRun) -> None:
    class Useless(FedDF):
        @client_step
        def train(self, me: Client, weights: Weights) -> Fields:
            return {"weights": {}}

    run = make_run(Useless, data={"public": {"source": "share", "share": 0.2}})
    with pytest.raises(RunError, match=r"round 1: every client failed, .*'train': its reply has no weights"):
        run.go()
