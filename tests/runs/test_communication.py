"""Rounds and bytes to a target, worked out by hand; what Eq. 6 predicts; runs that differ in their seeds alone."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.conftest import SMALL

import polyfed
from polyfed.federation.ledger import Ledger, entries
from polyfed.federation.message import Kind
from polyfed.runs.communication import Point, Reach, best, by_setup, course, predicted_bytes, reach
from polyfed.runs.history import RunRecord
from polyfed.tasks import Regression


def line(number: int, whole: float | None, up: int, down: int, **more: Any) -> dict[str, Any]:
    summary = {} if whole is None else {"whole": {"mean": whole}}
    return {"round": number, "summary": summary, "bytes": {"up": up, "down": down}, **more}


# Evaluated every second round; 10 bytes travel before the first round, then 30 up and 70 down in each.
LINES = [
    {"round": 0, "bytes": {"up": 4, "down": 6}},
    line(2, 0.30, 64, 146, server={"global": 0.20}),
    {"round": 3, "failures": [], "bytes": {"up": 94, "down": 216}},
    line(4, 0.60, 124, 286, server={"global": 0.55}),
    line(6, 0.58, 184, 426, server={"global": 0.61}),
]
WHOLE = [Point(2, 0.30, 210), Point(4, 0.60, 410), Point(6, 0.58, 610)]


def test_an_error_is_reached_at_or_below_a_target() -> None:
    errors = [Point(1, 60.0, 100), Point(2, 50.0, 200), Point(3, 55.0, 300)]
    assert reach(errors, 50.0, Regression()) == Reach(True, 2, 200)
    assert reach(errors, 49.9, Regression()) == Reach(False, 3, 300)
    assert reach(errors, 60.0, Regression()) == Reach(True, 1, 100)


def test_a_course_has_what_had_travelled_both_ways_at_every_evaluated_round() -> None:
    assert course(LINES, "whole.mean") == WHOLE
    assert course(LINES, "server.global") == [Point(2, 0.20, 210), Point(4, 0.55, 410), Point(6, 0.61, 610)]
    assert course(LINES, "own.mean") == []


@pytest.mark.parametrize(
    ("target", "found"),
    [
        (0.30, Reach(True, 2, 210)),  # at the target is there
        (0.31, Reach(True, 4, 410)),
        (0.60, Reach(True, 4, 410)),  # the first time, though it is lost again
        (0.61, Reach(False, 6, 610)),  # never, so all of the run: not 0
    ],
)
def test_a_target_is_reached_at_the_first_evaluated_round_at_or_above_it(target: float, found: Reach) -> None:
    assert reach(WHOLE, target) == found


def test_where_nothing_was_measured_nothing_is_known_of_a_target() -> None:
    assert reach([], 0.5) is None
    assert best(WHOLE) == Point(4, 0.60, 410)
    assert best(WHOLE, Regression()) == Point(2, 0.30, 210)
    assert best([Point(1, 0.5, 1), Point(2, 0.5, 2)]).round == 1


def test_only_training_counts_not_evaluation() -> None:
    ledger = Ledger()
    ledger.count("a", "down", {Kind.WEIGHTS: 100, Kind.CONTROL: 5}, "training", times=2)
    ledger.count("a", "up", {Kind.WEIGHTS: 50}, "training")
    ledger.count("a", "up", {Kind.METRICS: 7}, "evaluation")
    assert ledger.total("up") + ledger.total("down") == 2 * 105 + 50


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, RunRecord]:
    """FedAvg with three seeds and one of them again, with other settings, and DS-FL."""
    folder = tmp_path_factory.mktemp("runs")
    content = {**SMALL, "rounds": 2, "cohort": {"fraction": 0.5}}
    public = {**SMALL["data"], "public": {"source": "share", "share": 0.2}}
    wanted: dict[str, dict[str, Any]] = {
        "first": {"seed": 0},
        "second": {"seed": 1, "name": "other"},
        "third": {"seed": 2},
        "again": {"seed": 1},
        "slower": {"seed": 0, "training": {"epochs": 1, "batch": 16, "lr": 0.01}},
        "dsfl": {"method": "dsfl", "data": public},
    }
    return {
        name: RunRecord(polyfed.run({**content, **changes}, out=folder / name, workers=1).path)
        for name, changes in wanted.items()
    }


def test_the_bytes_of_a_course_are_the_ledgers(runs: dict[str, RunRecord]) -> None:
    record = runs["first"]
    for point in course(record.history, "whole.mean"):
        counted = sum(
            entry.bytes
            for entry in record.ledger
            if entry.purpose == "training" and entry.round <= point.round
        )
        assert point.bytes == counted
    ledger = [json.loads(text) for text in (record.path / "ledger.jsonl").read_text().splitlines()]
    assert {entry.purpose for each in ledger for entry in entries(each)} == {"training", "evaluation"}


def test_equation_6_is_clients_times_fraction_times_rounds_times_two_models(
    runs: dict[str, RunRecord],
) -> None:
    # 4 clients × 0.5 × 2 rounds × 2 × 4 bytes for each of 64·64 + 64 + 64·10 + 10 parameters.
    size = 4 * (64 * 64 + 64 + 64 * 10 + 10)
    predicted = predicted_bytes(runs["first"], rounds=2)
    assert predicted == 4 * 0.5 * 2 * 2 * size
    measured = course(runs["first"].history, "whole.mean")[-1].bytes
    assert predicted < measured < 1.1 * predicted  # names, shapes and framing come on top
    assert predicted_bytes(runs["dsfl"], rounds=2) is None  # posteriors travel, no model


def test_runs_that_differ_in_their_seeds_alone_are_one_setup(runs: dict[str, RunRecord]) -> None:
    found = by_setup(runs)
    assert {name: [record.path.name for record in records] for name, records in found.items()} == {
        "first + 2 seeds": ["first", "second", "third"],
        "again": ["again"],  # the same seed twice would count one run as two
        "slower": ["slower"],
        "dsfl": ["dsfl"],
    }
