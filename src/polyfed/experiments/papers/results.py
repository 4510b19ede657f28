"""The numbers of a paper's tables, read from its runs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from polyfed import models
from polyfed.experiments.papers.claims import Judgement
from polyfed.experiments.papers.paper import Paper, PaperTable, RoundChoice, TableColumn, TableRow, Unit
from polyfed.learn import CONFUSION
from polyfed.runs import metrics
from polyfed.runs.checkpoint import read_lines
from polyfed.runs.history import RunRecord
from polyfed.runs.metrics import REPORTED_ROUNDS, ReportedRound

FACTORS: dict[Unit, float] = {"percent": 100.0, "count": 1.0, "bytes": 1.0, "number": 1.0}

# What is in a line of the history itself; all else is in its summary.
_OF_THE_LINE = ("stages", "server", "server_metrics", "bytes", "clients", "noted")


class RunKey(NamedTuple):
    """One run of a paper, at some scale."""

    run: str
    setting: str
    seed: int


class Evaluations:
    """What a finished run's history says, at its last round and at the round chosen on validation.

    chosen: one round for all clients, or each client's own.
    sent: bytes by measure, of the whole run: they are reported at the last round alone.
    """

    def __init__(
        self,
        lines: Iterable[Mapping[str, Any]],
        chosen: RoundChoice = "round",
        sent: Mapping[str, float] = MappingProxyType({}),
    ) -> None:
        self.lines = list(lines)
        self.sent = sent
        evaluated = [line for line in self.lines if "summary" in line]
        self._at: dict[ReportedRound, Mapping[str, Any] | None] = {
            "last": evaluated[-1] if evaluated else None,
            "chosen": _chosen_for_each(evaluated) if chosen == "each" else _chosen_for_all(evaluated),
        }

    @classmethod
    def of(cls, run: Path, chosen: RoundChoice = "round") -> Evaluations:
        return cls(read_lines(run / "history.jsonl"), chosen, sent_in(RunRecord(run).summary))

    def value(self, measure: str, at: ReportedRound) -> float | None:
        """A measure at one of the two rounds. What is measured only before the first round is the same at both."""
        if measure in self.sent:
            return self.sent[measure] if at == "last" else None
        line = self._at[at]
        if line is None:
            return None
        found = look_up(line, measure)
        if found is None and self.lines[0]["round"] == 0:
            return look_up(self.lines[0], measure)
        return found

    def curve(self, measure: str) -> dict[int, float]:
        """A measure by round."""
        values = ((int(line["round"]), look_up(line, measure)) for line in self.lines)
        return {number: value for number, value in values if value is not None}


def _chosen_for_all(evaluated: Sequence[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    chosen = metrics.chosen_round(evaluated)
    return next((line for line in evaluated if line["round"] == chosen), None)


def _chosen_for_each(evaluated: Sequence[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    """A line of a history as if all clients had been at their best rounds at the same time."""
    best = metrics.chosen_for_each(evaluated)
    if not best:
        return None
    summary = metrics.summarise(dict(enumerate(best.values())), lambda _index: "all")
    return {"summary": summary, "clients": best}


def sent_in(summary: Mapping[str, Any]) -> dict[str, float]:
    """The bytes that a client sent in a finished run, and in a round of it, on average, by measure."""
    sent = metrics.sent_per_client(summary)
    return {"sent.client": sent, "sent.round": sent / summary["rounds"]}


def look_up(line: Mapping[str, Any], measure: str) -> float | None:
    """The number under a dotted path in a line of the history; a score [right, total] counts as its accuracy."""
    parts = measure.split(".")
    place: Any = line if parts[0] in _OF_THE_LINE else line.get("summary", {})
    for part in parts:
        if not isinstance(place, Mapping) or part not in place:
            return None
        place = place[part]
    if isinstance(place, list):
        return None if parts[-1] == CONFUSION else metrics.accuracy(place)
    return float(place) if isinstance(place, int | float) else None


@dataclass(frozen=True)
class Cell:
    """One cell of a table as measured, by seed, in its unit; empty where it was not measured."""

    last: Mapping[int, float] = field(default_factory=dict)
    chosen: Mapping[int, float] = field(default_factory=dict)

    def at(self, which: ReportedRound) -> Mapping[int, float]:
        return self.last if which == "last" else self.chosen


Runs = Mapping[RunKey, Evaluations]


def read_cell(table: PaperTable, row: TableRow, column: TableColumn, runs: Runs) -> Cell:
    """A cell, from the runs that have finished."""
    if row.made_of:
        first, second = (read_cell(table, table.row(key), column, runs) for key in row.made_of)
        pair = _differences if row.difference else _ratios
        return Cell(*(pair(first.at(which), second.at(which)) for which in REPORTED_ROUNDS))
    if row.parameters is not None:
        return Cell(last={0: float(count_parameters(table, row.parameters))})
    measure = row.measure or column.measure or ""
    factor = FACTORS[table.unit_of(row, column)]
    both = []
    for which in REPORTED_ROUNDS:
        values = {seed: found.value(measure, which) for seed, found in _by_seed(row, column, runs).items()}
        both.append({seed: factor * value for seed, value in values.items() if value is not None})
    return Cell(*both)


def read_curves(
    table: PaperTable, row: TableRow, column: TableColumn, runs: Runs
) -> dict[int, dict[int, float]]:
    """A row's measure by round, for each seed, in its unit."""
    measure = row.measure or column.measure or ""
    factor = FACTORS[table.unit_of(row, column)]
    return {
        seed: {number: factor * value for number, value in found.curve(measure).items()}
        for seed, found in _by_seed(row, column, runs).items()
    }


def _by_seed(row: TableRow, column: TableColumn, runs: Runs) -> dict[int, Evaluations]:
    return {key.seed: found for key, found in runs.items() if key[:2] == (row.run, column.setting)}


def _differences(first: Mapping[int, float], second: Mapping[int, float]) -> dict[int, float]:
    return {seed: first[seed] - second[seed] for seed in first if seed in second}


def _ratios(first: Mapping[int, float], second: Mapping[int, float]) -> dict[int, float]:
    return {seed: first[seed] / second[seed] for seed in first if second.get(seed)}


def count_parameters(table: PaperTable, wanted: Mapping[str, int]) -> int:
    """All parameters together of so many copies of each model."""
    if table.inputs is None:
        raise AssertionError("checked when the paper was read")
    shape, outputs = table.inputs.shape, table.inputs.outputs
    return sum(times * models.size(name, shape, outputs).parameters for name, times in wanted.items())


@dataclass(frozen=True)
class MeasuredTable:
    """A table of a paper as measured."""

    paper: Paper
    key: str
    scale: str
    seeds: int
    rows: tuple[TableRow, ...]
    columns: tuple[TableColumn, ...]
    cells: Mapping[tuple[str, str], Cell]
    """By row and column."""
    judgements: tuple[Judgement, ...]

    @property
    def table(self) -> PaperTable:
        return self.paper.tables[self.key]

    @property
    def is_run(self) -> bool:
        """Whether its numbers come from runs, and not only from counting parameters."""
        return any(row.parameters is None for row in self.rows)

    @property
    def has_chosen(self) -> bool:
        return any(cell.chosen for cell in self.cells.values())

    def unmeasured(self) -> list[tuple[TableRow, TableColumn]]:
        """The cells without a number."""
        return [
            (row, column)
            for row in self.rows
            for column in self.columns
            if not self.cells[row.key, column.key].last
        ]


def mean_curve(curves: Iterable[Mapping[int, float]]) -> dict[int, tuple[float, float | None]]:
    """Mean and spread over seeds, at every round that all seeds have."""
    given = list(curves)
    rounds = sorted(set.intersection(*(set(curve) for curve in given))) if given else []
    return {number: metrics.mean_and_spread([curve[number] for curve in given]) for number in rounds}
