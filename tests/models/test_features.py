"""Features, logits and outputs of modules that are not ours."""

from __future__ import annotations

import threading

import pytest
import torch
from torch import Tensor, nn

from polyfed.errors import ModelError
from polyfed.models import build, features_and_logits, output_count


class Plain(nn.Module):
    """A user's module: the linear layers are declared in another order than they are called."""

    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(4, 2)
        self.unused = nn.Linear(9, 9)
        self.first = nn.Linear(3, 4)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.last(input=torch.tanh(self.first(x)))
        return logits


def hooks(model: nn.Module) -> int:
    return sum(len(part._forward_hooks) + len(part._forward_pre_hooks) for part in model.modules())


def test_features_of_a_plain_module_are_the_input_of_the_linear_layer_called_last() -> None:
    model, x = Plain(), torch.randn(5, 3)
    features, logits = features_and_logits(model, x)
    assert torch.equal(features, torch.tanh(model.first(x)))
    assert torch.equal(logits, model(x))


def test_gradients_flow_through_features_and_logits_of_a_plain_module() -> None:
    model = Plain()
    features, logits = features_and_logits(model, torch.randn(5, 3))
    grads = torch.autograd.grad(features.sum() + logits.sum(), [model.first.weight, model.last.weight])
    assert all(bool(grad.any()) for grad in grads)


def test_a_plain_module_is_left_as_it_was_even_after_an_error() -> None:
    model = Plain()
    features_and_logits(model, torch.randn(5, 3))
    with pytest.raises(RuntimeError):
        features_and_logits(model, torch.randn(5, 7))
    assert hooks(model) == 0


def test_threads_that_share_a_module_get_their_own_features() -> None:
    model = Plain()
    rows = [torch.full((50, 3), float(k)) for k in range(4)]
    wrong = []

    def work(x: Tensor) -> None:
        expected = torch.tanh(model.first(x))
        for _ in range(50):
            features, _ = features_and_logits(model, x)
            if not torch.equal(features, expected):
                wrong.append(x)

    threads = [threading.Thread(target=work, args=(x,)) for x in rows]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert hooks(model) == 0


def test_a_module_without_a_linear_layer_has_no_features() -> None:
    with pytest.raises(ModelError, match=r"model 'Flatten' calls no nn\.Linear"):
        features_and_logits(nn.Flatten(), torch.zeros(2, 3))


class Counting(nn.Module):
    """Changes a buffer and draws a number in each forward, and has parts in different modes."""

    calls: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(1))
        self.norm = nn.BatchNorm1d(3)
        self.linear = nn.Linear(3, 7)

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        logits: Tensor = self.linear(self.norm(x + torch.rand(1)))
        return logits


def test_counting_outputs_leaves_modes_buffers_and_random_state_alone() -> None:
    model = Counting().train()
    model.norm.eval()
    state = {key: value.clone() for key, value in model.state_dict().items()}
    random = torch.get_rng_state()
    assert output_count(model, (3,)) == 7
    assert (model.training, model.norm.training, model.linear.training) == (True, False, True)
    assert torch.equal(torch.get_rng_state(), random)
    assert all(torch.equal(value, state[key]) for key, value in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())


def test_counting_outputs_works_for_our_models() -> None:
    assert output_count(build("resnet8", (3, 16, 16), 12), (3, 16, 16)) == 12


def test_a_model_that_does_not_fit_the_shape_is_named_with_the_shape_in_one_line() -> None:
    model = build("resnet8", (3, 16, 16), 12)
    with pytest.raises(
        ModelError, match=r"model 'resnet8' cannot take inputs of shape \(1, 16, 16\)"
    ) as caught:
        output_count(model, (1, 16, 16))
    assert "\n" not in str(caught.value)
    with pytest.raises(ModelError, match=r"model 'Plain' cannot take inputs of shape \(5,\)"):
        output_count(Plain(), (5,))


def test_outputs_that_are_not_rows_of_logits_are_refused() -> None:
    with pytest.raises(ModelError, match=r"gives \(1, 2, 3\)"):
        output_count(nn.Identity(), (2, 3))
    with pytest.raises(ModelError, match="returns tuple"):
        output_count(nn.LSTM(3, 2), (4, 3))
