"""FedORION against loops written out by hand: mutual learning, the mean of the copies, distillation from noise."""

from __future__ import annotations

import copy
import weakref
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from tests.methods.by_hand import (
    LR,
    NO_PUBLIC,
    Prepare,
    descend,
    mean_of,
    normed,
    one_layer,
    plain,
    said,
    soft,
    towards,
)
from tests.methods.mutual_by_hand import Buffers, MutualByHand, Way, copy_of, step
from torch import Tensor, nn

import polyfed
from polyfed.data import noise
from polyfed.errors import PolyfedError
from polyfed.federation.nodes import Assistant, Server
from polyfed.federation.spreading import JOBS_PER_WORKER
from polyfed.learn import TableMean, is_statistic
from polyfed.methods import fedorion, noise_distillation
from polyfed.methods.noise_distillation import NoiseSettings
from polyfed.runs.checkpoint import read_lines
from polyfed.runs.rounds import Run
from polyfed.tasks import CLASSIFICATION
from polyfed.testing import failures_of, result_of

NOISE_BATCH, NOISE_BATCHES, MOMENTUM = 16, 6, 0.5
DISTIL = {"epochs": 3, "batch": NOISE_BATCH, "lr": LR, "momentum": MOMENTUM}
FEDORION: dict[str, Any] = {"name": "fedorion", "noise_batches": 2, "distil": DISTIL}

LEARNT: dict[str, Any] = {"device": torch.device("cpu"), "task": CLASSIFICATION}


def wide() -> nn.Module:
    return nn.Sequential(nn.Linear(5, 9), nn.BatchNorm1d(9), nn.ReLU(), nn.Linear(9, 3))


@dataclass(frozen=True)
class Orion(Way):
    """How it is done: as the settings say, or wrongly."""

    in_turn: bool = False
    weighting: str = "uniform"
    copies: bool = True
    """Whether clients teach copies of the global model."""
    selective: bool = True
    aggregate: bool = True
    statistics: str = "clients"
    distillation: bool = True
    teachers: str = "samples"
    """How teachers count; all the same would be a mistake."""
    teachers_as: str = "batch"
    """What teachers normalise noise by; their running statistics would be a mistake."""
    leaks: bool = False
    """A mistake: noise gets into the student's running statistics."""
    broadcast: bool = True
    """Whether a client that trains alone begins with the global model; else it is a mistake."""


class OrionByHand(MutualByHand):
    """Algorithm 1, with one epoch of SGD on the clients."""

    way: Orion

    def round(self, number: int) -> None:
        way, cohort = self.way, self.cohort(number)
        copies, shares = [], []
        for client in cohort:
            alone = way.selective and self.federation.roster.architecture(client) == self.global_name
            samples = float(len(self.own(client)[1]))
            if alone and way.broadcast:
                self.clients[client].load_state_dict(copy_of(self.server))
            if alone or not way.copies:
                x, y = self.own(client)
                descend(self.clients[client], x, towards(y), self.stream("batches", client, number, 1))
            if alone or way.copies:
                network = self.clients[client] if alone else self.extract(client, number)[0]
                copies.append(copy_of(network))
                shares.append(samples if way.weighting == "samples" else 1.0)
        mean = mean_of(copies, shares) if copies else {}
        taken = {name: tensor for name, tensor in mean.items() if way.aggregate or is_statistic(name)}
        if way.statistics == "kept":
            taken = {name: tensor for name, tensor in mean.items() if way.aggregate}
        before = copy_of(self.server)
        self.server.load_state_dict({**before, **taken})
        if way.distillation:
            self.distil_noise(cohort, number)

    @property
    def global_name(self) -> str:
        return str(self.federation.server().architecture)

    def distil_noise(self, cohort: list[int], number: int) -> None:
        stream = self.server_stream("noise", number)
        stream = torch.Generator().manual_seed(int(torch.randint(2**62, (), generator=stream)))
        buffers: Buffers = [None] * 99
        for _ in range(NOISE_BATCHES):
            z = torch.randn(NOISE_BATCH, 5, generator=stream)
            target, total = torch.zeros(NOISE_BATCH, 3), 0.0
            for client in cohort:
                share = float(len(self.own(client)[1])) if self.way.teachers == "samples" else 1.0
                target, total = target + share * self.asked(self.clients[client], z), total + share
            self.server.train()
            kept = {name: buffer.clone() for name, buffer in self.server.named_buffers()}
            logits = self.server(z)
            step(self.server, soft(target / total)(torch.arange(len(z)), logits), buffers, MOMENTUM)
            if not self.way.leaks:
                for name, buffer in self.server.named_buffers():
                    buffer.copy_(kept[name])

    def asked(self, model: nn.Module, z: Tensor) -> Tensor:
        if self.way.teachers_as == "running":
            return said(model, z).softmax(dim=1)
        with torch.no_grad():
            answer: Tensor = copy.deepcopy(model).train()(z).softmax(dim=1)
        return answer


def done(federate: Prepare, models: list[Any], method: dict[str, Any], **settings: Any) -> Run:
    run = federate(
        models, server=False, method={**FEDORION, **method}, **{"rounds": 2, "data": NO_PUBLIC, **settings}
    )
    run.go()
    assert failures_of(run.path) == []
    return run


def agrees(run: Run, way: Orion) -> bool:
    return OrionByHand(run, way).agrees(run)


# -- rounds --------------------------------------------------------------------------------------------------


def test_rounds_equal_a_loop_by_hand_and_none_with_a_mistake(federate: Prepare) -> None:
    """Client 1 has the global architecture, the smallest; the others teach copies of it."""
    run = done(federate, [wide, normed], {})
    assert run.server.architecture == "normed"
    way = Orion()
    assert agrees(run, way)
    for mistake in (
        replace(way, teachers="uniform"),
        replace(way, teachers_as="running"),
        replace(way, leaks=True),
        replace(way, broadcast=False),
        replace(way, weighting="samples"),
        replace(way, in_turn=True),
        replace(way, selective=False),
        replace(way, own=(1.0, 0.0)),
        replace(way, sent=(0.0, 1.0)),
        replace(way, local_kept=False),
        replace(way, distillation=False),
    ):
        assert not agrees(run, mistake), mistake


@pytest.mark.parametrize(
    ("settings", "way", "mistake"),
    [
        ({"mutual": "answers"}, Orion(sent=(0.0, 1.0)), Orion()),
        ({"mutual": "none"}, Orion(copies=False), Orion()),
        ({"aggregate": False}, Orion(aggregate=False), Orion(aggregate=False, statistics="kept")),
        ({"distillation": False}, Orion(distillation=False), Orion()),
        ({"selective": False}, Orion(selective=False), Orion()),
        ({"updates": "in-turn"}, Orion(in_turn=True), Orion()),
        ({"weighting": "samples"}, Orion(weighting="samples"), Orion()),
        ({"mutual": "none", "selective": False}, Orion(copies=False, selective=False), Orion(copies=False)),
    ],
    ids=[
        "answers alone",
        "no copies",
        "no aggregation",
        "no distillation",
        "everybody mutually",
        "in turn",
        "copies by samples",
        "distillation alone",
    ],
)
def test_ablations_equal_a_loop_by_hand(
    federate: Prepare, settings: dict[str, Any], way: Orion, mistake: Orion
) -> None:
    run = done(federate, [wide, normed], settings)
    assert agrees(run, way)
    assert not agrees(run, mistake)


def test_part_of_the_clients_and_models_without_running_statistics_by_hand(federate: Prepare) -> None:
    run = done(federate, [plain, one_layer], {}, cohort={"count": 2}, rounds=3)
    assert run.server.architecture == "one_layer"
    assert agrees(run, Orion())


def test_eq_3_by_hand_with_two_teachers() -> None:
    """Teachers that say the same of any noise, (3/4, 1/4) with 1 sample and (1/5, 4/5) with 3:

    p = ((3/4 + 3 · 1/5) / 4, (1/4 + 3 · 4/5) / 4) = (0.3375, 0.6625). A student that says (1/2, 1/2) has the gradient
    1/2 − p in its biases: one step of lr 0.1 makes them (−0.01625, 0.01625).
    """
    settings = NoiseSettings(distil={"epochs": 1, "batch": 4, "lr": 0.1})
    network = nn.Linear(2, 2)
    helper = cast(
        Assistant,
        SimpleNamespace(
            scratch_model=lambda _: network, shape=(2,), device=torch.device("cpu"), task=CLASSIFICATION
        ),
    )
    told: dict[str, Any] = {"seed": 1, "drawn": None}
    teacher = TableMean()
    for odds, samples in ((3.0, 1), (0.25, 3)):
        bias = torch.tensor([odds, 1.0]).log()
        weights = {"weight": torch.zeros(2, 2), "bias": bias}
        answer = noise_distillation.answer(helper, settings, "any", weights, **told)
        teacher.add(cast(Tensor, answer["probabilities"]), samples)
    expected = torch.tensor([0.3375, 0.6625]).expand(4, 2)
    assert torch.allclose(teacher.result(), expected, atol=1e-6, rtol=0)
    student = nn.Linear(2, 2)
    nn.init.zeros_(student.weight)
    nn.init.zeros_(student.bias)
    server = SimpleNamespace(
        model=student, round=1, memory={}, shape=(2,), device=torch.device("cpu"), task=CLASSIFICATION
    )
    noise_distillation.distil(cast(Server, server), teacher.result(), settings, **told)
    assert student.bias.tolist() == pytest.approx([-0.01625, 0.01625], abs=1e-6)
    z = torch.randn(4, 2, generator=torch.Generator().manual_seed(1))
    assert torch.allclose(student.weight[0], -0.01625 * z.mean(dim=0), atol=1e-6, rtol=0)


# -- noise and running statistics ----------------------------------------------------------------------------


def test_noise_gets_into_nobodys_running_statistics(federate: Prepare) -> None:
    """Bit for bit, after a round with distillation and one without: all that clients keep, and the server's statistics.

    Of the server's model only what is trained differs (a bias before BatchNorm has no gradient).
    """
    told, silent = (done(federate, [wide, normed], {"distillation": on}, rounds=1) for on in (True, False))
    for client in range(3):
        assert told.client_files()[client].read_bytes() == silent.client_files()[client].read_bytes()
    assert told.server.model is not None and silent.server.model is not None
    other = copy_of(silent.server.model)
    same = {name for name, tensor in copy_of(told.server.model).items() if torch.equal(tensor, other[name])}
    assert {name for name in other if is_statistic(name)} <= same
    assert {"0.weight", "1.weight", "3.weight", "3.bias"}.isdisjoint(same)


def test_a_teacher_is_asked_without_a_trace_and_without_dropout(federate: Prepare) -> None:
    network = nn.Sequential(nn.Linear(5, 6), nn.BatchNorm1d(6), nn.Dropout(0.5), nn.Linear(6, 3))
    before = copy_of(network)
    helper = cast(
        Assistant,
        SimpleNamespace(
            scratch_model=lambda _: network, shape=(5,), device=torch.device("cpu"), task=CLASSIFICATION
        ),
    )
    first, second = (
        cast(
            Tensor,
            noise_distillation.answer(helper, NoiseSettings(), "any", before, seed=3, drawn=None)[
                "probabilities"
            ],
        )
        for _ in range(2)
    )
    assert torch.equal(first, second)
    assert all(torch.equal(before[name], tensor) for name, tensor in copy_of(network).items())
    batch_norm = cast(nn.BatchNorm1d, network[1])
    assert batch_norm.training and batch_norm.track_running_stats  # in the mode that it was in


def images() -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 4, 3, 2), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(36, 10))


def flat() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 12), nn.BatchNorm1d(12), nn.ReLU(), nn.Linear(12, 10))


@pytest.mark.parametrize(
    ("kind", "threads"), [("gaussian", 1), ("gaussian", 2), ("dead-leaves", 1), ("stylegan", 1)]
)
def test_noise_is_the_same_on_any_number_of_workers(
    small: dict[str, Any], tmp_path: Path, kind: str, threads: int
) -> None:
    method = {"name": "fedorion", "noise": kind, "distil": {"epochs": 2, "batch": 8, "lr": 0.1}}
    config = {**small, "rounds": 2, "method": method, "server_threads": threads}
    results = {
        workers: result_of(
            polyfed.run(config, models=[images, flat], out=tmp_path / str(workers), workers=workers).path
        )
        for workers in (1, 2)
    }
    assert results[1] == results[2]


def test_noise_is_new_in_every_round_and_of_the_kind_that_is_set(
    small: dict[str, Any], tmp_path: Path
) -> None:
    method = {"name": "fedorion", "noise": "dead-leaves", "distil": {"epochs": 2, "batch": 8}}
    run = polyfed.prepare({**small, "method": method}, models=[images, flat], out=tmp_path / "run", workers=1)
    settings = cast(NoiseSettings, run.method.settings)
    drawn = []
    for run.server.round in (1, 2):
        drawn.append(noise_distillation.told(run.server, settings)["drawn"])
        stream = run.server.rng("noise")
        assert torch.equal(
            drawn[-1], noise.draw("dead-leaves", 16, run.server.shape, stream, run.server.limits)
        )
    assert not torch.equal(*drawn)
    gaussian = settings.model_copy(update={"noise": "gaussian"})
    told = noise_distillation.told(run.server, gaussian)
    assert told["drawn"] is None
    batches = list(noise_distillation._batches(gaussian, (5,), **told))
    assert [batch.shape for batch in batches] == [(8, 5)] * 2 and not torch.equal(*batches)
    run.close()


# -- memory, bytes, what a client may do ---------------------------------------------------------------------


def test_twenty_teachers_take_the_room_of_a_few(federate: Prepare, monkeypatch: pytest.MonkeyPatch) -> None:
    """A model for each architecture, one table, and as many received models as jobs are taken together."""
    received: list[weakref.ref[Tensor]] = []
    teachers: dict[int, str] = {}
    alive: list[int] = []
    answer, add, arrive = noise_distillation.answer, TableMean.add, fedorion.FedORION.own_model

    def arriving(self: Any, *arguments: Any) -> Any:
        weights = arrive(self, *arguments)
        assert weights is not None
        received.extend(weakref.ref(tensor) for tensor in list(weights.values())[:1])
        return weights

    def asked(helper: Assistant, settings: NoiseSettings, architecture: str, **job: Any) -> Any:
        teachers[id(helper.scratch_model(architecture))] = architecture
        return answer(helper, settings, architecture, **job)

    def added(self: TableMean, table: Tensor, share: float) -> None:
        add(self, table, share)
        alive.append(sum(ref() is not None for ref in received))

    monkeypatch.setattr(fedorion.FedORION, "own_model", arriving)
    monkeypatch.setattr(noise_distillation, "answer", asked)
    monkeypatch.setattr(TableMean, "add", added)
    done(federate, [wide, normed], {}, rounds=1, data={"clients": 20, "partition": {"kind": "iid"}})
    assert len(alive) == len(received) == 20
    assert sorted(teachers.values()) == ["normed", "wide"]
    assert max(alive) <= JOBS_PER_WORKER


def travelled(run: Run, client: str, direction: str) -> int:
    """Bytes of weights in the first round."""
    [line] = [line for line in read_lines(run.path / "ledger.jsonl") if line["round"] == 1]
    [size] = [row[4] for row in line["rows"] if row[:4] == [client, direction, "weights", "training"]]
    return int(size)


def test_a_client_sends_its_copy_and_its_own_model_once(federate: Prepare) -> None:
    """`one_layer` has 18 numbers of 4 bytes, `plain` 75; client 1 trains the global architecture."""
    for settings, sizes in (
        ({}, (72 + 300, 72)),
        ({"distillation": False}, (72, 72)),
        ({"mutual": "none"}, (300, 72)),
        ({"selective": False}, (72 + 300, 72 + 72)),
    ):
        run = done(federate, [plain, one_layer], settings, rounds=1)
        assert (travelled(run, "client-0", "up"), travelled(run, "client-1", "up")) == sizes
        assert travelled(run, "client-0", "down") == 72


def test_the_global_model_is_scored_on_the_whole_test_set(federate: Prepare) -> None:
    run = done(federate, [wide, normed], {}, rounds=1)
    by_hand = OrionByHand(run, Orion())
    last = run.summary["last"]
    assert last["server"]["global"] == pytest.approx(by_hand.accuracy([by_hand.server]), abs=1e-9)
    assert last["stages"]["mutual"]["whole"]["mean"] == last["whole"]["mean"]


@pytest.mark.parametrize(
    ("method", "complaint"),
    [
        ({"noise": "dead-leaves"}, "use gaussian"),
        ({"distil": {"batch": 1}}, "method.distil.batch=128"),
        ({"aggregate": False, "distillation": False}, "would never learn"),
        ({"noise": "pink"}, "dead-leaves"),
        ({"noise_batches": 0}, "method.noise_batches"),
    ],
    ids=["images of vectors", "single rows", "never learns", "no such noise", "no noise"],
)
def test_what_cannot_be_is_told_in_one_line(
    federate: Prepare, method: dict[str, Any], complaint: str
) -> None:
    with pytest.raises(PolyfedError, match=complaint) as caught:
        federate([plain, one_layer], server=False, method={**FEDORION, **method}, data=NO_PUBLIC)
    assert "\n" not in str(caught.value)


def test_more_noise_than_can_be_sent_around_is_refused(small: dict[str, Any], tmp_path: Path) -> None:
    """10⁵ batches of 128 images of 64 numbers of 4 bytes are 3.3 GB an epoch; Gaussian noise is not sent."""
    method = {"name": "fedorion", "noise": "stylegan", "noise_batches": 10**5, "distil": {"epochs": 1}}
    with pytest.raises(PolyfedError, match=r"3\.3 GB: lower method\.noise_batches"):
        polyfed.prepare({**small, "method": method}, models=[images, flat], out=tmp_path / "run")
    method["noise"] = "gaussian"
    polyfed.prepare({**small, "method": method}, models=[images, flat], out=tmp_path / "run").close()
