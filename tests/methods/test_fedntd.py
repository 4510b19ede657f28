"""FedNTD against a loop written out by hand."""

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
    Averaged,
    Bench,
    Loss,
    Prepare,
    alike,
    averaging,
    plain,
    said,
    weights,
)
from torch import Tensor, nn
from torch.nn import functional as F

from polyfed import learn
from polyfed.federation.message import Weights, encode
from polyfed.federation.nodes import Client
from polyfed.methods import local_training
from polyfed.methods.fedntd import FedNTDSettings, not_true
from polyfed.runs.rounds import Run

BETA, TAU, EPOCHS = 2.0, 0.5, 3  # a small τ: else both directions of the divergence are nearly the same


def by_hand(
    run: Run,
    *,
    beta: float = BETA,
    tau: float = TAU,
    squared: bool = True,
    reverse: bool = False,
    all_classes: bool = False,
) -> Averaged:
    """The run's rounds; the last three are mistakes: no τ², KL(student ‖ teacher), the true class left in."""
    bench = Bench(run)
    teacher = run.federation.population.build("plain")

    def local_loss(client: int, _number: int, _model: nn.Module, start: Weights, _last: Any) -> Loss:
        x, y = bench.own(client)
        teacher.load_state_dict(start)
        target = said(teacher, x)

        def divergence(row: int, logits: Tensor) -> Tensor:
            kept = [label for label in range(3) if all_classes or label != int(y[row])]
            p = (target[row, kept] / tau).log_softmax(dim=0)
            q = (logits[kept] / tau).log_softmax(dim=0)
            first, second = (q, p) if reverse else (p, q)
            return (first.exp() * (first - second)).sum()

        def loss(rows: Tensor, logits: Tensor) -> Tensor:
            each = [divergence(int(row), logits[place]) for place, row in enumerate(rows)]
            scale = beta * (tau**2 if squared else 1)
            return F.cross_entropy(logits, y[rows]) + scale * torch.stack(each).mean()

        return loss

    return averaging(run, local_loss, epochs=EPOCHS)


def trained(federate: Prepare, rounds: int, **settings: Any) -> Run:
    method = {"name": "fedntd", "beta": BETA, "temperature": TAU, **settings}
    run = federate(
        [plain],
        server=False,
        data=NO_PUBLIC,
        method=method,
        training={"lr": LR, "batch": BATCH, "epochs": EPOCHS},
        rounds=rounds,
        cohort={"count": 2},
    )
    run.go()
    return run


def test_rounds_equal_a_loop_by_hand(federate: Prepare) -> None:
    run = trained(federate, 3)
    assert alike(weights(run), by_hand(run).active)
    for mistake in (
        {"beta": BETA / 2},
        {"tau": 1.0},
        {"squared": False},
        {"reverse": True},
        {"all_classes": True},
    ):
        assert not alike(weights(run), by_hand(run, **mistake).active, within=1e-4), mistake


def test_the_true_class_is_left_out() -> None:
    logits = torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])
    assert not_true(logits, torch.tensor([1, 0])).tolist() == [[1.0, 3.0], [5.0, 6.0]]


def test_its_loss_worked_out(make_run: MakeRun, monkeypatch: pytest.MonkeyPatch) -> None:
    """A teacher of zeros says 1/9 of each of the nine other classes.

    Our logits are 0 but 2 log 2 at one class that is not the true one; at τ = 2 the student says 2/10 of that and 1/10
    of the other eight: KL = 1/9 log((1/9) / (2/10)) + 8/9 log((1/9) / (1/10)) = log(10/9) − (log 2) / 9.
    Times β τ² = 0.5 · 4 = 2.
    """
    expected = 2 * (math.log(10 / 9) - math.log(2) / 9)
    found: list[float] = []
    train = local_training.train

    def looked_at(me: Client, extra: Any = None) -> int:
        labels = me.tensors(me.train)[1]
        rows = torch.tensor([0, 2])
        logits = torch.zeros(2, me.outputs)
        logits[torch.arange(2), (labels[rows] + 3) % 10] = 2 * math.log(2)
        logits[torch.arange(2), labels[rows]] = 7.0  # of the true class: no matter
        found.append(extra(me.model, rows, me.inputs(me.train)[rows], logits).item())
        return train(me, extra)

    monkeypatch.setattr(local_training, "train", looked_at)
    monkeypatch.setattr(learn, "predict", lambda _model, x: torch.zeros(len(x), 10))
    make_run({"name": "fedntd", "beta": 0.5, "temperature": 2.0}, rounds=1, stack=1, data={"clients": 2}).go()
    assert found == pytest.approx([expected] * 2, abs=1e-6)


def test_by_default_it_distils(federate: Prepare) -> None:
    settings = FedNTDSettings()
    assert (settings.beta, settings.temperature) == (1.0, 1.0)
    found = []
    for name in ("fedavg", "fedntd"):
        run = federate([plain], server=False, data=NO_PUBLIC, method=name, rounds=2)
        run.go()
        found.append(encode(weights(run)))
    assert found[0] != found[1]


def test_the_global_model_teaches_in_evaluation_mode_with_the_clients_own_norms(
    make_run: MakeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[bool] = []
    answers = local_training.answers

    def looked_at(me: Client, ask: Any) -> Any:
        teacher = me.scratch_model(me.facts.architecture)
        before = learn.weights_of(teacher)
        answer = answers(me, ask)
        x = me.inputs(me.train)[:3]
        same = torch.allclose(answer(torch.arange(3), x), said(teacher, x), atol=1e-5)
        own = me.memory.get("norms", {})
        seen.append(
            same
            and encode(learn.weights_of(teacher)) == encode(before)
            and encode(before) == encode(learn.weights_of(me.model))
            and all(torch.equal(before[name], own[name]) for name in own)
            and (me.round == 1 or len(own) > 0)
        )
        return answer

    monkeypatch.setattr(local_training, "answers", looked_at)
    make_run({"name": "fedntd", "batch_norm": "local"}, models={"names": ["cnn-small"]}, rounds=2).go()
    assert seen == [True] * 8
