"""What came out of a sweep: a row a variant over its seeds, for the terminal; a row a run, for a spreadsheet."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from rich import box
from rich.markup import escape
from rich.table import Table

from polyfed.report.tables import amount, percent
from polyfed.runs.history import RunRecord
from polyfed.runs.metrics import mean_and_spread, sent_per_client

MeanAndSpread = tuple[float, float | None]
When = Literal["last", "chosen"]
Part = Literal["own", "whole"]

ACCURACIES: tuple[tuple[When, Part], ...] = (
    ("last", "own"),
    ("last", "whole"),
    ("chosen", "own"),
    ("chosen", "whole"),
)


@dataclass(frozen=True)
class Row:
    """What a variant reached over its seeds. Accuracies are mean and spread as shares; None where there is none."""

    variant: str
    values: Mapping[str, str]
    """Of the keys that vary."""
    finished: int
    """Runs that have finished, of as many as there are seeds."""
    seeds: int
    last_own: MeanAndSpread | None
    last_whole: MeanAndSpread | None
    chosen_own: MeanAndSpread | None
    chosen_whole: MeanAndSpread | None
    sent: float | None
    """Bytes that a client sent, mean over seeds."""
    seconds: float | None
    """A run's, mean over seeds."""


def row_of(variant: str, values: Mapping[str, str], seeds: int, runs: Sequence[RunRecord]) -> Row:
    """The row of a variant, from its finished runs."""
    summaries = [run.summary for run in runs]
    over_seeds = {f"{when}_{part}": _over_seeds(summaries, when, part) for when, part in ACCURACIES}
    sent = [sent_per_client(summary) for summary in summaries]
    seconds = [float(summary["seconds"]) for summary in summaries]
    return Row(
        variant,
        values,
        len(runs),
        seeds,
        **over_seeds,
        sent=mean_and_spread(sent)[0] if sent else None,
        seconds=mean_and_spread(seconds)[0] if seconds else None,
    )


def _over_seeds(summaries: Sequence[Mapping[str, Any]], when: When, part: Part) -> MeanAndSpread | None:
    values = [accuracy_at(summary, when, part) for summary in summaries]
    known = [value for value in values if value is not None]
    return mean_and_spread(known) if known else None


def accuracy_at(summary: Mapping[str, Any], when: When, part: Part) -> float | None:
    """A run's mean accuracy over clients, at the last round or at the one chosen on validation."""
    found = ((summary[when] or {}).get(part) or {}).get("mean")
    return None if found is None else float(found)


def with_spread(value: MeanAndSpread | None) -> str:
    """`81.2 ± 0.9`, in per cent; of one seed only the number."""
    if value is None:
        return "–"
    mean, spread = value
    return percent(mean) if spread is None else f"{percent(mean)} ± {percent(spread)}"


def sweep_table(rows: Sequence[Row]) -> Table:
    """The variants side by side, a column a key that varies."""
    spread = any(row.finished > 1 for row in rows)
    table = Table(
        box=box.SIMPLE_HEAD,
        title_justify="left",
        title="accuracy in %, mean over clients"
        + (", mean ± standard deviation over seeds" if spread else ""),
        caption="own: a client's own test data, all: the whole test set; chosen: at the round best on validation",
        caption_justify="left",
    )
    # In a narrow terminal cells are wrapped: nothing is cut off.
    for key in rows[0].values or ("variant",):
        table.add_column(key, overflow="fold")
    for name in ("seeds", "own", "all", "own,\nchosen", "all,\nchosen", "sent per\nclient", "seconds"):
        table.add_column(name, justify="right", overflow="fold")
    for row in rows:
        table.add_row(
            *map(escape, row.values.values() or (row.variant,)),
            str(row.seeds) if row.finished == row.seeds else f"{row.finished} of {row.seeds}",
            with_spread(row.last_own),
            with_spread(row.last_whole),
            with_spread(row.chosen_own),
            with_spread(row.chosen_whole),
            "–" if row.sent is None else amount(row.sent) if row.sent else "nothing",
            "–" if row.seconds is None else f"{row.seconds:.1f}",
        )
    return table


@dataclass(frozen=True)
class FinishedRun:
    """A run of a sweep: of which variant, and with which values."""

    variant: str
    values: Mapping[str, str]
    folder: str
    record: RunRecord


def results_csv(runs: Sequence[FinishedRun]) -> str:
    """One line a run, accuracies as shares from 0 to 1, a column a key that varies."""
    keys = list(dict.fromkeys(key for run in runs for key in run.values))
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    names = [f"{part}_{when}" for when, part in ACCURACIES]
    writer.writerow(
        [
            "variant",
            *keys,
            "seed",
            *names,
            "round_chosen",
            "bytes_sent_per_client",
            "seconds",
            "failures",
            "folder",
        ]
    )
    for run in runs:
        summary = run.record.summary
        writer.writerow(
            [
                run.variant,
                *(run.values.get(key, "") for key in keys),
                run.record.config["seed"],
                *(accuracy_at(summary, when, part) for when, part in ACCURACIES),
                (summary["chosen"] or {}).get("round"),
                sent_per_client(summary),
                summary["seconds"],
                summary["failures"],
                run.folder,
            ]
        )
    return text.getvalue()
