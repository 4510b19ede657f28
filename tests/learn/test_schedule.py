"""Learning rates over rounds and within a round, worked out by hand."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from pydantic import ValidationError
from torch import nn

from polyfed.errors import ConfigError
from polyfed.learn import (
    Distillation,
    Learner,
    Peer,
    Schedule,
    Training,
    distil,
    mutual,
    over_rounds,
    supervised,
)

HALF = math.sqrt(0.5)


def shares(places: int, **settings: Any) -> list[float]:
    schedule = Schedule(**settings)
    return [schedule.share(place, places) for place in range(places)]


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, [1, 1, 1, 1]),
        # (1 + cos(π p / 4)) / 2
        ({"kind": "cosine"}, [1, (1 + HALF) / 2, 0.5, (1 - HALF) / 2]),
        ({"kind": "linear"}, [1, 0.75, 0.5, 0.25]),
        # Over the first two of four, and then at its last value: half.
        ({"kind": "cosine", "length": 2}, [1, 0.5, 0.5, 0.5]),
        ({"kind": "linear", "length": 2}, [1, 0.5, 0.5, 0.5]),
        ({"kind": "step", "every": 1, "factor": 0.5}, [1, 0.5, 0.25, 0.125]),
        ({"kind": "step", "every": 2}, [1, 1, 0.1, 0.1]),
        # A third, two thirds, then whole.
        ({"warm_up": 2}, [1 / 3, 2 / 3, 1, 1]),
        # After the warm-up the cosine has the two places that are left: cos 0 and cos π/2.
        ({"kind": "cosine", "warm_up": 2}, [1 / 3, 2 / 3, 1, 0.5]),
        ({"kind": "linear", "warm_up": 2, "length": 3}, [1 / 3, 2 / 3, 1, 1]),
        ({"kind": "step", "warm_up": 1, "every": 2, "factor": 0.5}, [0.5, 1, 1, 0.5]),
    ],
    ids=str,
)
def test_shares_by_hand(settings: dict[str, Any], expected: list[float]) -> None:
    assert shares(4, **settings) == pytest.approx(expected, abs=1e-12)


def test_what_falls_never_reaches_zero() -> None:
    for kind in ("cosine", "linear"):
        assert all(share > 0 for share in shares(1000, kind=kind))
        assert Schedule(kind=kind, length=10).share(10**6) == Schedule(kind=kind, length=10).share(9) > 0


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"kind": "step"}, "needs `every`"),
        ({"kind": "cosine", "every": 3}, "`every` and `factor` are for kind step, not for cosine"),
        ({"factor": 0.5}, "`every` and `factor` are for kind step, not for constant"),
        ({"kind": "step", "every": 1, "length": 3}, "`length` is for kinds cosine and linear, not for step"),
        ({"kind": "linear", "length": 3, "warm_up": 3}, "a warm-up of 3 leaves nothing of a length of 3"),
        ({"kind": "step", "every": 0}, "greater than or equal to 1"),
        ({"kind": "step", "every": 1, "factor": 0.0}, "greater than 0"),
        ({"warm_up": -1}, "greater than or equal to 0"),
    ],
    ids=str,
)
def test_a_schedule_that_makes_no_sense_is_refused(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        Schedule(**settings)


# -- over the rounds -----------------------------------------------------------------------------------------


def rates(training: Training, rounds: int) -> list[float]:
    return [training.in_round(number).lr for number in range(1, rounds + 1)]


def test_the_rate_of_every_round_by_hand() -> None:
    warm = Training(lr=0.4, schedule={"kind": "cosine", "warm_up": 1, "length": 3})
    assert rates(warm, 5) == pytest.approx([0.2, 0.4, 0.2, 0.2, 0.2])
    assert warm.in_round(0).lr == pytest.approx(0.2)  # what comes before the first round is as the first
    steps = Training(lr=0.4, schedule={"kind": "step", "every": 2, "factor": 0.5})
    assert rates(steps, 5) == pytest.approx([0.4, 0.4, 0.2, 0.2, 0.1])


def test_decay_and_schedule_are_multiplied() -> None:
    training = Training(lr=0.8, decay=0.5, schedule={"kind": "linear", "length": 4})
    assert rates(training, 4) == pytest.approx([0.8, 0.4 * 0.75, 0.2 * 0.5, 0.1 * 0.25])


def test_a_step_of_one_round_is_a_decay() -> None:
    decay, step = (
        Training(lr=0.3, decay=0.25),
        Training(lr=0.3, schedule={"kind": "step", "every": 1, "factor": 0.25}),
    )
    assert rates(decay, 6) == rates(step, 6)


def test_without_a_schedule_nothing_is_made_anew() -> None:
    training = Training(lr=0.3, within="cosine")
    assert training.in_round(7) is training
    assert over_rounds(training, 7) is training
    assert training.over(7) is training


def test_a_schedule_that_must_end_ends_with_the_run() -> None:
    training = Training(schedule="linear")
    assert training.over(4).schedule == Schedule(kind="linear", length=4)
    assert training.over(4).over(9) == training.over(4)
    with pytest.raises(ValueError, match="give its `length`"):
        training.in_round(2)
    step = Training(schedule={"kind": "step", "every": 3})
    assert step.over(4) is step
    with pytest.raises(ConfigError, match=r"training\.schedule: a warm-up of 4 rounds leaves nothing of 4"):
        Training(schedule={"kind": "cosine", "warm_up": 4}).over(4)


# -- within a round ------------------------------------------------------------------------------------------


def place(model: nn.Module) -> float:
    return next(model.parameters()).item()


def line() -> nn.Linear:
    model = nn.Linear(1, 1, bias=False)
    nn.init.zeros_(model.weight)
    return model


def test_every_step_has_its_rate() -> None:
    """Slope 1: down by 0.4 · (1/2 + 1 + 1/2)."""
    model = line()
    learner = Learner(model, Training(lr=0.4, within={"kind": "linear", "warm_up": 1}), total=3)
    for _ in range(3):
        learner.step(model.weight.sum())
    assert place(model) == pytest.approx(-0.4 * 2)


def test_a_loop_that_does_not_say_how_many_steps_there_are_is_told_so() -> None:
    with pytest.raises(ValueError, match=r"pass total=learn\.batch_count"):
        Learner(line(), Training(within="cosine"))


class Slope(nn.Module):
    """Two logits, of which the first has slope 1 under `mean`; in cross-entropy to class 1 about that of p₀."""

    def __init__(self) -> None:
        super().__init__()
        self.place = nn.Parameter(torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.stack([self.place.expand(len(x)), torch.zeros(len(x))], dim=1)


def slope_by_hand(lrs: list[float]) -> float:
    """Down the cross-entropy to class 1, whose slope in the first of two logits (z, 0) is 1 / (1 + e^-z)."""
    z = 0.0
    for lr in lrs:
        z -= lr / (1 + math.exp(-z))
    return z


def test_supervised_training_follows_it() -> None:
    """Four rows in batches of two, twice: 1, (1 + √½)/2, ½, (1 − √½)/2 of the rate."""
    lrs = [0.4 * share for share in shares(4, kind="cosine")]
    model, training = Slope(), Training(lr=0.4, batch=2, epochs=2, within="cosine")
    supervised(model, torch.zeros(4, 1), torch.ones(4, dtype=torch.int64), training, torch.Generator())
    assert model.place.item() == pytest.approx(slope_by_hand(lrs), abs=1e-6)


def test_mutual_learning_follows_it() -> None:
    """Two models that are alike and learn from labels alone: each is as one by itself."""
    lrs = [0.4 * share for share in shares(4, kind="linear")]
    one, two = Slope(), Slope()
    training = Training(lr=0.4, batch=2, epochs=2, within="linear")
    labels = torch.ones(4, dtype=torch.int64)
    mutual(Peer(one, other=0.0), Peer(two, other=0.0), torch.zeros(4, 1), labels, training, torch.Generator())
    for model in (one, two):
        assert model.place.item() == pytest.approx(slope_by_hand(lrs), abs=1e-6)


def test_distillation_follows_it_and_its_cosine_is_the_same() -> None:
    found = []
    for settings in ({"cosine": True}, {"within": "cosine"}, {"within": {"kind": "cosine", "length": 4}}):
        model = Slope()
        how = Distillation(epochs=2, batch=2, lr=0.4, loss="l1", **settings)
        distil(model, torch.zeros(4, 1), torch.full((4, 2), -9.0), how, torch.Generator())
        found.append(model.place.item())
    assert found == pytest.approx([-0.4 * sum(shares(4, kind="cosine"))] * 3)
    assert found[0] == found[1] == found[2]
    with pytest.raises(ValidationError, match="set cosine=false to have another"):
        Distillation(cosine=True, within="linear")
