"""Several runs beside each other: one table, and in words what was left out, what cannot be subtracted, what failed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from rich.table import Table

from polyfed.errors import CheckpointError
from polyfed.report.fitting import FittedTable, Row
from polyfed.report.measures import whole_title
from polyfed.report.tables import compare_further, sent_words, signed
from polyfed.runs.history import RunRecord, common_task, local_run_for
from polyfed.tasks import Task

GAIN_RULE = "a gain is over a local run of the same data, models, seed and number of rounds"


@dataclass(frozen=True)
class Comparison:
    """Finished runs by names that tell them apart, and those that have not finished.

    Make it by `compare_runs`.
    """

    runs: Mapping[str, RunRecord]
    unfinished: Mapping[str, RunRecord]

    @cached_property
    def task(self) -> Task:
        """What all of them have learnt."""
        return common_task({name: record.task for name, record in self.runs.items()})

    @cached_property
    def lengths(self) -> set[int]:
        """The numbers of rounds that there are."""
        return {record.summary["rounds"] for record in self.runs.values()}

    def by_method(self) -> dict[str, RunRecord]:
        """The runs by their methods' names, as in a legend; with the folder's where a method has several runs."""
        methods = {name: str(record.config["method"]["name"]) for name, record in self.runs.items()}
        often = Counter(methods.values())
        return {
            methods[name] if often[methods[name]] == 1 else f"{methods[name]}: {name}": record
            for name, record in self.runs.items()
        }

    @property
    def measured(self) -> bool:
        """Whether there is any score to show."""
        return any({"own", "whole"} & record.summary["last"].keys() for record in self.runs.values())

    def table(self) -> FittedTable:
        """One row per run: the score on a client's own test data and on the whole test set, gain, and cost."""
        headings = ["rounds"] if len(self.lengths) > 1 else []
        headings += ["own\nmean", "own\nworst", "own\nspread", *(["all\nmean"] if self._whole else [])]
        headings += ["gain\nown", *(["gain\nall"] if self._whole else [])]
        headings += ["sent per\nclient", "own, chosen\n(round)", "seconds"]
        return FittedTable(
            title=f"{self.task.title} at the last round; own: a client's own test data"
            + (f", all: {self._whole}" if self._whole else ""),
            names=["run"],
            headings=headings,
            rows=[Row([name], self._cells(record)) for name, record in self.runs.items()],
            caption="smaller is better; a gain is by how much less it is than in a local run"
            if self.task.smaller_is_better
            else "",
        )

    @cached_property
    def _whole(self) -> str:
        """What the columns `all` are of; nothing where no run has a whole test set."""
        return whole_title(self.runs.values())

    def further_table(self) -> Table | None:
        """Stages of a round, servers' models and further metrics; None without any."""
        return compare_further(self.runs, self.task)

    def _cells(self, record: RunRecord) -> list[str]:
        summary = record.summary
        last, chosen = summary["last"], summary["chosen"]
        own, whole = last.get("own", {}), last.get("whole", {})
        local = local_run_for(record, self.runs.values())
        gain = record.gain_over(local) if local is not None and local is not record else {}
        return [
            *([str(summary["rounds"])] if len(self.lengths) > 1 else []),
            self.task.shown(own.get("mean")),
            self.task.shown(own.get("worst")),
            self.task.shown(own.get("spread")),
            *([self.task.shown(whole.get("mean"))] if self._whole else []),
            signed(gain.get("own"), self.task),
            *([signed(gain.get("whole"), self.task)] if self._whole else []),
            sent_words(summary),
            f"{self.task.shown(chosen.get('own', {}).get('mean'))} ({chosen['round']})" if chosen else "–",
            f"{summary['seconds']:.1f}",
        ]

    def notes(self) -> list[str]:
        """What a reader must know beside the table, a line each."""
        return [
            *self._left_out(),
            *self._unequal(),
            *self._stopped(),
            *self._without_gain(),
            *self._failed(),
        ]

    def _left_out(self) -> list[str]:
        return [
            f"left out: {name} has not finished; `{record.resume_command}` goes on from round"
            f" {record.manifest['round']}"
            for name, record in self.unfinished.items()
        ]

    def _unequal(self) -> list[str]:
        if len(self.lengths) == 1:
            return []
        return [
            f"the runs have different numbers of rounds: each {self.task.measure} is that of the run's own last round"
        ]

    def _stopped(self) -> list[str]:
        stopped = {name: record.stopped for name, record in self.runs.items()}
        return [f"{name} stopped early {why}" for name, why in stopped.items() if why is not None]

    def _without_gain(self) -> list[str]:
        """Why some runs have no gain, where that is not plain: runs with one reason in one line."""
        alone = {name: record for name, record in self.runs.items() if record.is_local}
        if not alone:
            return [f"no gain is shown: {GAIN_RULE}"] if len(self.runs) > 1 else []
        reasons: dict[str, list[str]] = {}
        for name, record in self.runs.items():
            if name not in alone and local_run_for(record, alone.values()) is None:
                differences = {local: record.differences(other) for local, other in alone.items()}
                nearest = min(differences, key=lambda local: len(differences[local]))
                reason = f"{nearest} has {' and '.join(differences[nearest])}"
                reasons.setdefault(reason, []).append(name)
        lines = [f"no gain for {', '.join(names)}: {reason}" for reason, names in reasons.items()]
        return [*lines[:-1], f"{lines[-1]} ({GAIN_RULE})"] if lines else []

    def _failed(self) -> list[str]:
        return [f"{name}: {line}" for name, record in self.runs.items() for line in record.failure_lines]


def compare_runs(paths: Iterable[Path]) -> Comparison:
    """What these run directories hold, side by side. They must be
    of one task, at least one must have finished, and none may be damaged."""
    records = {path.resolve(): RunRecord(path) for path in paths}
    named = dict(zip(_told_apart(list(records)), records.values(), strict=True))
    finished = {name: record for name, record in named.items() if record.finished}
    if not finished:
        first = next(iter(records.values()))
        what = "none of these runs has finished" if len(records) > 1 else f"{first.path} has not finished"
        raise CheckpointError(
            f"{what}: `{first.resume_command}` goes on from round {first.manifest['round']}"
        )
    for record in finished.values():
        record.verify()
    found = Comparison(finished, {name: record for name, record in named.items() if not record.finished})
    _ = found.task  # refused here, where runs are not of one task
    return found


def _told_apart(paths: list[Path]) -> list[str]:
    """The names of folders; where two are the same, with as many of the folders above as it takes."""
    names = [path.name for path in paths]
    for depth in range(2, max((len(path.parts) for path in paths), default=0) + 1):
        alike = {name for name in names if names.count(name) > 1}
        if not alike:
            break
        names = [
            "/".join(path.parts[-depth:]) if name in alike else name
            for path, name in zip(paths, names, strict=True)
        ]
    return names
