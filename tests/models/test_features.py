"""Features and logits of modules that are not built in."""

from __future__ import annotations

import threading

import pytest
import torch
from torch import Tensor, nn

from polyfed.errors import ModelError
from polyfed.models import features_and_logits


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
