"""What a trial decides is a matter of clocks; these tests replace the clock, or ask what no clock can decide."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from polyfed.learn import Training, prefers_channels_last, trial, worth_stacking

TRAINING = Training(epochs=1, batch=8)
SHAPE = (3, 8, 8)


class Net(nn.Module):
    """A convolution with BatchNorm, and dropout if so wanted."""

    def __init__(self, dropout: float = 0.0, norm: bool = True) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(3, 4, 3)
        self.norm = nn.BatchNorm2d(4) if norm else nn.Identity()
        self.dropout = nn.Dropout(dropout)
        self.head = nn.Linear(4 * 6 * 6, 10)

    def forward(self, x: Tensor) -> Tensor:
        maps = F.relu(self.norm(self.convolution(x)))
        logits: Tensor = self.head(self.dropout(torch.flatten(maps, 1)))
        return logits


class Viewed(Net):
    """`view` cannot flatten maps in channels-last."""

    def forward(self, x: Tensor) -> Tensor:
        maps = F.relu(self.norm(self.convolution(x)))
        logits: Tensor = self.head(maps.view(len(x), -1))
        return logits


def mlp() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(192, 16), nn.ReLU(), nn.Linear(16, 10))


class WholeBatch(nn.Module):
    """Looks at its batch as a whole, without buffers: padded rows would count."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(192, track_running_stats=False)
        self.head = nn.Linear(192, 10)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.norm(x.flatten(1)))
        return logits


class Undecided(nn.Module):
    """Its path depends on values."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(192, 10)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(x.flatten(1))
        return logits if logits.mean() > 0 else 2 * logits


@pytest.fixture(autouse=True)
def no_answers() -> Iterator[None]:
    trial._decisions.clear()
    yield
    trial._decisions.clear()


@pytest.fixture
def ratio(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Say what the clock will say, once both ways have been gone."""

    def say(value: float) -> None:
        def found(way: Callable[[], object], usual: Callable[[], object]) -> float:
            way(), usual()
            return value

        monkeypatch.setattr(trial, "_ratio", found)
        monkeypatch.setattr(trial, "_step_seconds", lambda *_: 1e-6)

    return say


@pytest.mark.parametrize(("found", "prefers"), [(0.8, True), (0.99, False), (1.3, False)])
def test_channels_last_must_be_clearly_faster(
    ratio: Callable[[float], None], found: float, prefers: bool
) -> None:
    ratio(found)
    assert prefers_channels_last(Net(), SHAPE, 10, 8) == prefers


@pytest.mark.parametrize(("found", "worth"), [(2.0, True), (3.9, False), (5.0, False)])
def test_a_stack_must_be_clearly_faster_per_client(
    ratio: Callable[[float], None], found: float, worth: bool
) -> None:
    ratio(found)  # of a stack of 4, as a multiple of one model's time
    assert worth_stacking(mlp(), SHAPE, 10, TRAINING, 4) == worth


def test_a_model_that_does_not_work_in_channels_last_keeps_its_layout(ratio: Callable[[float], None]) -> None:
    ratio(0.1)
    assert not prefers_channels_last(Viewed(), SHAPE, 10, 8)


class LayoutReader(Net):
    """Gives other logits in another layout."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * (1.0 if x.is_contiguous() else 2.0)


def test_a_model_that_gives_other_logits_in_channels_last_keeps_its_layout(
    ratio: Callable[[float], None],
) -> None:
    ratio(0.1)
    assert not prefers_channels_last(LayoutReader(), SHAPE, 10, 8)


@pytest.mark.parametrize("model", [mlp(), nn.Linear(5, 10)], ids=["no maps", "vectors"])
def test_a_layout_is_only_tried_where_there_is_a_choice(
    ratio: Callable[[float], None], model: nn.Module
) -> None:
    ratio(0.1)
    assert not prefers_channels_last(model, (5,) if isinstance(model, nn.Linear) else SHAPE, 10, 8)


@pytest.mark.parametrize(
    "make",
    [
        Net,
        lambda: Net(dropout=0.5, norm=False),
        WholeBatch,
        Undecided,
        lambda: nn.Sequential(nn.Flatten(), nn.Linear(7, 10)),
    ],
    ids=["buffers", "dropout", "whole batch", "undecided", "broken"],
)
def test_what_a_stack_would_get_wrong_is_never_stacked(
    ratio: Callable[[float], None], make: Callable[[], nn.Module]
) -> None:
    ratio(0.1)
    assert not worth_stacking(make(), SHAPE, 10, TRAINING, 4)


def test_settings_that_a_stack_cannot_follow_are_not_stacked(ratio: Callable[[float], None]) -> None:
    ratio(0.1)
    assert not worth_stacking(mlp(), SHAPE, 10, Training(epochs=1, batch=8, optimiser="adam"), 4)
    assert not worth_stacking(mlp(), SHAPE, 10, TRAINING, 1)


def test_a_convolution_without_buffers_can_be_stacked_if_it_pays(ratio: Callable[[float], None]) -> None:
    ratio(2.0)
    assert worth_stacking(Net(norm=False), SHAPE, 10, TRAINING, 4)


def test_a_long_step_is_not_tried_in_a_stack(
    ratio: Callable[[float], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    ratio(0.1)
    monkeypatch.setattr(trial, "_step_seconds", lambda *_: 0.5)
    assert not worth_stacking(mlp(), SHAPE, 10, TRAINING, 4)


def test_a_process_gives_the_same_answer_for_the_same_architecture(
    ratio: Callable[[float], None],
) -> None:
    ratio(0.5)
    assert prefers_channels_last(Net(), SHAPE, 10, 8)
    ratio(2.0)
    assert prefers_channels_last(Net(), SHAPE, 10, 8)
    assert not prefers_channels_last(Net(norm=False), SHAPE, 10, 8)


def _seen(model: nn.Module) -> list[Any]:
    return [
        {name: tensor.clone() for name, tensor in model.state_dict().items()},
        [module.training for module in model.modules()],
        [parameter.grad for parameter in model.parameters()],
        [parameter.is_contiguous() for parameter in model.parameters()],
        torch.get_rng_state(),
        torch.get_num_threads(),
        random.getstate(),
        np.random.get_state()[1].tolist(),  # type: ignore[index]
    ]


@pytest.mark.parametrize("make", [Net, lambda: Net(dropout=0.5, norm=False), mlp])
def test_a_trial_leaves_no_trace(make: Callable[[], nn.Module]) -> None:
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        model = make().eval()
        before = _seen(model)
        prefers_channels_last(model, SHAPE, 10, 8)
        worth_stacking(model, SHAPE, 10, TRAINING, 3)
        after = _seen(model)
    finally:
        torch.set_num_threads(threads)
    assert all(torch.equal(after[0][name], tensor) for name, tensor in before[0].items())
    assert before[1:4] == after[1:4]
    assert torch.equal(before[4], after[4])
    assert before[5:] == after[5:]
