"""Who gets which model."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from torch import nn

from polyfed.errors import ModelError
from polyfed.models import Budget, assign_models, size

NAMES = ["mlp", "mlp-large", "mlp-small"]  # on 4 features, 2 outputs: 17,410 · 67,842 · 450 parameters
WHERE: dict[str, Any] = {"shape": (4,), "outputs": 2, "norm": "batch"}


def rng() -> np.random.Generator:
    return np.random.default_rng(3)


def test_round_robin_assigns_the_models_in_turn() -> None:
    given = assign_models(NAMES, 5, "round-robin", rng=rng(), budgets=None, **WHERE)
    assert given.tolist() == [0, 1, 2, 0, 1]


def test_random_is_uniform_and_follows_the_generator() -> None:
    first, second = (assign_models(NAMES, 3000, "random", rng=rng(), budgets=None, **WHERE) for _ in range(2))
    assert (first == second).all()
    assert np.bincount(first).min() > 900


def test_each_client_gets_the_largest_model_that_fits_its_budget() -> None:
    # mlp: 4·128 + 128 + 128² + 128 + 2·128 + 2 = 17,410 parameters; 4·128 + 128² + 256 = 17,152 MACs.
    assert size("mlp", (4,), 2).parameters == 17_410
    assert size("mlp", (4,), 2).macs == 17_152
    budgets = [
        Budget(),
        Budget(parameters=17_410),
        Budget(parameters=17_409),
        Budget(macs=17_152),
        Budget(macs=17_151),
        Budget(parameters=10**30, memory_bytes=size("mlp", (4,), 2).memory_bytes),
        Budget(parameters=10**30, memory_bytes=size("mlp", (4,), 2).memory_bytes - 1),
    ]
    given = assign_models(NAMES, 7, "budget", rng=rng(), budgets=budgets, **WHERE)
    assert given.tolist() == [1, 0, 2, 0, 2, 0, 2]


def test_memory_is_that_of_the_batch() -> None:
    budgets = [Budget(memory_bytes=size("mlp", (4,), 2, batch=64).memory_bytes)]
    assert assign_models(NAMES, 1, "budget", rng=rng(), budgets=budgets, batch=64, **WHERE).tolist() == [0]
    assert assign_models(NAMES, 1, "budget", rng=rng(), budgets=budgets, batch=65, **WHERE).tolist() == [2]


def test_the_users_own_modules_are_measured_as_they_are() -> None:
    own = {"tiny": nn.Linear(4, 2)}  # 10 parameters
    budgets = [Budget(parameters=10), Budget(parameters=500)]
    given = assign_models(["mlp-small", "tiny"], 2, "budget", rng=rng(), budgets=budgets, own=own, **WHERE)
    assert given.tolist() == [1, 0]


def test_models_of_one_size_go_to_the_first_of_them() -> None:
    given = assign_models(["mlp", "mlp"], 2, "budget", rng=rng(), budgets=[Budget()] * 2, **WHERE)
    assert given.tolist() == [0, 0]


def test_a_client_that_can_afford_nothing_is_named_with_what_the_smallest_model_needs() -> None:
    budgets = [Budget(), Budget(parameters=449), Budget(parameters=5)]
    with pytest.raises(
        ModelError, match=r"client 1 \(2 such clients\).*'mlp-small', needs 450 parameters, 384 MACs"
    ):
        assign_models(NAMES, 3, "budget", rng=rng(), budgets=budgets, **WHERE)


def test_twenty_thousand_different_budgets_give_each_client_its_largest_model() -> None:
    limits = rng().integers(450, 80_000, size=20_000)
    budgets = [Budget(parameters=int(limit)) for limit in limits]
    given = assign_models(NAMES, len(budgets), "budget", rng=rng(), budgets=budgets, **WHERE)
    sizes = [size(name, (4,), 2) for name in NAMES]
    for client in range(0, 20_000, 500):
        fitting = [k for k in range(3) if sizes[k].parameters <= limits[client]]
        assert given[client] == max(fitting, key=lambda k: sizes[k].parameters)


def test_what_cannot_be_assigned_is_refused() -> None:
    with pytest.raises(ModelError, match="0 models to 3 clients"):
        assign_models([], 3, "random", rng=rng(), budgets=None, **WHERE)
    with pytest.raises(ModelError, match="3 clients, 0 budgets"):
        assign_models(NAMES, 3, "budget", rng=rng(), budgets=None, **WHERE)
    with pytest.raises(ModelError, match="unknown way to assign models 'rundom'; did you mean 'random'"):
        assign_models(NAMES, 3, "rundom", rng=rng(), budgets=None, **WHERE)  # type: ignore[arg-type]
