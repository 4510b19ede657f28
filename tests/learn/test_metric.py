"""What holds for every metric: whatever adds up does so, and nothing is let in that it cannot be."""

from __future__ import annotations

import math
import pickle
from collections.abc import Sequence
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

from polyfed import learn
from polyfed.data import CLASS_LABELS, NUMBER_LABELS, Targets
from polyfed.errors import ConfigError
from polyfed.learn import METRICS, Metric
from polyfed.learn.measures import added_value, admits_sums, metrics_for, metrics_of, sums_of
from polyfed.tasks import CLASSIFICATION, Binary, MultiLabel, Reading, Regression, Task, Trait
from polyfed.tasks.regression import Scale

TASKS: dict[str, tuple[Task, int]] = {
    "classification": (CLASSIFICATION, 5),
    "binary": (Binary(threshold=0.4).for_classes(["no", "yes"]), 2),
    "multilabel": (MultiLabel(), 4),
    "regression": (Regression(scale=Scale(mean=50.0, std=7.0)), 1),
}
ADDED = [
    (name, metric.name)
    for name, (task, _) in TASKS.items()
    for metric in metrics_for(["all"], task)
    if metric.sums_for(task) is not None
]


def rows_of(name: str, rows: int = 97, seed: int = 0) -> tuple[Task, Tensor, Tensor]:
    task, outputs = TASKS[name]
    stream = torch.Generator().manual_seed(seed)
    labels = task.examples(rows, outputs, stream)
    return task, torch.randn(rows, outputs, generator=stream), labels


@pytest.mark.parametrize(("task_name", "metric"), ADDED)
def test_cut_into_parts_and_added_it_is_that_of_all_rows(task_name: str, metric: str) -> None:
    task, outputs, labels = rows_of(task_name)
    asked = METRICS[metric]
    whole = metrics_of(outputs, labels, [asked], task)[metric]
    for sizes in ([97], [1, 96], [30, 30, 37], [1] * 97):
        cut = zip(outputs.split(sizes), labels.split(sizes), strict=True)
        parts = [sums_of(one, other, [asked], task) for one, other in cut]
        for part, rows in zip(parts, sizes, strict=True):
            assert admits_sums(part, rows, outputs.shape[1], [asked], task)
        assert added_value(asked, parts, task) == (
            whole if isinstance(whole, list) else pytest.approx(whole, rel=1e-12, abs=1e-12)
        )


def test_where_one_part_has_no_value_the_sum_has_none() -> None:
    task, outputs, labels = rows_of("regression", 4)
    labels[0] = 0.0  # of which nothing is a share
    parts = [sums_of(outputs[:2], labels[:2], [METRICS["mape"]], task)]
    parts += [sums_of(outputs[2:], labels[2:], [METRICS["mape"]], task)]
    assert added_value(METRICS["mape"], parts, task) is None
    assert added_value(METRICS["mape"], parts[1:], task) is not None
    assert METRICS["mape"].titled(task).endswith(" in %")  # beside scores that are none


def test_what_needs_the_order_of_all_rows_does_not_add_up() -> None:
    alone = {
        name for name, each in METRICS.items() if not isinstance(next(iter(each.how.values())), learn.Added)
    }
    assert alone == {"auc", "pr-auc", "median-absolute-error"}


@pytest.mark.parametrize("name", METRICS)
def test_a_metric_adds_up_for_all_its_tasks_or_for_none_and_goes_to_other_processes(name: str) -> None:
    metric = METRICS[name]
    assert len({type(how) for how in metric.how.values()}) == 1
    task, outputs, labels = rows_of(next(iter(metric.how)))
    copied = pickle.loads(pickle.dumps(metric))
    assert metrics_of(outputs, labels, [copied], task) == metrics_of(outputs, labels, [metric], task)


@pytest.mark.parametrize("name", [name for name in METRICS if name != "confusion"])
def test_a_value_outside_of_its_range_is_not_let_in(name: str) -> None:
    metric = METRICS[name]
    beyond = [metric.least - max(1e-6, 1e-6 * abs(metric.least)), metric.most + max(1e-6, 1e-6 * metric.most)]
    for value in (*beyond, math.nan, math.inf, -math.inf, True, None, "0.5", [0.5], 10**400, torch.zeros(1)):
        assert not metric.admits(value, 4, 2), value
    assert metric.admits(metric.least, 4, 2) and metric.admits(metric.most, 4, 2)


WRONG: list[Any] = [None, 3, "x", [], [1], {}, [[1]], [[-1, 5], [0, 0]], [[1.5, 2.5], [0, 0]], torch.ones(4)]


@pytest.mark.parametrize("task_name", TASKS)
def test_sums_that_rows_cannot_have_are_not_let_in(task_name: str) -> None:
    task, outputs, labels = rows_of(task_name, 4)
    asked = metrics_for(["all"], task)
    honest = sums_of(outputs, labels, asked, task)
    assert admits_sums(honest, 4, outputs.shape[1], asked, task)
    assert not admits_sums(honest, 5, outputs.shape[1], asked, task)  # of other rows
    assert not admits_sums({"anything": [1, 2]}, 4, outputs.shape[1], asked, task)
    assert not admits_sums([honest], 4, outputs.shape[1], asked, task)
    assert not admits_sums(honest, 4, outputs.shape[1], [], task)  # that nobody asked for
    for name, value in honest.items():
        larger = [10**400, *value[1:]], [math.nan, *value[1:]], [*value, 1]
        for bad in (*WRONG, *larger):
            assert not admits_sums({name: bad}, 4, outputs.shape[1], asked, task), (name, bad)


def test_squares_of_several_sizes_are_added_as_if_zeros_were_behind() -> None:
    assert learn.add([[[1]], [[1, 2], [3, 4]]]) == [[2, 2], [3, 4]]
    assert learn.add([[1.5, 2], [0.5, 3]]) == [2.0, 5]


def test_what_is_rounded_out_of_its_range_is_put_back() -> None:
    how = learn.InPlace(lambda seen: 1 + 1e-15)
    metric = Metric("half", "half", {learn.Family.CLASSES: how})
    assert metrics_of(torch.eye(2), torch.tensor([0, 1]), [metric]) == {"half": 1.0}


class Poisson(Task):
    """Counts, of which a model gives the logarithm."""

    name = "poisson"
    summary = "counts"
    measure = "deviance"
    targets: ClassVar[Targets] = NUMBER_LABELS
    traits = frozenset({Trait.TABLE})

    def loss(self, outputs: Tensor, labels: Tensor, *, each: bool = False) -> Tensor:
        raise NotImplementedError

    def answer(self, outputs: Tensor, temperature: float = 1.0) -> Tensor:
        raise NotImplementedError

    def divergence(self, outputs: Tensor, answer: Tensor, temperature: float = 1.0) -> Tensor:
        raise NotImplementedError

    def tally(self, outputs: Tensor, labels: Tensor) -> list[Any]:
        raise NotImplementedError

    def tally_of(self, said: Sequence[Any], true: Sequence[Any]) -> list[Any]:
        raise NotImplementedError

    def blind(self, labels: Tensor) -> float:
        raise NotImplementedError

    def read(self, outputs: Tensor, words: Sequence[str]) -> Reading:
        return Reading(outputs[:, 0].double().exp().tolist(), [], outputs[:, :0])


class Tagging(Poisson):
    """Nothing that metrics are made for."""

    name = "tagging"
    targets = CLASS_LABELS


def test_a_task_of_ones_own_is_measured_by_what_it_says_of_its_outputs() -> None:
    outputs, y = torch.tensor([[0.0], [math.log(4.0)]]), torch.tensor([3.0, 4.0])
    found = metrics_of(outputs, y, metrics_for(["mae", "r2"], Poisson()), Poisson())
    assert found == {
        "mae": pytest.approx(1.0),
        "r2": pytest.approx(1 - 4 / 0.5),
    }  # 1 and 4 are said of 3 and 4


def test_for_a_task_of_another_kind_there_are_functions_of_ones_own_alone() -> None:
    assert metrics_for(["all"], Tagging()) == ()
    for name in ("recall", "cohen_kappa_score"):
        with pytest.raises(
            ConfigError, match=r"not for task=tagging: .*a function of your own, my_module:cost"
        ):
            metrics_for([name], Tagging())
