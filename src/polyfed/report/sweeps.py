"""What came out of a sweep: one row per variant for the terminal, one row per run for a spreadsheet."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

from rich.table import Table

from polyfed.report.fitting import FittedTable, Row
from polyfed.report.measures import Measure, further_measures, whole_title
from polyfed.report.tables import amount, further_table
from polyfed.runs.failures import failures_in_a_line
from polyfed.runs.history import RunRecord
from polyfed.runs.metrics import (
    REPORTED_ROUNDS,
    SERVER_MODEL,
    ReportedRound,
    mean_and_spread,
    received_per_client,
    sent_per_client,
)
from polyfed.tasks import CLASSIFICATION, Task

MeanAndSpread = tuple[float, float | None]
Part = Literal["own", "whole"]

SCORES: tuple[tuple[ReportedRound, Part], ...] = (
    ("last", "own"),
    ("last", "whole"),
    ("chosen", "own"),
    ("chosen", "whole"),
)


@dataclass(frozen=True)
class VariantResult:
    """What a variant reached over its seeds.

    Scores are mean and spread over seeds, shares from 0 to 1 or errors in their unit; None where nothing was measured.
    """

    variant: str
    values: Mapping[str, str]
    """The values of the keys that vary."""
    finished: int
    """How many of the runs, one per seed, have finished."""
    seeds: int
    last_own: MeanAndSpread | None
    last_whole: MeanAndSpread | None
    chosen_own: MeanAndSpread | None
    chosen_whole: MeanAndSpread | None
    worst: MeanAndSpread | None
    """The score of the client that is worst off on its own test data, at the last round."""
    unevenness: MeanAndSpread | None
    """The standard deviation over clients of the score on their own test data, at the last round."""
    sent: float | None
    """Bytes that a client sent, mean over seeds."""
    received: float | None
    """Bytes that a client was sent, mean over seeds."""
    seconds: float | None
    """How long a run took, mean over seeds."""
    whole: str = ""
    """What the whole test set is; nothing where there is none."""
    further: Mapping[ReportedRound, Mapping[Measure, MeanAndSpread | None]] = field(default_factory=dict)
    """Stages of a round, the server's models and further metrics, mean and spread over seeds."""


def variant_result(
    variant: str, values: Mapping[str, str], seeds: int, runs: Sequence[RunRecord]
) -> VariantResult:
    """What a variant reached, from its finished runs."""
    summaries = [run.summary for run in runs]
    scores = {
        f"{when}_{part}": _over_seeds(summaries, partial(score_at, when=when, part=part))
        for when, part in SCORES
    }
    return VariantResult(
        variant,
        values,
        len(runs),
        seeds,
        **scores,
        worst=_over_seeds(summaries, lambda summary: score_at(summary, "last", "own", "worst")),
        unevenness=_over_seeds(summaries, lambda summary: score_at(summary, "last", "own", "spread")),
        sent=_mean(map(sent_per_client, summaries)),
        received=_mean(map(received_per_client, summaries)),
        seconds=_mean(float(summary["seconds"]) for summary in summaries),
        whole=whole_title(runs),
        further={when: _further_over_seeds(runs, when) for when in REPORTED_ROUNDS},
    )


def _further_over_seeds(
    runs: Sequence[RunRecord], when: ReportedRound
) -> dict[Measure, MeanAndSpread | None]:
    found = [further_measures(run, when) for run in runs if run.summary[when]]
    over_seeds: dict[Measure, MeanAndSpread | None] = {}
    for measure in dict.fromkeys(measure for each in found for measure in each):
        known = [value for each in found if (value := each.get(measure)) is not None]
        over_seeds[measure] = mean_and_spread(known) if known else None
    return over_seeds


def _over_seeds(
    summaries: Sequence[Mapping[str, Any]], look: Callable[[Mapping[str, Any]], float | None]
) -> MeanAndSpread | None:
    known = [value for summary in summaries if (value := look(summary)) is not None]
    return mean_and_spread(known) if known else None


def _mean(values: Iterable[float]) -> float | None:
    found = list(values)
    return mean_and_spread(found)[0] if found else None


def score_at(summary: Mapping[str, Any], when: ReportedRound, part: Part, what: str = "mean") -> float | None:
    """A run's score over clients (mean, worst, best, spread), at the last round or the one chosen on validation."""
    found = ((summary[when] or {}).get(part) or {}).get(what)
    return None if found is None else float(found)


def with_spread(value: MeanAndSpread | None, shown: Callable[[float], str]) -> str:
    """`81.2 ± 0.9`, as scores or metrics are shown; with one seed, the number alone."""
    if value is None:
        return "–"
    mean, spread = value
    return shown(mean) if spread is None else f"{shown(mean)} ± {shown(spread)}"


def sweep_table(rows: Sequence[VariantResult], task: Task) -> FittedTable:
    """The variants below each other, with one column for each key that varies."""
    spread = any(row.finished > 1 for row in rows)
    keys, whole = list(rows[0].values), _all(rows)
    return FittedTable(
        title=f"{task.title}, mean over clients"
        + (", mean ± standard deviation over seeds" if spread else ""),
        names=keys or ["variant"],
        headings=[
            "seeds",
            "own",
            *(["all"] if whole else []),
            "own,\nchosen",
            *(["all,\nchosen"] if whole else []),
            "worst\nclient",
            "over\nclients",
            "sent per\nclient",
            "received\nper client",
            "seconds",
        ],
        rows=[
            Row([row.values[key] for key in keys] or [row.variant], _cells(row, task, whole=bool(whole)))
            for row in rows
        ],
        caption=f"own: a client's own test data{whole}; chosen: at the round best on validation;"
        " worst client, and standard deviation over clients: own test data, last round"
        + ("; smaller is better" if task.smaller_is_better else ""),
    )


def _all(rows: Sequence[VariantResult]) -> str:
    """What the columns `all` are of."""
    titles = dict.fromkeys(row.whole for row in rows if row.whole)
    return f", all: {' or '.join(titles)}" if titles else ""


def _cells(row: VariantResult, task: Task, *, whole: bool) -> list[str]:
    return [
        str(row.seeds) if row.finished == row.seeds else f"{row.finished} of {row.seeds}",
        with_spread(row.last_own, task.shown),
        *([with_spread(row.last_whole, task.shown)] if whole else []),
        with_spread(row.chosen_own, task.shown),
        *([with_spread(row.chosen_whole, task.shown)] if whole else []),
        with_spread(row.worst, task.shown),
        with_spread(row.unevenness, task.shown),
        *_costs(row),
    ]


def _costs(row: VariantResult) -> list[str]:
    sizes = [
        "–" if size is None else amount(size) if size else "nothing" for size in (row.sent, row.received)
    ]
    return [*sizes, "–" if row.seconds is None else f"{row.seconds:.1f}"]


def sweep_markdown(rows: Sequence[VariantResult], task: Task) -> str:
    """The variants at the last round as a Markdown table: scores, fairness, bytes and seconds."""
    keys = list(rows[0].values)
    # In such tables a classification's measure is not named: docs and papers have pages of them.
    measured = "" if task.title == CLASSIFICATION.title else f" ({_code(task.title)})"
    headings = [
        f"all{measured}",
        "own",
        "worst client",
        "over clients",
        "server",
        "sent",
        "received",
        "seconds",
    ]
    lines = [[*(keys or ["variant"]), *headings], ["---"] * max(len(keys), 1) + ["---:"] * len(headings)]
    for row in rows:
        further = {measure.key: value for measure, value in row.further.get("last", {}).items()}
        server = further.get(f"server.{SERVER_MODEL}")
        scores = (row.last_whole, row.last_own, row.worst, row.unevenness, server)
        names = [row.values[key] for key in keys] or [row.variant]
        lines.append(
            [*map(_code, names), *(with_spread(score, task.shown) for score in scores), *_costs(row)]
        )
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _code(text: str) -> str:
    """A value in a cell of Markdown, as it stands."""
    return f"`{text.replace('|', ' ').replace('`', ' ')}`"


def failed_clients(runs: Mapping[str, Sequence[RunRecord]]) -> list[str]:
    """Where clients failed in finished runs: a line for each variant, with the most frequent reason."""
    lines = []
    for variant, records in runs.items():
        hurt = [record for record in records if record.summary["failures"]]
        if hurt:
            first = hurt[0]
            words = failures_in_a_line(first.failed_steps, first.summary["clients"], first.path)
            lines.append(f"{variant}: clients failed in {len(hurt)} of {len(records)} runs; {words}")
    return lines


def stopped_early(runs: Mapping[str, Sequence[RunRecord]]) -> list[str]:
    """Where finished runs ended before their last round: a line for each variant."""
    lines = []
    for variant, records in runs.items():
        ends = [record.summary["rounds"] for record in records if record.stopped is not None]
        if ends:
            few, many = min(ends), max(ends)
            where = f"round {few}" if few == many else f"rounds {few} to {many}"
            of = records[0].config["rounds"]
            lines.append(
                f"{variant}: {len(ends)} of {len(records)} runs stopped early, after {where} of {of}: there is their"
                " last round"
            )
    return lines


def sweep_further(rows: Sequence[VariantResult], task: Task) -> Table | None:
    """What the variants measured beside the score of their results; None if they measured nothing else."""
    found = [
        (
            row.variant,
            {
                when: {measure: with_spread(value, measure.shown) for measure, value in measures.items()}
                for when, measures in row.further.items()
            },
        )
        for row in rows
    ]
    return further_table("variant", found, task)


@dataclass(frozen=True)
class FinishedRun:
    """A finished run of a sweep: its variant, its values and its folder."""

    variant: str
    values: Mapping[str, str]
    folder: str
    record: RunRecord


def results_csv(runs: Sequence[FinishedRun]) -> str:
    """One line per run, one column for each key that varies and for everything measured: shares from 0 to 1, or errors.

    `stages.distilled.own` is at the last round, `stages.distilled.own_chosen` at the one chosen on validation.
    """
    further = [{when: _by_key(run.record, when) for when in REPORTED_ROUNDS} for run in runs]
    measured = list(dict.fromkeys(key for each in further for when in each.values() for key in when))
    keys = [key for key in dict.fromkeys(key for run in runs for key in run.values) if key != "variant"]
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    names = [f"{part}_{when}" for when, part in SCORES]
    writer.writerow(
        [
            "variant",
            *keys,
            "seed",
            "whole_test",
            *names,
            *(f"validation_{when}" for when in REPORTED_ROUNDS),
            "rounds",
            "round_chosen",
            "own_worst",
            "own_spread",
            "bytes_sent_per_client",
            "bytes_received_per_client",
            "seconds",
            "failures",
            "folder",
            *measured,
            *(f"{key}_chosen" for key in measured),
        ]
    )
    for run, found in zip(runs, further, strict=True):
        summary = run.record.summary
        writer.writerow(
            [
                run.variant,
                *(run.values.get(key, "") for key in keys),
                run.record.config["seed"],
                run.record.whole_test,
                *(score_at(summary, when, part) for when, part in SCORES),
                *((summary[when] or {}).get("validation") for when in REPORTED_ROUNDS),
                summary["rounds"],
                (summary["chosen"] or {}).get("round"),
                score_at(summary, "last", "own", "worst"),
                score_at(summary, "last", "own", "spread"),
                sent_per_client(summary),
                received_per_client(summary),
                summary["seconds"],
                summary["failures"],
                run.folder,
                *(found[when].get(key) for when in REPORTED_ROUNDS for key in measured),
            ]
        )
    return text.getvalue()


def _by_key(record: RunRecord, when: ReportedRound) -> dict[str, float | None]:
    found = further_measures(record, when) if record.summary[when] else {}
    return {measure.key: value for measure, value in found.items()}
