"""FedGKD against a loop written out by hand."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.conftest import MakeRun
from tests.methods.by_hand import (
    NO_PUBLIC,
    Averaged,
    Bench,
    Loss,
    Prepare,
    alike,
    averaging,
    mean_of,
    plain,
    said,
    weights,
)
from torch import Tensor, nn
from torch.nn import functional as F

from polyfed import learn
from polyfed.federation.message import Weights, encode
from polyfed.federation.nodes import Client
from polyfed.methods import last_models, local_training
from polyfed.methods.fedgkd import FedGKDSettings
from polyfed.runs.rounds import Run

GAMMA = 4.0


def by_hand(
    run: Run,
    *,
    gamma: float = GAMMA,
    buffer: int = 5,
    wait: bool = False,
    reverse: bool = False,
    initial: bool = False,
) -> Averaged:
    """The run's rounds; the last two are mistakes: KL(student ‖ teacher), the initial weights as a first teacher."""
    bench = Bench(run)
    made: list[Weights] = []
    if initial:
        made.append({name: tensor.clone() for name, tensor in bench.clients[0].state_dict().items()})
    teacher = run.federation.population.build("plain")

    def local_loss(client: int, number: int, _model: nn.Module, start: Weights, _last: Any) -> Loss:
        x, y = bench.own(client)
        if len(made) < number - (not initial):
            made.append(start)
        last = made[-buffer:]
        if not last or (wait and len(last) < buffer):
            return lambda rows, logits: F.cross_entropy(logits, y[rows])
        teacher.load_state_dict(mean_of(last, [1.0] * len(last)))
        target = said(teacher, x).log_softmax(dim=1)

        def loss(rows: Tensor, logits: Tensor) -> Tensor:
            student = logits.log_softmax(dim=1)
            first, second = (student, target[rows]) if reverse else (target[rows], student)
            # Σ_c p (log p - log q) of every row, a mean over the rows of the batch
            kl = (first.exp() * (first - second)).sum(dim=1).mean()
            return F.cross_entropy(logits, y[rows]) + gamma / 2 * kl

        return loss

    return averaging(run, local_loss)


def trained(federate: Prepare, rounds: int, **settings: Any) -> Run:
    method = {"name": "fedgkd", "gamma": GAMMA, **settings}
    run = federate([plain], server=False, data=NO_PUBLIC, method=method, rounds=rounds, cohort={"count": 2})
    run.go()
    return run


@pytest.mark.parametrize("rounds", [1, 2, 4])
def test_rounds_equal_a_loop_by_hand(federate: Prepare, rounds: int) -> None:
    run = trained(federate, rounds, buffer=2)
    assert alike(weights(run), by_hand(run, buffer=2).active)
    if rounds > 1:
        assert not alike(weights(run), by_hand(run, buffer=2, gamma=GAMMA / 2).active)
        assert not alike(weights(run), by_hand(run, buffer=2, reverse=True).active)
    if rounds > 2:
        assert not alike(weights(run), by_hand(run, buffer=1).active)
        assert not alike(weights(run), by_hand(run, buffer=3).active)


def test_the_initial_weights_teach_nobody(federate: Prepare) -> None:
    run = trained(federate, 1)
    assert alike(weights(run), averaging(run).active)
    longer = trained(federate, 3)
    assert not alike(weights(longer), by_hand(longer, initial=True).active)


def test_the_teacher_can_wait_until_the_buffer_is_full(federate: Prepare) -> None:
    """With M = 2 the models of rounds 1 and 2 teach in round 3."""
    two = trained(federate, 2, buffer=2, wait=True)
    assert alike(weights(two), averaging(two).active)
    four = trained(federate, 4, buffer=2, wait=True)
    assert alike(weights(four), by_hand(four, buffer=2, wait=True).active)
    assert not alike(weights(four), by_hand(four, buffer=2).active)


def test_its_loss_worked_out() -> None:
    """Teacher ½ ½, student ¾ ¼: KL = ½ log(½ / ¾) + ½ log(½ / ¼) = ½ log(4/3); times γ / 2 = 3."""
    model = nn.Linear(1, 2, bias=False)
    learn.load_weights(model, {"weight": torch.zeros(2, 1)})
    student = torch.tensor([[0.75, 0.25]]).log().requires_grad_()
    target = learn.soften(learn.predict(model, torch.ones(1, 1)))
    loss = 3 * learn.kl(student, target)
    assert loss.item() == pytest.approx(1.5 * torch.tensor(4 / 3).log().item())
    # its gradient in the logits: 3 (q - p) = 3 (¾ - ½, ¼ - ½)
    [gradient] = torch.autograd.grad(loss, student)
    assert gradient[0].tolist() == pytest.approx([0.75, -0.75])


def test_its_loss_is_half_gamma_times_the_divergence_of_a_batch(
    make_run: MakeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loss that a client gets, on logits of our own."""
    found: list[Tensor] = []
    expected: list[Tensor] = []
    train = local_training.train

    def looked_at(me: Client, extra: Any = None) -> None:
        if extra is not None:
            rows = torch.tensor([0, 2])
            x, _ = me.tensors(me.train)
            logits = torch.zeros(2, me.outputs)
            teacher = said(me.scratch_model(me.facts.architecture), x[rows])
            p = teacher.softmax(dim=1)
            found.append(extra(me.model, rows, x[rows], logits))
            # log q = log 1/10: Σ p log p + log 10, the mean of the two rows, by γ / 2 = 0.1
            expected.append(0.1 * ((p * p.log()).sum(dim=1) + torch.tensor(10.0).log()).mean())
        train(me, extra)

    monkeypatch.setattr(local_training, "train", looked_at)
    make_run("fedgkd", rounds=2, stack=1).go()
    assert len(found) == 4
    assert torch.allclose(torch.stack(found), torch.stack(expected), atol=1e-6)


def test_the_teacher_goes_down_once_for_all_and_only_when_there_is_one(federate: Prepare) -> None:
    run = trained(federate, 3)
    size = sum(tensor.nbytes for tensor in weights(run).values())
    # two clients a round: the weights in three rounds, the teacher in two
    assert run.ledger.total("down", "weights") == 2 * (3 + 2) * size
    assert run.ledger.total("up", "weights") == 2 * 3 * size


def test_the_buffer_is_on_the_shelf_and_does_not_grow(federate: Prepare) -> None:
    run = trained(federate, 6, buffer=2)
    assert sorted(run.server.shelf) == ["global/plain/0", "global/plain/1"]


def test_with_cached_models_the_overall_ones_teach(federate: Prepare) -> None:
    """Each model in the buffer is what was served after that round."""
    run = trained(federate, 3, inactive="cached", unseen="left-out")
    served = last_models.served(run.server, "plain")
    kept = [run.server.shelf[f"global/plain/{number}"]["weights"] for number in (1, 2)]
    longer = trained(federate, 4, inactive="cached", unseen="left-out")
    assert alike(longer.server.shelf["global/plain/3"]["weights"], served, within=0)
    assert not alike(served, weights(run), within=1e-4)
    assert all(
        alike(longer.server.shelf[f"global/plain/{number}"]["weights"], model, within=0)
        for number, model in zip((1, 2), kept, strict=True)
    )


def test_by_default_it_teaches(federate: Prepare) -> None:
    settings = FedGKDSettings()
    assert (settings.gamma, settings.buffer, settings.wait) == (0.2, 5, False)
    found = []
    for name in ("fedavg", "fedgkd"):
        run = federate([plain], server=False, data=NO_PUBLIC, method=name, rounds=2)
        run.go()
        found.append(encode(weights(run)))
    assert found[0] != found[1]


def test_augmented_batches_are_answered_as_they_come(make_run: MakeRun) -> None:
    training = {"augment": True, "epochs": 2}
    run = make_run("fedgkd", training=training, models={"names": ["cnn-small"]}, rounds=2)
    run.go()
    assert run.last is not None
    assert "failures" not in run.last


def test_a_teacher_with_batch_norm_stays_as_it_is_and_has_the_clients_own_norms(
    make_run: MakeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[bool] = []
    answers = local_training.answers

    def looked_at(me: Client, ask: Any) -> Any:
        teacher = me.scratch_model(me.facts.architecture)
        before = learn.weights_of(teacher)
        answer = answers(me, ask)
        answer(torch.arange(3), me.inputs(me.train)[:3])
        after = learn.weights_of(teacher)
        own = me.memory["norms"]
        seen.append(
            encode(before) == encode(after) and all(torch.equal(after[name], own[name]) for name in own)
        )
        return answer

    monkeypatch.setattr(local_training, "answers", looked_at)
    make_run({"name": "fedgkd", "batch_norm": "local"}, models={"names": ["cnn-small"]}, rounds=2).go()
    assert seen == [True] * 4
