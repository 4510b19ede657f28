"""Models are of one architecture by their structure: types, settings, functions and shapes, not names or weights."""

from __future__ import annotations

import collections
import copy
import dataclasses
import functools
import operator
import threading
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from polyfed import models
from polyfed.models import structure


class Net(nn.Module):
    def __init__(self, activation: Any = F.relu, **settings: Any) -> None:
        super().__init__()
        self.body = nn.Linear(4, settings.pop("width", 6))
        self.head = nn.Linear(self.body.out_features, 3, bias=settings.pop("bias", True))
        self.activation = activation
        vars(self).update(settings)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.activation(self.body(x)))
        return out


class Child(Net):
    pass


def local(factor: float) -> nn.Module:
    class Local(Net):
        def forward(self, x: Tensor) -> Tensor:
            return factor * super().forward(x)

    return Local()


def tied() -> nn.Module:
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    model[1].weight = model[0].weight
    return model


def scaled(x: Tensor, by: float) -> Tensor:
    return by * x


def hooked() -> nn.Module:
    model = Net()
    model.register_forward_hook(lambda _m, _a, out: out + 1)
    return model


class Settings:
    def __init__(self, **values: Any) -> None:
        vars(self).update(values)


@dataclasses.dataclass(slots=True)
class Slots:
    depth: int


def by_keyword(factor: float) -> Any:
    def scale(x: Tensor, *, by: float = factor) -> Tensor:
        return by * x

    return scale


def with_attribute(slope: float) -> nn.Module:
    class Local(Net):
        by = slope

        def forward(self, x: Tensor) -> Tensor:
            return self.by * super().forward(x)

    return Local()


class Scale:
    def __init__(self, by: float) -> None:
        self.by = by

    def apply(self, x: Tensor) -> Tensor:
        return self.by * x


def buffered(value: float) -> nn.Module:
    model = Net()
    model.register_buffer("mask", torch.full((2,), value), persistent=False)
    return model


MAKERS: list[Callable[[], nn.Module]] = [
    Net,
    lambda: Net(F.tanh),
    lambda: Net(torch.tanh),
    lambda: Net(lambda x: x + 1),
    lambda: Net(lambda x: x + 2),
    lambda: Net(functools.partial(scaled, by=1.0)),
    lambda: Net(functools.partial(scaled, by=2.0)),
    lambda: Net(nn.Tanh()),
    lambda: Net(nn.LeakyReLU(0.1)),
    lambda: Net(nn.LeakyReLU(0.2)),
    lambda: Net(width=7),
    lambda: Net(bias=False),
    lambda: Net().double(),
    lambda: Net(scale=2),
    lambda: Net(scale=3),
    lambda: Net(scale=None),
    lambda: Net(sizes=[1, 2]),
    lambda: Net(sizes=[1, 3]),
    lambda: Net(config=Settings(depth=1)),
    lambda: Net(config=Settings(depth=2)),
    lambda: Net(mask=np.array([0, 1])),
    lambda: Net(mask=np.array([1, 0])),
    lambda: Net(loose=torch.zeros(2)),
    lambda: Net(loose=torch.ones(2)),
    Child,
    lambda: local(1.0),
    lambda: local(2.0),
    lambda: nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3)),
    tied,
    lambda: nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3).requires_grad_(False)),
    lambda: nn.Sequential(nn.BatchNorm1d(3)),
    lambda: nn.Sequential(nn.BatchNorm1d(3, momentum=0.5)),
    hooked,
    lambda: Net(acts=[F.relu, F.leaky_relu, F.relu]),
    lambda: Net(acts=[F.relu, F.leaky_relu, F.leaky_relu]),
    lambda: Net(acts=[torch.tanh, torch.relu, torch.tanh]),
    lambda: Net(acts=[torch.tanh, torch.relu, torch.relu]),
    lambda: Net(columns=slice(0, 2)),
    lambda: Net(columns=slice(2, 4)),
    lambda: Net(columns=range(2)),
    lambda: Net(columns=range(3)),
    lambda: Net(share=Fraction(1, 2)),
    lambda: Net(share=Fraction(1, 3)),
    lambda: Net(past=collections.deque([1])),
    lambda: Net(past=collections.deque([2])),
    lambda: Net(config=Slots(1)),
    lambda: Net(config=Slots(2)),
    lambda: Net(scale=np.float32(1)),
    lambda: Net(scale=np.float32(2)),
    lambda: Net(operator.methodcaller("relu")),
    lambda: Net(operator.methodcaller("tanh")),
    lambda: Net(Scale(1).apply),
    lambda: Net(Scale(2).apply),
    lambda: Net(parts=[nn.Dropout(0.1)]),
    lambda: Net(parts=[nn.Dropout(0.9)]),
    lambda: Net(functools.partial(nn.LeakyReLU(0.1))),
    lambda: Net(functools.partial(nn.LeakyReLU(0.9))),
    lambda: Net(by_keyword(1.0)),
    lambda: Net(by_keyword(2.0)),
    lambda: with_attribute(1.0),
    lambda: with_attribute(2.0),
    lambda: buffered(1.0),
    lambda: buffered(2.0),
    lambda: Net(loose=torch.tensor([1.0], dtype=torch.float64)),
    lambda: Net(loose=torch.tensor([1.0 + 1e-12], dtype=torch.float64)),
    lambda: Net(names={"a", "b"}),
    lambda: Net(names={"a", "c"}),
]


@pytest.mark.parametrize("make", MAKERS)
def test_made_twice_it_is_the_same_whatever_its_weights_name_and_mode(make: Callable[[], nn.Module]) -> None:
    one, other = make(), make()
    models.give_name(one, "one")
    models.expect_tokens(one, 7)
    one.eval()
    assert structure(one) == structure(other) == structure(copy.deepcopy(one))
    assert hash(structure(one)) == hash(structure(other))


def test_all_of_these_are_different() -> None:
    assert len({structure(make()) for make in MAKERS}) == len(MAKERS)


def test_objects_that_hold_each_other_are_compared() -> None:
    def circle(depth: int) -> nn.Module:
        one = Settings(depth=depth)
        one.other = Settings(other=one)  # type: ignore[attr-defined]
        return Net(config=one)

    assert structure(circle(1)) == structure(circle(1)) != structure(circle(2))


def test_a_model_that_holds_what_cannot_be_compared_is_like_no_other() -> None:
    one, other = Net(lock=threading.Lock()), Net(lock=threading.Lock())
    assert structure(one) != structure(other)


def test_one_object_or_two_equal_ones_make_no_difference_where_they_are_texts() -> None:
    word = "".join(["re", "lu"])
    assert structure(Net(names=["relu", word])) == structure(Net(names=["relu", "relu"]))


def test_models_with_parametrizations_are_made_alike() -> None:
    """PyTorch makes a class of its own for each module that has one."""

    def normed(width: int = 4) -> nn.Module:
        return nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(3, width)), nn.ReLU())

    def spectral() -> nn.Module:
        return nn.Sequential(nn.utils.parametrizations.spectral_norm(nn.Linear(3, 4)), nn.ReLU())

    assert structure(normed()) == structure(normed())
    assert structure(spectral()) == structure(spectral())
    assert len({structure(normed()), structure(normed(5)), structure(spectral())}) == 3


def test_classes_that_are_made_within_a_function_are_compared_by_what_is_in_them() -> None:
    def make(factor: int) -> nn.Module:
        class Local(nn.Linear):
            @property
            def twice(self) -> int:
                return 2 * factor

            @staticmethod
            def shift(x: Any) -> Any:
                return x + factor

        return Local(2, 2)

    assert structure(make(1)) == structure(make(1))
    assert structure(make(1)) != structure(make(2))
