"""Control variates, worked out by hand."""

from __future__ import annotations

from typing import Any, cast

import pytest
import torch
from tests.methods.by_hand import no_scratch_models
from torch import Tensor, nn

from polyfed import learn
from polyfed.data import Rows
from polyfed.errors import MethodError
from polyfed.federation.message import Weights
from polyfed.federation.nodes import Client, ClientData, Observer
from polyfed.federation.roster import Facts
from polyfed.learn import Learner, Training, WeightedMean
from polyfed.methods import control_variates, local_training
from polyfed.seeds import Seeds


def client(**training: Any) -> Client:
    nothing = cast(Rows, None)
    return Client(
        facts=Facts(0, "client-0", 1, "line"),
        model=nn.Linear(1, 1),
        data=ClientData(nothing, nothing, nothing, nothing),
        seeds=Seeds(0),
        device=torch.device("cpu"),
        scratch_model=no_scratch_models,
        observer=cast(Observer, None),
        run_training=Training(epochs=1, lr=0.1, **training),
    )


def w(*values: float) -> Weights:
    return {"w": torch.tensor(values)}


def listed(weights: Weights) -> list[float]:
    found: list[float] = weights["w"].tolist()
    return found


def test_a_client_that_never_took_part_has_a_control_variate_of_zero() -> None:
    me = client()
    assert listed(control_variates.correction(me, w(0.5, -2.0))) == [0.5, -2.0]
    assert me.memory == {}


def test_an_update_worked_out() -> None:
    """c = (0.5, 1), c_i = (2, 0): c − c_i = (−1.5, 1). From w = (1, 1) to w_i = (0.4, 1.2) in 2 steps of 0.1:

    (w − w_i) / (2 · 0.1) = (3, −1);  c_i⁺ = c_i − c + that = (2 − 0.5 + 3, 0 − 1 − 1) = (4.5, −2)
    c_i⁺ − c_i = (2.5, −2)
    """
    me = client()
    me.memory["control"] = w(2.0, 0.0)
    assert listed(control_variates.correction(me, w(0.5, 1.0))) == [-1.5, 1.0]
    change = control_variates.update(me, w(0.5, 1.0), w(1.0, 1.0), w(0.4, 1.2), 2)
    assert listed(change) == pytest.approx([2.5, -2.0], abs=1e-6)
    assert listed(me.memory["control"]) == pytest.approx([4.5, -2.0], abs=1e-6)


def test_with_momentum_it_divides_by_the_effective_steps() -> None:
    """Two steps at momentum 0.9 go 1 + 1.9 = 2.9 gradients far: 0.58 / (2.9 · 0.1) = 2, and not 0.58 / 0.2 = 2.9."""
    me = client(momentum=0.9)
    change = control_variates.update(me, w(0.0), w(0.58), w(0.0), 2)
    assert listed(change) == pytest.approx([2.0], abs=1e-6)


def test_the_learning_rate_is_that_of_the_round() -> None:
    me = client(decay=0.5)
    me.moment = type(me.moment)(round=2, sequence=0)
    change = control_variates.update(me, w(0.0), w(0.1), w(0.0), 1)
    assert listed(change) == pytest.approx([2.0], abs=1e-6)  # 0.1 / 0.05


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_the_control_variate_is_the_gradient_that_was_followed(momentum: float) -> None:
    """Down a gradient of 3 that does not change, along 3 + c − c_i: whatever c and c_i are, c_i⁺ is 3."""
    me = client(momentum=momentum)
    me.memory["control"] = {"weight": torch.tensor([[4.0]]), "bias": torch.tensor([0.0])}
    control = {"weight": torch.tensor([[-1.5]]), "bias": torch.tensor([1.0])}
    before = learn.weights_of(me.model)
    learner = Learner(me.model, me.training, correction=control_variates.correction(me, control))
    for _ in range(7):
        learner.step(3 * (me.model.weight + me.model.bias).sum())  # type: ignore[operator]
    control_variates.update(me, control, before, learn.weights_of(me.model), learner.finish())
    made: dict[str, Tensor] = me.memory["control"]
    assert made["weight"].item() == pytest.approx(3, abs=1e-5)
    assert made["bias"].item() == pytest.approx(3, abs=1e-5)


def test_without_steps_nothing_changes() -> None:
    me = client()
    assert listed(control_variates.update(me, w(0.5), w(1.0), w(1.0), 0)) == [0.0]
    assert me.memory == {}
    me.memory["control"] = w(2.0)
    assert listed(control_variates.update(me, w(0.5), w(1.0), w(1.0), 0)) == [0.0]
    assert listed(me.memory["control"]) == [2.0]


def test_the_servers_stays_the_mean_of_all() -> None:
    """Four clients with c_i = 1, 2, 3, 6 and c = 3; the first two of them change by 2 and 4: (3 + 6 + 3 + 6) / 4."""
    change = WeightedMean()
    change.add(w(2.0), 1.0)
    change.add(w(4.0), 1.0)
    assert listed(control_variates.fold(w(3.0), change, everyone=4)) == [4.5]


def test_it_is_zero_at_first_for_parameters_alone() -> None:
    model = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))
    control = control_variates.zeros(model)
    assert control.keys() == {"0.weight", "0.bias", "1.weight", "1.bias"}
    assert all(tensor.shape == model.get_parameter(name).shape for name, tensor in control.items())
    assert not any(tensor.any() for tensor in control.values())


@pytest.mark.parametrize(
    ("training", "message"),
    [
        ({"optimiser": "adam"}, "set training.optimiser=sgd, not adam"),
        ({"optimiser": "RMSprop"}, "set training.optimiser=sgd, not RMSprop"),
        (
            {"optimiser": {"name": "sgd", "nesterov": True}, "momentum": 0.9},
            "set training.optimiser=sgd, not {name: sgd, nesterov: true}",
        ),
        ({"keep_optimiser": True}, "set training.keep_optimiser=false"),
        (
            {"within": "cosine"},
            r"set training.within=constant \(training.schedule changes it from round to round\)",
        ),
    ],
)
def test_steps_that_tell_nothing_are_refused(training: dict[str, Any], message: str) -> None:
    with pytest.raises(MethodError, match=f"^scaffold .*{message}$"):
        local_training.check_steps(Training(**{"epochs": 1, **training}), "scaffold")
    fine = {"clip": 1.0, "clip_value": 1.0, "sampling": "balanced", "schedule": {"warm_up": 3}}
    local_training.check_steps(Training(epochs=1, momentum=0.9, weight_decay=0.1, **fine), "scaffold")
