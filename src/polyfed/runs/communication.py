"""What a score costs: rounds and bytes to a target, and the bytes that FedKEM's Eq. 6 predicts.

Bytes are those of training, up and down, of all clients, as the ledger counted them: the history has their sum so far
beside every evaluation. A target is reached at the first evaluated round whose score is as good or better. A run that
never reaches it tells one thing: it takes more than all of its rounds and bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from polyfed.errors import ConfigError
from polyfed.runs.config import Cohort
from polyfed.runs.history import RunRecord
from polyfed.runs.metrics import look_up
from polyfed.tasks import CLASSIFICATION, Task


@dataclass(frozen=True)
class Point:
    """An evaluated round: a score, and the bytes that had travelled by then."""

    round: int
    score: float
    bytes: int


def course(lines: Iterable[Mapping[str, Any]], measure: str, task: Task = CLASSIFICATION) -> list[Point]:
    """A measure of a run's history (`whole.mean`, `server.global`), with what it had cost at each evaluated round."""
    points = []
    for line in lines:
        score = look_up(line, measure, task)
        if score is not None:
            sent = line.get("bytes", {})
            points.append(Point(line["round"], score, sent.get("up", 0) + sent.get("down", 0)))
    return points


@dataclass(frozen=True)
class Reach:
    """When a run first reached a target; if it never did, its last round: it would take more than that."""

    reached: bool
    round: int
    bytes: int


def reach(points: Sequence[Point], target: float, task: Task = CLASSIFICATION) -> Reach | None:
    """The first point that is as good as a target or better; None where nothing was measured."""
    for point in points:
        if not task.is_better(target, point.score):
            return Reach(True, point.round, point.bytes)
    return Reach(False, points[-1].round, points[-1].bytes) if points else None


def best(points: Sequence[Point], task: Task = CLASSIFICATION) -> Point:
    """The point with the best score, the earliest of equals."""
    found = points[0]
    for point in points[1:]:
        if task.is_better(point.score, found.score):
            found = point
    return found


def predicted_bytes(record: RunRecord, rounds: int) -> float | None:
    """The cost of so many rounds by FedKEM's Eq. 6.

    That is clients × sampled fraction × rounds × 2 × size of the exchanged model, down and up.

    None where a method exchanges something else than a model.
    """
    assignment = record.assignment
    if assignment.exchanged_bytes is None:
        return None
    try:
        cohort = Cohort.model_validate(record.config.get("cohort") or {}).size(assignment.count)
    except (ValidationError, ConfigError):
        return None
    return cohort * rounds * 2 * assignment.exchanged_bytes


def by_setup(runs: Mapping[str, RunRecord]) -> dict[str, list[RunRecord]]:
    """Runs that differ in their seeds alone put together, under the first one's name and how many more there are."""
    groups: list[tuple[dict[str, Any], dict[int, tuple[str, RunRecord]]]] = []
    for name, record in runs.items():
        seed = record.config["seed"]
        setup = {key: value for key, value in record.config.items() if key not in ("seed", "name")}
        setup["data read"] = record.manifest["data"]
        found = next((seeds for other, seeds in groups if other == setup and seed not in seeds), None)
        if found is None:
            groups.append((setup, {seed: (name, record)}))
        else:
            found[seed] = (name, record)
    named = {}
    for _, seeds in groups:
        (first, _), *others = seeds.values()
        more = f" + {len(others)} seed{'s' if len(others) > 1 else ''}" if others else ""
        named[f"{first}{more}"] = [record for _, record in seeds.values()]
    return named
