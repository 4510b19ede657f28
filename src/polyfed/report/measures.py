"""What a run measured beside the score of its result: stages of a round, the server's models, other metrics."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from rich import box
from rich.table import Table

from polyfed.learn import CONFUSION, METRICS, Added, Metric, known_metric, shown_in
from polyfed.runs.history import RunRecord
from polyfed.runs.holdings import WholeTest
from polyfed.runs.metrics import ReportedRound

OWN = "own test data"
VALIDATION = "validation rows"
WHOLE: dict[WholeTest, str] = {
    "split": "whole test set",
    "clients": "all clients' test rows",
    "file": "the server's test set",
}
LONGEST_TASK = len("classification,")
OPEN_END = 1e12  # a range that goes so far has no end that matters
EVERYONES_OWN = "clients' own test rows"


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
    unit: str = "%"
    """A share if it is `%`; what else it is in stands in the title."""

    def shown(self, value: float | None) -> str:
        """A value of it for people: a share in per cent; a dash where there is none."""
        return shown_in(self.unit, value)


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
        title = f"{stage} (server), {server_title(record)}"
        yield Measure(f"server.{stage}", title, record.task.unit), score
    for stage, scores in found.get("stages", {}).items():
        for part, title in part_titles(record).items():
            if part in scores:
                measure = Measure(f"stages.{stage}.{part}", f"{stage}, {title}", record.task.unit)
                yield measure, scores[part]["mean"]


def _clients_metrics(
    record: RunRecord, found: Mapping[str, Any], what: str
) -> Iterator[tuple[Measure, float | None]]:
    titles = {**part_titles(record), "validation": VALIDATION}
    chosen_by = record.criterion.metric
    for part, metrics in found.get("metrics", {}).items():
        for name, value in metrics.items():
            chooses = chosen_by is not None and name == chosen_by.name
            if name != CONFUSION and (part != "validation" or chooses):
                metric = known_metric(name)
                title = f"{metric.titled(record.task)}, {titles[part]}"
                yield Measure(f"metrics.{part}.{name}", title, metric.unit), value and value[what]


def _server_metrics(record: RunRecord, found: Mapping[str, Any]) -> Iterator[tuple[Measure, float | None]]:
    for stage, metrics in found.get("server_metrics", {}).items():
        for name, value in metrics.items():
            if name != CONFUSION:
                metric = known_metric(name)
                added = record.whole_test in WHOLE or metric.sums_for(record.task) is not None
                over = "" if added else "mean over "
                title = f"{stage} (server), {metric.titled(record.task)}, {over}{server_title(record)}"
                yield Measure(f"server_metrics.{stage}.{name}", title, metric.unit), value


def metrics_table(*, titles: bool = True) -> Table:
    """Every metric that has a name of its own: for which tasks, its range, and whether it adds up over parts."""
    table = Table(box=box.SIMPLE_HEAD, title_justify="left", title="metrics")
    table.add_column("metric", no_wrap=True)
    for column in (*(["what it is"] if titles else []), "for", "range", "better", "over clients"):
        table.add_column(column, overflow="fold", min_width=LONGEST_TASK if column == "for" else None)
    for metric in METRICS.values():
        name, title, *facts = metric_facts(metric)
        table.add_row(name, *([title] if titles else []), *facts)
    return table


def metric_facts(metric: Metric) -> tuple[str, ...]:
    """What is told of a metric in lists: its name, title, tasks, range, better end, and whether it adds up."""
    how = next(iter(metric.how.values()))
    numbers = _range(metric), "smaller" if metric.smaller_is_better else "larger"
    return (
        metric.name,
        metric.title,
        ", ".join(metric.how),
        *(("counts", "–") if metric.name == CONFUSION else numbers),
        "adds up" if isinstance(how, Added) else "computed where the rows are",
    )


def _range(metric: Metric) -> str:
    times = 100 if metric.unit == "%" else 1
    unit = " %" if metric.unit == "%" else ""
    if metric.most >= OPEN_END:
        return f"from {metric.least * times:g}{unit}"
    if metric.least <= -OPEN_END:
        return f"up to {metric.most * times:g}{unit}"
    return f"{metric.least * times:g} to {metric.most * times:g}{unit}"
