"""Metrics of others: any of `sklearn.metrics` or torchmetrics by its name, and functions of the user's own.

Of others it is not known whether they add up, so they are computed where the rows are.
"""

from __future__ import annotations

import importlib
import inspect
import re
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict, Field

from polyfed import plug_ins
from polyfed.errors import ConfigError, RunError, describe, place_in_users_code
from polyfed.learn.class_metrics import load_metrics
from polyfed.learn.metric import NUMBER, Array, Family, InPlace, Metric, Seen, family_of
from polyfed.schema import LARGEST, SECTION
from polyfed.tasks import Task

TORCHMETRICS = "torchmetrics:"
SMALLER = re.compile(r"(loss|error|deviance)(\(|$)")
"""The ends of names of what is better if it is smaller: scikit-learn keeps to it."""
SCORES = ("y_score", "y_prob", "y_proba")
SHAPE = re.compile(
    r"([a-z]\w{1,60}|torchmetrics:[a-z]\w{1,60}|[a-z_][\w.]{0,99}:[a-z_]\w{0,99})(\([\w=., '\[\]-]{0,120}\))?",
    re.ASCII | re.IGNORECASE,
)
"""What the name of a metric of others looks like: `fbeta_score(beta=2)`, `my_module:cost`."""
ROWS = 24  # of a trial


class MetricChoice(BaseModel):
    """A metric of others and its settings: `{name: fbeta_score, beta: 2}`, `{function: my_module:cost}`."""

    model_config = ConfigDict(**{**SECTION, "extra": "allow"})

    name: str = Field(max_length=200)
    """Of a function of `sklearn.metrics`, `torchmetrics:matthews_corrcoef`, or `my_module:cost`."""
    on: Literal["answers", "outputs"] = "answers"
    """Whether a function of scikit-learn is given answers, or outputs: probabilities, or numbers."""
    smaller_is_better: bool | None = None
    """Told by the name's end (loss, error) or the function's attribute `smaller_is_better`, if it is not set."""

    @property
    def settings(self) -> dict[str, Any]:
        """What the function is given beside outputs and labels."""
        return dict(self.model_extra or {})

    @property
    def is_own(self) -> bool:
        """Whether it is a function of a module of the user's own."""
        return is_own(self.name)

    @property
    def label(self) -> str:
        """What it is called in files and tables: its name and its settings."""
        told = ", ".join(f"{key}={value}" for key, value in self.settings.items())
        return f"{self.name}({told})" if told else self.name


def is_own(name: str) -> bool:
    """Whether a metric's name stands for a function of a module of the user's own."""
    return plug_ins.REFERENCE.fullmatch(name) is not None and not name.startswith(TORCHMETRICS)


@dataclass(frozen=True, kw_only=True)
class OutsideMetric(Metric):
    """A metric of others: a plain number of any size, computed where the rows are."""

    least: float = -LARGEST
    most: float = LARGEST
    unit: str = NUMBER
    choice: MetricChoice = field(default_factory=lambda: MetricChoice(name=""))

    def how_for(self, task: Task) -> InPlace:
        return InPlace(self._value)

    def _in_range(self, value: Any) -> float | None:
        if value is None or np.isnan(value):
            return None
        if not self.least <= value <= self.most:
            raise RunError(f"metric {self.name} gave {value:g}: numbers up to {LARGEST:g} are kept")
        return float(value)

    def _value(self, seen: Seen) -> float | None:
        if self.choice.is_own:
            return _own_value(self.choice.name, seen)
        call = _torchmetrics_value if self.choice.name.startswith(TORCHMETRICS) else _sklearn_value
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                return _number(self.name, call(self.choice, seen))
        except (ValueError, RuntimeError, IndexError, ZeroDivisionError) as error:
            # It was tried before the run: these rows have no value, such as those of a single class.
            plug_ins.warn_once(f"metric {self.name} has no value on some rows: {describe(error)}")
            return None


def outside_metric(choice: MetricChoice, task: Task) -> OutsideMetric:
    """The metric that a choice stands for, tried on a few rows; a `ConfigError` if it cannot be used for a task."""
    own = choice.is_own
    function = _own_function(choice.name) if own else None
    smaller = choice.smaller_is_better
    if smaller is None:
        smaller = bool(getattr(function, "smaller_is_better", False)) if own else _told_by_name(choice.name)
    metric = OutsideMetric(
        name=choice.label,
        title=choice.label,
        smaller_is_better=smaller,
        choice=choice.model_copy(update={"smaller_is_better": smaller}),
    )
    if not own:
        _try(metric.choice, task)
    return metric


def _told_by_name(name: str) -> bool:
    return SMALLER.search(name) is not None


def _number(name: str, value: Any) -> float:
    if isinstance(value, torch.Tensor):
        value = value.detach().cpu().numpy()
    if (
        isinstance(value, bool | np.bool_)
        or np.ndim(value)
        or not np.issubdtype(np.array(value).dtype, np.number)
    ):
        shown = f"an array of shape {np.shape(value)}" if np.ndim(value) else f"a {type(value).__name__}"
        raise TypeError(f"metric {name} gave {shown}, not a number")
    if np.iscomplexobj(value):
        raise TypeError(f"metric {name} gave a complex number")
    return float(value)


# -- a function of one's own -------------------------------------------------------------------------------------


def _own_function(name: str) -> Callable[..., Any]:
    function = plug_ins.named_function(name, "metric", ConfigError, " of outputs, answers and labels")
    # What it takes is known now, so a mistake in its arguments is told before a run.
    plug_ins.taken_of(
        function, dict.fromkeys(("outputs", "answers", "labels")), f"metric {name}", ConfigError
    )
    return function


def _own_value(name: str, seen: Seen) -> float | None:
    function = _own_function(name)
    # Copies: what a function writes into them is its own affair.
    known = {"outputs": seen.readable, "answers": seen.said, "labels": seen.truth}
    wanted = plug_ins.taken_of(function, known, f"metric {name}", ConfigError)
    try:
        value = function(**{key: array.copy() for key, array in wanted.items()})
    except Exception as error:
        place = place_in_users_code(error)
        raise RunError(f"metric {name} failed{f' at {place}' if place else ''}: {describe(error)}") from error
    if value is None:
        return None
    try:
        return _number(name, value)
    except (TypeError, ValueError) as error:
        raise RunError(str(error)) from None


# -- scikit-learn's and torchmetrics' ----------------------------------------------------------------------------


def sklearn_names() -> list[str]:
    """The functions of `sklearn.metrics` that compare labels with what a model says."""
    library = load_metrics()
    return [name for name in library.__all__ if _compares(getattr(library, name))]


def _compares(function: Any) -> bool:
    if not inspect.isfunction(function):
        return False
    first, second, *_ = [*inspect.signature(function).parameters, "", ""]
    return (first, second) == ("y1", "y2") or (first == "y_true" and second in ("y_pred", *SCORES))


def _sklearn_value(choice: MetricChoice, seen: Seen) -> Any:
    truth, said, outputs = seen.truth, seen.said, seen.readable
    if family_of(seen.task) is Family.TWO:
        truth, said = (truth == seen.positive).astype(int), (said == seen.positive).astype(int)
        outputs = outputs[:, seen.positive]
    return _call_sklearn(choice, truth, outputs if choice.on == "outputs" else said, family_of(seen.task))


def _call_sklearn(choice: MetricChoice, truth: Array, said: Array, family: Family | None) -> Any:
    function = getattr(load_metrics(), choice.name)
    settings = choice.settings
    parameters = inspect.signature(function).parameters
    if "average" in parameters and family in (Family.CLASSES, Family.SEVERAL):
        settings = {"average": "macro", **settings}
    return function(truth, said, **settings)


def _torchmetrics_value(choice: MetricChoice, seen: Seen) -> Any:
    function = _torchmetrics_function(choice.name)
    said = torch.from_numpy(seen.readable)
    labels = torch.from_numpy(seen.truth)
    if family_of(seen.task) is Family.TWO:
        said, labels = said[:, seen.positive], (labels == seen.positive).long()
    elif family_of(seen.task) is Family.SEVERAL:
        labels = labels.long()
    return function(said, labels, **choice.settings)


def _torchmetrics_function(name: str) -> Callable[..., Any]:
    try:
        library = importlib.import_module("torchmetrics.functional")
    except ImportError:
        raise ConfigError(
            f"evaluate.metrics: {name} needs torchmetrics, which is not installed: pip install torchmetrics"
        ) from None
    function = getattr(library, name.removeprefix(TORCHMETRICS), None)
    if not callable(function):
        raise ConfigError(
            f"evaluate.metrics: torchmetrics.functional has no '{name.removeprefix(TORCHMETRICS)}'"
        )
    return function  # type: ignore[no-any-return]


def _try(choice: MetricChoice, task: Task) -> None:
    """Compute a metric of others on a few rows that any would take, or say what is wrong with its settings."""
    family = family_of(task)
    if family is None:
        raise ConfigError(
            f"evaluate.metrics: {choice.name} is not for task={task.name}: give a function of your own, my_module:cost"
        )
    if not choice.name.startswith(TORCHMETRICS):
        _check_takes(choice)
    truth, said, shares = _examples(family)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if choice.name.startswith(TORCHMETRICS):
                outputs = torch.from_numpy(shares)
                value = _torchmetrics_function(choice.name)(
                    outputs, torch.from_numpy(truth), **choice.settings
                )
            else:
                value = _call_sklearn(choice, truth, shares if choice.on == "outputs" else said, family)
            _number(choice.name, value)
    except ConfigError:
        raise
    except Exception as error:
        raise ConfigError(
            f"evaluate.metrics: {choice.label} cannot be used with task={task.name}: {describe(error)}; settings go"
            f" beside its name, {{name: {choice.name}, …}}"
        ) from None


def _check_takes(choice: MetricChoice) -> None:
    second = list(inspect.signature(getattr(load_metrics(), choice.name)).parameters)[1]
    if second in SCORES and choice.on == "answers":
        raise ConfigError(
            f"evaluate.metrics: {choice.name} takes scores, not answers: write {{name: {choice.name}, on: outputs}}"
        )


def _examples(family: Family) -> tuple[Array, Array, Array]:
    """Labels, answers and outputs of a few rows: three classes, two, or numbers above 0."""
    random = np.random.default_rng(0)
    truth: Array
    said: Array
    if family is Family.NUMBERS:
        truth = np.linspace(1.0, 2.0, ROWS)
        return truth, truth[::-1].copy(), truth[::-1].copy()
    if family is Family.SEVERAL:
        truth = random.integers(2, size=(ROWS, 3))
        shares = random.random((ROWS, 3))
        return truth, (shares > 0.5).astype(int), shares
    count = 2 if family is Family.TWO else 3
    truth = np.arange(ROWS) % count
    shares = random.random((ROWS, count))
    shares /= shares.sum(axis=1, keepdims=True)
    said = shares.argmax(axis=1)
    return truth, said, shares[:, 1] if family is Family.TWO else shares


def settings_told(settings: Mapping[str, Any]) -> bool:
    """Whether settings are such as a run file may hold: numbers, words and lists of them, and few."""
    return len(settings) <= 10 and all(
        isinstance(value, bool | int | float | str | None)
        or (isinstance(value, list) and all(isinstance(each, bool | int | float | str) for each in value))
        for value in settings.values()
    )
