"""The numbers of a paper's tables, read from its runs."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from polyfed import models
from polyfed.experiments.papers.chance import AREA, FALLS, Accuracies, accuracy_behind, rows_behind
from polyfed.experiments.papers.claims import Judgement
from polyfed.experiments.papers.numbers import Bounded, Number, difference, is_exact, ratio, scaled
from polyfed.experiments.papers.paper import Paper, PaperTable, RoundChoice, TableColumn, TableRow, Unit
from polyfed.experiments.papers.terms import parts_of
from polyfed.runs import metrics
from polyfed.runs.communication import course, reach
from polyfed.runs.history import RunRecord
from polyfed.runs.metrics import BY_SCORE, REPORTED_ROUNDS, Criterion, ReportedRound, look_up
from polyfed.tasks import Trait

FACTORS: dict[Unit, float] = {
    "percent": 100.0,
    "hundredths": 100.0,
    "thousandths": 1000.0,
    "count": 1.0,
    "bytes": 1.0,
    "number": 1.0,
}

_TO_TARGET = re.compile(r"(?P<what>rounds|bytes)_to\.(?P<target>0\.\d+|1)\.(?P<measure>.+)")


class RunKey(NamedTuple):
    """One run of a paper, at some scale."""

    run: str
    setting: str
    seed: int


class Evaluations:
    """What a finished run's history says, at its last round and at the round chosen on validation.

    chosen: one round for all clients, or each client's own.
    sent: bytes by measure, of the whole run: they are reported at the last round alone.
    classes: how many the clients' data have, for what is no better than chance; None if the run does not say, or learns
        something else than one class for each row.
    by: by what rounds are chosen; it says what is learnt, too.
    """

    def __init__(
        self,
        lines: Iterable[Mapping[str, Any]],
        chosen: RoundChoice = "round",
        sent: Mapping[str, float] = MappingProxyType({}),
        classes: int | None = None,
        by: Criterion = BY_SCORE,
    ) -> None:
        self.lines = list(lines)
        self.task = by.task
        self.sent = sent
        self.classes = classes
        evaluated = [line for line in self.lines if "summary" in line]
        self._at: dict[ReportedRound, Mapping[str, Any] | None] = {
            "last": evaluated[-1] if evaluated else None,
            "chosen": _chosen_for_each(evaluated, by) if chosen == "each" else _chosen_for_all(evaluated, by),
        }

    @classmethod
    def of(cls, run: Path, chosen: RoundChoice = "round") -> Evaluations:
        record = RunRecord(run)
        classes = record.class_count if Trait.ONE_CLASS in record.task.traits else None
        return cls(record.history, chosen, sent_in(record.summary), classes, record.criterion)

    def value(self, measure: str, at: ReportedRound) -> float | None:
        """A measure at one of the two rounds. What is measured only before the first round is the same at both.

        What is of a whole run (`sent`, areas, falls, rounds and bytes to a target) is reported at the last round alone.
        """
        if measure in self.sent:
            return self.sent[measure] if at == "last" else None
        wanted = _TO_TARGET.fullmatch(measure)
        if wanted is not None:
            return self._to_target(wanted) if at == "last" else None
        for prefix, along in OF_A_CURVE.items():
            if measure.startswith(prefix):
                return along(self.curve(measure.removeprefix(prefix))) if at == "last" else None
        line = self._at[at]
        if line is None:
            return None
        found = look_up(line, measure, self.task)
        if found is None and self.lines[0]["round"] == 0:
            return look_up(self.lines[0], measure, self.task)
        return found

    def test_rows(self, measure: str, at: ReportedRound) -> int | None:
        """How many test rows an accuracy is over; None if the run does not say."""
        line = self._at[at]
        return None if line is None else rows_behind(line, measure)

    def _to_target(self, wanted: re.Match[str]) -> float | None:
        """Rounds or bytes until an accuracy was reached; if it never was, more than all of the run's."""
        points = course(self.lines, wanted["measure"], self.task)
        found = reach(points, float(wanted["target"]), self.task)
        if found is None:
            return None
        number = found.round if wanted["what"] == "rounds" else found.bytes
        return float(number) if found.reached else Bounded(number, low=number)

    def curve(self, measure: str) -> dict[int, float]:
        """A measure by round."""
        values = ((int(line["round"]), look_up(line, measure, self.task)) for line in self.lines)
        return {number: value for number, value in values if value is not None}


def _chosen_for_all(evaluated: Sequence[Mapping[str, Any]], by: Criterion) -> Mapping[str, Any] | None:
    chosen = metrics.chosen_round(evaluated, by)
    return next((line for line in evaluated if line["round"] == chosen), None)


def _chosen_for_each(evaluated: Sequence[Mapping[str, Any]], by: Criterion) -> Mapping[str, Any] | None:
    """A line of a history as if all clients had been at their best rounds at the same time."""
    best = metrics.chosen_for_each(evaluated, by)
    if not best:
        return None
    summary = metrics.summarise(dict(enumerate(best.values())), lambda _index: "all", by.task)
    return {"summary": summary, "clients": best}


def sent_in(summary: Mapping[str, Any]) -> dict[str, float]:
    """The bytes that a client sent in a finished run, and in a round of it, on average, by measure."""
    sent = metrics.sent_per_client(summary)
    return {"sent.client": sent, "sent.round": sent / summary["rounds"]}


@dataclass(frozen=True)
class Cell:
    """One cell of a table in its unit: measured, by seed (empty where it was not); or counted, once for all."""

    last: Number = field(default_factory=dict)
    chosen: Number = field(default_factory=dict)

    def at(self, which: ReportedRound) -> Number:
        """What was counted is the same at every round."""
        return self.last if which == "last" or is_exact(self.last) else self.chosen


Runs = Mapping[RunKey, Evaluations]


def read_cell(paper: Paper, table: str, row: TableRow, column: TableColumn, runs: Runs) -> Cell:
    """A cell, from the runs that have finished."""
    given = paper.tables[table]
    if row.parameters is not None:
        return Cell(last=float(count_parameters(given, row.parameters)))
    if row.made_of:
        first, second = (
            _read_part(paper, part.table, part.row, column.key, runs) for part in parts_of(row, table)
        )
        pair = difference if row.difference else ratio
        last, chosen = (pair(first.at(which), second.at(which)) for which in REPORTED_ROUNDS)
        return Cell(last) if is_exact(last) else Cell(last, chosen)
    measure = row.measure or column.measure or ""
    factor = FACTORS[given.unit_of(row, column)]
    both = []
    for which in REPORTED_ROUNDS:
        values = {seed: found.value(measure, which) for seed, found in _by_seed(row, column, runs).items()}
        both.append({seed: scaled(factor, value) for seed, value in values.items() if value is not None})
    return Cell(*both)


def read_accuracies(
    paper: Paper, table: str, row: TableRow, column: TableColumn, runs: Runs, which: ReportedRound
) -> list[Accuracies | None]:
    """The accuracies of the models behind a cell, over seeds, for each run that it is made of; None if not known."""
    if row.made_of:
        found: list[Accuracies | None] = []
        for part in parts_of(row, table):
            given = paper.tables[part.table]
            found += read_accuracies(
                paper, part.table, given.row(part.row), given.column(column.key), runs, which
            )
        return found
    accuracy = accuracy_behind(row.measure or column.measure or "") if row.run else None
    if accuracy is None:
        return [None]
    behind = _by_seed(row, column, runs).values()
    values = [value for run in behind if (value := run.value(accuracy, which)) is not None]
    classes = [run.classes for run in behind if run.classes]
    if not values or not classes:
        return [None]
    rows = [number for run in behind if (number := run.test_rows(accuracy, which)) is not None]
    return [Accuracies(values, 1 / min(classes), min(rows, default=None))]


def _read_part(paper: Paper, table: str, row: str, column: str, runs: Runs) -> Cell:
    given = paper.tables[table]
    return read_cell(paper, table, given.row(row), given.column(column), runs)


def read_printed(paper: Paper, table: str, row: TableRow, column: str) -> Number:
    """What the paper prints in a cell; if nothing, what follows for a difference or ratio from what it prints."""
    if column in row.paper:
        return row.paper[column].value
    if not row.made_of:
        return {}
    first, second = (
        read_printed(paper, part.table, paper.tables[part.table].row(part.row), column)
        for part in parts_of(row, table)
    )
    return (difference if row.difference else ratio)(first, second)


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
    def unit(self) -> Unit | None:
        """The unit of all its numbers but ratios; None if they have several."""
        rows = [row for row in self.rows if row.ratio is None]
        units = {self.table.unit_of(row, column) for row in rows for column in self.columns}
        return units.pop() if len(units) == 1 else None

    @property
    def is_run(self) -> bool:
        """Whether its numbers come from runs, and not only from counting parameters."""
        return any(row.parameters is None for row in self.rows)

    @property
    def has_chosen(self) -> bool:
        return any(cell.chosen != {} for cell in self.cells.values())

    @property
    def is_part(self) -> bool:
        """Whether rows or columns of the table were left out."""
        return (len(self.rows), len(self.columns)) != (len(self.table.rows), len(self.table.columns))

    def unmeasured(self) -> list[tuple[TableRow, TableColumn]]:
        """The cells without a number."""
        return [
            (row, column)
            for row in self.rows
            for column in self.columns
            if self.cells[row.key, column.key].last == {}
        ]


def mean_along(curve: Mapping[int, float]) -> float | None:
    """A curve's mean over the rounds from the first evaluation to the last: the area under its straight lines."""
    points = sorted((number, value) for number, value in curve.items() if number > 0)
    if len(points) < 2:
        return points[0][1] if points else None
    area = sum((b - a) * (first + second) / 2 for (a, first), (b, second) in pairwise(points))
    return area / (points[-1][0] - points[0][0])


def mean_fall(curve: Mapping[int, float]) -> float | None:
    """By how much a curve falls from one evaluation to the next, on average; where it rises or stays that is 0."""
    values = [value for number, value in sorted(curve.items()) if number > 0]
    falls = [max(0.0, before - after) for before, after in pairwise(values)]
    return sum(falls) / len(falls) if falls else None


def mean_curve(curves: Iterable[Mapping[int, float]]) -> dict[int, tuple[float, float | None]]:
    """Mean and spread over seeds, at every round that all seeds have."""
    given = list(curves)
    rounds = sorted(set.intersection(*(set(curve) for curve in given))) if given else []
    return {number: metrics.mean_and_spread([curve[number] for curve in given]) for number in rounds}


OF_A_CURVE = {AREA: mean_along, FALLS: mean_fall}
"""What a prefix makes of a measure's curve."""
