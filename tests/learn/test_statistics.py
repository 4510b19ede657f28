from __future__ import annotations

import pytest
import torch
from torch import nn

from polyfed.learn import recompute_statistics, weights_of


def rows(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float32).unsqueeze(1)


def spoilt(momentum: float | None = 0.1) -> nn.BatchNorm1d:
    """A layer whose statistics are those of other data."""
    layer = nn.BatchNorm1d(1, momentum=momentum)
    layer.running_mean = torch.tensor([50.0])
    layer.running_var = torch.tensor([float("nan")])
    layer.num_batches_tracked = torch.tensor(99)
    return layer


def mean_of(layer: nn.Module) -> float:
    return layer.get_buffer("running_mean").item()


def variance_of(layer: nn.Module) -> float:
    return layer.get_buffer("running_var").item()


def test_statistics_of_one_batch_are_mean_and_variance_of_the_rows() -> None:
    layer = spoilt()
    recompute_statistics(layer, rows(1, 2, 6), batch=10)
    # mean 3; (4 + 1 + 9) / 2: torch keeps the unbiased variance
    assert mean_of(layer) == pytest.approx(3)
    assert variance_of(layer) == pytest.approx(7)


def test_statistics_of_several_batches_count_by_their_rows() -> None:
    layer = spoilt()
    recompute_statistics(layer, rows(0, 10, 2, 20, 4), batch=2)
    # every other row: (0, 2, 4) and (10, 20); means 2 and 15, variances 4 and 50
    assert mean_of(layer) == pytest.approx((3 * 2 + 2 * 15) / 5)
    assert variance_of(layer) == pytest.approx((3 * 4 + 2 * 50) / 5)
    assert layer.num_batches_tracked == 2


def test_rows_sorted_by_class_do_not_lose_the_spread_between_classes() -> None:
    layer = spoilt()
    recompute_statistics(layer, torch.repeat_interleave(rows(-1, 1), 64, dim=0), batch=16)
    assert variance_of(layer) == pytest.approx(1, abs=0.1)


@pytest.mark.parametrize("batch", [1, 2, 3, 4, 100])
def test_no_row_is_left_out_whatever_the_batch(batch: int) -> None:
    layer = spoilt()
    x = torch.randn(13, 1, generator=torch.Generator().manual_seed(0))
    recompute_statistics(layer, x, batch)
    assert mean_of(layer) == pytest.approx(x.mean().item(), abs=1e-6)


def test_a_single_row_leaves_the_statistics_as_they_were() -> None:
    layer = nn.BatchNorm1d(1)
    layer(rows(5, 7))
    before = weights_of(layer)
    recompute_statistics(layer, rows(3), batch=4)
    assert all(torch.equal(tensor, before[name]) for name, tensor in weights_of(layer).items())


@pytest.mark.parametrize("momentum", [0.1, 0.9, None])
@pytest.mark.parametrize("training", [True, False])
def test_momentum_and_mode_are_put_back(momentum: float | None, training: bool) -> None:
    layer = spoilt(momentum)
    head = nn.Linear(1, 1)
    model = nn.Sequential(layer, head).train(training)
    trained = head.weight.clone()
    recompute_statistics(model, rows(1, 2, 3, 4), batch=2)
    assert layer.momentum == momentum
    assert all(module.training == training for module in model.modules())
    assert torch.equal(head.weight, trained)
    assert layer.weight.item() == 1


def test_a_deeper_layer_sees_what_the_one_before_makes_of_the_rows() -> None:
    first, layer = nn.Linear(1, 1), spoilt()
    nn.init.constant_(first.weight, 3)
    nn.init.constant_(first.bias, 1)
    recompute_statistics(nn.Sequential(first, layer), rows(1, 2, 6), batch=10)
    assert mean_of(layer) == pytest.approx(3 * 3 + 1)
    assert variance_of(layer) == pytest.approx(9 * 7)


def test_a_model_without_batch_norm_is_left_alone() -> None:
    model = nn.Linear(1, 1)
    before = weights_of(model)
    recompute_statistics(model, rows(1, 2, 3), batch=2)
    assert all(torch.equal(tensor, before[name]) for name, tensor in weights_of(model).items())
