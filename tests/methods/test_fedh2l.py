"""FedH2L: Eq. 3–6 by hand, rounds against a loop written out by hand, and the switches of Table V."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import log
from typing import Any

import pytest
import torch
from tests.conftest import MakeRun
from tests.methods.by_hand import (
    BATCH,
    Bench,
    Prepare,
    close,
    no_scratch_models,
    normed,
    plain,
    said,
    state_of,
)
from torch import Tensor, nn
from torch.nn import functional as F

from polyfed.data.storage import Draft, in_memory
from polyfed.errors import ConfigError, MethodError
from polyfed.federation.fields import Surroundings, why_refused
from polyfed.federation.message import decode
from polyfed.federation.nodes import Client, ClientData
from polyfed.federation.roster import Facts
from polyfed.federation.topology import neighbours
from polyfed.learn import Training, flat_gradient, project, project_both
from polyfed.methods.fedh2l import FedH2L, FedH2LSettings
from polyfed.runs.evaluation import ClientObserver
from polyfed.runs.rounds import Run
from polyfed.seeds import Seeds
from polyfed.testing import failures_of, result_of

# -- a mutual step by hand -----------------------------------------------------------------------------------

X = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0], [2.0, 0.0]])
Y = torch.tensor([0, 1, 1, 0])


def student(labelled: bool = True) -> Client:
    """A client whose model says ½, ½ of everything; the four rows are public, and two of them its own."""
    labels = Y.numpy() if labelled else None
    data = in_memory(Draft("rows", X.numpy(), labels, ("a", "b"), mean=(0.0, 0.0), std=(1.0, 1.0)))
    model = nn.Linear(2, 2, bias=False)
    nn.init.zeros_(model.weight)
    nothing = data.rows([])
    return Client(
        facts=Facts(0, "client-0", len(X), "own"),
        model=model,
        data=ClientData(
            data.rows(), nothing, nothing, nothing, public=data.rows(), own_public=torch.tensor([0, 2])
        ),
        seeds=Seeds(0),
        device=torch.device("cpu"),
        scratch_model=no_scratch_models,
        observer=ClientObserver(None),
        run_training=Training(epochs=1, lr=0.1),
        outputs=2,
        classes=2,
    )


def fedh2l(**settings: Any) -> FedH2L:
    return FedH2L(FedH2LSettings(**settings), Training(epochs=1, lr=0.1))


def lesson(rows: Sequence[int], posteriors: Sequence[Sequence[float]], **accuracy: float) -> dict[str, Any]:
    """What a peer broadcasts."""
    return {"rows": torch.tensor(rows).int(), "posteriors": torch.tensor(posteriors), **accuracy}


# One peer is right half the time and speaks of two rows, one is always right and speaks of one.
FIRST = lesson([0, 1], [[0.9, 0.1], [0.5, 0.5]], accuracy=0.5)
SECOND = lesson([3], [[0.25, 0.75]], accuracy=1.0)
HEARD = [("client-1", FIRST), ("client-2", SECOND)]
LESSONS = [FIRST, SECOND]

KL_FIRST = (0.9 * log(0.9 / 0.5) + 0.1 * log(0.1 / 0.5) + 0) / 2  # a mean over its two rows
KL_SECOND = 0.25 * log(0.25 / 0.5) + 0.75 * log(0.75 / 0.5)


def test_equations_3_to_5_by_hand() -> None:
    """Each peer's KL is a mean over its batch and weighs by its accuracy; both losses are means over the peers."""
    kl = (0.5 * KL_FIRST + 1.0 * KL_SECOND) / 2
    ce = (log(2) + log(2)) / 2
    assert fedh2l().mutual_loss(student(), LESSONS).item() == pytest.approx(kl + ce)
    assert fedh2l(kl=False).mutual_loss(student(), LESSONS).item() == pytest.approx(ce)


def test_without_labels_every_teacher_counts_the_same() -> None:
    unlabelled = [
        {"rows": given["rows"], "posteriors": given["posteriors"]} for given in (FIRST, SECOND)
    ]  # no accuracy travels
    loss = fedh2l(labels=False).mutual_loss(student(labelled=False), unlabelled)
    assert loss.item() == pytest.approx((KL_FIRST + KL_SECOND) / 2)


# Eq. 6: of each row, its share of the loss × (Acc (p_i − p_j) + p_i − one-hot) ⊗ x
#   row 0: ¼ (½ (−0.4, 0.4) + (−0.5, 0.5)) = (−0.175, 0.175),  x = (1, 0)
#   row 1: ¼ (      0       + (0.5, −0.5)) = (0.125, −0.125),  x = (0, 1)
#   row 3: ½ ((0.25, −0.25) + (−0.5, 0.5)) = (−0.125, 0.125),  x = (2, 0)
PUBLIC = [-0.175 - 0.25, 0.125, 0.175 + 0.25, -0.125]


def weights(me: Client) -> list[float]:
    found: list[float] = next(me.model.parameters()).flatten().tolist()
    return found


def test_equation_6_by_hand_and_a_step_along_it() -> None:
    me = student()
    assert flat_gradient(fedh2l().mutual_loss(me, LESSONS), me.model).tolist() == pytest.approx(PUBLIC)
    assert fedh2l().mutual_step(me, HEARD) == {}
    assert weights(me) == pytest.approx([-0.1 * slope for slope in PUBLIC])


def test_what_peers_say_is_constant() -> None:
    """Even where their answers hang on the student's own weights, no gradient goes that way."""
    me = student()
    own = F.softmax(3 * me.model(X) + torch.tensor([1.0, 0.0]), dim=1)
    found = [
        flat_gradient(
            fedh2l().mutual_loss(me, [{"rows": torch.arange(4), "posteriors": said, "accuracy": 1.0}]),
            me.model,
        )
        for said in (own, own.detach())
    ]
    assert torch.equal(*found)


CONFLICTS = ("ignore", "project", "pcgrad")


def moved(conflict: str, local: list[float]) -> list[float]:
    """Where a student goes that has made these local steps since the last time."""
    me = student()
    me.memory["local"] = torch.tensor(local)
    fedh2l(conflict=conflict).mutual_step(me, HEARD)
    assert "local" not in me.memory
    return [-each / 0.1 for each in weights(me)]


def test_where_gradients_agree_all_ways_out_of_a_conflict_are_the_same() -> None:
    for local in (PUBLIC, [-1.0, 0.0, 1.0, 0.0], [0.0] * 4):
        for conflict in CONFLICTS:
            assert moved(conflict, local) == pytest.approx(PUBLIC), (conflict, local)


def test_where_gradients_conflict_each_way_out_is_another() -> None:
    # ⟨g, l⟩ = 2 · (−0.425), ‖l‖² = 4: v = 0.2125, and the first entry becomes 0
    local = [2.0, 0.0, 0.0, 0.0]
    public = torch.tensor(PUBLIC)
    assert moved("ignore", local) == pytest.approx(PUBLIC)
    assert moved("project", local) == pytest.approx([0.0, *PUBLIC[1:]], abs=1e-7)
    pcgrad = project_both(public, torch.tensor(local)).tolist()
    assert moved("pcgrad", local) == pytest.approx(pcgrad)
    assert pcgrad != pytest.approx(PUBLIC) and pcgrad != pytest.approx([0.0, *PUBLIC[1:]])


ROWS, HALVES = [0, 1], [[0.5, 0.5], [0.5, 0.5]]
NONSENSE: dict[str, dict[str, Any]] = {
    "too wide": lesson(ROWS, [[0.5, 0.5, 0.0], [0.5, 0.5, 0.0]], accuracy=1.0),
    "too few": lesson(ROWS, [[0.5, 0.5]], accuracy=1.0),
    "no such row": lesson([0, 4], HALVES, accuracy=1.0),
    "a row below 0": lesson([0, -1], HALVES, accuracy=1.0),
    "of no row": {"rows": torch.zeros(0).int(), "posteriors": torch.zeros(0, 2), "accuracy": 1.0},
    "rows in two dimensions": lesson([[0], [1]], HALVES, accuracy=1.0),  # type: ignore[list-item]
    "half a row": {**lesson(ROWS, HALVES, accuracy=1.0), "rows": torch.tensor([0.5, 1.0])},
    "rows as texts": {**lesson(ROWS, HALVES, accuracy=1.0), "rows": ["0", "1"]},
    "NaN": lesson(ROWS, [[float("nan"), 0.5], [0.5, 0.5]], accuracy=1.0),
    "infinity": lesson(ROWS, [[float("inf"), 0.5], [0.5, 0.5]], accuracy=1.0),
    "no probabilities": lesson(ROWS, [[-0.5, 1.5], [0.5, 0.5]], accuracy=1.0),
    "more than all": lesson(ROWS, [[500.0, 500.0], [0.5, 0.5]], accuracy=1.0),
    "complex": {**lesson(ROWS, HALVES, accuracy=1.0), "posteriors": torch.full((2, 2), 0.5 + 0j)},
    "a boast": lesson(ROWS, HALVES, accuracy=100.0),
    "accuracy NaN": lesson(ROWS, HALVES, accuracy=float("nan")),
    "accuracy as a text": {**lesson(ROWS, HALVES), "accuracy": "all"},
    "nothing": {},
}


AROUND = {"outputs": 2, "classes": 2, "public": len(X)}


def refusal(said: dict[str, Any], **settings: Any) -> str | None:
    """Why the fleet would not let a lesson through to the peers."""
    method = fedh2l(**settings)
    required = [name for name in method.broadcast.required if name in method.declared.sends]  # type: ignore[attr-defined]
    return why_refused(method.declared.sends, required, said, Surroundings(AROUND, reply=said))


@pytest.mark.parametrize("what", NONSENSE)
def test_nonsense_is_not_let_through_to_the_peers(what: str) -> None:
    reason = refusal(NONSENSE[what])
    assert reason is not None and "\n" not in reason


def test_lessons_that_make_sense_are_let_through() -> None:
    assert refusal(FIRST) is None
    assert refusal(SECOND) is None


def test_a_lesson_without_an_accuracy_is_not_trusted_where_there_are_labels() -> None:
    bare = lesson(ROWS, HALVES)
    assert refusal(bare) == "its reply has no accuracy"
    assert refusal(bare, labels=False) is None
    assert refusal({**bare, "accuracy": 0.5}) is None


def test_a_field_that_nobody_asked_for_is_not_let_through() -> None:
    assert "'gossip' that the method does not declare" in str(refusal({**FIRST, "gossip": 1}))
    assert "'accuracy' that the method does not declare" in str(refusal(FIRST, labels=False))


def test_a_lesson_is_of_the_nodes_own_public_rows() -> None:
    me = student()
    nn.init.eye_(me.model.weight)  # type: ignore[arg-type]
    said = fedh2l(public_batch=8).broadcast(me)
    rows = said["rows"]
    assert isinstance(rows, Tensor) and isinstance(said["posteriors"], Tensor)
    assert sorted(rows.tolist()) == [0, 2]
    assert torch.allclose(said["posteriors"], F.softmax(me.model(X[rows]), dim=1))


# -- rounds by hand ------------------------------------------------------------------------------------------

FEW = 5  # public rows a lesson
METHOD: dict[str, Any] = {"name": "fedh2l", "batches": 1, "public_batch": FEW}


@dataclass
class Said:
    rows: Tensor
    posteriors: Tensor
    accuracy: float


class ByHand(Bench):
    """Algorithm 1, written out. `wrongly` does one thing in another way."""

    def __init__(self, run: Run, wrongly: str = "") -> None:
        super().__init__(run)
        self.wrongly = wrongly
        self.settings = FedH2LSettings(**run.config.method.settings)
        training = run.config.training
        amsgrad = training.optimiser == "amsgrad"
        self.optimisers: list[torch.optim.Optimizer] = [
            torch.optim.Adam(model.parameters(), lr=training.lr, amsgrad=True)
            if amsgrad
            else torch.optim.SGD(model.parameters(), lr=training.lr)
            for model in self.clients
        ]
        assert self.federation.holdings.public is not None
        self.x, self.y = self.federation.holdings.public.tensors()
        self.local: dict[int, Tensor] = {}
        for number in range(1, run.config.rounds + 1):
            self.round(number)

    def round(self, number: int) -> None:
        peers = self.cohort(number)
        early = {index: self.say(index, number) for index in peers}
        for index in peers:
            self.local_step(index, number)
        if number % self.settings.interval:
            return
        said = {index: self.say(index, number) for index in peers}
        if self.wrongly == "teachers before their local step":
            said = early
        stream = self.federation.seeds.torch("topology", number, 0)
        links = neighbours(self.settings.topology, peers, stream)
        for index in peers:
            if self.wrongly == "teachers that have learnt meanwhile":
                said = {other: self.say(other, number) for other in peers}
            heard = links[index] + ([index] if self.wrongly == "the own batch too" else [])
            if heard:
                self.mutual_step(index, [said[other] for other in heard])

    def local_step(self, index: int, number: int) -> None:
        x, y = self.own(index)
        rows = torch.randperm(len(y), generator=self.stream("batch", index, number, 1))[:BATCH]
        gradient = self.slope(index, F.cross_entropy(self.clients[index].train()(x[rows]), y[rows]))
        self.step(index, gradient)
        self.local[index] = self.local.get(index, torch.zeros(())) + gradient

    def say(self, index: int, number: int) -> Said:
        own = self.federation.holdings.seen_by(index).own_public
        assert own is not None
        rows = own[torch.randperm(len(own), generator=self.stream("public batch", index, number, 1))[:FEW]]
        posteriors = said(self.clients[index], self.x[rows]).softmax(dim=1)
        return Said(rows, posteriors, (posteriors.argmax(dim=1) == self.y[rows]).float().mean().item())

    def mutual_step(self, index: int, lessons: list[Said]) -> None:
        together = self.clients[index].train()(self.x[torch.cat([each.rows for each in lessons])])
        loss = torch.zeros(())
        for each, logits in zip(lessons, together.split([len(each.rows) for each in lessons]), strict=True):
            trust = each.accuracy if self.settings.labels else 1.0
            trust = 1.0 if self.wrongly == "all teachers count the same" else trust
            log_ratio = each.posteriors.log() - logits.log_softmax(dim=1)  # Eq. 4
            kl = (each.posteriors * log_ratio).sum() / len(each.rows)
            if self.settings.kl:
                loss = loss + trust * kl / len(lessons)  # Eq. 3
            if self.settings.labels:
                loss = loss + F.cross_entropy(logits, self.y[each.rows]) / len(lessons)  # Eq. 5
        public, local = self.slope(index, loss), self.local.pop(index)
        if self.settings.conflict == "project" and self.wrongly != "no projection":
            public = project(public, local)
        elif self.settings.conflict == "pcgrad":
            public = project_both(public, local)
        self.step(index, public)

    def slope(self, index: int, loss: Tensor) -> Tensor:
        return torch.cat(
            [each.flatten() for each in torch.autograd.grad(loss, list(self.clients[index].parameters()))]
        )

    def step(self, index: int, gradient: Tensor) -> None:
        parameters = list(self.clients[index].parameters())
        parts = gradient.split([parameter.numel() for parameter in parameters])
        for parameter, part in zip(parameters, parts, strict=True):
            parameter.grad = part.view_as(parameter)
        self.optimisers[index].step()


def agree(run: Run, expected: ByHand) -> bool:
    return all(close(state_of(run, index), model) for index, model in enumerate(expected.clients))


VARIANTS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "plain": ({}, {}),
    "interval": ({"interval": 2}, {}),
    "pairs": ({"topology": "pairs"}, {}),
    "no labels": ({"labels": False}, {}),
    "no kl": ({"kl": False}, {}),
    "no projection": ({"conflict": "ignore"}, {}),
    "pcgrad": ({"conflict": "pcgrad"}, {}),
    "amsgrad": ({}, {"training": {"lr": 0.003, "batch": BATCH, "optimiser": "amsgrad"}}),
    "some peers": ({"interval": 2}, {"cohort": {"count": 2}}),
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_rounds_equal_a_loop_by_hand(federate: Prepare, variant: str) -> None:
    """All say what they know after their local step and before anyone learns; one optimiser takes both steps."""
    settings, changes = VARIANTS[variant]
    # A bias before BatchNorm has no slope but rounding, and of that Adam makes steps of full length.
    nets = [plain] if variant == "amsgrad" else [normed, plain]
    run = federate(nets, server=False, method={**METHOD, **settings}, rounds=5, **changes)
    run.go()
    assert agree(run, ByHand(run))


@pytest.mark.parametrize(
    "wrongly",
    [
        "teachers before their local step",
        "teachers that have learnt meanwhile",
        "all teachers count the same",
        "the own batch too",
        "no projection",
    ],
)
def test_the_loop_by_hand_would_notice(federate: Prepare, wrongly: str) -> None:
    run = federate([normed, plain], server=False, method=METHOD, rounds=10)
    run.go()
    assert agree(run, ByHand(run))
    assert not agree(run, ByHand(run, wrongly))


def memory_of(run: Run, client: int) -> dict[str, Any]:
    memory: dict[str, Any] = decode(run.client_files()[client].read_bytes())["memory"]
    return memory


def test_local_gradients_add_up_until_a_mutual_step_and_are_cleared_by_it(federate: Prepare) -> None:
    for rounds, kept in ((2, True), (3, False), (4, True), (5, True)):
        run = federate([plain], server=False, method={**METHOD, "interval": 3}, rounds=rounds)
        run.go()
        expected = ByHand(run)
        for index in range(3):
            assert ("local" in memory_of(run, index)) == (index in expected.local) == kept
            if kept:
                assert torch.allclose(memory_of(run, index)["local"], expected.local[index], atol=1e-6)


# -- settings ------------------------------------------------------------------------------------------------

PUBLIC_SHARE: dict[str, Any] = {"source": "share", "share": 0.2}


def test_batches_of_one_row_do_not_trouble_a_model_with_batch_norm(make_run: MakeRun) -> None:
    run = make_run(
        FedH2L,
        settings={"batches": 1, "public_batch": 1, "topology": "pairs"},
        models={"names": ["mobilenetv2"]},
        training={"batch": 1, "lr": 0.001},
        data={"public": {"source": "share", "share": 0.2}},
        rounds=2,
    )
    run.go()
    assert failures_of(run.path) == []


def test_learning_from_nothing_is_refused(make_run: MakeRun) -> None:
    with pytest.raises(ConfigError, match="nothing to learn from peers"):
        make_run({"name": "fedh2l", "labels": False, "kl": False}, data={"public": PUBLIC_SHARE})


def test_public_data_are_needed_and_their_labels_only_if_used(make_run: MakeRun) -> None:
    with pytest.raises(MethodError, match=r"data\.public\.source=share"):
        make_run("fedh2l")
    unlabelled = {"public": {**PUBLIC_SHARE, "labels": "none"}}
    with pytest.raises(MethodError, match=r"data\.public\.labels=own"):
        make_run("fedh2l", data=unlabelled)
    run = make_run({"name": "fedh2l", "labels": False}, data=unlabelled, rounds=1)
    run.go()
    assert run.summary["failures"] == 0
    assert "metrics" not in run.summary["bytes"]["down"]  # no accuracy
    assert "posteriors" in run.summary["bytes"]["down"]


def test_who_sets_local_epochs_or_steps_is_told_that_they_have_no_effect(
    make_run: MakeRun, caplog: pytest.LogCaptureFixture
) -> None:
    found = []
    for training in ({}, {"epochs": 2}, {"steps": 5}):
        run = make_run(
            FedH2L, settings={"batches": 2}, training=training, data={"public": PUBLIC_SHARE}, rounds=2
        )
        run.go()
        found.append(result_of(run.path)["states"])
        assert caplog.text.count("method.batches steps per round") == len(found) - 1
    assert found[0] == found[1] == found[2]


def test_own_batches_are_augmented_if_so_set(make_run: MakeRun) -> None:
    found = []
    for augment in (False, True):
        settings = {"batches": 1}
        run = make_run(
            FedH2L, settings=settings, training={"augment": augment}, data={"public": PUBLIC_SHARE}, rounds=1
        )
        run.go()
        assert failures_of(run.path) == []
        found.append(result_of(run.path)["states"])
    assert found[0] != found[1]
