"""Classes of torch.optim by name, with settings: their steps are PyTorch's own, and mistakes are told at once."""

from __future__ import annotations

import copy
from itertools import pairwise
from typing import Any

import pytest
import torch
from pydantic import ValidationError
from torch import nn

from polyfed.federation.message import decode, encode
from polyfed.learn import Learner, Training, flat_gradient, flat_step, steps_alike
from polyfed.learn.optimiser import Optimiser
from polyfed.learn.optimiser_choice import ELEMENT_WISE, UNFIT, _classes

CASES: dict[str, tuple[dict[str, Any], Any]] = {
    "RMSprop": ({"optimiser": "RMSprop"}, lambda given: torch.optim.RMSprop(given, lr=0.01)),
    "RMSprop with all": (
        {
            "optimiser": {"name": "rmsprop", "alpha": 0.9, "centered": True},
            "momentum": 0.8,
            "weight_decay": 0.01,
        },
        lambda given: torch.optim.RMSprop(
            given, lr=0.01, alpha=0.9, centered=True, momentum=0.8, weight_decay=0.01
        ),
    ),
    "Adagrad": (
        {"optimiser": {"name": "adagrad", "initial_accumulator_value": 0.5}},
        lambda given: torch.optim.Adagrad(given, lr=0.01, initial_accumulator_value=0.5),
    ),
    "NAdam": (
        {"optimiser": {"name": "NAdam", "betas": [0.8, 0.9]}},
        lambda given: torch.optim.NAdam(given, lr=0.01, betas=(0.8, 0.9)),
    ),
    "nesterov": (
        {"optimiser": {"name": "sgd", "nesterov": True}, "momentum": 0.9},
        lambda given: torch.optim.SGD(given, lr=0.01, momentum=0.9, nesterov=True),
    ),
    "amsgrad": (
        {"optimiser": {"name": "amsgrad", "eps": "1e-4"}, "weight_decay": 0.1},
        lambda given: torch.optim.Adam(given, lr=0.01, eps=1e-4, weight_decay=0.1, amsgrad=True),
    ),
    "adamw": (
        {"optimiser": {"name": "adamw", "betas": [0.5, 0.9]}},
        lambda given: torch.optim.AdamW(given, lr=0.01, betas=(0.5, 0.9), weight_decay=0.0),
    ),
}
ALL = sorted(set(_classes()) - set(UNFIT))


def net() -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        made = nn.Sequential(nn.Conv2d(2, 3, 2), nn.Flatten(), nn.Linear(12, 3), nn.Tanh(), nn.Linear(3, 2))
    made[4].weight.requires_grad_(False)
    return made.to(memory_format=torch.channels_last)  # type: ignore[call-overload,no-any-return]


def losses(model: nn.Module, count: int) -> Any:
    """Losses one after the other, each made when the step before is done."""
    stream = torch.Generator().manual_seed(1)
    for _ in range(count):
        yield model(torch.randn(5, 2, 3, 3, generator=stream)).square().sum()


def train(training: Training, steps: int, *, uses: int = 1, saved: bool = False) -> nn.Module:
    """So many steps, by one learner or by several that hand their moments on."""
    model, memory = net(), dict[str, Any]()
    learner = Learner(model, training, memory)
    for number, loss in enumerate(losses(model, steps)):
        if number and number % (steps // uses) == 0:
            learner.finish()
            memory = decode(encode(memory)) if saved else memory
            learner = Learner(model, training, memory)
        learner.step(loss)
    return model


def same(one: nn.Module, other: nn.Module) -> bool:
    return all(torch.equal(*pair) for pair in zip(one.parameters(), other.parameters(), strict=True))


@pytest.mark.parametrize("name", CASES)
def test_steps_are_those_of_the_class(name: str) -> None:
    settings, make = CASES[name]
    theirs = net()
    optimiser = make([parameter for parameter in theirs.parameters() if parameter.requires_grad])
    for loss in losses(theirs, 4):
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    ours = train(Training(lr=0.01, **settings), 4)
    assert same(ours, theirs) and not same(ours, net())


@pytest.mark.parametrize("saved", [False, True], ids=["in memory", "saved"])
@pytest.mark.parametrize("name", ALL)
def test_moments_last_from_use_to_use_exactly(name: str, saved: bool) -> None:
    training = Training(optimiser=name, lr=0.02, keep_optimiser=True)
    whole = train(training, 6)
    assert same(train(training, 6, uses=3, saved=saved), whole)
    assert not same(whole, net())


def test_a_parameter_without_a_gradient_is_passed_over() -> None:
    used, idle = nn.Linear(1, 1), nn.Linear(1, 1)
    before = copy.deepcopy(idle)
    learner = Learner(nn.ModuleList([used, idle]), Training(optimiser="Adagrad", lr=0.1, weight_decay=0.1))
    learner.step(used.weight.sum() + idle.weight.sum() * 0)
    assert not same(idle, before)  # a slope of 0 is one: the weights decay
    before = copy.deepcopy(idle)
    learner.step(used.weight.sum())
    assert same(idle, before)


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float64])
@pytest.mark.parametrize("name", ["RMSprop", "Adagrad", "Adafactor"])
def test_weights_of_any_type_lose_no_step(name: str, kind: torch.dtype) -> None:
    """Steps that are smaller than a 16-bit weight's last digit add up as those of a float32 weight do."""
    found = []
    for each in (torch.float32, kind):
        model = nn.Linear(8, 3, bias=False)
        nn.init.ones_(model.weight)
        model = model.to(each)
        learner = Learner(model, Training(optimiser=name, lr=1e-4))
        for _ in range(100):
            learner.step(model.weight.sum())
        found.append(model.weight.detach().float())
    assert (found[0] < 0.9999).all()
    exact = 2**-8 if kind is torch.bfloat16 else 1e-5
    torch.testing.assert_close(found[1], found[0], rtol=exact, atol=0)


def test_a_rate_that_changes_reaches_the_class() -> None:
    """Adadelta's step is its rate times what it is at rate 1, and its moments know nothing of the rate."""
    moved = []
    for within in ("constant", "linear"):
        model = nn.Linear(1, 1, bias=False)
        nn.init.zeros_(model.weight)
        learner = Learner(model, Training(optimiser="Adadelta", lr=1.0, within=within), total=2)
        places = [0.0]
        for _ in range(2):
            learner.step(model.weight.sum())
            places.append(model.weight.item())
        moved.append([after - before for before, after in pairwise(places)])
    assert moved[1] == pytest.approx([moved[0][0], moved[0][1] / 2])


def test_moments_that_a_class_makes_at_once_are_there_and_can_be_had_again() -> None:
    """Adagrad's: some releases of torch make them at no other time."""
    weight = nn.Parameter(torch.ones(2))
    training = Training(optimiser={"name": "Adagrad", "initial_accumulator_value": 0.5})
    optimiser = Optimiser([weight], training)
    for _ in range(2):
        assert {name: moment.tolist() for name, moment in optimiser.state[weight].items()} == {
            "step": 0,
            "sum": [0.5, 0.5],
        }
        weight.grad = torch.ones(2)
        optimiser.step()
        assert optimiser.state[weight]["sum"].tolist() == [1.5, 1.5]
        optimiser.forget()


def test_a_weight_of_16_bits_without_a_gradient_is_passed_over_too() -> None:
    model = nn.Linear(1, 1, bias=False).to(torch.bfloat16)
    nn.init.ones_(model.weight)
    optimiser = Optimiser(model.parameters(), Training(optimiser="RMSprop", lr=0.1))
    model.weight.grad = torch.ones_like(model.weight)
    optimiser.step()
    optimiser.zero_grad()
    assert model.weight.item() != 1
    [full] = optimiser._in_full.values()
    before = full.clone()
    optimiser.step()
    assert torch.equal(full, before)


# -- along one vector ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(ELEMENT_WISE))
def test_along_one_vector_the_steps_are_the_same(name: str) -> None:
    training = Training(optimiser=name, lr=0.01)
    assert steps_alike(training)
    whole, flat, memory = train(training, 4), net(), dict[str, Any]()
    for loss in losses(flat, 4):
        flat_step(flat, flat_gradient(loss, flat), training, memory)
        memory = decode(encode(memory))
    for one, other in zip(whole.parameters(), flat.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)
    assert not same(flat, net())


def test_whoever_begins_on_a_model_begins_without_the_moments_of_another() -> None:
    """One model object serves several clients: two first steps go equally far."""
    for name in ("Adagrad", "NAdam"):
        model, training = nn.Linear(1, 1, bias=False), Training(optimiser=name, lr=0.1)
        moved = []
        for _ in range(2):
            nn.init.zeros_(model.weight)
            flat_step(model, torch.tensor([3.0]), training, {})
            moved.append(model.weight.item())
        assert moved[0] == moved[1] < 0


def test_what_goes_by_the_shape_of_a_tensor_is_told_apart() -> None:
    for name in set(ALL) - ELEMENT_WISE:
        assert not steps_alike(Training(optimiser=name))
    assert steps_alike(Training(optimiser={"name": "amsgrad", "eps": 1e-6})) and steps_alike(Training())


# -- mistakes ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "spelt"),
    [
        ("rmsprop", "RMSprop"),
        ("ADAGRAD", "Adagrad"),
        ("SGD", "sgd"),
        ("AdamW", "adamw"),
        ({"name": "RMSPROP"}, "RMSprop"),
        ({"name": "Adam"}, "adam"),
    ],
)
def test_case_is_forgiven(given: Any, spelt: str) -> None:
    assert Training(optimiser=given).optimiser == spelt


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"optimiser": "rmsprp"}, "unknown optimiser 'rmsprp', did you mean 'RMSprop'?"),
        ({"optimiser": "Optimizer"}, "unknown optimiser 'Optimizer', known: "),
        (
            {"optimiser": "lbfgs"},
            "with LBFGS no model can be trained here: it computes the loss several times",
        ),
        ({"optimiser": {"name": "SparseAdam", "eps": 1}}, "SparseAdam .* is for sparse gradients alone"),
        ({"optimiser": "Muon"}, "Muon .* steps on matrices alone, and models have biases"),
        ({"optimiser": {"alpha": 0.9}}, "a section needs `name`"),
        ({"optimiser": 3}, "must be a name such as RMSprop"),
        (
            {"optimiser": {"name": "RMSprop", "alhpa": 0.9}},
            "no setting 'alhpa' of RMSprop: it takes alpha, eps, centered ",
        ),
        ({"optimiser": {"name": "RMSprop", "foreach": True}}, "no setting 'foreach' of RMSprop"),
        (
            {"optimiser": {"name": "Adam", "maximize": True}},
            "no setting 'maximize' of adam: it takes betas, eps",
        ),
        ({"optimiser": {"name": "amsgrad", "amsgrad": False}}, "no setting 'amsgrad' of amsgrad"),
        ({"optimiser": {"name": "RMSprop", "lr": 0.1}}, "`lr` is a key beside `optimiser`, not inside it"),
        ({"optimiser": {"name": "RMSprop", "alpha": "much"}}, "`alpha` .* must be a finite number, not much"),
        ({"optimiser": {"name": "RMSprop", "alpha": True}}, "`alpha` .* must be a finite number, not true"),
        ({"optimiser": {"name": "RMSprop", "alpha": float("nan")}}, "`alpha` .* must be a finite number"),
        ({"optimiser": {"name": "RMSprop", "centered": 1}}, "`centered` .* must be true or false, not 1"),
        (
            {"optimiser": {"name": "adam", "betas": 0.9}},
            "`betas` of adam must be a list of 2 numbers, not 0.9",
        ),
        ({"optimiser": {"name": "adam", "betas": [0.9, "b"]}}, "must be a list of 2 numbers"),
        ({"optimiser": {"name": "RMSprop", "alpha": -1}}, r"torch\.optim\.RMSprop: Invalid alpha value: -1"),
        ({"optimiser": {"name": "sgd", "nesterov": True}}, "Nesterov momentum requires a momentum"),
        ({"optimiser": "Adagrad", "momentum": 0.9}, "momentum is 0.9, but Adagrad has none: set it to 0"),
        ({"optimiser": "Rprop", "weight_decay": 0.1}, "weight_decay is 0.1, but Rprop has none"),
        (
            {"optimiser": {"name": "adam", "eps": 1e-7}, "momentum": 0.9},
            r"momentum is 0.9, but \{name: adam, eps: 1.0e-07\} has none",
        ),
    ],
    ids=lambda value: str(value)[:60],
)
def test_what_cannot_be_is_refused_and_told(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        Training(**settings)


def test_a_choice_is_written_as_it_is_read() -> None:
    for given in (
        "RMSprop",
        {"name": "RMSprop", "alpha": 0.9, "eps": 1e-9},
        {"name": "adam", "betas": [0.9, 0.99]},
    ):
        training = Training(optimiser=given)
        written = training.model_dump(mode="json")
        assert written["optimiser"] == given
        assert Training(**written) == training
