"""SPATL against a loop written out by hand."""

from __future__ import annotations

import math
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
    descend,
    plain,
    towards,
    weights,
)
from tests.methods.test_scaffold import nothing, steps_worth
from tests.readers import whole_test
from torch import Tensor, nn

import polyfed
from polyfed import learn
from polyfed.errors import MethodError
from polyfed.federation.message import Weights, decode
from polyfed.methods import FedAvg
from polyfed.methods.spatl import SPATLSettings
from polyfed.models import Network
from polyfed.runs.rounds import Run


def two_parts() -> nn.Module:
    body = nn.Sequential(nn.Linear(5, 7), nn.ReLU(), nn.Linear(7, 6), nn.BatchNorm1d(6), nn.ReLU())
    return Network(body, nn.Linear(6, 3))


LAYERS = {"body.0": 7, "body.2": 6}


def largest(weight: torch.Tensor, count: int) -> list[int]:
    norms = [math.sqrt(sum(value**2 for value in row)) for row in weight.tolist()]
    return sorted(sorted(range(len(norms)), key=lambda row: -norms[row])[:count])


def by_hand(
    run: Run,
    *,
    keep: float,
    rank: str = "change",
    control: bool = True,
    momentum: float = 0.0,
    zeros: bool = False,
    shared_head: bool = False,
    all_of_c: bool = False,
) -> tuple[Weights, dict[int, Weights], Weights]:
    """The run's rounds: the encoder, every client's head, c.

    The last three are mistakes: filters that were not sent are averaged in as zeros, one head for all, a c_i that also
    changes where the server is not told.
    """
    bench, model = Bench(run), run.federation.population.build("two_parts")
    w = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    parameters = {name for name, _ in model.named_parameters()}
    heads, own = dict[int, Weights](), dict[int, dict[str, Tensor]]()
    corrected = [name for name in parameters if name.startswith("body.")]
    c = nothing({name: w[name] for name in corrected})
    held = [len(bench.own(client)[1]) for client in range(3)]
    for number in range(1, run.config.rounds + 1):
        sums, shares, counters = nothing(w), nothing(w), list[int]()
        step = nothing(c)
        for client in bench.cohort(number):
            x, y = bench.own(client)
            model.load_state_dict({**w, **heads.get(0 if shared_head else client, {})})
            c_i = own.get(client, nothing(c))
            correction = {name: c[name] - c_i[name] if name in c else torch.zeros(()) for name in parameters}
            steps = descend(
                model,
                x,
                towards(y),
                bench.stream("batches", client, number, 1),
                momentum=momentum,
                correction=correction if control else None,
            )
            after = {name: tensor.clone() for name, tensor in model.state_dict().items()}
            heads[0 if shared_head else client] = {name: after[name] for name in after if "head" in name}
            counters.append(int(after["body.3.num_batches_tracked"]))
            told = {}
            for name, tensor in after.items():
                layer = name.rpartition(".")[0]
                told[name] = torch.ones_like(tensor)
                if layer in LAYERS:
                    ranked = after[f"{layer}.weight"] - (w[f"{layer}.weight"] if rank == "change" else 0)
                    chosen = largest(ranked, math.ceil(keep * LAYERS[layer]))
                    told[name] = torch.zeros_like(tensor)
                    told[name][chosen] = 1
                sums[name] += held[client] * told[name] * tensor
                shares[name] += held[client] * (1 if zeros else told[name])
            own[client] = {}
            for name in c:
                mean = (w[name] - after[name]) / (steps_worth(steps, momentum) * LR)
                change = mean - c[name]
                step[name] += held[client] / sum(held) * told[name] * change
                own[client][name] = c_i[name] + (change if all_of_c else told[name] * change)
        for name, old in w.items():
            if name.startswith("body.") and old.is_floating_point():
                w[name] = torch.where(shares[name] > 0, sums[name] / shares[name].clamp(min=1), old)
        w["body.3.num_batches_tracked"] = torch.tensor(max(counters))
        c = {name: c[name] + step[name] for name in c}
    return {name: w[name] for name in w if name.startswith("body.")}, heads, c


def done(federate: Prepare, *, momentum: float = 0.0, rounds: int = 3, **settings: Any) -> Run:
    run = federate(
        [two_parts],
        server=False,
        data=NO_PUBLIC,
        method={"name": "spatl", **settings},
        training={"lr": LR, "batch": BATCH, "epochs": 1, "momentum": momentum},
        rounds=rounds,
        cohort={"count": 2},
    )
    run.go()
    return run


def encoder(run: Run) -> Weights:
    found = weights(run)
    return {name: found[name] for name in found if name.startswith("body.")}


def memory_of(run: Run, client: int) -> dict[str, Any]:
    found: dict[str, Any] = decode(run.client_files()[client].read_bytes())["memory"]
    return found


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("keep", [0.5, 1.0])
def test_rounds_equal_a_loop_by_hand(federate: Prepare, keep: float, momentum: float) -> None:
    run = done(federate, keep=keep, momentum=momentum)
    w, heads, c = by_hand(run, keep=keep, momentum=momentum)
    assert alike(encoder(run), w, within=1e-5)
    assert alike(run.server.memory["control"], c, within=1e-5)
    assert heads.keys() == run.client_files().keys()
    assert all(alike(memory_of(run, client)["head"], heads[client], within=1e-5) for client in heads)
    mistakes: list[dict[str, Any]] = [{"keep": 0.3}, {"control": False}, {"shared_head": True}]
    mistakes += [{"zeros": True}, {"all_of_c": True}, {"rank": "weights"}] if keep < 1 else []
    for mistake in mistakes:
        wrong = by_hand(run, **{"keep": keep, "momentum": momentum, **mistake})[0]
        assert not alike(encoder(run), wrong, within=1e-4), mistake


def test_filters_can_be_ranked_by_their_weights_as_in_the_authors_code(federate: Prepare) -> None:
    run = done(federate, keep=0.5, rank="weights")
    assert alike(encoder(run), by_hand(run, keep=0.5, rank="weights")[0], within=1e-5)


def test_by_default_every_filter_is_sent_sooner_or_later(make_run: MakeRun) -> None:
    """Large initial weights must not decide for the whole run who is heard."""
    moved = []
    for rank in ("change", "weights"):
        run = make_run({"name": "spatl", "keep": 0.25, "rank": rank}, rounds=6, name=f"by-{rank}")
        first = learn.weights_of(run.federation.population.build("mlp-small"))
        run.go()
        now = weights(run)
        layer = next(name for name in now if name.startswith("body.") and now[name].dim() == 2)
        moved.append((now[layer] != first[layer]).any(dim=1).float().mean().item())
    assert moved[0] > moved[1] + 0.2


def test_without_gradient_control_neither_gradients_travel_nor_are_they_corrected(federate: Prepare) -> None:
    run = done(federate, keep=0.5, gradient_control=False)
    assert alike(encoder(run), by_hand(run, keep=0.5, control=False)[0], within=1e-5)
    assert run.ledger.total("up", "gradients") == run.ledger.total("down", "gradients") == 0
    assert "control" not in memory_of(run, next(iter(run.client_files())))


def test_the_servers_control_variate_is_the_mean_of_all_clients(federate: Prepare) -> None:
    run = done(federate, keep=0.4, rounds=4)
    held = [facts.samples for facts in run.server.roster]
    for name, found in run.server.memory["control"].items():
        told = [held[client] * memory_of(run, client)["control"][name] for client in run.client_files()]
        assert torch.allclose(found, torch.stack(told).sum(0) / sum(held), atol=1e-6)


@pytest.mark.parametrize("keep", [0.25, 1.0])
def test_only_the_chosen_filters_leave_a_client(federate: Prepare, keep: float) -> None:
    """Of 7 and 6 filters a quarter is 2 each, of 5 and 7 inputs and a bias: 2 · 6 + 2 · 8 numbers.

    BatchNorm's scale, shift, mean and variance are 6 each, its counter has 8 bytes. Two clients, one round.
    """
    run = done(federate, keep=keep, rounds=1)
    filters = 2 * 6 + 2 * 8 if keep < 1 else 7 * 6 + 6 * 8
    assert run.ledger.total("up", "weights") == 2 * (4 * (filters + 4 * 6) + 8)
    assert run.ledger.total("up", "gradients") == 2 * 4 * (filters + 2 * 6)
    if keep < 1:
        assert run.ledger.total("up", "indices") == 2 * 4 * (2 + 2)
    assert run.ledger.total("down", "weights") == 2 * (4 * (7 * 6 + 6 * 8 + 4 * 6) + 8)


def test_a_client_is_scored_and_written_with_its_own_head(make_run: MakeRun) -> None:
    """One that never took part has the initial head on the shared encoder."""
    run = make_run("spatl", rounds=2, cohort={"count": 1}, name="heads")
    first = learn.weights_of(run.federation.population.build("mlp-small"))
    run.go()
    shared = run.server.memory["weights"]["mlp-small"]
    seen = run.client_files().keys()
    assert 1 <= len(seen) < 4
    for index in range(4):
        model = polyfed.load_model(run.path, f"client-{index}")
        head = memory_of(run, index)["head"] if index in seen else first
        for name, tensor in learn.weights_of(model).items():
            assert torch.equal(tensor, head[name] if name.startswith("head.") else shared[name])
        assert run.last is not None
        right = learn.score(model, *whole_test(run.federation).tensors())
        assert run.last["clients"][f"client-{index}"]["whole"] == right
    one = next(iter(seen))
    assert not torch.equal(memory_of(run, one)["head"]["head.weight"], first["head.weight"])


def test_models_without_a_head_are_refused_in_one_line(federate: Prepare) -> None:
    run = federate([plain], server=False, data=NO_PUBLIC, method="spatl")
    with pytest.raises(
        MethodError, match=r"^spatl needs models with a body and a head: make 'plain' a Network$"
    ):
        run.go()


def test_other_optimisers_are_refused_where_gradients_are_controlled(make_run: MakeRun) -> None:
    adam = {"optimiser": "adam", "lr": 0.003}
    with pytest.raises(MethodError, match=r"gradient_control .* set training\.optimiser=sgd, not adam"):
        make_run("spatl", training=adam)
    run = make_run({"name": "spatl", "gradient_control": False}, training=adam, rounds=1)
    run.go()
    assert run.last is not None
    assert "failures" not in run.last


def test_it_learns_on_convolutions_and_by_default_sends_half(make_run: MakeRun) -> None:
    settings = SPATLSettings()
    assert (settings.keep, settings.rank, settings.weighting) == (0.5, "change", "samples")
    assert settings.gradient_control
    up = []
    for method in ("spatl", FedAvg):
        run = make_run(method, rounds=4, models={"names": ["cnn-small"]}, training={"epochs": 3})
        run.go()
        assert run.summary["last"]["own"]["mean"] > 0.5
        up.append(run.ledger.total("up", "weights"))
    assert 0.45 < up[0] / up[1] < 0.52
