"""What a run measured beside the score of its result: stages of a round, the server's models, other metrics."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from polyfed.learn import CONFUSION
from polyfed.runs.history import RunRecord
from polyfed.runs.holdings import WholeTest
from polyfed.runs.metrics import ReportedRound

OWN = "own test data"
WHOLE: dict[WholeTest, str] = {
    "split": "whole test set",
    "clients": "all clients' test rows",
    "file": "the server's test set",
}
EVERYONES_OWN = "clients' own test rows"
METRIC_TITLES = {
    "balanced-accuracy": "balanced accuracy",
    "macro-f1": "macro-F1",
    "auc": "AUC",
    "calibration-error": "calibration error",
}


def part_titles(record: RunRecord) -> dict[str, str]:
    """What the parts of a run's scores are of, in words; without a whole test set there is one."""
    whole = WHOLE.get(record.whole_test)
    return {"own": OWN} if whole is None else {"own": OWN, "whole": whole}


def server_title(record: RunRecord) -> str:
    """What the server's models of a run are scored on."""
    return WHOLE.get(record.whole_test, EVERYONES_OWN)


def whole_title(records: Iterable[RunRecord]) -> str:
    """What the whole test set of several runs is; nothing if none has one."""
    found = {WHOLE[record.whole_test] for record in records if record.whole_test in WHOLE}
    return found.pop() if len(found) == 1 else "each run's whole test set" if found else ""


@dataclass(frozen=True)
class Measure:
    """Something that is measured: `stages.distilled.own`, in words `distilled, own test data`."""

    key: str
    """Where it is in a run's summary; of what has a mean over clients, that is meant."""
    title: str


def further_measures(record: RunRecord, when: ReportedRound) -> dict[Measure, float | None]:
    """Everything but the score of the result, mean over clients; None where a metric has no value.

    What was measured before the first round is the same at every round.
    """
    return {
        **dict(_scores(record, record.preparation)),
        **dict(_scores(record, record.summary[when] or {})),
        **dict(_clients_metrics(record, record.summary[when] or {}, "mean")),
        **dict(_server_metrics(record, record.summary[when] or {})),
    }


def stages_on_whole(record: RunRecord, when: ReportedRound) -> dict[str, float]:
    """The stages of a round in their order, with the clients' mean score on the whole test set."""
    stages = (record.summary[when] or {}).get("stages", {})
    return {stage: scores["whole"]["mean"] for stage, scores in stages.items() if "whole" in scores}


def worst_metrics(record: RunRecord, when: ReportedRound) -> dict[Measure, float | None]:
    """The clients' further metrics, each of the client for which it is worst."""
    return dict(_clients_metrics(record, record.summary[when] or {}, "worst"))


def _scores(record: RunRecord, found: Mapping[str, Any]) -> Iterator[tuple[Measure, float]]:
    for stage, score in found.get("server", {}).items():
        yield Measure(f"server.{stage}", f"{stage} (server), {server_title(record)}"), score
    for stage, scores in found.get("stages", {}).items():
        for part, title in part_titles(record).items():
            if part in scores:
                yield Measure(f"stages.{stage}.{part}", f"{stage}, {title}"), scores[part]["mean"]


def _clients_metrics(
    record: RunRecord, found: Mapping[str, Any], what: str
) -> Iterator[tuple[Measure, float | None]]:
    titles = part_titles(record)
    for part, metrics in found.get("metrics", {}).items():
        for name, value in metrics.items():
            if name != CONFUSION:
                title = f"{METRIC_TITLES[name]}, {titles[part]}"
                yield Measure(f"metrics.{part}.{name}", title), value and value[what]


def _server_metrics(record: RunRecord, found: Mapping[str, Any]) -> Iterator[tuple[Measure, float | None]]:
    for stage, metrics in found.get("server_metrics", {}).items():
        for name, value in metrics.items():
            if name != CONFUSION:
                over = "" if record.whole_test in WHOLE else "mean over "
                title = f"{stage} (server), {METRIC_TITLES[name]}, {over}{server_title(record)}"
                yield Measure(f"server_metrics.{stage}.{name}", title), value
