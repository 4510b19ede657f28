"""Gradients as single vectors, and single optimiser steps, against PyTorch's own optimisers."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from polyfed.federation.message import decode, encode
from polyfed.learn import Training, flat_gradient, flat_step


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))


def batches(count: int) -> list[tuple[Tensor, Tensor]]:
    stream = torch.Generator().manual_seed(1)
    return [
        (torch.randn(8, 4, generator=stream), torch.randint(3, (8,), generator=stream)) for _ in range(count)
    ]


def test_a_flat_gradient_is_all_gradients_one_after_the_other() -> None:
    # loss = 2 w₁ + 3 w₂ + 5 b: the gradient is (2, 3, 5), weights first
    model = nn.Linear(2, 1)
    loss = model(torch.tensor([[2.0, 3.0]])).sum() + 4 * model.bias.sum()
    assert flat_gradient(loss, model).tolist() == [2, 3, 5]
    assert all(parameter.grad is None for parameter in model.parameters())


def test_what_a_loss_does_not_use_has_no_slope_and_what_is_frozen_no_place() -> None:
    used, idle, frozen = nn.Linear(1, 1), nn.Linear(1, 2), nn.Linear(1, 1).requires_grad_(False)
    loss = frozen(used(torch.ones(1, 1))).sum()
    slope = frozen.weight.item()
    found = flat_gradient(loss, nn.ModuleList([used, idle, frozen]))
    assert found.tolist() == pytest.approx([slope, slope, 0, 0, 0, 0])


def test_a_parameter_that_is_used_twice_has_one_place() -> None:
    shared = nn.Linear(2, 2, bias=False)
    loss = shared(shared(torch.ones(1, 2))).sum()
    found = flat_gradient(loss, nn.Sequential(shared, shared))
    assert found.shape == (4,)
    assert torch.equal(
        found, torch.autograd.grad(shared(shared(torch.ones(1, 2))).sum(), shared.weight)[0].flatten()
    )


def test_settings_may_change_between_two_steps_and_weights_may_be_loaded() -> None:
    model = nn.Linear(2, 1, bias=False)
    memory: dict[str, Any] = {}
    for weights, lr in (([1.0, 2.0], 0.1), ([5.0, 7.0], 0.01)):
        with torch.no_grad():
            model.weight.copy_(torch.tensor([weights]))
        flat_step(model, torch.tensor([1.0, -1.0]), Training(epochs=1, lr=lr), memory)
        assert model.weight.tolist()[0] == pytest.approx([weights[0] - lr, weights[1] + lr])


OPTIMISERS: dict[str, tuple[dict[str, Any], Any]] = {
    "sgd": (
        {"optimiser": "sgd", "lr": 0.1, "momentum": 0.9, "weight_decay": 0.01},
        lambda given: torch.optim.SGD(given, lr=0.1, momentum=0.9, weight_decay=0.01),
    ),
    "plain sgd": ({"optimiser": "sgd", "lr": 0.1}, lambda given: torch.optim.SGD(given, lr=0.1)),
    "adam": (
        {"optimiser": "adam", "lr": 0.01, "weight_decay": 0.01},
        lambda given: torch.optim.Adam(given, lr=0.01, weight_decay=0.01),
    ),
    "amsgrad": (
        {"optimiser": "amsgrad", "lr": 0.01, "weight_decay": 0.0001},
        lambda given: torch.optim.Adam(given, lr=0.01, weight_decay=0.0001, amsgrad=True),
    ),
    "adamw": (
        {"optimiser": "adamw", "lr": 0.01, "weight_decay": 0.1},
        lambda given: torch.optim.AdamW(given, lr=0.01, weight_decay=0.1),
    ),
}


@pytest.mark.parametrize("saved", [False, True], ids=["in memory", "saved after each step"])
@pytest.mark.parametrize("name", OPTIMISERS)
def test_steps_are_those_of_pytorchs_optimiser(name: str, saved: bool) -> None:
    settings, make = OPTIMISERS[name]
    ours, theirs = net(), net()
    optimiser = make(theirs.parameters())
    memory: dict[str, Any] = {}
    for x, y in batches(8):
        gradient = flat_gradient(F.cross_entropy(ours(x), y), ours)
        flat_step(ours, gradient, Training(**{"epochs": 1, **settings}), memory)
        if saved:
            memory = decode(encode(memory))
        optimiser.zero_grad()
        F.cross_entropy(theirs(x), y).backward()
        optimiser.step()
    for one, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        assert torch.allclose(one, other, rtol=0, atol=1e-6)
    assert not torch.allclose(next(ours.parameters()), next(net().parameters()), atol=0.01)


def test_amsgrad_is_not_adam() -> None:
    """A large gradient first and small ones then: only AMSGrad remembers the largest."""
    reached = {}
    for name in ("adam", "amsgrad"):
        model, memory = nn.Linear(1, 1, bias=False), dict[str, Any]()
        nn.init.zeros_(model.weight)
        for size in (10.0, *[0.1] * 300):
            flat_step(model, torch.tensor([size]), Training(epochs=1, optimiser=name, lr=0.01), memory)
        reached[name] = model.weight.item()
    assert abs(reached["adam"] - reached["amsgrad"]) > 0.01


def test_the_whole_gradient_is_clipped_and_the_callers_is_left_alone() -> None:
    # ‖(3, 4)‖ = 5, clipped to 1: (0.6, 0.8); lr 0.5
    model = nn.Linear(2, 1, bias=False)
    nn.init.zeros_(model.weight)
    gradient = torch.tensor([3.0, 4.0])
    flat_step(model, gradient, Training(epochs=1, lr=0.5, clip=1.0), {})
    assert model.weight[0].tolist() == pytest.approx([-0.3, -0.4], abs=1e-6)
    assert gradient.tolist() == [3, 4]


def test_each_entry_is_clipped_too() -> None:
    # (3, 4) with entries up to 3.5: (3, 3.5); lr 0.5
    model = nn.Linear(2, 1, bias=False)
    nn.init.zeros_(model.weight)
    gradient = torch.tensor([3.0, 4.0])
    flat_step(model, gradient, Training(epochs=1, lr=0.5, clip_value=3.5), {})
    assert model.weight[0].tolist() == pytest.approx([-1.5, -1.75], abs=1e-6)
    assert gradient.tolist() == [3, 4]


def test_moments_are_single_vectors() -> None:
    model, memory = net(), dict[str, Any]()
    x, y = batches(1)[0]
    flat_step(
        model,
        flat_gradient(F.cross_entropy(model(x), y), model),
        Training(epochs=1, optimiser="amsgrad"),
        memory,
    )
    size = sum(parameter.numel() for parameter in model.parameters())
    moments = memory["moments"]
    assert set(moments) == {"step", "exp_avg", "exp_avg_sq", "max_exp_avg_sq"}
    assert all(moments[name].shape == (size,) for name in moments if name != "step")


def test_any_layout_of_memory_gives_the_same_step_and_stays() -> None:
    """Channels-last weights are flattened in their logical order, whatever lies where."""
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Conv2d(2, 4, 3), nn.Tanh(), nn.Flatten(), nn.Linear(4 * 9, 3))
    last = copy.deepcopy(plain).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    memories: tuple[dict[str, Any], dict[str, Any]] = ({}, {})
    x, y = torch.randn(6, 2, 5, 5), torch.arange(6) % 3
    for _ in range(3):
        for model, memory in zip((plain, last), memories, strict=True):
            gradient = flat_gradient(F.cross_entropy(model(x), y), model)
            flat_step(model, gradient, Training(epochs=1, lr=0.1, momentum=0.9), memory)
    for one, other in zip(plain.parameters(), last.parameters(), strict=True):
        assert torch.allclose(one, other, rtol=0, atol=1e-6)
    weight = next(last.parameters())
    assert weight.is_contiguous(memory_format=torch.channels_last)
    assert not weight.is_contiguous()


def test_frozen_parameters_stay() -> None:
    model = net()
    first = next(model.parameters())
    first.requires_grad_(False)
    before = first.clone()
    x, y = batches(1)[0]
    gradient = flat_gradient(F.cross_entropy(model(x), y), model)
    flat_step(model, gradient, Training(epochs=1, weight_decay=0.1, lr=0.5), {})
    assert torch.equal(first, before)


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float64])
def test_weights_of_any_type_lose_no_step(kind: torch.dtype) -> None:
    # 100 steps of 1e-4 up from 1, where weights of bfloat16 lie 2⁻⁷ apart: none of them alone would be seen.
    model = nn.Linear(2, 1, bias=False).to(kind)
    memory: dict[str, Any] = {}
    nn.init.ones_(model.weight)
    for _ in range(100):
        gradient = flat_gradient(-model.weight.sum(), model)
        flat_step(model, gradient, Training(lr=1e-4), memory)
        memory = decode(encode(memory))
    torch.testing.assert_close(model.weight, torch.full_like(model.weight, 1.01), rtol=1e-6, atol=0)
