"""FedMD with a server model and LwoF, against a loop written out by hand."""

from __future__ import annotations

import copy
from math import log
from typing import Any

import numpy as np
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
    no_scratch_models,
    normed,
    plain,
    said,
    server_state_of,
    soft,
    state_of,
    towards,
)
from torch import Tensor, nn
from torch.nn import functional as F

from polyfed import learn
from polyfed.data.storage import Draft, in_memory
from polyfed.errors import MethodError
from polyfed.federation.message import encode
from polyfed.federation.nodes import Client, ClientData
from polyfed.federation.roster import Facts
from polyfed.learn import Training
from polyfed.methods import local_training
from polyfed.methods.fedmd import FedMD, FedMDSettings, LwoF
from polyfed.runs.checkpoint import read_lines
from polyfed.runs.evaluation import ClientObserver
from polyfed.runs.rounds import Run
from polyfed.seeds import Seeds
from polyfed.testing import result_of

FEDMD: dict[str, Any] = {
    "name": "fedmd",
    "public_rows": PUBLIC_ROWS,
    "public_training": ONCE,
    "private_training": ONCE,
    "distil": {**ONCE, "epochs": 2},
}
Accuracies = dict[tuple[int, str], float]


class ByHand(Bench):
    """Algorithm 1 of Shi, Radu and Yang, written out. `wrongly` does one thing in another order."""

    def __init__(self, run: Run, lwof: LwoF | None = None, wrongly: str = "") -> None:
        super().__init__(run)
        self.lwof = lwof
        self.wrongly = wrongly
        self.accuracies: Accuracies = {}
        self.initialise()
        for number in range(1, run.config.rounds + 1):
            self.round(number)

    def initialise(self) -> None:
        assert self.federation.holdings.public is not None
        x, y = self.federation.holdings.public.tensors()
        for index, model in enumerate(self.clients):
            descend(model, x, towards(y), self.stream("public batches", index, 0, 1))
            own, labels = self.own(index)
            descend(model, own, towards(labels), self.stream("private batches", index, 0, 1))
        self.accuracies[0, "initial"] = self.accuracy(self.clients)

    def round(self, number: int) -> None:
        cohort = self.cohort(number)
        x = self.public(number)
        answers = [said(self.clients[index], x) for index in cohort]
        if self.wrongly == "logits in training mode":
            answers = [copy.deepcopy(self.clients[index]).train()(x).detach() for index in cohort]
        consensus = torch.stack(answers).mean(dim=0)

        def away(rows: Tensor, logits: Tensor) -> Tensor:  # Eq. 1, a mean over rows and outputs
            return (logits - consensus[rows]).abs().sum() / (3 * len(rows))

        descend(self.server, x, away, self.server_stream("distil", number), epochs=2)
        self.accuracies[number, "global"] = self.accuracy([self.server])
        distilled = []
        for index in cohort:
            model = self.clients[index]
            early = copy.deepcopy(model)
            descend(model, x, away, self.stream("distil", index, number, 2), epochs=2)
            distilled.append(copy.deepcopy(model))
            self.personalise(index, number, early if self.wrongly == "an early teacher" else distilled[-1])
        self.accuracies[number, "distilled"] = self.accuracy(distilled)
        self.accuracies[number, "personalised"] = self.accuracy([self.clients[index] for index in cohort])

    def personalise(self, index: int, number: int, teacher: nn.Module) -> None:
        if self.lwof is None:
            self.train(index, number, 2)
            return
        x, y = self.own(index)
        rho, beta = self.lwof.temperature, self.lwof.weight
        remembered = soft((said(teacher, x) / rho).softmax(dim=1), rho)

        def loss(rows: Tensor, logits: Tensor) -> Tensor:  # Eq. 4
            return F.cross_entropy(logits, y[rows]) + beta * remembered(rows, logits)

        descend(self.clients[index], x, loss, self.stream("batches", index, number, 2))


def agree(run: Run, expected: ByHand) -> bool:
    clients = [close(state_of(run, index), model) for index, model in enumerate(expected.clients)]
    return all(clients) and close(server_state_of(run), expected.server)


# -- a round -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lwof", [None, LwoF(temperature=2.0, weight=3.0)], ids=["plain", "lwof"])
def test_rounds_equal_a_loop_by_hand(federate: Prepare, lwof: LwoF | None) -> None:
    """The consensus is the plain mean of all clients' logits, in evaluation mode, before anyone learns from it."""
    method = {**FEDMD, "lwof": None if lwof is None else lwof.model_dump()}
    run = federate([normed, plain], method=method, rounds=2)
    run.go()
    assert agree(run, ByHand(run, lwof))


@pytest.mark.parametrize("wrongly", ["an early teacher", "logits in training mode"])
def test_the_loop_by_hand_would_notice(federate: Prepare, wrongly: str) -> None:
    """LwoF's teacher is the model after this round's distillation, and answers are those of evaluation mode."""
    lwof = LwoF(weight=3.0)
    run = federate([normed, plain], method={**FEDMD, "lwof": lwof.model_dump()})
    run.go()
    assert agree(run, ByHand(run, lwof))
    assert not agree(run, ByHand(run, lwof, wrongly))


def test_stages_are_those_of_the_right_models_and_clients(federate: Prepare) -> None:
    """Initial: everyone, in round 0. Distilled and personalised: the round's cohort. Global: the server's model."""
    run = federate([normed, plain], method=FEDMD, rounds=3, cohort={"count": 2})
    run.go()
    lines = {line["round"]: line for line in read_lines(run.path / "history.jsonl")}
    expected = ByHand(run)
    assert {frozenset(expected.cohort(number)) for number in (1, 2, 3)} != {frozenset(expected.cohort(1))}
    assert set(lines[0]["stages"]) == {"initial"}
    assert "summary" not in lines[0] and "server" not in lines[0]
    for (number, stage), accuracy in expected.accuracies.items():
        line = lines[number]
        found = line["server"][stage] if stage == "global" else line["stages"][stage]["whole"]["mean"]
        assert found == pytest.approx(accuracy, abs=1e-9), (number, stage)
    assert agree(run, expected)
    assert len(set(expected.accuracies.values())) > 4  # there was something to tell apart


def test_at_the_end_a_client_is_scored_as_personalised(federate: Prepare) -> None:
    run = federate([normed, plain], method=FEDMD)
    run.go()
    last = run.summary["last"]
    assert last["whole"] == last["stages"]["personalised"]["whole"]
    expected = ByHand(run)
    assert last["whole"]["mean"] == pytest.approx(expected.accuracy(expected.clients), abs=1e-9)


# -- variants ------------------------------------------------------------------------------------------------


def test_without_a_server_model_clients_learn_the_same(federate: Prepare) -> None:
    """`global: false` is plain FedMD; bit for bit, models and accuracies."""
    with_model = federate([normed, plain], method=FEDMD, rounds=2)
    without = federate([normed, plain], method={**FEDMD, "global": False}, rounds=2, server=False)
    for run in (with_model, without):
        run.go()
    assert without.server.model is None
    for index in range(3):
        assert encode(state_of(with_model, index)) == encode(state_of(without, index))
    assert without.summary["last"]["stages"] == with_model.summary["last"]["stages"]
    assert "server" in with_model.summary["last"] and "server" not in without.summary["last"]


def test_a_server_model_must_be_named(make_run: MakeRun) -> None:
    public = {"source": "share", "share": 0.2}
    with pytest.raises(MethodError, match=r"set models\.server"):
        make_run("fedmd", data={"public": public})


UNLABELLED = {"source": "share", "share": 0.2, "labels": "none"}


def test_unlabelled_public_data_will_do_without_public_training(make_run: MakeRun) -> None:
    method = {"name": "fedmd", "global": False, "public_training": None, "distil": {"epochs": 1}}
    run = make_run(method, data={"public": UNLABELLED}, rounds=1)
    run.go()
    assert (
        run.federation.holdings.public is not None and run.federation.holdings.public.dataset.labels is None
    )
    assert set(run.summary["last"]["stages"]) == {"distilled", "personalised"}


def test_public_training_without_labels_is_refused_with_both_ways_out(make_run: MakeRun) -> None:
    with pytest.raises(MethodError) as caught:
        make_run("fedmd", data={"public": UNLABELLED}, models={"server": "mlp-small"})
    assert "data.public.labels=own" in str(caught.value)
    assert "method.public_training=null" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_without_public_data_it_is_refused(make_run: MakeRun) -> None:
    with pytest.raises(MethodError, match=r"data\.public\.source=share"):
        make_run("fedmd", models={"server": "mlp-small"})


def test_how_often_models_are_looked_at_does_not_change_them(make_run: MakeRun) -> None:
    """The server's model is measured in the middle of a round: that must not shift anyone's random streams."""
    results = []
    for every in (1, 2, 4):
        method = {"name": "fedmd", "public_training": None, "distil": {"epochs": 1}, "private_training": ONCE}
        run = make_run(
            method,
            rounds=4,
            evaluate={"every": every},
            models={"names": ["mlp-small", "cnn-small"], "server": "cnn-small"},
            data={"public": {"source": "share", "share": 0.2}},
        )
        run.go()
        results.append(result_of(run.path))
    assert [len(result["history"]) for result in results] == [5, 3, 2]
    for part in ("models", "states", "server state"):
        assert results[0][part] == results[1][part] == results[2][part]


# -- learning without forgetting -----------------------------------------------------------------------------


def client(model: nn.Module, x: Tensor, y: Tensor, **training: Any) -> Client:
    """A client alone with some rows, which its model gets as they are."""
    width = x.shape[1]
    draft = Draft("rows", x.numpy(), y.numpy(), tuple("abc"), mean=(0.0,) * width, std=(1.0,) * width)
    data = in_memory(draft)
    return Client(
        facts=Facts(0, "client-0", len(x), "own"),
        model=model,
        data=ClientData(data.rows(), data.rows([]), data.rows([]), data.rows([])),
        seeds=Seeds(0),
        device=torch.device("cpu"),
        scratch_model=no_scratch_models,
        observer=ClientObserver(None),
        run_training=Training(**{"epochs": 1, **training}),
    )


def identity() -> nn.Linear:
    model = nn.Linear(3, 3)
    nn.init.eye_(model.weight)
    nn.init.zeros_(model.bias)
    return model


def fedmd(temperature: float = 2.0, weight: float = 1.0) -> FedMD:
    return FedMD(FedMDSettings(lwof=LwoF(temperature=temperature, weight=weight)), Training())


@pytest.mark.parametrize("augment", [False, True])
def test_equations_3_and_4_by_hand(augment: bool) -> None:
    """ρ = 2, β = 3. The copy says 2 ln 2, 0, 0 and 0, 0, 0: softened ½ ¼ ¼ and ⅓ ⅓ ⅓.

    The model now says the same with the rows changed over: q = ⅓ ⅓ ⅓ and ½ ¼ ¼.
    -Σ p ln q = ln 3 and ⅓ (ln 2 + ln 4 + ln 4) = 5/3 ln 2; their mean, times 3.
    """
    x = torch.tensor([[2 * log(2), 0.0, 0.0], [0.0, 0.0, 0.0]])
    me = client(identity(), x, torch.tensor([0, 1]), augment=augment)
    regularise = fedmd(2.0, 3.0).not_forgetting(me)
    assert regularise is not None
    logits = x.flip(0).requires_grad_()
    value = regularise(me.model, torch.tensor([0, 1]), x, logits)
    assert value.item() == pytest.approx(3 * (log(3) + 5 / 3 * log(2)) / 2, abs=1e-6)
    value.backward()
    # β (q - p) / ρ, over two rows; no ρ²
    difference = torch.tensor([[1 / 3 - 1 / 2, 1 / 3 - 1 / 4, 1 / 3 - 1 / 4]])
    assert logits.grad is not None
    assert torch.allclose(logits.grad, 3 * torch.cat([difference, -difference]) / 2 / 2, atol=1e-6)


def test_the_copy_answers_for_the_rows_of_a_batch_or_for_its_augmented_images() -> None:
    x = torch.tensor([[1.0, 0, 0], [0, 2, 0], [0, 0, 3]])
    other = -x
    rows = torch.tensor([2, 0])
    for augment, remembered in ((False, x[rows]), (True, other[rows])):
        me = client(identity(), x, torch.tensor([0, 1, 2]), augment=augment)
        regularise = fedmd().not_forgetting(me)
        assert regularise is not None
        found = regularise(me.model, rows, other[rows], torch.zeros(2, 3))
        expected = learn.cross_entropy(torch.zeros(2, 3), learn.soften(remembered, 2.0), 2.0)
        assert found.item() == pytest.approx(expected.item(), abs=1e-6)
        logits = torch.tensor([[1.0, 2, 3], [3, 2, 1]])
        found = regularise(me.model, rows, other[rows], logits)
        expected = learn.cross_entropy(logits, learn.soften(remembered, 2.0), 2.0)
        assert found.item() == pytest.approx(expected.item(), abs=1e-6)


@pytest.mark.parametrize("augment", [False, True])
def test_the_copy_stays_as_it_is_while_the_model_learns(augment: bool) -> None:
    """In evaluation mode: what the copy says of a row depends on no other row, and its statistics do not move."""
    stream = torch.Generator().manual_seed(0)
    x, y = torch.randn(12, 5, generator=stream) * 3 + 1, torch.randint(3, (12,), generator=stream)
    me = client(normed(), x, y, augment=augment)
    before = said(copy.deepcopy(me.model), x)
    me.model.train()
    regularise = fedmd().not_forgetting(me)
    assert regularise is not None
    logits = torch.randn(4, 3, generator=stream)

    def value(rows: Tensor) -> float:
        return regularise(me.model, rows, x[rows], logits).item()

    for rows in (torch.arange(4), torch.tensor([11, 3, 5, 7])):
        expected = learn.cross_entropy(logits, learn.soften(before[rows], 2.0), 2.0).item()
        assert value(rows) == pytest.approx(expected, abs=1e-6)
    first = value(torch.arange(4))
    learn.supervised(me.model, x, y, Training(epochs=5, batch=4, lr=0.5), stream)
    assert not torch.allclose(said(me.model, x), before, atol=1e-2)
    assert value(torch.arange(4)) == first


def test_no_lwof_adds_nothing() -> None:
    me = client(identity(), torch.eye(3), torch.tensor([0, 1, 2]))
    assert FedMD(FedMDSettings(), Training()).not_forgetting(me) is None


def test_a_weight_of_zero_is_no_lwof_bit_for_bit(federate: Prepare) -> None:
    runs = [
        federate([normed, plain], method={**FEDMD, "lwof": lwof}, rounds=2)
        for lwof in (None, {"weight": 0.0}, {"weight": 0.1})
    ]
    for run in runs:
        run.go()
    for index in range(3):
        none, zero, some = (encode(state_of(run, index)) for run in runs)
        assert none == zero != some


@pytest.mark.parametrize("augment", [False, True])
def test_in_training_the_copy_is_asked_about_what_the_model_sees(augment: bool) -> None:
    """Augmented or not, teacher and student look at the same images."""
    images = np.random.default_rng(0).integers(256, size=(10, 8, 8, 1), dtype=np.uint8)
    data = in_memory(Draft("images", images, np.arange(10) % 3, tuple("abc")))
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 3))
    start = copy.deepcopy(model)
    me = client(model, torch.zeros(1, 3), torch.zeros(1, dtype=torch.long), batch=4, augment=augment)
    me.data = ClientData(data.rows(), data.rows([]), data.rows([]), data.rows([]))
    regularise = fedmd().not_forgetting(me)
    assert regularise is not None
    seen: list[bool] = []

    def watched(model: nn.Module, rows: Tensor, x: Tensor, logits: Tensor) -> Tensor:
        value = regularise(model, rows, x, logits)
        expected = learn.cross_entropy(logits, learn.soften(said(start, x), 2.0), 2.0)
        assert value.item() == pytest.approx(expected.item(), abs=1e-6)
        seen.append(torch.equal(x, me.inputs(me.train)[rows]))
        return value

    local_training.train(me, watched)
    assert seen == [not augment] * 3


def test_a_large_weight_keeps_the_model_near_the_distilled_one() -> None:
    stream = torch.Generator().manual_seed(0)
    x, y = torch.randn(40, 5, generator=stream), torch.randint(3, (40,), generator=stream)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        start = plain()
    gone = []
    for weight in (0.0, 1.0, 10.0):
        me = client(copy.deepcopy(start), x, y, lr=0.1, batch=8, epochs=20)
        local_training.train(me, fedmd(weight=weight).not_forgetting(me))
        gone.append((said(me.model, x).softmax(dim=1) - said(start, x).softmax(dim=1)).abs().mean().item())
    assert gone[0] > gone[1] > gone[2] > 0
    assert gone[0] > 2 * gone[2]
