"""q-FedAvg against a loop written out by hand."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.conftest import MakeRun
from tests.methods.by_hand import (
    LR,
    NO_PUBLIC,
    Bench,
    Prepare,
    alike,
    averaging,
    descend,
    mean_of,
    normed,
    plain,
    said,
    towards,
    weights,
)
from torch import Tensor, nn
from torch.nn import functional as F

from polyfed.federation.message import Fields, Weights
from polyfed.federation.method import client_step
from polyfed.federation.nodes import Client
from polyfed.methods import QFFL, FedAvg
from polyfed.methods.qffl import QFFLSettings
from polyfed.runs.rounds import Run


def by_hand(
    run: Run, q: float, *, weighted: bool = False, at_the_end: bool = False, one_by_one: bool = False
) -> Weights:
    """The run's rounds; the mistakes are: counting by samples, the loss of the trained model, a norm of each tensor."""
    bench = Bench(run)
    model = run.federation.population.build("plain")
    w = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    for number in range(1, run.config.rounds + 1):
        deltas: dict[str, Tensor] = {name: torch.zeros_like(tensor) for name, tensor in w.items()}
        sum_of_h: dict[str, float] = dict.fromkeys(w, 0.0)
        rate = run.config.training.lr * run.config.training.decay ** (number - 1)
        for client in bench.cohort(number):
            x, y = bench.own(client)
            model.load_state_dict(w)
            loss = F.cross_entropy(said(model, x), y).item()
            step(model, x, y, bench.stream("batches", client, number, 1), rate)
            if at_the_end:
                loss = F.cross_entropy(said(model, x), y).item()
            d = {name: (w[name] - tensor) / rate for name, tensor in model.state_dict().items()}
            squares = {name: tensor.square().sum().item() for name, tensor in d.items()}
            share = len(y) if weighted else 1
            for name in w:
                norm = squares[name] if one_by_one else sum(squares.values())
                deltas[name] += share * loss**q * d[name]
                sum_of_h[name] += share * (q * loss ** (q - 1) * norm + loss**q / rate)
        w = {name: tensor - deltas[name] / sum_of_h[name] for name, tensor in w.items()}
    return w


def step(model: nn.Module, x: Tensor, y: Tensor, stream: torch.Generator, rate: float) -> None:
    """One epoch at this learning rate: `descend` has LR, so the loss is scaled."""
    loss = towards(y)
    descend(model, x, lambda rows, logits: rate / LR * loss(rows, logits), stream)


def trained(federate: Prepare, q: float, rounds: int = 3, **settings: Any) -> Weights:
    run = made(federate, q, rounds, **settings)
    return weights(run)


def made(federate: Prepare, q: float, rounds: int = 3, **settings: Any) -> Run:
    method = {"name": "qffl", "q": q}
    run = federate(
        [plain], server=False, data=NO_PUBLIC, method=method, rounds=rounds, cohort={"count": 2}, **settings
    )
    run.go()
    return run


@pytest.mark.parametrize("q", [0.0, 0.5, 2.0])
def test_rounds_equal_a_loop_by_hand(federate: Prepare, q: float) -> None:
    run = made(federate, q)
    assert alike(weights(run), by_hand(run, q))
    assert not alike(weights(run), by_hand(run, q + 0.2))
    assert not alike(weights(run), by_hand(run, q, weighted=True))
    if q:
        assert not alike(weights(run), by_hand(run, q, at_the_end=True))
        assert not alike(weights(run), by_hand(run, q, one_by_one=True))


def test_the_learning_rate_is_that_of_the_round(federate: Prepare) -> None:
    training = {"lr": LR, "batch": 8, "epochs": 1, "decay": 0.5}
    run = made(federate, 1.0, training=training)
    assert alike(weights(run), by_hand(run, 1.0))


def test_with_q_of_0_it_is_fedavg_in_which_all_count_the_same(federate: Prepare) -> None:
    run = made(federate, 0.0)
    fedavg = federate(
        [plain],
        server=False,
        data=NO_PUBLIC,
        method={"name": "fedavg", "weighting": "uniform"},
        rounds=3,
        cohort={"count": 2},
    )
    fedavg.go()
    assert alike(weights(run), weights(fedavg))
    assert not alike(weights(run), averaging(run).active)  # by samples


class Worked(QFFL):
    """Both clients go from w to w − 0.1 (client 0) or w − 0.2 (client 1), with losses 1 and 2 at the start."""

    @client_step(sends=("delta", "h"))
    def train(self, me: Client, weights: Weights) -> Fields:
        for parameter in me.model.parameters():
            parameter.data.zero_()
        start = {
            name: torch.full_like(tensor, 0.1 * (me.facts.index + 1)) for name, tensor in weights.items()
        }
        return self.trained(me, start, loss=me.facts.index + 1.0)


def test_an_update_worked_out(make_run: MakeRun) -> None:
    """η = 0.1 and q = 2, n parameters.

    client 0: d = 0.1 / 0.1 = 1 each, ‖d‖² = n;   Δ = 1² · 1 = 1;   h = 2 · 1 · n + 1 / 0.1 = 2n + 10
    client 1: d = 0.2 / 0.1 = 2 each, ‖d‖² = 4n;  Δ = 2² · 2 = 8;   h = 2 · 2 · 4n + 4 / 0.1 = 16n + 40
    w ← w − 9 / (18n + 50)
    """
    run = make_run(Worked, settings={"q": 2.0}, rounds=1, data={"clients": 2})
    before = run.federation.population.build("mlp-small").state_dict()
    run.go()
    n = sum(tensor.numel() for tensor in before.values())
    for name, tensor in weights(run).items():
        assert torch.allclose(before[name] - tensor, torch.tensor(9 / (18 * n + 50)), rtol=1e-2, atol=1e-8)


def test_a_step_worked_out_to_the_digit(make_run: MakeRun) -> None:
    """What client 1 sends in the case above, with its own numbers."""
    replies: dict[int, Fields] = {}

    class Told(Worked):
        @client_step(sends=("delta", "h"))
        def train(self, me: Client, weights: Weights) -> Fields:
            reply = super().train(me, weights)
            replies[me.facts.index] = reply
            return reply

    run = make_run(Told, settings={"q": 2.0}, rounds=1, data={"clients": 2})
    run.go()
    n = sum(tensor.numel() for tensor in weights(run).values())
    delta: Any = replies[1]["delta"]
    assert all(torch.allclose(tensor, torch.tensor(8.0)) for tensor in delta.values())
    assert replies[1]["h"] == pytest.approx(16 * n + 40)
    assert replies[0]["h"] == pytest.approx(2 * n + 10)


def test_the_larger_q_the_more_a_client_with_a_large_loss_counts(make_run: MakeRun) -> None:
    """The direction of the step turns towards the client that is worst off."""

    class Two(QFFL):
        """Each client asks for another parameter: client 0 with loss 1, client 1 with loss 3."""

        @client_step(sends=("delta", "h"))
        def train(self, me: Client, weights: Weights) -> Fields:
            start = {name: tensor.clone() for name, tensor in weights.items()}
            self.begin(me, weights)
            start["head.bias"][me.facts.index] += 1.0
            return self.trained(me, start, loss=1.0 + 2 * me.facts.index)

    for q in (0.0, 1.0, 3.0):
        run = make_run(Two, settings={"q": q}, rounds=1, data={"clients": 2})
        before = run.federation.population.build("mlp-small").state_dict()["head.bias"]
        run.go()
        moved = before - weights(run)["head.bias"]
        assert (moved[1] / moved[0]).item() == pytest.approx(3.0**q, rel=1e-3)


def test_running_statistics_are_averaged_and_no_part_of_the_norm(federate: Prepare) -> None:
    method = {"name": "qffl", "q": 1.0}
    run = federate([normed], server=False, data=NO_PUBLIC, method=method)
    run.go()
    bench = Bench(run)
    model = run.federation.population.build("normed")
    start = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    states, deltas, h = [], [], 0.0
    for client in range(3):
        model.load_state_dict(start)
        x, y = bench.own(client)
        loss = F.cross_entropy(said(model, x), y).item()
        descend(model, x, towards(y), bench.stream("batches", client, 1, 1))
        states.append({name: tensor.clone() for name, tensor in model.state_dict().items()})
        d = {name: (start[name] - tensor.detach()) / LR for name, tensor in model.named_parameters()}
        deltas.append({name: loss * tensor for name, tensor in d.items()})
        h += sum(tensor.square().sum().item() for tensor in d.values()) + loss / LR
    found = weights(run)
    for name, _ in model.named_parameters():
        change = torch.stack([delta[name] for delta in deltas]).sum(dim=0) / h
        assert torch.allclose(found[name], start[name] - change, atol=1e-6)
    mean = mean_of(states, [1.0, 1.0, 1.0])
    for name in ("1.running_mean", "1.running_var"):
        assert torch.allclose(found[name], mean[name], atol=1e-6)
    counter = found["1.num_batches_tracked"]
    assert counter.dtype == torch.int64
    assert counter.item() == max(int(state["1.num_batches_tracked"]) for state in states)


def test_clients_trained_stacked_are_told_apart_by_their_losses(make_run: MakeRun) -> None:
    """MLPs are stacked by default: a twin that dropped the losses would be FedAvg."""

    def found(kind: Any, stack: Any, **settings: Any) -> Weights:
        run = make_run(kind, settings=settings, rounds=2, stack=stack)
        run.go()
        return weights(run)

    alone = found(QFFL, 1, q=2.0)
    assert alike(found(QFFL, 4, q=2.0), alone, within=1e-5)
    assert not alike(found(FedAvg, 1, weighting="uniform"), alone, within=1e-3)
    assert not alike(found(QFFL, 4, q=0.0), alone, within=1e-3)


def test_by_default_a_large_loss_counts_more() -> None:
    assert QFFLSettings().q == 0.01


class Twisted(QFFL):
    """Client 1 sends an h below 0."""

    @client_step(sends=("delta", "h"))
    def train(self, me: Client, weights: Weights) -> Fields:
        reply = super().train(me, weights)
        return {**reply, "h": -1.0} if me.facts.index == 1 else reply


def test_an_h_below_0_is_refused(make_run: MakeRun) -> None:
    run = make_run(Twisted, rounds=1)
    run.go()
    assert run.last is not None
    assert [failure["client"] for failure in run.last["failures"]] == ["client-1"]
    assert "its h is not a number" in run.last["failures"][0]["reason"]
