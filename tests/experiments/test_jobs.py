"""What is known of a grid's runs: how far they are, and how much time is left."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.conftest import job

from polyfed.experiments.jobs import Board, Job, Reached
from polyfed.runs import api


@pytest.fixture
def jobs(tmp_path: Path, small: dict[str, Any]) -> list[Job]:
    """Two methods with two seeds each."""
    return [
        job(tmp_path / method / f"seed-{seed}", small, method=method, rounds=rounds, seed=seed)
        for method, rounds in (("local", 2), ("fedavg", 10))
        for seed in (0, 1)
    ]


def end(board: Board, job: Job) -> None:
    """As if it had been done."""
    job.path.mkdir(parents=True)
    (job.path / "summary.json").touch()
    assert board.end(job, "")


def test_nothing_is_known_of_the_time_before_the_first_round(jobs: list[Job]) -> None:
    board = Board(jobs)
    board.begin(jobs[0], Reached)
    now = board.snapshot()
    assert (now.jobs, now.share, now.seconds_left) == (4, 0, None)
    assert [(run.name, run.round, run.rounds) for run in now.under_way] == [("local/seed-0", 0, 2)]


def test_time_is_judged_by_runs_of_the_same_kind_where_there_are_any(jobs: list[Job]) -> None:
    board = Board(jobs)
    board.begin(jobs[0], lambda: Reached(2, 10))
    end(board, jobs[0])
    assert board.snapshot().seconds_left == pytest.approx(30)  # three more like it
    board.begin(jobs[2], lambda: Reached(5, 50))
    now = board.snapshot()
    # The other seed of the first takes 10, this one 50 more, its other seed 100.
    assert now.seconds_left == pytest.approx(160)
    assert now.share == pytest.approx(60 / 220)


def test_runs_side_by_side_share_the_time_but_a_run_is_not_divided(jobs: list[Job]) -> None:
    board = Board(jobs)
    board.begin(jobs[0], lambda: Reached(1, 5))
    board.begin(jobs[2], lambda: Reached(1, 10))
    assert board.snapshot().seconds_left == pytest.approx((5 + 10 + 90 + 100) / 2)
    board.fail(jobs[3], "no reason")
    assert board.snapshot().seconds_left == pytest.approx(90)  # the second run's; there are only 15 more


def test_a_run_that_was_begun_before_counts_with_what_it_had_reached(jobs: list[Job]) -> None:
    run = api.prepare_checked(jobs[2].config, jobs[2].path, 1)
    run.go(lambda now: now.stop() if now.round == 4 else None)
    run.close()
    board = Board(jobs[2:3])
    board.begin(jobs[2], Reached)  # it is still being opened
    now = board.snapshot()
    assert now.under_way[0].round == 4
    assert now.share == pytest.approx(0.4)


def test_when_all_is_done_or_given_up_nothing_is_left(jobs: list[Job]) -> None:
    board = Board(jobs[:2])
    board.begin(jobs[0], lambda: Reached(2, 10))
    end(board, jobs[0])
    board.fail(jobs[1], "no reason")
    assert (board.snapshot().share, board.snapshot().seconds_left) == (1, 0)
    assert not board.unfinished
