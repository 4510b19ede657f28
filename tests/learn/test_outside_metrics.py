from __future__ import annotations

import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn import metrics as reference
from torch import Tensor

from polyfed import plug_ins
from polyfed.errors import ConfigError, RunError
from polyfed.learn import metrics_for, metrics_of, read_wishes
from polyfed.learn.measures import is_metric_name
from polyfed.tasks import CLASSIFICATION, Binary, Regression, Task
from polyfed.tasks.regression import Scale

BINARY = Binary(positive="ill", threshold=0.3).for_classes(["ill", "well"])
NUMBERS = Regression(scale=Scale(mean=10.0, std=2.0))
OWN = """
import numpy as np

def cost(answers, labels):
    return 20 * np.sum((labels == 0) & (answers != 0)) + np.sum((labels != 0) & (answers == 0))

cost.smaller_is_better = True

def gap(outputs, labels):
    labels[:] = 0  # its own copy
    return outputs[:, 0].mean()

def nothing(labels):
    return None

def unknown(labels):
    return float("nan")

def words(labels):
    return "good"

def many(labels):
    return labels

def broken(labels):
    return 1 / 0

def huge(labels):
    return 1e31

def wants(logits):
    return 1.0

number = 3
"""


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    (tmp_path / "my_costs.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    yield
    plug_ins.named_function.cache_clear()
    sys.modules.pop("my_costs", None)


def rows(count: int = 60, columns: int = 2) -> tuple[Tensor, Tensor]:
    stream = torch.Generator().manual_seed(0)
    return torch.randn(count, columns, generator=stream), torch.arange(count) % columns


def measured(wish: Any, outputs: Tensor, y: Tensor, task: Task = CLASSIFICATION) -> dict[str, Any]:
    return metrics_of(outputs, y, metrics_for(read_wishes([wish]), task), task)


# -- scikit-learn's ----------------------------------------------------------------------------------------------


def test_any_of_scikit_learn_goes_by_its_name_and_settings() -> None:
    outputs, y = rows(columns=4)
    said = outputs.argmax(dim=1)
    assert measured("cohen_kappa_score", outputs, y) == {
        "cohen_kappa_score": pytest.approx(reference.cohen_kappa_score(y, said))
    }
    assert measured({"name": "fbeta_score", "beta": 2}, outputs, y) == {
        "fbeta_score(beta=2)": pytest.approx(reference.fbeta_score(y, said, beta=2, average="macro"))
    }
    assert measured({"name": "top_k_accuracy_score", "on": "outputs", "k": 2}, outputs, y) == {
        "top_k_accuracy_score(k=2)": pytest.approx(reference.top_k_accuracy_score(y, outputs, k=2))
    }


def test_of_two_classes_it_is_given_the_one_that_is_looked_for() -> None:
    outputs, y = rows()
    said = outputs.double().softmax(dim=1)[:, 0] >= 0.3
    expected = reference.fbeta_score(y == 0, said, beta=0.5)
    assert measured({"name": "fbeta_score", "beta": 0.5}, outputs, y, BINARY) == {
        "fbeta_score(beta=0.5)": pytest.approx(expected)
    }


def test_of_numbers_it_is_given_them_in_their_unit() -> None:
    outputs, y = torch.tensor([[0.0], [1.0]]), torch.tensor([9.0, 15.0])
    assert measured("max_error", outputs, y, NUMBERS) == {"max_error": pytest.approx(3.0)}


@pytest.mark.parametrize(
    ("wish", "task", "reason"),
    [
        ({"name": "fbeta_score"}, CLASSIFICATION, "beta"),
        ({"name": "fbeta_score", "beta": -1}, CLASSIFICATION, "beta"),
        ({"name": "fbeta_score", "bta": 2}, CLASSIFICATION, "bta"),
        ({"name": "f1_score", "average": None}, CLASSIFICATION, "not a number"),
        ("classification_report", CLASSIFICATION, "not a number"),
        ("roc_curve", BINARY, r"takes scores, not answers: write \{name: roc_curve, on: outputs\}"),
        ("top_k_accuracy_score", CLASSIFICATION, "on: outputs"),
        ("cohen_kappa_score", NUMBERS, "cannot be used with task=regression"),
    ],
)
def test_settings_that_do_not_fit_are_refused_before_a_run(wish: Any, task: Task, reason: str) -> None:
    with pytest.raises(ConfigError, match=rf"^evaluate\.metrics: [^\n]*{reason}[^\n]*$"):
        metrics_for(read_wishes([wish]), task)


def test_smaller_is_better_where_scikit_learns_name_says_so_or_the_run_file_does() -> None:
    names = ["zero_one_loss", "cohen_kappa_score", {"name": "accuracy_score", "smaller_is_better": True}]
    found = metrics_for(read_wishes(names), CLASSIFICATION)
    assert [metric.smaller_is_better for metric in found] == [True, False, True]
    (error,) = metrics_for(read_wishes(["mean_squared_error"]), NUMBERS)
    assert error.smaller_is_better


def test_rows_that_scikit_learn_refuses_have_no_value(caplog: pytest.LogCaptureFixture) -> None:
    outputs, y = torch.tensor([[-9.0], [0.0]]), torch.tensor([9.0, 15.0])
    assert measured("mean_gamma_deviance", outputs, y, NUMBERS) == {}  # of numbers above 0
    assert "metric mean_gamma_deviance has no value on some rows" in caplog.text


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ("recal", "unknown metric 'recal'; did you mean 'recall'?"),
        ("silhouette_score", "unknown metric 'silhouette_score'"),
        ("make_scorer", "unknown metric"),
        ({"name": "recall", "beta": 2}, "recall has no settings: write recall alone"),
        ({"name": "os:abort", "beta": 2}, "takes outputs, answers and labels by name"),
        ({"beta": 2}, "of a metric, name: is missing"),
        ({"name": "fbeta_score", "beta": {"x": 1}}, "settings of a metric are numbers"),
        ({"name": "fbeta_score", "on": "x"}, "of a metric, on: must be 'answers' or 'outputs'"),
        (3, "3 is no metric"),
    ],
)
def test_what_is_no_metric_is_refused_in_words(given: Any, reason: str) -> None:
    with pytest.raises(ValueError, match=r"\w") as raised:
        read_wishes([given])
    assert reason in str(raised.value)


def test_names_in_files_have_the_form_of_names() -> None:
    for name in ("recall", "fbeta_score(beta=2)", "f1_score(average=micro, labels=[0, 1])", "my_module:cost"):
        assert is_metric_name(name), name
    for name in (
        "",
        "anything",
        "x" * 300,
        "a b",
        "../..",
        "my_module:cost(x)\n",
        "\x1b[31m",
        "f_(" + "x" * 200,
    ):
        assert not is_metric_name(name), name


# -- of one's own ------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("own")
def test_a_function_of_ones_own_takes_what_it_names() -> None:
    outputs, y = rows()
    said = outputs.double().softmax(dim=1)[:, 0].numpy() >= 0.3
    missed = ((y == 0).numpy() & ~said).sum()
    alarms = ((y != 0).numpy() & said).sum()
    assert measured("my_costs:cost", outputs, y, BINARY) == {"my_costs:cost": 20.0 * missed + alarms}
    shares = outputs.double().softmax(dim=1)[:, 0].mean()
    assert measured("my_costs:gap", outputs, y) == {"my_costs:gap": pytest.approx(float(shares))}
    assert y.sum() == 30  # it had a copy


@pytest.mark.usefixtures("own")
def test_a_function_says_which_end_is_better_and_a_run_file_may_say_otherwise() -> None:
    wishes = ["my_costs:cost", "my_costs:gap"]
    assert [each.smaller_is_better for each in metrics_for(wishes, CLASSIFICATION)] == [True, False]
    given = read_wishes([{"function": "my_costs:cost", "smaller_is_better": False}])
    assert not metrics_for(given, CLASSIFICATION)[0].smaller_is_better


@pytest.mark.usefixtures("own")
@pytest.mark.parametrize("name", ["nothing", "unknown"])
def test_none_and_nan_are_no_value(name: str) -> None:
    assert measured(f"my_costs:{name}", *rows()) == {}


@pytest.mark.usefixtures("own")
@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("words", r"metric my_costs:words gave a str, not a number"),
        ("many", r"metric my_costs:many gave an array of shape \(60,\), not a number"),
        ("broken", r"metric my_costs:broken failed at my_costs\.py:\d+: ZeroDivisionError: division by zero"),
        ("huge", r"metric my_costs:huge gave 1e\+31: numbers up to 1e\+30 are kept"),
    ],
)
def test_what_a_function_gives_wrongly_is_told_with_its_place(name: str, reason: str) -> None:
    with pytest.raises(RunError, match=f"^{reason}$"):
        measured(f"my_costs:{name}", *rows())


@pytest.mark.usefixtures("own")
@pytest.mark.parametrize(
    ("name", "reason"),
    [
        (
            "my_costs:wants",
            "metric my_costs:wants wants 'logits': its arguments may be called outputs, answers and",
        ),
        ("my_costs:number", "is a int: name a function of outputs, answers and labels"),
        ("my_costs:none_there", "cannot be loaded"),
        ("no_such_module:cost", "start polyfed where no_such_module.py is"),
    ],
)
def test_a_function_that_cannot_be_used_is_refused_before_a_run(name: str, reason: str) -> None:
    with pytest.raises(ConfigError) as raised:
        metrics_for([name], CLASSIFICATION)
    assert reason in str(raised.value)


# -- torchmetrics' -----------------------------------------------------------------------------------------------


def test_without_torchmetrics_it_is_said_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torchmetrics", None)
    monkeypatch.setitem(sys.modules, "torchmetrics.functional", None)
    with pytest.raises(ConfigError, match=r"not installed: pip install torchmetrics$"):
        metrics_for(["torchmetrics:matthews_corrcoef"], CLASSIFICATION)


def test_a_function_of_torchmetrics_is_given_outputs_and_labels(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stand-in with the library's call: `preds` and `target` as tensors, settings by name."""
    library = types.ModuleType("torchmetrics.functional")

    def right(preds: Tensor, target: Tensor, *, top: int = 1) -> Tensor:
        return (preds.topk(top, dim=1).indices == target[:, None]).any(dim=1).double().mean()

    library.right = right  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "torchmetrics", types.ModuleType("torchmetrics"))
    monkeypatch.setitem(sys.modules, "torchmetrics.functional", library)
    outputs, y = rows(columns=3)
    best = outputs.topk(2, dim=1).indices.numpy()
    assert measured({"name": "torchmetrics:right", "top": 2}, outputs, y) == {
        "torchmetrics:right(top=2)": pytest.approx(np.mean([y[row] in best[row] for row in range(60)]))
    }
    with pytest.raises(ConfigError, match=r"torchmetrics\.functional has no 'wrong'"):
        metrics_for(["torchmetrics:wrong"], CLASSIFICATION)
