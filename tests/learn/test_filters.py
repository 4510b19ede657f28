"""Some filters of a model: which, and what becomes of them."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from polyfed.errors import ModelError
from polyfed.learn import RowMean, filter_counts, largest_filters, spread_rows, take_rows, weights_of


def test_filters_are_outputs_of_convolutions_and_linear_layers() -> None:
    """0.3 of 5 are 1.5, of 2 are 0.6: rounded up, so there is always one."""
    model = nn.Sequential(nn.Conv2d(1, 5, 3), nn.BatchNorm2d(5), nn.Flatten(), nn.Linear(5, 2))
    assert filter_counts(model, 0.3) == {"0": 2, "3": 1}
    assert filter_counts(model, 1e-9) == {"0": 1, "3": 1}


def test_the_largest_are_those_of_the_largest_norm() -> None:
    """Norms 5, 4, √18, 0: the largest single number is in row 1, which is not among the largest two."""
    weight = torch.tensor([[-3.0, 4.0], [4.0, 0.0], [3.0, 3.0], [0.0, 0.0]])
    found = largest_filters({"a.weight": weight, "a.bias": torch.tensor([0.0, 9, 0, 99])}, {"a": 2})
    assert found["a"].tolist() == [0, 2]
    changed = largest_filters({"a.weight": weight}, {"a": 1}, since={"a.weight": weight - weight.flip(0)})
    assert changed["a"].tolist() == largest_filters({"a.weight": weight.flip(0)}, {"a": 1})["a"].tolist()
    equal = largest_filters({"a.weight": torch.ones(4, 2, 3)}, {"a": 3})
    assert equal["a"].tolist() == [0, 1, 2]  # the first of equals


def test_rows_are_taken_with_their_bias_and_put_back() -> None:
    weights = {"a.weight": torch.tensor([[1.0, 2], [3, 4], [5, 6]]), "a.bias": torch.tensor([7.0, 8, 9])}
    weights["b.weight"] = torch.tensor([1.0, 2.0])
    rows = {"a": torch.tensor([0, 2], dtype=torch.int32)}
    taken = take_rows(weights, rows)
    assert taken["a.weight"].tolist() == [[1, 2], [5, 6]]
    assert taken["a.bias"].tolist() == [7, 9]
    assert taken["b.weight"].tolist() == [1, 2]
    back = spread_rows(taken, rows, weights)
    assert back["a.weight"].tolist() == [[1, 2], [0, 0], [5, 6]]
    assert back["a.bias"].tolist() == [7, 0, 9]
    assert back["b.weight"].tolist() == [1, 2]


def test_a_mean_row_by_row_worked_out() -> None:
    """Shares 1 and 3. Row 0 from both: (1·2 + 3·6) / 4 = 5; row 1 from the second alone: 8; row 2 from nobody: stays.

    Zeros in the place of rows that were not sent would give row 1 (0 + 3·8) / 4 = 6.
    """
    start = {"a.weight": torch.full((3, 1), -1.0), "n.running_mean": torch.zeros(1)}
    mean = RowMean(start)
    first = {"a.weight": torch.tensor([[2.0]]), "n.running_mean": torch.tensor([4.0])}
    second = {"a.weight": torch.tensor([[6.0], [8.0]]), "n.running_mean": torch.tensor([8.0])}
    mean.add(first, {"a": torch.tensor([0])}, 1.0)
    mean.add(second, {"a": torch.tensor([0, 1])}, 3.0)
    found = mean.result()
    assert found["a.weight"].tolist() == [[5.0], [8.0], [-1.0]]
    assert found["n.running_mean"].tolist() == [7.0]
    assert start["a.weight"].tolist() == [[-1.0]] * 3
    assert mean.total == 4


def test_whole_weights_have_their_plain_mean() -> None:
    models = [weights_of(nn.Linear(3, 2)) for _ in range(2)]
    mean = RowMean(models[0])
    for model in models:
        mean.add(model, {}, 1.0)
    for name, found in mean.result().items():
        assert torch.allclose(found, (models[0][name] + models[1][name]) / 2)
    with pytest.raises(ModelError):
        mean.add({"other": torch.zeros(2)}, {}, 1.0)
