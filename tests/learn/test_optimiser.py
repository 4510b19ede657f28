"""The optimisers are PyTorch's own, bit for bit, without its classes."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from polyfed.learn import Training
from polyfed.learn.optimiser import Optimiser

CASES: dict[str, tuple[dict[str, Any], Any]] = {
    "sgd": ({}, torch.optim.SGD),
    "momentum": ({"momentum": 0.9, "weight_decay": 0.01}, torch.optim.SGD),
    "adam": ({"optimiser": "adam", "weight_decay": 0.01}, torch.optim.Adam),
    "amsgrad": ({"optimiser": "amsgrad"}, torch.optim.Adam),
    "adamw": ({"optimiser": "adamw", "weight_decay": 0.1}, torch.optim.AdamW),
}


def net() -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        made = nn.Sequential(nn.Conv2d(2, 3, 2), nn.Flatten(), nn.Linear(12, 3), nn.Linear(3, 2))
    made[3].weight.requires_grad_(False)
    return made.to(memory_format=torch.channels_last)  # type: ignore[call-overload,no-any-return]


def gradients(model: nn.Module, x: Tensor) -> None:
    model(x).square().sum().backward()


@pytest.mark.parametrize(("settings", "kind"), CASES.values(), ids=CASES)
def test_steps_are_those_of_torch_optim(settings: dict[str, Any], kind: Any) -> None:
    training = Training(epochs=1, lr=0.05, **settings)
    options = {"lr": 0.05, "weight_decay": training.weight_decay, "fused": True}
    if kind is torch.optim.SGD:
        options["momentum"] = training.momentum
    if training.optimiser == "amsgrad":
        options["amsgrad"] = True
    ours, theirs = net(), net()
    one = Optimiser(ours.parameters(), training)
    other = kind([parameter for parameter in theirs.parameters() if parameter.requires_grad], **options)
    stream = torch.Generator().manual_seed(1)
    for step in range(4):
        x = torch.randn(5, 2, 3, 3, generator=stream)
        for model, optimiser in ((ours, one), (theirs, other)):
            gradients(model, x)
            if step == 2:
                next(model.parameters()).grad = None  # one that a loss did not depend on
            optimiser.step()
            optimiser.zero_grad()
    for mine, its in zip(ours.parameters(), theirs.parameters(), strict=True):
        assert torch.equal(mine, its)
        assert mine.grad is None
    expected = other.state_dict()["state"]
    for index, parameter in enumerate(one.parameters):
        for name, moment in one.state[parameter].items():
            assert torch.equal(moment, expected[index][name])
        assert {name for name, value in expected.get(index, {}).items() if value is not None} == set(
            one.state[parameter]
        )


@pytest.mark.parametrize("settings", [case[0] for case in CASES.values()], ids=CASES)
@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float16, torch.float64])
def test_weights_of_any_type_go_where_float32_weights_go(kind: torch.dtype, settings: dict[str, Any]) -> None:
    # Steps of 1e-4 and less, where weights of 16 bits near 1 lie 2⁻¹⁰ and 2⁻⁷ apart: 50 of them add up.
    training = Training(lr=1e-4, **settings)
    start = torch.linspace(1, 2, 3000).view(3, 1000)
    usual, other = nn.Parameter(start.to(kind).float()), nn.Parameter(start.to(kind))
    one, two = Optimiser([usual], training), Optimiser([other], training)
    for _ in range(50):
        usual.grad, other.grad = torch.ones_like(usual), torch.ones_like(other)
        one.step()
        two.step()
    torch.testing.assert_close(other, usual.to(kind), rtol=1e-5 if kind is torch.float64 else 0, atol=0)
    assert (other < start.to(kind)).float().mean() > 0.3


def test_a_step_begins_where_somebody_has_put_a_weight_of_16_bits() -> None:
    weight = nn.Parameter(torch.ones(4, dtype=torch.bfloat16))
    optimiser = Optimiser([weight], Training(lr=1e-4))
    for value, expected in ((None, 1.0), (2.0, 2.0)):
        if value is not None:
            weight.data.fill_(value)
        weight.grad = torch.ones_like(weight)
        optimiser.step()
        assert weight.tolist() == [expected] * 4


def test_training_does_not_import_the_compiler() -> None:
    """`torch._dynamo` takes a second of a launch, and is imported by the classes of torch.optim when they are used."""
    code = """
import sys, torch
from polyfed import learn, models
model = models.build("mlp-small", (4,), 2)
x, y = torch.randn(8, 4), torch.zeros(8, dtype=torch.int64)
for optimiser in ("sgd", "adam", "amsgrad", "adamw"):
    training = learn.Training(epochs=1, optimiser=optimiser, clip=1.0, clip_value=1.0, within="cosine")
    learn.supervised(model, x, y, training, torch.Generator())
learn.supervised_together([model], [(x, y)], learn.Training(), [torch.Generator()])
assert "torch._dynamo" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True)
