from __future__ import annotations

import math
import warnings
from typing import Any

import pytest
import torch
from sklearn import metrics as reference
from torch import Tensor

from polyfed.learn import METRICS, metrics_for, metrics_of
from polyfed.tasks import Regression
from polyfed.tasks.regression import Scale

TASK = Regression(scale=Scale(mean=100.0, std=20.0), unit_name="mmHg")


def found(outputs: Tensor, labels: Tensor, task: Regression = TASK) -> dict[str, Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return metrics_of(outputs, labels, metrics_for(["all"], task), task)


@pytest.mark.parametrize("seed", range(4))
def test_metrics_of_numbers_are_scikit_learns_in_the_unit_of_the_labels(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    outputs = torch.randn(90, 1, generator=generator)
    y = 100 + 20 * torch.randn(90, generator=generator)
    said, true = 100 + 20 * outputs[:, 0].double(), y.double()
    assert found(outputs, y) == {
        "mae": pytest.approx(reference.mean_absolute_error(true, said)),
        "rmse": pytest.approx(reference.root_mean_squared_error(true, said)),
        "r2": pytest.approx(reference.r2_score(true, said)),
        "median-absolute-error": pytest.approx(reference.median_absolute_error(true, said)),
        "mape": pytest.approx(reference.mean_absolute_percentage_error(true, said)),
    }


def test_metrics_of_numbers_are_those_worked_out_by_hand() -> None:
    # 120, 100, 80 are said of 110, 100, 60: errors 10, 0, 20
    assert found(torch.tensor([[1.0], [0.0], [-1.0]]), torch.tensor([110.0, 100.0, 60.0])) == {
        "mae": pytest.approx(10),
        "rmse": pytest.approx(math.sqrt(500 / 3)),
        # mean 90; distances 20, 10, -30
        "r2": pytest.approx(1 - 500 / (400 + 100 + 900)),
        "median-absolute-error": pytest.approx(10),
        "mape": pytest.approx((10 / 110 + 20 / 60) / 3),
    }


@pytest.mark.parametrize("labels", [[130.0], [130.0, 130.0, 130.0]])
def test_where_all_labels_are_alike_nothing_is_explained(labels: list[float]) -> None:
    values = found(torch.zeros(len(labels), 1), torch.tensor(labels))
    assert "r2" not in values
    assert values["mae"] == values["rmse"] == 30.0


def test_of_zero_nothing_is_a_share() -> None:
    assert "mape" not in found(torch.zeros(2, 1), torch.tensor([0.0, 50.0]))


def test_labels_that_are_large_beside_their_spread_keep_what_is_explained() -> None:
    task = Regression(scale=Scale(mean=1e6, std=1.0))
    y = 1e6 + torch.arange(8).float()
    outputs = (torch.arange(8).float() + 0.5)[:, None]
    values = found(outputs, y, task)
    assert values["r2"] == pytest.approx(reference.r2_score(y.double(), outputs[:, 0].double() + 1e6))


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, 3e38])
def test_what_is_no_number_is_as_wrong_as_can_be_and_in_range(bad: float) -> None:
    values = found(torch.tensor([[bad], [0.0]]), torch.tensor([100.0, 90.0]))
    assert values["mae"] == pytest.approx(5e11)
    for name, value in values.items():
        assert METRICS[name].admits(value, 2, 1), name
