"""MOON against a loop written out by hand."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from tests.conftest import MakeRun
from tests.methods.by_hand import NO_PUBLIC, Bench, Loss, Prepare, alike, averaging, plain, weights
from torch import Tensor, nn
from torch.nn import functional as F

from polyfed import learn
from polyfed.errors import UserError
from polyfed.federation.message import Weights, decode, encode
from polyfed.federation.nodes import Client
from polyfed.methods import local_training
from polyfed.methods.moon import MOONSettings, contrastive
from polyfed.runs.rounds import Run

MU = 3.0


def features(model: nn.Module, x: Tensor) -> Tensor:
    """What the last layer of `plain` sees."""
    assert isinstance(model, nn.Sequential)
    found: Tensor = model[:2](x)
    return found


def by_hand(
    run: Run, *, mu: float = MU, temperature: float = 0.5, swapped: bool = False, no_last: bool = False
) -> Weights:
    """The run's rounds; the last two are mistakes: away from the global model; the global model as the last one."""
    bench = Bench(run)
    other = run.federation.population.build("plain")

    def local_loss(client: int, _number: int, model: nn.Module, start: Weights, last: Weights | None) -> Loss:
        x, y = bench.own(client)
        if last is None:
            return lambda rows, logits: F.cross_entropy(logits, y[rows])
        kept = []
        for state in (start, start if no_last else last):
            other.load_state_dict(state)
            with torch.no_grad():
                kept.append(features(other, x))

        def loss(rows: Tensor, logits: Tensor) -> Tensor:
            f = features(model, x[rows])
            near, far = (
                torch.exp(
                    (f * g[rows]).sum(1) / (f.norm(dim=1) * g[rows].norm(dim=1)).clamp(min=1e-8) / temperature
                )
                for g in (reversed(kept) if swapped else kept)
            )
            return F.cross_entropy(logits, y[rows]) + mu * -torch.log(near / (near + far)).mean()

        return loss

    return averaging(run, local_loss).active


def trained(federate: Prepare, rounds: int, **settings: Any) -> Run:
    method = {"name": "moon", "mu": MU, **settings}
    run = federate([plain], server=False, data=NO_PUBLIC, method=method, rounds=rounds, cohort={"count": 2})
    run.go()
    return run


@pytest.mark.parametrize("temperature", [0.5, 2.0])
def test_rounds_equal_a_loop_by_hand(federate: Prepare, temperature: float) -> None:
    run = trained(federate, 4, temperature=temperature)
    assert alike(weights(run), by_hand(run, temperature=temperature), within=4e-6)
    assert not alike(weights(run), by_hand(run, temperature=2.5 - temperature), within=1e-5)
    assert not alike(weights(run), by_hand(run, temperature=temperature, mu=MU / 2), within=1e-5)
    assert not alike(weights(run), by_hand(run, temperature=temperature, swapped=True), within=1e-5)
    assert not alike(weights(run), by_hand(run, temperature=temperature, no_last=True), within=1e-5)


def test_who_takes_part_for_the_first_time_has_nothing_to_be_pushed_away_from(federate: Prepare) -> None:
    run = trained(federate, 1)
    assert alike(weights(run), averaging(run).active)


def test_its_loss_worked_out() -> None:
    """Row 1: cosines 1 and 0, τ = ½, so −log(e² / (e² + 1)); row 2: cosines 0 and −1, −log(1 / (1 + e⁻²)): the same."""
    f = torch.tensor([[2.0, 0.0], [0.0, 3.0]], requires_grad=True)
    towards, away = torch.tensor([[5.0, 0.0], [1.0, 0.0]]), torch.tensor([[0.0, 1.0], [0.0, -4.0]])
    loss = contrastive(f, towards, away, 0.5)
    assert loss.item() == pytest.approx(math.log(1 + math.exp(-2)))
    # Row 1, second entry of f: d cos/df₂ is 0 for the first and 1 / |f| = ½ for the second; the loss grows by
    # (1 − p) · ½ / τ of it, with 1 − p = 1 / (1 + e²), and a mean over two rows halves it.
    [gradient] = torch.autograd.grad(loss, f)
    assert gradient[0, 1].item() == pytest.approx(0.5 * (1 / (1 + math.exp(2))) * 0.5 / 0.5)
    assert gradient[0, 0].item() == pytest.approx(0.0, abs=1e-7)  # a cosine does not see the length


def test_neither_the_global_nor_the_last_model_changes_while_they_are_looked_at(
    make_run: MakeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They have BatchNorm layers, whose statistics would drift in training mode."""
    seen: list[bool] = []
    answers = local_training.answers

    def looked_at(me: Client, ask: Any) -> Any:
        kept = [me.scratch_model(me.facts.architecture, place) for place in (0, 1)]
        before = [encode(learn.weights_of(model)) for model in kept]
        answer = answers(me, ask)
        said = answer(torch.arange(3), me.inputs(me.train)[:3])
        after = [encode(learn.weights_of(model)) for model in kept]
        seen.append(before == after and not said.requires_grad)
        return answer

    monkeypatch.setattr(local_training, "answers", looked_at)
    make_run("moon", models={"names": ["cnn-small"]}, rounds=2).go()
    assert seen == [True] * 8  # both models of four clients, in the second round


def test_the_last_model_is_the_clients_own_of_when_it_last_took_part(federate: Prepare) -> None:
    run = trained(federate, 1)
    done = averaging(run)
    for client, file in run.client_files().items():
        assert alike(decode(file.read_bytes())["memory"]["previous"], done.last[client])
    assert set(run.client_files()) == set(done.last)


def test_by_default_it_contrasts(federate: Prepare) -> None:
    assert (MOONSettings().mu, MOONSettings().temperature) == (1.0, 0.5)
    found = []
    for name in ("fedavg", "moon"):
        run = federate([plain], server=False, data=NO_PUBLIC, method=name, rounds=2)
        run.go()
        found.append(encode(weights(run)))
    assert found[0] != found[1]


@pytest.mark.parametrize("batch_norm", ["average", "local"])
def test_models_with_batch_norm_can_be_contrasted(make_run: MakeRun, batch_norm: str) -> None:
    method = {"name": "moon", "batch_norm": batch_norm}
    run = make_run(method, models={"names": ["cnn-small"]}, training={"augment": True}, rounds=2)
    run.go()
    assert run.last is not None
    assert "failures" not in run.last


def test_a_model_without_features_is_refused_before_the_run(federate: Prepare) -> None:
    class Bare(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.matrix = nn.Parameter(torch.zeros(5, 3))

        def forward(self, x: Tensor) -> Tensor:
            return x @ self.matrix

    def bare() -> nn.Module:
        return Bare()

    with pytest.raises(UserError, match="no features") as caught:
        federate([bare], server=False, data=NO_PUBLIC, method="moon")
    assert "\n" not in str(caught.value)
