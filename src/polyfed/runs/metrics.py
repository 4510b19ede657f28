"""What the scores of the clients say: mean, worst, best, spread; AMP, FM, WLP; by architecture; further metrics.

Scores are the task's: shares from 0 to 1, or errors. `own` is a client's own test rows, `whole` the whole
test set, and `others` the other clients' test rows where the whole set is made of these. FedH2L calls their means WDP,
ACC and CDP.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, cast

from polyfed import learn
from polyfed.federation.message import Kind
from polyfed.federation.nodes import Measurement, Part
from polyfed.learn import CONFUSION, Metric
from polyfed.tasks import CLASSIFICATION, Tally, Task

if TYPE_CHECKING:
    from polyfed.runs.config import Evaluation

Summary = dict[str, Any]

PARTS: tuple[Part, ...] = ("own", "whole", "others")
SERVER_MODEL = "global"  # the stage at which methods measure a model that is the server's own

# What is in a line of the history itself; all else is in its summary.
_OF_THE_LINE = ("stages", "server", "server_metrics", "bytes", "clients", "noted")

ReportedRound = Literal["last", "chosen"]
"""Results are reported at the last round, and at the one chosen on validation."""
REPORTED_ROUNDS: tuple[ReportedRound, ReportedRound] = ("last", "chosen")


def spread_of(values: Sequence[float], *, smaller_is_better: bool = False) -> dict[str, float]:
    """Mean, worst, best, and spread (population standard deviation) over clients."""
    low, high = min(values), max(values)
    worst, best = (high, low) if smaller_is_better else (low, high)
    return {
        "mean": statistics.fmean(values),
        "worst": worst,
        "best": best,
        "spread": statistics.pstdev(values),
    }


def mean_and_spread(values: Sequence[float]) -> tuple[float, float | None]:
    """Mean and spread (sample standard deviation, n − 1) over seeds; a single value has no spread."""
    return statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else None


def amp(scores: Sequence[Tally], task: Task = CLASSIFICATION) -> float:
    """Averaged model performance (FedKF, Definition 1): the score over all clients' test rows together."""
    return task.value(added_tallies(scores))


def fm(scores: Sequence[Tally], task: Task = CLASSIFICATION) -> float:
    """Fairness metric (FedKF, Definition 2): population variance of the clients' scores."""
    return statistics.pvariance([task.value(score) for score in scores])


def wlp(scores: Sequence[Tally], task: Task = CLASSIFICATION) -> float:
    """Worst-case local performance (FedKF, Definition 3): the worst of the clients' scores."""
    values = [task.value(score) for score in scores]
    return max(values) if task.smaller_is_better else min(values)


def added_tallies(tallies: Sequence[Tally]) -> Tally:
    """The tally of all rows together."""
    return [sum(total for total, _ in tallies), sum(rows for _, rows in tallies)]


def summarise(
    scores: Mapping[int, Measurement],
    architecture: Callable[[int], str],
    task: Task = CLASSIFICATION,
    metrics: Sequence[Metric] = (),
) -> Summary:
    """Everything that is reported about one evaluation. metrics: that were asked for, where some are others'."""
    summary: Summary = {}
    for part in PARTS:
        values = [task.value(score[part]) for score in scores.values() if part in score]
        if values:
            summary[part] = spread_of(values, smaller_is_better=task.smaller_is_better)
    own = [score["own"] for score in scores.values() if "own" in score]
    if own:
        summary |= {"amp": amp(own, task), "fm": fm(own, task), "wlp": wlp(own, task)}
    validation = [score["validation"] for score in scores.values() if "validation" in score]
    if validation:
        summary["validation"] = amp(validation, task)
    further = _summarise_metrics(list(scores.values()), metrics)
    if further:
        summary["metrics"] = further
    groups: dict[str, list[Measurement]] = {}
    for index, score in scores.items():
        groups.setdefault(architecture(index), []).append(score)
    summary["architectures"] = {
        name: {
            part: statistics.fmean(task.value(score[part]) for score in members if part in score)
            for part in PARTS
            if any(part in score for score in members)
        }
        for name, members in groups.items()
    }
    return summary


def _summarise_metrics(scores: Sequence[Measurement], asked: Sequence[Metric]) -> Summary:
    """By part and name: mean, worst, best and spread over the clients where a metric has a value; None if nowhere.

    Confusion matrices are added.
    """
    known = {metric.name: metric for metric in asked}
    found: dict[str, dict[str, list[Any]]] = {}
    for score in scores:
        for part, metrics in score.get("metrics", {}).items():
            for name, value in metrics.items():
                values = found.setdefault(part, {}).setdefault(name, [])
                if value is not None:
                    values.append(value)
    return {
        part: {
            name: _over_clients(known.get(name) or learn.known_metric(name), values)
            for name, values in metrics.items()
        }
        for part, metrics in found.items()
    }


def _over_clients(metric: Metric, values: Sequence[Any]) -> Any:
    if not values:
        return None
    if metric.name == CONFUSION:
        return learn.add(list(values))
    return spread_of(values, smaller_is_better=metric.smaller_is_better)


def with_nulls(score: Measurement, asked: Sequence[Metric]) -> Measurement:
    """A measurement with None for every metric that has no value, such as the AUC of a single class; without sums."""
    found = {part: value for part, value in score.items() if part != "sums"}
    if "metrics" in score:
        found["metrics"] = {
            part: {metric.name: values.get(metric.name) for metric in asked}
            for part, values in score["metrics"].items()
        }
    return cast("Measurement", found)


def added(scores: Sequence[Measurement], asked: Sequence[Metric], task: Task = CLASSIFICATION) -> Measurement:
    """What one model reaches on several clients' own rows, in one.

    Sums are added, and with them every metric that adds up; of other metrics, the mean over clients that have a value.

    asked: what is asked for beside the task's own score.
    """
    own = [score["own"] for score in scores if "own" in score]
    if not own:
        return {}
    found: Measurement = {"own": added_tallies(own)}
    if asked:
        looked = [score for score in scores if "own" in score]
        found["metrics"] = {"own": {metric.name: _over_places(metric, looked, task) for metric in asked}}
    return found


def _over_places(metric: Metric, scores: Sequence[Measurement], task: Task) -> Any:
    if metric.sums_for(task) is not None:
        return learn.added_value(metric, [score.get("sums", {}).get("own", {}) for score in scores], task)
    found = [score.get("metrics", {}).get("own", {}).get(metric.name) for score in scores]
    values = [value for value in found if value is not None]
    return statistics.fmean(values) if values else None


def with_others(score: Measurement) -> Measurement:
    """A score with its part on the other clients' rows of the whole test set (cross-domain performance)."""
    if "own" not in score or "whole" not in score:
        return score
    total, rows = (whole - own for whole, own in zip(score["whole"], score["own"], strict=True))
    # Of sums that are no whole numbers, a difference may be rounded to less than nothing.
    return {**score, "others": [max(total, type(total)(0)), rows]} if rows else score


@dataclass(frozen=True)
class Criterion:
    """By what rounds are chosen, and runs end early: how good models are on validation rows, larger is better.

    metric: where that is not the task's own score; then the mean over clients.
    """

    task: Task = CLASSIFICATION
    metric: Metric | None = None

    @classmethod
    def of(cls, settings: Evaluation, task: Task) -> Criterion:
        """As a run's settings have it."""
        name = settings.choose_by
        return cls(task, None if name is None else learn.asked_metric(name, settings.metrics))

    def of_round(self, line: Mapping[str, Any]) -> float | None:
        """Of a line of the history; None for one without such a score."""
        summary = line.get("summary", {})
        if self.metric is None:
            return self._rated(summary.get("validation"))
        found = summary.get("metrics", {}).get("validation", {}).get(self.metric.name)
        return self._rated(found["mean"] if found else None)

    def of_client(self, score: Mapping[str, Any]) -> float | None:
        """Of one client's score; None for one that has none on validation rows."""
        if self.metric is None:
            return self._rated(self.task.value(score["validation"]) if "validation" in score else None)
        return self._rated(score.get("metrics", {}).get("validation", {}).get(self.metric.name))

    def _rated(self, value: float | None) -> float | None:
        if value is None:
            return None
        smaller = self.task.smaller_is_better if self.metric is None else self.metric.smaller_is_better
        return -float(value) if smaller else float(value)


BY_SCORE = Criterion()
"""A classification's own score."""


def chosen_for_each(lines: Sequence[Mapping[str, Any]], by: Criterion = BY_SCORE) -> dict[str, Measurement]:
    """Every client's score at the evaluated round that was best for it on validation, the earliest of equals."""
    best: dict[str, tuple[float, Measurement]] = {}
    for line in lines:
        for name, score in line["clients"].items():
            found = by.of_client(score)
            if found is not None and (name not in best or found > best[name][0]):
                best[name] = found, score
    return {name: score for name, (_, score) in best.items()}


def chosen_round(lines: Sequence[Mapping[str, Any]], by: Criterion = BY_SCORE) -> int | None:
    """The evaluated round that is best by the criterion, the earliest of equals; never chosen on test."""
    rated = [(found, -line["round"]) for line in lines if (found := by.of_round(line)) is not None]
    return -max(rated)[1] if rated else None


def sent_per_client(summary: Mapping[str, Any]) -> float:
    """Bytes that a client sent in the whole run, on average; 0 if its messages were empty."""
    return _per_client(summary, "up")


def received_per_client(summary: Mapping[str, Any]) -> float:
    """Bytes that a client was sent in the whole run, on average; 0 if the messages were empty."""
    return _per_client(summary, "down")


def _per_client(summary: Mapping[str, Any], direction: Literal["up", "down"]) -> float:
    sizes = summary["bytes"][direction]
    return sum(sizes.values()) / summary["clients"] if sizes.keys() - {Kind.FRAMING} else 0.0


def look_up(line: Mapping[str, Any], measure: str, task: Task = CLASSIFICATION) -> float | None:
    """The number under a dotted path in a line of the history; a tally [sum, rows] counts as its score."""
    parts = measure.split(".")
    place: Any = line if parts[0] in _OF_THE_LINE else line.get("summary", {})
    left = parts
    while left:
        # A key may have dots of its own: my.module:cost, fbeta_score(beta=0.5).
        keys = {".".join(left[:count]): count for count in range(1, len(left) + 1)}
        key = next((key for key in keys if isinstance(place, Mapping) and key in place), None)
        if key is None:
            return None
        place, left = place[key], left[keys[key] :]
    if isinstance(place, list):
        return None if parts[-1] == CONFUSION else task.value(place)
    return float(place) if isinstance(place, int | float) else None
