"""Metrics by name: those that there are, those that a run asks for, and their values on some rows.

Each is one object of the table `METRICS`; scikit-learn's names stand for the same. Others' metrics and functions of
one's own have the same form (`outside_metrics`). A metric that has no value on some rows is left out there.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

from pydantic import ValidationError
from torch import Tensor

from polyfed.errors import ConfigError, nearest
from polyfed.learn.class_metrics import CLASS_METRICS
from polyfed.learn.metric import CONFUSION, NUMBER, Metric, Seen, SumList, Value, add
from polyfed.learn.number_metrics import NUMBER_METRICS
from polyfed.learn.outside_metrics import (
    SHAPE,
    MetricChoice,
    is_own,
    outside_metric,
    settings_told,
    sklearn_names,
)
from polyfed.plug_ins import REFERENCE
from polyfed.schema import LARGEST, explain
from polyfed.tasks import CLASSIFICATION, Task

METRICS: Mapping[str, Metric] = {metric.name: metric for metric in (*CLASS_METRICS, *NUMBER_METRICS)}
"""Every metric that has a name of its own."""

EVERY = "all"
ALIASES = {
    "average-precision-score": "pr-auc",
    "average-precision": "pr-auc",
    "balanced-accuracy-score": "balanced-accuracy",
    "brier-score-loss": "brier",
    "brier-score": "brier",
    "confusion-matrix": CONFUSION,
    "ece": "calibration-error",
    "f1-score": "f1",
    "f1-macro": "macro-f1",
    "f1-micro": "micro-f1",
    "matthews-corrcoef": "mcc",
    "mean-absolute-error": "mae",
    "mean-absolute-percentage-error": "mape",
    "precision-score": "precision",
    "r2-score": "r2",
    "recall-score": "recall",
    "sensitivity": "recall",
    "roc-auc": "auc",
    "roc-auc-score": "auc",
    "root-mean-squared-error": "rmse",
}
"""Other names, scikit-learn's among them."""

Metrics: TypeAlias = dict[str, Any]
"""By name a number; under `confusion` a square of counts."""
Wish: TypeAlias = str | MetricChoice
"""A metric as a run file asks for it: by its name alone, or of others and with settings."""


# -- as they are asked for ---------------------------------------------------------------------------------------


def read_wishes(given: Sequence[Any]) -> list[Wish]:
    """What a list in a run file asks for: in one order, each once; a `ValueError` if it names what there is not."""
    wishes = [_read_wish(each) for each in given]
    if EVERY in wishes:
        wishes = [EVERY, *(wish for wish in wishes if isinstance(wish, MetricChoice) or wish not in METRICS)]
    ours: list[Wish] = [name for name in (EVERY, *METRICS) if name in wishes]
    others: dict[str, Wish] = {}
    for wish in wishes:
        if isinstance(wish, MetricChoice):
            others[wish.label] = wish
        elif wish not in ours:
            others.setdefault(wish, wish)
    return [*ours, *others.values()]


def _read_wish(given: Any) -> Wish:
    if isinstance(given, MetricChoice):
        given = given.model_dump()
    if isinstance(given, str):
        return _read_name(given)
    if not isinstance(given, Mapping):
        told = f"{given!s:.60} is no metric: write a name, or {{name: fbeta_score, beta: 2}}"
        raise ValueError(told)  # noqa: TRY004  (of which pydantic makes a message)
    content = {"on" if key is True else key: value for key, value in given.items()}  # YAML reads on as true
    if "function" in content:
        content["name"] = content.pop("function")
    try:
        choice = MetricChoice(**content)
    except (ValidationError, TypeError) as error:
        told = explain(error, MetricChoice) if isinstance(error, ValidationError) else str(error)
        raise ValueError(f"of a metric, {told}") from None
    if choice.settings.keys() | choice.model_fields_set == {"name"}:
        return _read_name(choice.name)
    if not settings_told(choice.settings) or not SHAPE.fullmatch(choice.label):
        raise ValueError(
            f"{choice.name:.60}: settings of a metric are numbers, words, and short lists of them"
        )
    if _folded(choice.name) in METRICS and choice.name not in sklearn_names():
        raise ValueError(f"{choice.name} has no settings: write {_folded(choice.name)} alone")
    if choice.is_own and (choice.settings or choice.on != "answers"):
        raise ValueError(
            f"{choice.name} takes outputs, answers and labels by name, and no setting but smaller_is_better"
        )
    _check_outside(choice.name)
    return choice


def _folded(name: str) -> str:
    return name.strip().lower().replace("_", "-").replace(" ", "-")


def known_name(name: str) -> str:
    """The name that polyfed has for a metric; others' stay as they are."""
    folded = _folded(name)
    folded = ALIASES.get(folded, folded)
    return folded if folded in METRICS or folded == EVERY else name.strip()


def _read_name(name: str) -> str:
    found = known_name(name)
    if found not in METRICS and found != EVERY:
        _check_outside(found)
    return found


def _check_outside(name: str) -> None:
    """Refuse a name that is nobody's. A function of a module of one's own is not imported here."""
    if REFERENCE.fullmatch(name):
        return
    known = sklearn_names()
    if name not in known:
        words = [*METRICS, *known]
        raise ValueError(f"unknown metric '{name:.60}'; {nearest(name, words, 'polyfed metrics')}")


def own_functions(wishes: Iterable[Wish]) -> list[str]:
    """The functions of modules of the user's own among what is asked for."""
    names = [wish.name if isinstance(wish, MetricChoice) else wish for wish in wishes]
    return [name for name in names if is_own(name)]


def metrics_for(wishes: Sequence[Wish], task: Task) -> tuple[Metric, ...]:
    """The metrics that are asked for, ready for a task; a `ConfigError` if one is not for it or cannot be loaded."""
    found: list[Metric] = []
    for wish in wishes:
        if wish == EVERY:
            found += [metric for metric in METRICS.values() if metric.how_for(task) is not None]
        elif isinstance(wish, str) and wish in METRICS:
            if METRICS[wish].how_for(task) is None:
                suited = ", ".join(name for name, each in METRICS.items() if each.how_for(task) is not None)
                raise ConfigError(
                    f"evaluate.metrics: {wish} is for {' and '.join(METRICS[wish].how)}, not for task={task.name}:"
                    f" use {suited or 'a function of your own, my_module:cost'}"
                )
            found.append(METRICS[wish])
        else:
            choice = wish if isinstance(wish, MetricChoice) else MetricChoice(name=wish)
            found.append(outside_metric(choice, task))
    return tuple({metric.name: metric for metric in found}.values())


def wishes_of(metrics: Sequence[Metric]) -> list[Wish]:
    """What a run file asks for that asks for exactly these, with all that was left open decided."""
    return [
        metric.name if metric.name in METRICS else metric.choice  # type: ignore[attr-defined]
        for metric in metrics
    ]


def is_metric_name(name: str) -> bool:
    """Whether a metric can be called this: one that there is, or of others by the form of its name."""
    if name in METRICS:
        return True
    return SHAPE.fullmatch(name) is not None and ("_" in name or ":" in name)


def known_metric(name: str) -> Metric:
    """The metric of a name in a file: it says title, unit and range. Nothing is imported for it."""
    return METRICS.get(name) or Metric(name, name, least=-LARGEST, most=LARGEST, unit=NUMBER)


def asked_metric(name: str, wishes: Sequence[Wish]) -> Metric:
    """The metric of a name among those that a finished config asks for: as `known_metric`, and which is better."""
    smaller = {wish.label: wish.smaller_is_better for wish in wishes if isinstance(wish, MetricChoice)}
    metric = known_metric(name)
    return replace(metric, smaller_is_better=smaller.get(name) or metric.smaller_is_better)


# -- their values ------------------------------------------------------------------------------------------------


def metrics_of(
    outputs: Tensor, labels: Tensor, metrics: Sequence[Metric], task: Task = CLASSIFICATION
) -> Metrics:
    """These metrics on some rows, at least one; those that have no value here are left out."""
    seen = Seen(task, outputs, labels)
    found = {metric.name: metric.of(seen) for metric in metrics}
    return {name: value for name, value in found.items() if value is not None}


def sums_of(
    outputs: Tensor, labels: Tensor, metrics: Sequence[Metric], task: Task = CLASSIFICATION
) -> dict[str, SumList]:
    """The sums of which those of these metrics are made that add up; what has no value here is left out."""
    seen = Seen(task, outputs, labels)
    needed = {sums.name: sums for metric in metrics if (sums := metric.sums_for(task)) is not None}
    found = {name: sums.of(seen) for name, sums in needed.items()}
    return {name: value for name, value in found.items() if value is not None}


def added_value(metric: Metric, parts: Sequence[Mapping[str, SumList]], task: Task) -> Value | None:
    """A metric on the rows of several places together; None if one place has no value of its sums."""
    sums = metric.sums_for(task)
    if sums is None or not parts or any(sums.name not in part for part in parts):
        return None
    return metric.of_sums(add([part[sums.name] for part in parts]), task)


def admits_sums(value: Any, rows: int, outputs: int, metrics: Iterable[Metric], task: Task) -> bool:
    """Whether these can be the sums of metrics over so many rows: they may come from anybody."""
    known = {sums.name: sums for metric in metrics if (sums := metric.sums_for(task)) is not None}
    return isinstance(value, Mapping) and all(
        name in known and known[name].admits(each, rows, outputs) for name, each in value.items()
    )
