"""FedGen: the generator's losses in numbers, rounds against a loop written out by hand, models that have no head."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from tests.methods.by_hand import BATCH, LR, Bench, Prepare, close, plain
from torch import Tensor, nn
from torch.nn import functional as F

import polyfed
from polyfed import learn, models
from polyfed.errors import MethodError
from polyfed.runs.rounds import Run

NOISE, WIDTH, STEPS = 3, 6, 4
SETTINGS: dict[str, Any] = {
    "name": "fedgen",
    "alpha": 0.7,
    "beta": 0.4,
    "decay": 0.5,
    "noise": NOISE,
    "width": WIDTH,
    "generator": {"steps": STEPS, "batch": 5, "lr": 0.01},
}


def net() -> nn.Module:
    body = nn.Sequential(nn.Linear(5, 8), nn.ReLU())
    return models.Network(body, nn.Linear(8, 3))


# -- in numbers ----------------------------------------------------------------------------------------------


def test_diversity_is_one_where_all_is_alike_and_smaller_otherwise_by_hand() -> None:
    """Noise (0, 0) and (2, 0): squared distance 4 / 2 = 2. Made (0, 0) and (1, 3): distance 4 / 2 = 2.

    Of the four pairs of rows two are apart, each by 2 · 2 = 4: a mean of 2, so exp(-2).
    """
    noise = torch.tensor([[0.0, 0.0], [2.0, 0.0]])
    assert learn.diversity_loss(noise, torch.tensor([[0.0, 0.0], [1.0, 3.0]])).item() == pytest.approx(
        math.exp(-2)
    )
    assert learn.diversity_loss(noise, torch.ones(2, 2)).item() == 1


def test_a_generator_of_features_is_taught_by_those_who_hold_the_class() -> None:
    """Two heads that disagree about class 0: one has seen 30 rows of it, the other none. The first is believed."""
    knows, errs = nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False)
    knows.weight.data, errs.weight.data = (
        torch.tensor([[1.0, -1.0], [-1.0, 1.0]]),
        torch.tensor([[-1.0, 1.0], [1.0, -1.0]]),
    )
    maker = models.FeatureGenerator(2, 2, NOISE, 8)
    counts = torch.tensor([[30.0, 0.0], [0.0, 5.0]])
    training = learn.Training(optimiser="adam", lr=0.02, steps=100, batch=16)
    for head in (knows, errs):
        head.requires_grad_(False)
    learn.agree(maker, [knows, errs], counts, training, torch.Generator().manual_seed(0))
    stream = torch.Generator().manual_seed(1)
    zeros, ones = torch.zeros(20, dtype=torch.int64), torch.ones(20, dtype=torch.int64)
    _, features = maker.eval().make(zeros, stream)
    assert bool((knows(features).argmax(dim=1) == 0).all())
    _, features = maker.make(ones, stream)
    assert bool((errs(features).argmax(dim=1) == 1).float().mean() > 0.5)


# -- rounds --------------------------------------------------------------------------------------------------


class ByHand(Bench):
    """Train with both losses, train the generator on all heads, average."""

    def __init__(self, run: Run, alpha: float = 0.7, beta: float = 0.4, *, uniform: bool = False) -> None:
        super().__init__(run)
        self.alpha, self.beta, self.uniform = alpha, beta, uniform
        torch.manual_seed(self.federation.seeds.number("generator"))
        self.maker = models.FeatureGenerator(8, 3, NOISE, WIDTH)
        self.moments: torch.optim.Optimizer | None = None
        self.known: list[int] = []
        self.weights = self.federation.server().build("net").state_dict()
        for number in range(1, run.config.rounds + 1):
            cohort = self.cohort(number)
            for index in cohort:
                self.update(index, number)
            self.generate(cohort, number)
            samples = {index: len(self.own(index)[0]) for index in cohort}
            self.weights = {
                name: torch.as_tensor(
                    sum(samples[index] * self.clients[index].state_dict()[name].double() for index in cohort)
                    / sum(samples.values())
                ).float()
                for name in self.weights
            }
        self.model = self.clients[0]
        self.model.load_state_dict(self.weights)

    def made(self, labels: Tensor, stream: torch.Generator) -> tuple[Tensor, Tensor]:
        noise = torch.randn(len(labels), NOISE, generator=stream)
        return noise, self.maker(noise, labels)

    def update(self, index: int, number: int) -> None:
        model, (x, y) = self.clients[index], self.own(index)
        assert isinstance(model, models.Network)
        model.load_state_dict(self.weights)
        self.maker.eval()
        stream = self.stream("features", index, number, 1)
        sgd = torch.optim.SGD(model.parameters(), lr=LR)
        fading = 0.5 ** (number - 1)
        for rows in torch.randperm(len(x), generator=self.stream("batches", index, number, 1)).split(BATCH):
            logits = model(x[rows])
            loss = F.cross_entropy(logits, y[rows])
            if self.known:
                drawn = torch.tensor(self.known)[torch.randint(len(self.known), (BATCH,), generator=stream)]
                with torch.no_grad():
                    features = self.made(drawn, stream)[1]
                    target = model.head(self.made(y[rows], stream)[1]).softmax(dim=1)
                right = -model.head(features).log_softmax(dim=1)[torch.arange(BATCH), drawn].mean()
                like = (target * (target.log() - logits.log_softmax(dim=1))).sum(dim=1).mean()
                loss = loss + fading * (self.alpha * right + self.beta * like)
            sgd.zero_grad()
            loss.backward()
            sgd.step()

    def generate(self, cohort: list[int], number: int) -> None:
        counts = torch.stack([self.own(index)[1].bincount(minlength=3) for index in cohort]).float()
        self.known = counts.sum(dim=0).nonzero().flatten().tolist()
        shares = counts / counts.sum(dim=0).clamp(min=1)
        if self.uniform:
            shares = torch.full_like(counts, 1 / len(cohort))
        self.maker.train()
        if self.moments is None:
            self.moments = torch.optim.Adam(self.maker.parameters(), weight_decay=1e-2)
        self.moments.param_groups[0]["lr"] = 0.01 * 0.98 ** (number - 1)
        stream = self.server_stream("features", number)
        for _ in range(STEPS):
            labels = torch.multinomial(counts.sum(dim=0), 5, replacement=True, generator=stream)
            noise, features = self.made(labels, stream)
            pairs = [
                (noise[i] - noise[j]).square().mean() * (features[i] - features[j]).abs().mean()
                for i in range(5)
                for j in range(5)
            ]
            loss = torch.exp(-torch.stack(pairs).mean())
            for share, index in zip(shares, cohort, strict=True):
                model = self.clients[index]
                assert isinstance(model, models.Network)
                wrong = -model.head(features).log_softmax(dim=1)[torch.arange(5), labels]
                loss = loss + (share[labels] * wrong).mean()
            self.moments.zero_grad()
            loss.backward()
            self.moments.step()

    def agrees(self, run: Run) -> bool:
        return close(run.server.weights("net"), self.model, within=1e-5)


def test_rounds_equal_a_loop_by_hand(federate: Prepare) -> None:
    run = federate([net], method=SETTINGS, rounds=3, server=False, cohort={"fraction": 0.7})
    run.go()
    assert ByHand(run).agrees(run)
    assert not ByHand(run, alpha=0.0).agrees(run)
    assert not ByHand(run, beta=0.0).agrees(run)
    assert not ByHand(run, uniform=True).agrees(run)


def test_models_without_a_head_are_refused_in_one_line(federate: Prepare) -> None:
    run = federate([plain], method=SETTINGS, server=False)
    with pytest.raises(
        MethodError, match="fedgen needs models with a body and a head: make 'plain' a Network"
    ):
        run.go()


def test_generated_features_of_digits_are_taken_for_their_class(tmp_path: Any) -> None:
    config = {
        "method": {"name": "fedgen", "generator": {"lr": 0.01}},
        "rounds": 3,
        "data": {
            "source": "digits",
            "clients": 4,
            "limit": 600,
            "partition": {"kind": "dirichlet", "alpha": 0.5},
        },
        "models": {"names": ["mlp-small"]},
        "training": {"epochs": 3, "lr": 0.1, "batch": 16},
    }
    run = polyfed.run(config, out=tmp_path / "run", workers=1)
    maker = models.FeatureGenerator(64, 10, 32, 256).eval()
    learn.load_weights(maker, run.server.memory["generator"])
    model = polyfed.load_model(run.path, "client-0")
    labels = torch.arange(10).repeat(10)
    with torch.no_grad():
        _, features = maker.make(labels, torch.Generator().manual_seed(0))
        said = model.head(features).argmax(dim=1)  # type: ignore[operator]
    assert float((said == labels).float().mean()) > 0.8
