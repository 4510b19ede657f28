"""Batches and learners: steps by hand, several learners on one stream, and the learning rate over the rounds."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import ValidationError
from torch import Tensor, nn
from torch.nn import functional as F

import polyfed
from polyfed import models
from polyfed.federation.message import decode, encode
from polyfed.federation.method import registered
from polyfed.learn import Learner, Training, batch_count, batches, effective_steps, supervised, weights_of
from polyfed.runs.rounds import Run


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def line(weight: float = 0.0) -> nn.Linear:
    """y = w x."""
    model = nn.Linear(1, 1, bias=False)
    nn.init.constant_(model.weight, weight)
    return model


def weight_of(model: nn.Module) -> float:
    return next(model.parameters()).item()


# -- batches -------------------------------------------------------------------------------------------------


def test_every_row_is_seen_once_an_epoch_with_its_own_number() -> None:
    x = torch.arange(10.0).unsqueeze(1)
    training = Training(batch=4, epochs=2)
    seen = list(batches(x, training, generator(), line()))
    assert [len(rows) for rows, _ in seen] == [4, 4, 2, 4, 4, 2]
    assert len(seen) == batch_count(10, training, line())
    for rows, batch in seen:
        assert torch.equal(batch, x[rows])
    for epoch in (seen[:3], seen[3:]):
        assert sorted(int(row) for rows, _ in epoch for row in rows) == list(range(10))
    assert not torch.equal(seen[0][0], seen[3][0])


def test_so_many_steps_are_so_many_batches() -> None:
    training = Training(batch=4, steps=5)
    assert len(list(batches(torch.zeros(6, 1), training, generator()))) == 5
    assert batch_count(6, training) == 5


def test_without_samples_there_are_no_batches_and_nothing_is_done() -> None:
    for settings in ({}, {"steps": 3}):
        training = Training(**{"epochs": 1, **settings}, keep_optimiser=True, momentum=0.9)
        assert list(batches(torch.zeros(0, 1), training, generator())) == []
        assert batch_count(0, training) == 0
        memory: dict[str, Any] = {}
        assert Learner(line(), training, memory).finish() == 0
        assert memory == {}


def test_one_model_with_batch_norm_merges_a_last_batch_of_one_for_all() -> None:
    x, training = torch.zeros(5, 1), Training(epochs=1, batch=4)
    norm = nn.BatchNorm1d(1)
    assert [len(rows) for rows, _ in batches(x, training, generator(), line())] == [4, 1]
    assert [len(rows) for rows, _ in batches(x, training, generator(), line(), norm)] == [5]
    assert batch_count(5, training, line()) == 2
    assert batch_count(5, training, line(), norm) == 1


def test_where_every_batch_is_one_row_norms_use_their_running_statistics() -> None:
    norm = nn.BatchNorm1d(1).train()
    for _, batch in batches(torch.randn(3, 1), Training(epochs=1, batch=1), generator(), norm):
        norm(batch)
    assert norm.running_mean is not None and norm.running_mean.item() == 0.0


# -- steps by hand -------------------------------------------------------------------------------------------


def test_steps_by_hand_with_momentum_and_weight_decay() -> None:
    """Loss w, slope 1 + ½ w: v ← 0.9 v + slope, w ← w - 0.1 v."""
    model = line(2.0)
    learner = Learner(model, Training(epochs=1, lr=0.1, momentum=0.9, weight_decay=0.5))
    w, v = 2.0, 0.0
    for _ in range(3):
        learner.step(model.weight.sum())
        v = 0.9 * v + 1 + 0.5 * w
        w -= 0.1 * v
        assert weight_of(model) == pytest.approx(w, abs=1e-6)
    assert learner.steps == learner.finish() == 3
    assert model.weight.grad is None


def test_the_model_is_put_in_training_mode() -> None:
    model = nn.Sequential(nn.Dropout(), line()).eval()
    Learner(model, Training())
    assert model.training and model[0].training


def test_a_gradient_is_clipped_as_a_whole() -> None:
    """A slope of (3, 4) has norm 5: clipped to 1 it is (0.6, 0.8)."""
    for clip, expected in ((1.0, (-0.6, -0.8)), (None, (-3.0, -4.0)), (7.0, (-3.0, -4.0))):
        pair = nn.ModuleList([line(), line()])
        Learner(pair, Training(epochs=1, lr=1.0, clip=clip)).step(
            3 * next(pair[0].parameters()).sum() + 4 * next(pair[1].parameters()).sum()
        )
        assert [weight_of(each) for each in pair] == pytest.approx(expected, abs=1e-5)


def test_each_entry_of_a_gradient_is_clipped_and_then_its_norm() -> None:
    """(3, −4) is (2, −2) with entries up to 2, whose norm is √8: clipped to 1 it is (√½, −√½)."""
    half = math.sqrt(0.5)
    for limits, expected in (
        ({"clip_value": 2.0}, (-2.0, 2.0)),
        ({"clip_value": 3.5}, (-3.0, 3.5)),
        ({"clip_value": 2.0, "clip": 1.0}, (-half, half)),
    ):
        pair = nn.ModuleList([line(), line()])
        Learner(pair, Training(epochs=1, lr=1.0, **limits)).step(
            3 * next(pair[0].parameters()).sum() - 4 * next(pair[1].parameters()).sum()
        )
        assert [weight_of(each) for each in pair] == pytest.approx(expected, abs=1e-5)


def test_the_rate_falls_along_a_cosine() -> None:
    model = line()
    learner = Learner(model, Training(epochs=1, lr=0.4, within={"kind": "cosine"}), total=4)
    places = [0.0]
    for _ in range(4):
        learner.step(model.weight.sum())
        places.append(weight_of(model))
    steps = [before - after for before, after in pairwise(places)]
    assert steps == pytest.approx(
        [0.4 * (1 + math.cos(math.pi * step / 4)) / 2 for step in range(4)], abs=1e-6
    )


@pytest.mark.parametrize("optimiser", ["sgd", "adam"])
def test_moments_are_kept_from_one_use_to_the_next_if_so_set(optimiser: str) -> None:
    """Two uses of one step each are as one use of two steps; without keeping they are not."""

    def place(uses: int, steps: int, keep: bool) -> float:
        model = line(1.0)
        memory: dict[str, Any] = {}
        momentum = 0.9 if optimiser == "sgd" else 0.0
        training = Training(
            epochs=1,
            optimiser=optimiser,
            lr=0.1,
            momentum=momentum,
            keep_optimiser=keep,
        )
        for _ in range(uses):
            learner = Learner(model, training, memory)
            for _ in range(steps):
                learner.step(model.weight.square().sum())
            learner.finish()
            assert bool(memory) == keep
        return weight_of(model)

    assert place(2, 1, True) == place(1, 2, True)
    assert place(2, 1, False) != place(1, 2, False)


def test_two_learners_on_one_stream_learn_from_each_other() -> None:
    """w_a is drawn to w_b and w_b to w_a, both by the same batches: each step by hand."""
    x = torch.tensor([[1.0], [2.0], [3.0]])
    training = Training(epochs=1, lr=0.05, batch=1)
    one, other = line(1.0), line(-1.0)
    learners = Learner(one, training), Learner(other, training)
    a, b = 1.0, -1.0
    for rows, batch in batches(x, training, generator(), one, other):
        said, heard = one(batch), other(batch)
        losses = (said - heard.detach()).square().mean(), (heard - said.detach()).square().mean()
        for learner, loss in zip(learners, losses, strict=True):
            learner.step(loss)
        square = float(x[rows].item()) ** 2
        a, b = a - 0.05 * 2 * square * (a - b), b - 0.05 * 2 * square * (b - a)
        assert (weight_of(one), weight_of(other)) == pytest.approx((a, b), abs=1e-5)
    assert [learner.finish() for learner in learners] == [3, 3]


class Featured(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(2, 3)
        self.head = nn.Linear(3, 2)

    def features(self, x: Tensor) -> Tensor:
        return self.body(x).relu()  # type: ignore[no-any-return]

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.features(x))  # type: ignore[no-any-return]


def test_a_loss_may_be_of_the_models_features() -> None:
    """As MOON or FedProto would: a pull on features, beside the labels. Against torch's own SGD."""
    x, y = torch.randn(9, 2, generator=generator(1)), torch.arange(9) % 2
    anchor = torch.ones(3)
    training = Training(lr=0.1, batch=4, epochs=2)
    model, plain = Featured(), Featured()
    plain.load_state_dict(model.state_dict())
    learner = Learner(model, training)
    for rows, batch in batches(x, training, generator(2), model):
        features = model.features(batch)
        pull = (features - anchor).square().mean()
        learner.step(F.cross_entropy(model.head(features), y[rows]) + 0.5 * pull)
    optimiser = torch.optim.SGD(plain.parameters(), lr=0.1)
    stream = generator(2)
    for _ in range(2):
        for rows in torch.randperm(9, generator=stream).split(4):
            optimiser.zero_grad()
            features = plain.features(x[rows])
            loss = F.cross_entropy(plain.head(features), y[rows])
            (loss + 0.5 * (features - anchor).square().mean()).backward()
            optimiser.step()
    for found, expected in zip(model.parameters(), plain.parameters(), strict=True):
        assert torch.allclose(found, expected, atol=1e-6)


def test_supervised_is_a_learner_on_cross_entropy() -> None:
    x, y = torch.randn(9, 2, generator=generator(1)), torch.arange(9) % 2
    training = Training(lr=0.1, batch=4, epochs=2, momentum=0.5)
    model, other = Featured(), Featured()
    other.load_state_dict(model.state_dict())
    learner = Learner(model, training)
    for rows, batch in batches(x, training, generator(), model):
        learner.step(F.cross_entropy(model(batch), y[rows]))
    assert supervised(other, x, y, training, generator()) == learner.finish() == 6
    assert encode(weights_of(model)) == encode(weights_of(other))


# -- the learning rate over the rounds -----------------------------------------------------------------------


def test_the_rate_that_is_left_by_hand() -> None:
    training = Training(epochs=1, lr=0.8, decay=0.5, momentum=0.9)
    assert [training.in_round(number).lr for number in (0, 1, 2, 3, 5)] == [0.8, 0.8, 0.4, 0.2, 0.05]
    assert training.in_round(3) == Training(epochs=1, lr=0.2, decay=0.5, momentum=0.9)
    constant = Training(epochs=1, lr=0.8)
    assert constant.in_round(7) is constant


@pytest.mark.parametrize("decay", [0.0, 1.5, -0.5])
def test_a_decay_that_is_none_is_refused(decay: float) -> None:
    with pytest.raises(ValidationError):
        Training(epochs=1, decay=decay)


def plain() -> nn.Module:
    """With a body and a head, as methods that share features need it."""
    return models.Network(nn.Sequential(nn.Linear(5, 4), nn.ReLU()), nn.Linear(4, 3))


Prepare = Callable[..., Run]


@pytest.fixture
def prepare(tmp_path: Path) -> Iterator[Prepare]:
    """Three clients on 90 rows of noise, and a public share of them."""
    made: list[Run] = []

    def make(**settings: Any) -> Run:
        stream = generator()
        x, y = torch.randn(90, 5, generator=stream), torch.randint(3, (90,), generator=stream)
        config: dict[str, Any] = {
            "data": {"clients": 3, "public": {"source": "share", "share": 0.2}},
            "models": {"server": "plain"},
            "checkpoint_seconds": 0,
            **settings,
        }
        out = tmp_path / f"run-{len(made)}"
        made.append(polyfed.prepare(config, data=(x, y), models=[plain], out=out, workers=1))
        return made[-1]

    yield make
    for run in made:
        run.close()


def test_a_correction_is_added_to_the_gradient_of_every_step() -> None:
    """Loss 3w: gradient 3. With clip 1 it is 1, with the correction 0.5 it is 1.5: w = 2 − 0.1 · 1.5, twice."""
    model = line(2.0)
    settings = Training(epochs=1, lr=0.1, clip=1.0)
    learner = Learner(model, settings, correction={"weight": torch.tensor([[0.5]])})
    learner.step(3 * model.weight.sum())
    assert model.weight.item() == pytest.approx(1.85, abs=1e-6)
    learner.step(3 * model.weight.sum())
    assert model.weight.item() == pytest.approx(1.7, abs=1e-6)


@pytest.mark.parametrize("momentum", [0.0, 0.5, 0.9])
@pytest.mark.parametrize("steps", [1, 2, 7])
def test_effective_steps_are_how_far_sgd_goes_down_a_constant_gradient(steps: int, momentum: float) -> None:
    model = line()
    learner = Learner(model, Training(epochs=1, lr=0.01, momentum=momentum))
    for _ in range(steps):
        learner.step(model.weight.sum())
    assert -model.weight.item() / 0.01 == pytest.approx(effective_steps(steps, momentum), rel=1e-4)


@pytest.mark.parametrize("stack", [1, 4])
def test_fedavg_with_decay_equals_a_loop_by_hand(prepare: Prepare, stack: int) -> None:
    """Round 1 at the full rate, round 2 at half of it."""
    training = {"epochs": 1, "lr": 0.4, "decay": 0.5, "batch": 8}
    run = prepare(method="fedavg", rounds=2, training=training, stack=stack)
    run.go()
    model = run.federation.population.build("plain")
    weights = weights_of(model)
    for number, lr in ((1, 0.4), (2, 0.2)):
        found, counts = [], []
        for client in range(3):
            model.load_state_dict(weights)
            x, y = run.federation.holdings.of(client).train.tensors()
            optimiser = torch.optim.SGD(model.parameters(), lr=lr)
            stream = run.federation.seeds.torch("batches", f"client-{client}", number, 1)
            for rows in torch.randperm(len(y), generator=stream).split(8):
                optimiser.zero_grad()
                F.cross_entropy(model(x[rows]), y[rows]).backward()
                optimiser.step()
            found.append(weights_of(model))
            counts.append(len(y))
        weights = {
            name: sum(
                (count / sum(counts) * each[name] for count, each in zip(counts, found, strict=True)),
                start=torch.zeros(()),
            )
            for name in weights
        }
    arrived = run.server.memory["weights"]["plain"]
    for name, expected in weights.items():
        assert torch.allclose(arrived[name], expected, atol=1e-6), name


@pytest.mark.parametrize("name", sorted(registered()))
def test_every_method_honours_the_decay_from_its_second_round_on(prepare: Prepare, name: str) -> None:
    after: list[dict[int, bytes]] = []
    for decay in (1.0, 0.25):
        states: dict[int, bytes] = {}

        run = prepare(method=name, rounds=2, training={"epochs": 1, "lr": 0.1, "batch": 8, "decay": decay})

        def look(now: Any, states: dict[int, bytes] = states) -> None:
            clients = {str(index): decode(path.read_bytes()) for index, path in now.client_files().items()}
            states[now.round] = encode({"server": now.server.state(), "clients": clients})

        run.go(look)
        assert run.summary["failures"] == 0
        after.append(states)
    assert after[0][1] == after[1][1]
    assert after[0][2] != after[1][2]
