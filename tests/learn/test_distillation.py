"""Learning from answers: steps worked out by hand, and what stays as it is meanwhile."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from polyfed.federation.message import decode, encode
from polyfed.learn import Distillation, Learner, Training, batch_count, batches, distil, predict, soften


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def linear(outputs: int = 3) -> nn.Linear:
    model = nn.Linear(2, outputs)
    nn.init.zeros_(model.weight)
    nn.init.zeros_(model.bias)
    return model


def net(outputs: int = 3, *, norm: bool = False, seed: int = 0) -> nn.Sequential:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        middle = nn.BatchNorm1d(6) if norm else nn.Tanh()
        return nn.Sequential(nn.Linear(4, 6), middle, nn.Linear(6, outputs))


def examples(rows: int, outputs: int = 3) -> tuple[Tensor, Tensor]:
    stream = generator(1)
    return torch.randn(rows, 4, generator=stream), torch.randn(rows, outputs, generator=stream)


def weights(model: nn.Module) -> Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


# -- one step by hand ----------------------------------------------------------------------------------------

X = torch.tensor([[1.0, 2.0], [3.0, -1.0]])
ANSWERS = torch.tensor([[4.0, -1.0, 0.0], [-2.0, -3.0, 5.0]])
# The model says 0 everywhere, so the slope of the loss in its logits is, over two rows,
SLOPES = {
    "l1": torch.tensor([[-1.0, 1.0, 0.0], [1.0, 1.0, -1.0]]) / 2,  # sign(0 - answer)
    "l2": torch.tensor([[-8.0, 2.0, 0.0], [4.0, 6.0, -10.0]]) / 2,  # 2 (0 - answer)
    "kl": (torch.full((2, 3), 1 / 3) - ANSWERS.softmax(dim=1)) / 2,  # q - p
}
SLOPES["ce"] = SLOPES["kl"]


@pytest.mark.parametrize("reduce", ["sum", "mean"])
@pytest.mark.parametrize("loss", ["l1", "l2", "ce", "kl"])
def test_one_step_on_a_linear_model_by_hand(loss: Any, reduce: Any) -> None:
    model = linear()
    settings = Distillation(epochs=1, loss=loss, reduce=reduce, lr=0.1, batch=2)
    assert distil(model, X, ANSWERS, settings, generator()) == 1
    slope = SLOPES[loss] / (3 if reduce == "mean" else 1)
    assert torch.allclose(model.weight, -0.1 * slope.T @ X, atol=1e-6)
    assert torch.allclose(model.bias, -0.1 * slope.sum(dim=0), atol=1e-6)


def test_the_step_of_l1_in_numbers() -> None:
    """Output 0 is pulled up by row 0 and down by row 1: -0.1 · ½ (-1 · [1 2] + 1 · [3 -1]) = [-0.1 0.15]."""
    model = linear()
    distil(model, X, ANSWERS, Distillation(epochs=1, loss="l1", lr=0.1, batch=2), generator())
    expected = torch.tensor([[-0.1, 0.15], [-0.2, -0.05], [0.15, -0.05]])
    assert torch.allclose(model.weight, expected, atol=1e-6)
    assert torch.allclose(model.bias, torch.tensor([0.0, -0.1, 0.05]), atol=1e-6)


def test_one_step_towards_probabilities_by_hand() -> None:
    """At temperature 2 the slope is (q - p) / 2 a row; the answers are not softened again."""
    model = linear()
    said = torch.tensor([[0.5, 0.25, 0.25], [0.0, 1.0, 0.0]])
    settings = Distillation(epochs=1, loss="kl", temperature=2.0, lr=0.1, batch=2)
    distil(model, X, said, settings, generator(), given="answers")
    slope = (torch.full((2, 3), 1 / 3) - said) / 2 / 2
    assert torch.allclose(model.weight, -0.1 * slope.T @ X, atol=1e-6)


# -- the loop ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("given", ["outputs", "answers"])
def test_distillation_equals_a_bare_loop(given: Any) -> None:
    x, answers = examples(10)
    answers = answers if given == "outputs" else soften(answers, 2.0)
    model, bare = net(), net()
    settings = Distillation(epochs=3, batch=4, lr=0.1, loss="kl", temperature=2.0)
    assert distil(model, x, answers, settings, generator(5), given=given) == 9
    stream = generator(5)
    for _ in range(3):
        for rows in torch.randperm(10, generator=stream).split(4):
            p = soften(answers[rows], 2.0) if given == "outputs" else answers[rows]
            loss = -(p * (bare(x[rows]) / 2).log_softmax(dim=1)).sum() / len(rows)
            parameters = list(bare.parameters())
            for parameter, gradient in zip(parameters, torch.autograd.grad(loss, parameters), strict=True):
                parameter.data.sub_(0.1 * gradient)
    assert torch.allclose(weights(model), weights(bare), atol=1e-6)
    assert not torch.allclose(weights(model), weights(net()), atol=1e-3)


def test_the_answers_stay_as_they_are() -> None:
    """Even where they are the student's own, and ask for a gradient."""
    x, answers = examples(10)
    answers.requires_grad_()
    before = answers.detach().clone()
    distil(net(), x, answers, Distillation(epochs=3, batch=4, loss="l1"), generator())
    assert torch.equal(answers.detach(), before)
    assert answers.grad is None
    model = net()
    own = predict(model, x)
    distil(model, x, own, Distillation(epochs=5, batch=4, loss="l2", weight_decay=0.5), generator())
    assert not torch.allclose(predict(model, x), own, atol=1e-3)  # decay moved the model, not its answers
    assert torch.equal(own, predict(net(), x))


def test_a_model_with_more_outputs_is_fitted_in_the_first_only() -> None:
    x, answers = examples(10, outputs=2)
    model = net(outputs=5)
    last = model.get_parameter("2.weight")[2:].clone()
    distil(model, x, answers, Distillation(epochs=300, batch=10, lr=0.1, loss="l2"), generator())
    assert torch.equal(model.get_parameter("2.weight")[2:], last)
    assert torch.equal(model.get_parameter("2.bias")[2:], net(outputs=5).get_parameter("2.bias")[2:])
    error = (predict(model, x)[:, :2] - answers).square().mean()
    assert error < 0.2 * (predict(net(outputs=5), x)[:, :2] - answers).square().mean()


def test_the_mean_over_outputs_is_over_those_that_are_fitted() -> None:
    """One output of five is fitted: the mean over one. -0.1 · sign(0 - 1) · x"""
    model = linear(outputs=5)
    settings = Distillation(epochs=1, loss="l1", reduce="mean", lr=0.1)
    distil(model, torch.tensor([[1.0, 2.0]]), torch.tensor([[1.0]]), settings, generator())
    assert torch.allclose(model.weight[0], torch.tensor([0.1, 0.2]), atol=1e-6)
    assert model.weight[1:].abs().sum() == 0


def test_without_rows_nothing_is_done() -> None:
    model = net()
    settings = Distillation(epochs=1, weight_decay=0.5, cosine=True)
    assert distil(model, torch.empty(0, 4), torch.empty(0, 3), settings, generator()) == 0
    assert torch.equal(weights(model), weights(net()))


@pytest.mark.parametrize(
    ("rows", "settings", "steps"),
    [(10, {"epochs": 2, "batch": 4}, 6), (10, {"steps": 4, "batch": 4}, 4), (3, {"batch": 32}, 1)],
)
def test_the_steps_made_are_given_back(rows: int, settings: dict[str, Any], steps: int) -> None:
    assert distil(net(), *examples(rows), Distillation(**{"epochs": 1, **settings}), generator()) == steps


def test_a_last_batch_of_one_is_merged_for_batch_norm() -> None:
    model = net(norm=True)
    assert distil(model, *examples(9), Distillation(batch=4, epochs=2), generator()) == 4
    assert model.get_buffer("1.num_batches_tracked").item() == 4
    assert torch.isfinite(weights(model)).all()
    assert distil(net(), *examples(9), Distillation(batch=4, epochs=2), generator()) == 6


def test_one_row_alone_leaves_running_statistics() -> None:
    model = net(norm=True)
    before = [buffer.clone() for buffer in model.buffers()]
    assert distil(model, *examples(1), Distillation(epochs=3, lr=0.5), generator()) == 3
    assert torch.isfinite(weights(model)).all()
    assert all(torch.equal(now, then) for now, then in zip(model.buffers(), before, strict=True))


def test_kept_moments_make_two_rounds_one_uninterrupted_distillation() -> None:
    x, answers = examples(10)
    whole, parts = net(), net()
    distil(whole, x, answers, Distillation(epochs=2, batch=4, optimiser="adam", lr=0.01), generator())
    settings = Distillation(epochs=1, batch=4, optimiser="adam", lr=0.01, keep_optimiser=True)
    stream, memory = generator(), dict[str, Any]()
    distil(parts, x, answers, settings, stream, memory=memory)
    memory = decode(encode(memory))
    distil(parts, x, answers, settings, stream, memory=memory)
    assert torch.equal(weights(parts), weights(whole))


# -- the cosine ----------------------------------------------------------------------------------------------


class Slope(nn.Module):
    """One parameter whose gradient is 1 at each step: it falls by the learning rate."""

    def __init__(self, *, norm: bool = False) -> None:
        super().__init__()
        self.place = nn.Parameter(torch.zeros(()))
        self.norm = nn.BatchNorm1d(1) if norm else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.place + 0 * self.norm(x)
        return logits


def rates(rows: int, *, norm: bool = False, **settings: Any) -> list[float]:
    """The learning rate of every step."""
    model, training, x = (
        Slope(norm=norm),
        Training(**{"epochs": 1, "within": "cosine", **settings}),
        torch.randn(rows, 1),
    )
    learner = Learner(model, training, total=batch_count(rows, training, model))
    places = [model.place.item()]
    for _, batch in batches(x, training, generator(), model):
        learner.step(model(batch).mean())
        places.append(model.place.item())
    return [before - after for before, after in pairwise(places)]


def test_the_cosine_over_four_steps_by_hand() -> None:
    """lr (1 + cos(π s / 4)) / 2 at s = 0, 1, 2, 3: 1, (1 + √½) / 2, ½, (1 - √½) / 2 of it."""
    expected = [0.4, 0.4 * (1 + math.sqrt(0.5)) / 2, 0.2, 0.4 * (1 - math.sqrt(0.5)) / 2]
    assert rates(8, batch=4, epochs=2, lr=0.4) == pytest.approx(expected, abs=1e-6)
    assert rates(8, batch=4, steps=4, lr=0.4) == pytest.approx(expected, abs=1e-6)


def test_the_cosine_reaches_its_end_where_batches_are_merged() -> None:
    """Five rows in batches of 4 are one batch an epoch for BatchNorm: four epochs are the same four steps."""
    expected = [0.4, 0.4 * (1 + math.sqrt(0.5)) / 2, 0.2, 0.4 * (1 - math.sqrt(0.5)) / 2]
    assert rates(5, norm=True, batch=4, epochs=4, lr=0.4) == pytest.approx(expected, abs=1e-6)


def test_distillation_follows_the_cosine_if_told() -> None:
    """On the slope of L1 a linear model's bias falls by the rate: 0.4, 0.2 over two steps instead of 0.4, 0.4."""
    answers = torch.full((2, 1), -100.0)
    for cosine, expected in ((True, -0.6), (False, -0.8)):
        model = nn.Linear(2, 1)
        nn.init.zeros_(model.bias)
        nn.init.zeros_(model.weight)
        settings = Distillation(epochs=1, loss="l1", lr=0.4, batch=1, cosine=cosine)
        distil(model, torch.zeros(2, 2), answers, settings, generator())
        assert model.bias.item() == pytest.approx(expected, abs=1e-6)
