"""Cronus: answers that stand apart are left out of the mean, by hand and in a federation."""

from __future__ import annotations

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
    plain,
    said,
    server_state_of,
    soft,
    state_of,
    towards,
)
from torch import Tensor
from torch.nn import functional as F

from polyfed.federation.message import Fields, decode
from polyfed.federation.method import client_step, reads_only
from polyfed.federation.nodes import Client
from polyfed.learn import robust_mean
from polyfed.methods.cronus import Cronus
from polyfed.runs.rounds import Run

# -- the robust mean of probabilities (by hand, and what it promises: tests/learn/test_robust.py) ------------


def honest_answers(clients: int) -> tuple[Tensor, Tensor]:
    """Clients that mostly agree on 50 rows: about 0.6 for the right one of ten classes, each a little differently."""
    stream = torch.Generator().manual_seed(1)
    right = torch.randint(1, 10, (50,), generator=stream)  # never class 0, on which poison agrees
    logits = 2.6 * F.one_hot(right, 10) + 0.15 * torch.randn(clients, 50, 10, generator=stream)
    return logits.softmax(dim=2), right


def poison(kind: str, clients: int) -> Tensor:
    if kind == "colluding":
        return F.one_hot(torch.zeros(clients, 50, dtype=torch.long), 10).float()
    stream = torch.Generator().manual_seed(2)
    return F.one_hot(torch.randint(10, (clients, 50), generator=stream), 10).float()


@pytest.mark.parametrize("kind", ["colluding", "noise"])
@pytest.mark.parametrize(("honest", "bad"), [(8, 2), (6, 2), (15, 5)])
def test_a_poisoned_minority_hardly_moves_the_result(honest: int, bad: int, kind: str) -> None:
    """20 to 25 % send one-hot answers: the plain mean moves by about that share, the robust one by a hundredth.

    A noisy answer that happens to be right lies too near to be left out, and may: it moves a row by 0.06.
    """
    answers, right = honest_answers(honest)
    truth = answers.mean(dim=0)
    mixed = torch.cat([poison(kind, bad), answers])
    share = bad / (honest + bad)
    moved = (robust_mean(mixed, 0.25) - truth).norm(dim=1)
    naive = (mixed.mean(dim=0) - truth).norm(dim=1)
    assert moved.mean() < 0.02
    assert moved.max() < 0.1
    assert naive.mean() > 0.5 * share
    assert naive.mean() > 8 * moved.mean()
    assert (robust_mean(mixed, 0.25).argmax(dim=1) == right).all()


# -- rounds --------------------------------------------------------------------------------------------------

CRONUS: dict[str, Any] = {
    "name": "cronus",
    "public_rows": PUBLIC_ROWS,
    "distil": {**ONCE, "epochs": 2},
    "private_training": ONCE,
}


class ByHand(Bench):
    """Own data first; then answers, their robust mean, and own and public rows mixed."""

    def __init__(self, run: Run, poisoned: float = 0.2, spread: float | None = None) -> None:
        super().__init__(run)
        for index, model in enumerate(self.clients):
            x, y = self.own(index)
            descend(model, x, towards(y), self.stream("private batches", index, 0, 1))
        for number in range(1, run.config.rounds + 1):
            x = self.public(number)
            answers = torch.stack([said(model, x).softmax(dim=1) for model in self.clients])
            consensus = robust_mean(answers, poisoned, spread)
            descend(self.server, x, soft(consensus), self.server_stream("distil", number), epochs=2)
            for index, model in enumerate(self.clients):
                own, labels = self.own(index)
                targets = torch.cat([F.one_hot(labels, 3).float(), consensus])
                stream = self.stream("batches", index, number, 2)
                descend(model, torch.cat([own, x]), soft(targets), stream)

    def agrees(self, run: Run) -> bool:
        same = all(close(state_of(run, index), model) for index, model in enumerate(self.clients))
        return same and close(server_state_of(run), self.server)


def test_rounds_equal_a_loop_by_hand(federate: Prepare) -> None:
    method = {**CRONUS, "global": True, "poisoned": 0.4, "spread": 0.001}
    run = federate([normed, plain], method=method, rounds=2)
    run.go()
    assert ByHand(run, 0.4, 0.001).agrees(run)
    assert not ByHand(run, 0.0).agrees(run)
    assert not ByHand(run, 0.4, 1.0).agrees(run)


# -- a federation with poison --------------------------------------------------------------------------------


class Watched(Cronus):
    """Client 0 remembers how often the consensus is right about the public rows."""

    @client_step
    def update(self, me: Client, rows: Tensor, posteriors: Tensor) -> Fields:
        if me.facts.index == 0:
            right = (posteriors.argmax(dim=1) == me.public[rows].labels).float().mean()
            me.memory.setdefault("right", []).append(float(right))
        return super().update(me, rows, posteriors)


class Broken(Watched):
    """Client 1 answers with NaN."""

    @client_step
    @reads_only
    def answer(self, me: Client, rows: Tensor) -> Fields:
        if me.facts.index == 1:
            return {"posteriors": torch.full((len(rows), me.outputs), torch.nan)}
        return super().answer(me, rows)


def test_an_answer_of_nan_never_reaches_the_mean(make_run: MakeRun) -> None:
    run = make_run(Broken, rounds=1, data={"public": {"source": "share", "share": 0.3}})
    run.go()
    assert run.last is not None
    (failure,) = run.last["failures"]
    assert failure["client"] == "client-1"
    assert "NaN" in failure["reason"]


class Poisoned(Watched):
    """Clients 2 and 5 of eight say class 0 of every row, and are sure of it."""

    @client_step
    @reads_only
    def answer(self, me: Client, rows: Tensor) -> Fields:
        if me.facts.index in (2, 5):
            return {"posteriors": F.one_hot(torch.zeros(len(rows), dtype=torch.long), 10).float()}
        return super().answer(me, rows)


def consensus(make_run: MakeRun, method: type[Watched], **settings: Any) -> list[float]:
    """How often the consensus of each round was right."""
    run = make_run(
        method,
        settings=settings,
        rounds=4,
        data={
            "limit": None,
            "clients": 8,
            "partition": {"kind": "iid"},
            "public": {"source": "share", "share": 0.3},
        },
        models={"names": ["mlp-small", "mlp"]},
        training={"lr": 0.05, "batch": 16, "epochs": 1},
        evaluate={"every": 4, "test_rows": 0},
    )
    run.go()
    right: list[float] = decode(run.client_files()[0].read_bytes())["memory"]["right"]
    return right


def test_a_poisoned_federation_learns_nearly_as_if_it_were_not(make_run: MakeRun) -> None:
    """Digits dealt out evenly, so that honest clients mostly agree: what the robust mean relies on.

    Two of eight weigh a quarter and are sure, which is more than honest clients are of anything in the first rounds:
    with a plain mean the consensus is class 0 from the start, clients learn that, and it never recovers.
    """
    clean = consensus(make_run, Watched, poisoned=0.25)
    robust = consensus(make_run, Poisoned, poisoned=0.25)
    averaged = consensus(make_run, Poisoned, poisoned=0.0)  # nothing is ever left out: the plain mean
    assert clean[-1] > 0.6
    assert robust[-1] > clean[-1] - 0.08
    assert averaged[-1] < clean[-1] - 0.4
