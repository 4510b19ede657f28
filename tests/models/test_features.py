"""Features and logits of modules that are not built in."""

from __future__ import annotations

import threading

import pytest
import torch
from torch import Tensor, nn

from polyfed.errors import ModelError
from polyfed.models import Network, build, feature_count, features_and_logits, names, size
from polyfed.models.network import project
from polyfed.models.registry import construct


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


# -- how many features -----------------------------------------------------------------------------------------


def test_features_of_any_module_are_counted_by_one_pass_that_leaves_no_trace() -> None:
    assert feature_count(Plain(), (3,)) == 4
    model = build("cnn-small", (1, 8, 8), 3)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    assert feature_count(model, (1, 8, 8)) == 64
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert all(part.training for part in model.modules())


def test_features_that_are_not_rows_are_refused() -> None:
    per_pixel = nn.Sequential(nn.Linear(4, 2), nn.Flatten())  # of 3×4 inputs: its features are 3×4
    with pytest.raises(ModelError, match=r"features of shape \(3, 4\); they must be rows × features"):
        feature_count(per_pixel, (3, 4))


@pytest.mark.parametrize("name", names())
def test_every_model_can_be_given_a_feature_size(name: str) -> None:
    with torch.device("meta"):
        model = construct(name, (3, 32, 32), 10, "batch", 24)
    features, logits = features_and_logits(model, torch.empty(2, 3, 32, 32, device="meta"))
    assert (features.shape, logits.shape) == ((2, 24), (2, 10))


def test_a_projection_is_a_linear_layer_and_a_relu_in_the_body() -> None:
    plain, projected = (build("mlp-small", (5,), 3, features=count) for count in (None, 7))
    x = torch.randn(6, 5)
    inner, layer, relu = projected.body.children()
    assert isinstance(layer, nn.Linear) and isinstance(projected.head, nn.Linear)
    assert all(torch.equal(a, b) for a, b in zip(inner.parameters(), plain.body.parameters(), strict=True))
    assert isinstance(relu, nn.ReLU)
    assert torch.equal(projected.features(x), torch.relu(layer(plain.features(x))))
    assert (layer.in_features, layer.out_features, projected.head.in_features) == (64, 7, 7)


def test_a_model_that_has_so_many_features_already_gets_the_projection_too() -> None:
    # 5-64, 64-64, 64-3
    assert size("mlp-small", (5,), 3, features=64).macs == 5 * 64 + 64 * 64 + 64 * 3


def test_a_head_of_several_layers_keeps_all_but_its_first() -> None:
    # lenet5-fedkf: its head is 120-84-26, with 16 features 16-84-26.
    model = build("lenet5-fedkf", (1, 32, 32), 26, features=16)
    shapes = [tuple(layer.weight.shape) for layer in model.head.modules() if isinstance(layer, nn.Linear)]
    assert shapes == [(84, 16), (26, 84)]


def test_a_head_without_a_linear_layer_cannot_be_given_features() -> None:
    model = Network(nn.Flatten(), nn.Identity())
    with pytest.raises(ModelError, match=r"a head without an nn\.Linear"):
        project(model, 4)
    with pytest.raises(ModelError, match="at least 1"):
        build("mlp", (4,), 2, features=0)


def test_sizes_count_the_projection() -> None:
    built = build("resnet8", (1, 8, 8), 10, features=16)
    assert size("resnet8", (1, 8, 8), 10, batch=3, features=16) == size(built, (1, 8, 8), batch=3)
