"""Tasks by name; mistakes in them in one line, before anything is run."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from polyfed import tasks
from polyfed.errors import TaskError, UserError
from polyfed.runs.config import read_config
from polyfed.tasks import Binary, MultiLabel, Regression, Task, Trait


def test_the_known_tasks() -> None:
    assert list(tasks.registered()) == ["classification", "binary", "multilabel", "regression"]
    with pytest.raises(TaskError, match="a task named 'binary' is registered already"):
        tasks.register(tasks.registered()["binary"])


@pytest.mark.parametrize(
    ("task", "reason"),
    [
        ("regresion", "unknown task 'regresion'; did you mean 'regression'"),
        ({"name": "binary", "treshold": 0.3}, "task.treshold: unknown key, did you mean 'threshold'"),
        ({"name": "binary", "threshold": 1.5}, "task.threshold"),
        ({"name": "regression", "scale": {"mean": 1, "std": 0}}, "std"),
        ({"name": "classification", "class_weights": {"a": 0}}, "class_weights"),
        ("json:loads", "task 'json:loads' is not a class of"),
        ("no_module_of_this_name:Tagging", "cannot be loaded: .*No module named"),
    ],
)
def test_a_mistake_is_told_in_one_line(task: Any, reason: str) -> None:
    with pytest.raises(UserError, match=reason) as told:
        read_config({"task": task}).make_task()
    assert "\n" not in str(told.value)


def test_a_run_file_that_is_only_read_runs_nobodys_code() -> None:
    assert (
        read_config({"task": "no_module_of_this_name:Tagging"}).task.name == "no_module_of_this_name:Tagging"
    )


def test_what_a_method_needs_of_a_task() -> None:
    lacking = {
        name: tasks.lacking(kind(), {Trait.PROBABILITIES: ""}) for name, kind in tasks.registered().items()
    }
    assert lacking == {
        "classification": None,
        "binary": None,
        "multilabel": None,
        "regression": Trait.PROBABILITIES,
    }
    assert issubclass(tasks.find("regression"), Task)


def test_classes_that_are_numbers_need_no_quotes() -> None:
    config = read_config({"task": {"name": "binary", "positive": 1, "class_weights": {1: 20, 0: 2}}})
    task = config.make_task().for_classes(("0", "1"))
    outputs = torch.zeros(2, 2)
    assert task.loss(outputs, torch.tensor([1, 0]), each=True).tolist() == pytest.approx(
        [20 * math.log(2), 2 * math.log(2)]
    )
    assert isinstance(task, Binary) and task.positive_place == 1


@pytest.mark.parametrize(
    ("task", "reason"),
    [
        ({"name": "regression", "scale": {"mean": 1, "std": 0}}, "task.scale.std: must be above 0, not 0"),
        ({"name": "binary", "class_weights": {"ill": 0}}, "task.class_weights.ill: must be above 0, not 0"),
        ({"name": "binary", "class_weights": {"ill": 1e9}}, "task.class_weights.ill: must be at most 1e+06"),
        ({"name": "binary", "class_weights": "rare"}, "task.class_weights: must be 'balanced' or "),
    ],
)
def test_what_is_wrong_inside_of_a_section_is_told(task: Any, reason: str) -> None:
    with pytest.raises(UserError) as caught:
        read_config({"task": task})
    assert str(caught.value).startswith(reason) and "more)" not in str(caught.value)


def test_numbers_are_told_with_all_their_digits() -> None:
    answer = float(torch.tensor(1000050.25))
    assert float(Regression().as_told(answer)) == answer


def test_several_classes_are_told_apart_also_where_their_names_have_spaces() -> None:
    told = [MultiLabel().as_told(answer) for answer in (("deep", "crack"), ("deep crack",))]
    assert told == ["deep + crack", "deep crack"]
