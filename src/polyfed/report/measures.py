"""What a run measured beside the accuracy of its result: stages of a round, the server's models, other metrics."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from polyfed.learn import CONFUSION
from polyfed.runs.history import RunRecord
from polyfed.runs.metrics import ReportedRound

PARTS = {"own": "own test data", "whole": "whole test set"}
METRIC_TITLES = {
    "balanced-accuracy": "balanced accuracy",
    "macro-f1": "macro-F1",
    "auc": "AUC",
    "calibration-error": "calibration error",
}


@dataclass(frozen=True)
class Measure:
    """Something that is measured: `stages.distilled.own`, in words `distilled, own test data`."""

    key: str
    """Where it is in a run's summary; of what has a mean over clients, that is meant."""
    title: str


def further_measures(record: RunRecord, when: ReportedRound) -> dict[Measure, float | None]:
    """Everything but the accuracy of the result, mean over clients, as shares; None where a metric has no value.

    What was measured before the first round is the same at every round.
    """
    return {
        **dict(_accuracies(record.preparation)),
        **dict(_accuracies(record.summary[when] or {})),
        **dict(_clients_metrics(record.summary[when] or {}, "mean")),
        **dict(_server_metrics(record.summary[when] or {})),
    }


def stages_on_whole(record: RunRecord, when: ReportedRound) -> dict[str, float]:
    """The stages of a round in their order, with the clients' mean accuracy on the whole test set."""
    stages = (record.summary[when] or {}).get("stages", {})
    return {stage: scores["whole"]["mean"] for stage, scores in stages.items() if "whole" in scores}


def worst_metrics(record: RunRecord, when: ReportedRound) -> dict[Measure, float | None]:
    """The clients' metrics beside accuracy, each of the client for which it is worst."""
    return dict(_clients_metrics(record.summary[when] or {}, "worst"))


def _accuracies(found: Mapping[str, Any]) -> Iterator[tuple[Measure, float]]:
    for stage, accuracy in found.get("server", {}).items():
        yield Measure(f"server.{stage}", f"{stage} (server), whole test set"), accuracy
    for stage, scores in found.get("stages", {}).items():
        for part, title in PARTS.items():
            if part in scores:
                yield Measure(f"stages.{stage}.{part}", f"{stage}, {title}"), scores[part]["mean"]


def _clients_metrics(found: Mapping[str, Any], what: str) -> Iterator[tuple[Measure, float | None]]:
    for part, metrics in found.get("metrics", {}).items():
        for name, value in metrics.items():
            if name != CONFUSION:
                title = f"{METRIC_TITLES[name]}, {PARTS[part]}"
                yield Measure(f"metrics.{part}.{name}", title), value and value[what]


def _server_metrics(found: Mapping[str, Any]) -> Iterator[tuple[Measure, float | None]]:
    for stage, metrics in found.get("server_metrics", {}).items():
        for name, value in metrics.items():
            if name != CONFUSION:
                title = f"{stage} (server), {METRIC_TITLES[name]}"
                yield Measure(f"server_metrics.{stage}.{name}", title), value
