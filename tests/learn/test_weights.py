from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from polyfed.errors import ModelError
from polyfed.learn import (
    TableMean,
    WeightedMean,
    all_tensors,
    is_statistic,
    load_weights,
    named_tensors,
    norm_entries,
    other_names,
    weights_of,
)
from polyfed.models import build


class Odd(nn.Module):
    """Tied and absent parameters, a buffer that lasts, one that does not, and a layer used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(2, 2, bias=False)
        self.tied = nn.Linear(2, 2, bias=False)
        self.tied.weight = self.first.weight
        self.again = self.first
        self.none = None
        self.scale = nn.Parameter(torch.tensor(3.0))
        self.register_buffer("lasting", torch.tensor([1, 2]))
        self.register_buffer("passing", torch.zeros(1), persistent=False)
        self.register_buffer("absent", None)


def means(*weighted: tuple[dict[str, torch.Tensor], float]) -> dict[str, torch.Tensor]:
    mean = WeightedMean()
    for weights, share in weighted:
        mean.add(weights, share)
    return mean.result()


@pytest.mark.parametrize("name", ["mlp", "resnet8", "lenet5", "mobilenetv2"])
def test_named_tensors_are_the_state_dict(name: str) -> None:
    model = build(name, (3, 32, 32), 10)
    state = model.state_dict()
    found = named_tensors(model)
    assert list(found) == list(state)
    assert all(found[key].data_ptr() == state[key].data_ptr() for key in state)


def test_named_tensors_are_the_state_dict_of_odd_models_too() -> None:
    model = Odd()
    assert list(all_tensors(model)) == list(model.state_dict())
    assert list(weights_of(model)) == ["scale", "lasting", "first.weight"]  # tied weights travel once
    assert other_names(model) == {"tied.weight": "first.weight", "again.weight": "first.weight"}


def test_weights_are_a_copy() -> None:
    model = nn.Linear(2, 2)
    taken = weights_of(model)
    nn.init.zeros_(model.weight)
    assert not torch.equal(taken["weight"], model.weight)
    assert not taken["weight"].requires_grad


def test_weights_loaded_are_those_taken_buffers_included() -> None:
    model = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))
    taken = weights_of(model)
    model(torch.randn(8, 2))
    with torch.no_grad():
        model.get_parameter("0.weight").add_(1)
    load_weights(model, taken)
    assert all(torch.equal(tensor, taken[name]) for name, tensor in named_tensors(model).items())
    assert model.get_buffer("1.num_batches_tracked").item() == 0


def test_loading_keeps_the_parameters_themselves() -> None:
    """An optimiser or a tied layer holds on to them."""
    model = nn.Linear(2, 2)
    parameter, place = model.weight, model.weight.data_ptr()
    load_weights(model, {"weight": torch.ones(2, 2), "bias": torch.zeros(2)})
    assert model.weight is parameter
    assert model.weight.data_ptr() == place
    assert model.weight.requires_grad


def test_weights_of_another_architecture_are_refused() -> None:
    model = nn.Linear(2, 2)
    right = weights_of(model)
    with pytest.raises(ModelError, match="'extra' is not in Linear"):
        load_weights(model, {**right, "extra": torch.ones(1)})
    with pytest.raises(ModelError, match="'bias' is only in Linear"):
        load_weights(model, {"weight": right["weight"]})
    with pytest.raises(ModelError, match=r"'weight' is \(2,\), the model's is \(2, 2\)"):
        load_weights(model, {**right, "weight": torch.ones(2)})


def test_some_weights_can_be_loaded_partly_but_no_strange_ones() -> None:
    model = nn.Linear(2, 2)
    weight = model.weight.detach().clone()
    load_weights(model, {"bias": torch.tensor([4.0, 5.0])}, partly=True)
    assert model.bias.tolist() == [4, 5]
    assert torch.equal(model.weight, weight)
    with pytest.raises(ModelError, match="not in"):
        load_weights(model, {"extra": torch.ones(1)}, partly=True)


@pytest.mark.parametrize("nonsense", [torch.zeros(3), None, "weights", 3])
def test_what_is_no_weights_is_refused(nonsense: Any) -> None:
    """What a client sends may be anything that can travel."""
    with pytest.raises(ModelError, match="no weights at all"):
        load_weights(nn.Linear(2, 2), nonsense)
    with pytest.raises(ModelError, match="no weights at all"):
        WeightedMean().add(nonsense, 1)
    model = nn.Linear(2, 2)
    with pytest.raises(ModelError, match="'bias'"):
        load_weights(model, {**weights_of(model), "bias": "none"})  # type: ignore[dict-item]


def test_what_does_not_fit_the_weights_before_it_is_refused_and_not_added() -> None:
    whole = {"weight": torch.ones(2), "bias": torch.zeros(1)}
    mean = WeightedMean()
    mean.add(whole, 1)
    with pytest.raises(ModelError, match="other names"):
        mean.add({"weight": torch.full((2,), 9.0)}, 1)
    with pytest.raises(ModelError, match="'bias' of another size"):
        mean.add({"weight": torch.full((2,), 9.0), "bias": torch.zeros(3)}, 1)
    assert mean.total == 1
    assert mean.result()["weight"].tolist() == [1, 1]


def test_the_mean_of_tables_by_hand() -> None:
    mean = TableMean()
    mean.add(torch.tensor([[1.0, 2.0]]), 1)
    mean.add(torch.tensor([[5.0, -2.0]]), 3)
    assert mean.total == 4
    assert mean.result().tolist() == [[4.0, -1.0]]


def test_norm_entries_are_those_of_batch_norm_alone() -> None:
    model = nn.Sequential(nn.Conv2d(1, 2, 1), nn.BatchNorm2d(2), nn.GroupNorm(1, 2))
    found = {"1.weight", "1.bias", "1.running_mean", "1.running_var", "1.num_batches_tracked"}
    assert norm_entries(model) == found
    assert {name for name in model.state_dict() if is_statistic(name)} == found - {"1.weight", "1.bias"}
    assert norm_entries(nn.BatchNorm1d(2, affine=False)) == {
        "running_mean",
        "running_var",
        "num_batches_tracked",
    }


def test_a_weighted_mean_by_hand() -> None:
    found = means(
        ({"w": torch.tensor([1.0, 2.0]), "b": torch.tensor(0.0)}, 10),
        ({"w": torch.tensor([5.0, -2.0]), "b": torch.tensor(8.0)}, 30),
    )
    # (10·1 + 30·5) / 40, (10·2 - 30·2) / 40, 30·8 / 40
    assert found["w"].tolist() == [4.0, -1.0]
    assert found["b"].item() == 6.0


def test_shares_of_one_give_the_plain_mean() -> None:
    found = means(*(({"w": torch.tensor([float(value)])}, 1) for value in (1, 2, 6)))
    assert found["w"].tolist() == [3.0]


def test_the_mean_of_one_is_itself_to_the_bit() -> None:
    sent = {"w": torch.randn(100, generator=torch.Generator().manual_seed(0))}
    assert torch.equal(means((sent, 37))["w"], sent["w"])


def test_buffers_are_averaged_and_batch_counters_are_not() -> None:
    found = means(
        ({"running_mean": torch.tensor([2.0]), "num_batches_tracked": torch.tensor(7)}, 1),
        ({"running_mean": torch.tensor([4.0]), "num_batches_tracked": torch.tensor(4)}, 3),
    )
    assert found["running_mean"].tolist() == [3.5]
    assert found["num_batches_tracked"].item() == 7
    assert found["num_batches_tracked"].dtype == torch.int64


def test_whole_numbers_below_zero_stay_what_they_are() -> None:
    assert means(({"index": torch.tensor([-3, 2])}, 1), ({"index": torch.tensor([-5, 2])}, 1))[
        "index"
    ].tolist() == [-3, 2]


def test_the_mean_keeps_the_weights_precision_and_sums_in_double() -> None:
    half = {"w": torch.tensor([2048.0], dtype=torch.float16)}
    one = {"w": torch.tensor([1.0], dtype=torch.float16)}
    found = means((half, 1), *[(one, 1)] * 4, *[({"w": torch.zeros(1)}, 1)] * 3)["w"]
    # (2048 + 4) / 8; in half precision 2048 + 1 would be 2048
    assert found.dtype == torch.float16
    assert found.item() == 256.5


def test_adding_does_not_change_what_was_added() -> None:
    first = {"w": torch.tensor([1.0]), "n": torch.tensor([1])}
    means((first, 2), ({"w": torch.tensor([3.0]), "n": torch.tensor([5])}, 2))
    assert first["w"].tolist() == [1.0]
    assert first["n"].tolist() == [1]
