"""What scores cost in several runs: rounds and bytes to a target, beside what FedKEM's Eq. 6 predicts."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from polyfed.errors import ConfigError
from polyfed.federation.message import Kind
from polyfed.report.fitting import FittedTable, Row
from polyfed.report.measures import EVERYONES_OWN, WHOLE
from polyfed.report.sweeps import with_spread
from polyfed.report.tables import amount, pools_data, with_unit
from polyfed.runs.communication import Point, Reach, best, course, predicted_bytes, reach
from polyfed.runs.history import RunRecord
from polyfed.runs.metrics import mean_and_spread
from polyfed.tasks import Task

Whose = Literal["own", "all", "server"]
WHOSE: tuple[Whose, ...] = ("own", "all", "server")
_MEASURES = {"own": "own.mean", "all": "whole.mean"}
EQUATION = "Eq. 6 (FedKEM): clients × fraction × rounds × 2 × size of the exchanged model"


@dataclass(frozen=True)
class Course:
    """One measure of the runs of a setup, one per seed: what they reached, and what it had cost."""

    name: str
    words: str
    """What was measured."""
    runs: Sequence[RunRecord]
    measure: str

    @property
    def task(self) -> Task:
        return self.runs[0].task

    @cached_property
    def measured(self) -> list[tuple[RunRecord, list[Point]]]:
        """The runs in which it was measured."""
        found = [(run, course(run.evaluations, self.measure, self.task)) for run in self.runs]
        return [(run, points) for run, points in found if points]

    @property
    def points(self) -> list[list[Point]]:
        """By run."""
        return [points for _, points in self.measured]

    @property
    def is_silent(self) -> bool:
        """Whether all messages are empty, or all data are in one place: bytes then say nothing."""
        summary = self.runs[0].summary
        kinds = {kind for sizes in summary["bytes"].values() for kind, size in sizes.items() if size}
        return kinds <= {Kind.FRAMING} or pools_data(summary)

    def reaches(self, target: float) -> list[Reach]:
        return [found for points in self.points if (found := reach(points, target, self.task)) is not None]


def read_target(text: str, task: Task) -> float:
    """A score that is to be reached: `0.6` as a share, or an error in its unit."""
    try:
        target = float(text)
    except ValueError:
        target = math.nan
    if not (0 < target <= task.most and math.isfinite(target)):
        up_to = "" if math.isinf(task.most) else f" and up to {task.most:g}"
        unit = f" in {task.shown_unit}" if task.shown_unit and task.unit != "%" else ""
        kind, example = ("share", "0.6") if task.unit == "%" else ("number", "50")
        raise ConfigError(
            f"--target {text}: write the {task.measure} as a {kind}{unit} above 0{up_to}, such as {example}"
        )
    return target


def read_whose(text: str) -> Whose:
    """Whose score is meant."""
    for known in WHOSE:
        if text == known:
            return known
    raise ConfigError(f"--of {text}: use own (own test data), all (the whole test set) or server")


def courses(groups: Mapping[str, Sequence[RunRecord]], of: Whose | None) -> list[Course]:
    """What is measured of each setup.

    of: `own` and `all` are means over clients, on their own test data or on the whole test set; `server` is the
        model of the server, and the clients' mean where there is none. By default `all`, and beside it the
        models of the server.
    """
    return [found for name, runs in groups.items() if runs for found in _courses_of(name, runs, of)]


def _courses_of(name: str, runs: Sequence[RunRecord], of: Whose | None) -> Iterator[Course]:
    last = runs[0].summary["last"]
    if of == "all" and "whole" not in last:
        raise ConfigError(f"--of all: {name} has no whole test set; use own or server")
    part: Whose = "own" if of == "own" or "whole" not in last else "all"
    stages = list(last.get("server", {}))
    if of != "server" or not stages:
        yield Course(name, part, runs, _MEASURES[part])
    if of in (None, "server"):
        for stage in stages:
            own = "" if runs[0].whole_test in WHOLE else f", {EVERYONES_OWN}"
            yield Course(name, f"{stage} (server){own}", runs, f"server.{stage}")


def target_table(found: Sequence[Course], target: float) -> FittedTable:
    """Rounds and bytes to a target, measured and by Eq. 6; and the best, for runs that never got there."""
    measured = [each for each in found if each.points]
    task = measured[0].task
    seeds = any(len(each.points) > 1 for each in measured)
    goal = goal_words(task, target)
    there = f"there: at or below {goal}; " if task.smaller_is_better else ""
    headings = [
        f"{task.measure}\nof",
        *(["seeds\nthere"] if seeds else []),
        f"rounds\nto {goal}",
        f"bytes\nto {goal}",
    ]
    return FittedTable(
        title=f"what {goal} {task.measure} costs; bytes: up and down, all clients, training alone",
        names=["run"],
        headings=[*headings, "by\nEq. 6", "best\n(round)"],
        rows=[Row([each.name], _cells_to(each, target, seeds=seeds)) for each in measured],
        caption=f"{there}not, >: never reached, so it takes more than the whole run",
    )


def goal_words(task: Task, target: float) -> str:
    """A target with its unit: `60 %`, `62.5 %`, `50 mmHg`."""
    words = with_unit(task, target)
    return words.replace(".0 %", " %") if task.unit == "%" else words


def whole_table(found: Sequence[Course]) -> FittedTable:
    """Scores and bytes of whole runs, measured and by Eq. 6; and, of shares, per cent per megabyte."""
    task = next(each.task for each in found if each.points)
    unit = f"\nin {task.shown_unit}" if task.shown_unit else ""
    rate = ["% per\nMB"] if task.unit == "%" else []
    return FittedTable(
        title="and the whole run",
        names=["run"],
        headings=[f"{task.measure}\nof", "rounds", f"{task.measure}{unit}", "bytes", "by\nEq. 6", *rate],
        rows=[Row([each.name], _cells_of_all(each)) for each in found if each.points],
        caption=f"{EQUATION}; empty where something else travels",
    )


def _cells_to(each: Course, target: float, *, seeds: bool) -> list[str]:
    reaches = each.reaches(target)
    there = sum(found.reached for found in reaches)
    more = there < len(reaches)
    tops = [best(points, each.task) for points in each.points]
    score = with_spread(mean_and_spread([top.score for top in tops]), each.task.shown)
    return [
        each.words,
        *([f"{there} of {len(reaches)}"] if seeds else []),
        _rounds(reaches),
        _measured(each, [found.bytes for found in reaches], more=more),
        _predicted(each, [found.round for found in reaches], more=more),
        score if len(tops) > 1 else f"{score} ({tops[0].round})",
    ]


def _cells_of_all(each: Course) -> list[str]:
    ends = [points[-1] for points in each.points]
    rounds = [end.round for end in ends]
    return [
        each.words,
        str(rounds[0]) if len(set(rounds)) == 1 else f"{min(rounds)}–{max(rounds)}",
        with_spread(mean_and_spread([end.score for end in ends]), each.task.shown),
        _measured(each, [end.bytes for end in ends], more=False),
        _predicted(each, rounds, more=False),
        *(["–" if each.is_silent else _per_megabyte(ends)] if each.task.unit == "%" else []),
    ]


def _measured(each: Course, sizes: Sequence[int], *, more: bool) -> str:
    if pools_data(each.runs[0].summary):
        return "all data"
    return "nothing" if each.is_silent else _bytes(sizes, more=more)


def _rounds(reaches: Sequence[Reach]) -> str:
    rounds = [found.round for found in reaches]
    if not any(found.reached for found in reaches):
        return f"not in {min(rounds)}"
    mean, spread = mean_and_spread(rounds)
    if not all(found.reached for found in reaches):
        return f"> {mean:.1f}"
    return f"{mean:.0f}" if spread is None else f"{mean:.1f} ± {spread:.1f}"


def _bytes(sizes: Sequence[float], *, more: bool) -> str:
    mean, spread = mean_and_spread(sizes)
    if more:
        return f"> {amount(mean)}"
    number, unit = amount(mean).split()
    return f"{number} ± {float(number) / mean * spread:.1f} {unit}" if spread else f"{number} {unit}"


def _predicted(each: Course, rounds: Sequence[int], *, more: bool) -> str:
    pairs = zip(each.measured, rounds, strict=True)
    sizes = [predicted_bytes(run, count) for (run, _), count in pairs]
    known = [size for size in sizes if size is not None]
    return _bytes(known, more=more) if len(known) == len(rounds) else ""


def _per_megabyte(ends: Sequence[Point]) -> str:
    mean, _ = mean_and_spread([100 * end.score / (end.bytes / 1e6) for end in ends])
    return f"{mean:,.0f}" if mean >= 100 else f"{mean:.3g}"


def seldom_evaluated(found: Sequence[Course]) -> list[str]:
    """Where a target may have been reached earlier than is known: runs that were not evaluated after every round."""
    every = {each.name: each.runs[0].config["evaluate"]["every"] for each in found}
    return [
        f"{name} was evaluated every {rounds} rounds: it may have been there up to {rounds - 1} rounds earlier"
        for name, rounds in every.items()
        if rounds > 1
    ]
