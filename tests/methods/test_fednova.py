"""FedNova against a loop written out by hand."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.conftest import MakeRun
from tests.methods.by_hand import (
    BATCH,
    LR,
    NO_PUBLIC,
    Bench,
    Prepare,
    alike,
    averaging,
    descend,
    normed,
    plain,
    towards,
    weights,
)
from tests.methods.test_scaffold import steps_worth

from polyfed.errors import MethodError
from polyfed.federation.message import Fields, Weights
from polyfed.federation.method import client_step
from polyfed.federation.nodes import Client
from polyfed.methods import FedNova
from polyfed.runs.rounds import Run


def by_hand(
    run: Run,
    *,
    architecture: str = "plain",
    momentum: float = 0.0,
    plain_steps: bool = False,
    uniform: bool = False,
    mean_of_steps: bool = False,
) -> Weights:
    """The run's rounds; the last three are mistakes: K for a_i, all counting the same, a plain mean for τ_eff."""
    bench = Bench(run)
    model = run.federation.population.build(architecture)
    w = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    parameters = dict(model.named_parameters())
    for number in range(1, run.config.rounds + 1):
        cohort = bench.cohort(number)
        held = {client: 1 if uniform else len(bench.own(client)[1]) for client in cohort}
        gradient = {name: torch.zeros_like(w[name]) for name in parameters}
        others = {name: torch.zeros_like(w[name]) for name in w if name not in parameters}
        worth = {}
        for client, share in held.items():
            x, y = bench.own(client)
            model.load_state_dict(w)
            stream = bench.stream("batches", client, number, 1)
            steps = descend(model, x, towards(y), stream, momentum=momentum)
            worth[client] = float(steps) if plain_steps else steps_worth(steps, momentum)
            p = share / sum(held.values())
            for name, after in model.state_dict().items():
                if name in gradient:
                    # d_i, with the learning rate taken out and put back
                    gradient[name] += p * (w[name] - after) / (LR * worth[client])
                elif after.is_floating_point():
                    others[name] += p * after
                else:
                    others[name] = torch.maximum(others[name], after)
        tau = sum(held[client] * worth[client] for client in held) / sum(held.values())
        if mean_of_steps:
            tau = sum(worth.values()) / len(worth)
        w = {name: w[name] - tau * LR * gradient[name] for name in gradient} | others
    return w


def done(federate: Prepare, *, momentum: float = 0.0, model: Any = plain, **settings: Any) -> Run:
    training = {"lr": LR, "batch": BATCH, "epochs": 1, "momentum": momentum, **settings}
    run = federate(
        [model],
        server=False,
        data=NO_PUBLIC,
        method="fednova",
        training=training,
        rounds=3,
        cohort={"count": 2},
    )
    run.go()
    return run


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_rounds_equal_a_loop_by_hand(federate: Prepare, momentum: float) -> None:
    run = done(federate, momentum=momentum)
    assert alike(weights(run), by_hand(run, momentum=momentum))
    assert not alike(weights(run), by_hand(run, momentum=momentum, uniform=True), within=1e-3)
    assert not alike(weights(run), by_hand(run, momentum=momentum, mean_of_steps=True), within=1e-3)
    assert not alike(weights(run), averaging(run).active, within=1e-3)
    if momentum:
        assert not alike(weights(run), by_hand(run, momentum=momentum, plain_steps=True), within=1e-3)


def test_statistics_of_batch_norm_are_averaged(federate: Prepare) -> None:
    run = done(federate, model=normed)
    assert alike(weights(run), by_hand(run, architecture="normed"))


def test_where_all_make_equally_many_steps_it_is_fedavg(federate: Prepare) -> None:
    """In the first round; with momentum, too."""
    found = []
    for method in ("fedavg", "fednova"):
        training = {"lr": LR, "batch": BATCH, "steps": 5, "momentum": 0.9}
        run = federate([plain], server=False, data=NO_PUBLIC, method=method, training=training, rounds=3)
        run.go()
        found.append(weights(run))
    assert alike(*found)


class Worked(FedNova):
    """Client 0 goes from 0 to −0.3, client 1 to −1, in what would be 1 and 2 steps at momentum 0.9."""

    @client_step(sends=("direction", "steps"))
    def train(self, me: Client, weights: Weights, buffers: Weights) -> Fields:
        first = me.facts.index == 0
        a = 1.0 if first else 2.9
        way = -0.3 if first else -1.0
        direction = {name: torch.full_like(tensor, -way / a) for name, tensor in weights.items()}
        return {"direction": direction, "steps": a}


def test_an_update_worked_out(make_run: MakeRun) -> None:
    """p = n_0 / n, 1 − p:  Σ p_i d_i = 0.3 p + (1 − p) / 2.9;  τ = p + 2.9 (1 − p);  w ← w − τ · Σ p_i d_i."""
    run = make_run(Worked, rounds=1, data={"clients": 2})
    before = {name: tensor.clone() for name, tensor in weights(run).items()}
    run.go()
    first, second = (facts.samples for facts in run.server.roster)
    p = first / (first + second)
    way = (p + 2.9 * (1 - p)) * (0.3 * p + (1 - p) / 2.9)
    assert 0.3 < way < 1
    for name, tensor in weights(run).items():
        assert torch.allclose(tensor, before[name] - way, atol=1e-6)


def test_as_much_leaves_a_client_as_in_fedavg_and_a_number(federate: Prepare) -> None:
    run = done(federate)
    size = sum(tensor.nbytes for tensor in weights(run).values())
    assert run.ledger.total("up", "gradients") == run.ledger.total("down", "weights") == 3 * 2 * size
    assert run.ledger.total("up", "weights") == 0
    assert 0 < run.ledger.total("up", "metrics") < 3 * 2 * 40


def test_stacked_clients_send_the_same(make_run: MakeRun) -> None:
    found = []
    for stack in (1, 4):
        run = make_run("fednova", rounds=2, stack=stack, training={"momentum": 0.5})
        run.go()
        found.append(weights(run))
    assert alike(*found, within=1e-5)


def test_a_client_without_rows_does_not_count(make_run: MakeRun) -> None:
    partition = {"kind": "dirichlet", "alpha": 0.05, "minimum": 0}
    run = make_run("fednova", rounds=2, data={"clients": 12, "limit": 60, "partition": partition})
    assert not all(facts.samples for facts in run.server.roster)
    run.go()
    assert run.last is not None
    assert "failures" not in run.last


def test_other_optimisers_are_refused(make_run: MakeRun) -> None:
    with pytest.raises(MethodError, match=r"fednova .* set training\.optimiser=sgd, not adamw"):
        make_run("fednova", training={"optimiser": "adamw"})
