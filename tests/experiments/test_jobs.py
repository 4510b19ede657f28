"""What is known of a grid's runs: how far they are, and how much time is left."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.conftest import job

from polyfed.experiments.jobs import Job, JobTracker, RunProgress
from polyfed.runs import api


@pytest.fixture
def jobs(tmp_path: Path, small: dict[str, Any]) -> list[Job]:
    """Two methods with two seeds each."""
    return [
        job(tmp_path / method / f"seed-{seed}", small, method=method, rounds=rounds, seed=seed)
        for method, rounds in (("local", 2), ("fedavg", 10))
        for seed in (0, 1)
    ]


def end(tracker: JobTracker, job: Job) -> None:
    """Do it."""
    run = api.prepare_checked(job.config, job.path, 1)
    run.go()
    run.close()
    assert tracker.end(job, "")


def test_nothing_is_known_of_the_time_before_the_first_round(jobs: list[Job]) -> None:
    tracker = JobTracker(jobs)
    tracker.begin(jobs[0], RunProgress)
    now = tracker.snapshot()
    assert (now.jobs, now.share, now.seconds_left) == (4, 0, None)
    assert [(run.name, run.round, run.rounds) for run in now.under_way] == [("local/seed-0", 0, 2)]


def test_time_is_estimated_from_the_other_seeds_of_a_run_where_there_are_any(jobs: list[Job]) -> None:
    tracker = JobTracker(jobs)
    tracker.begin(jobs[0], lambda: RunProgress(2, 10))
    end(tracker, jobs[0])
    assert tracker.snapshot().seconds_left == pytest.approx(30)  # three more like it
    tracker.begin(jobs[2], lambda: RunProgress(5, 50))
    now = tracker.snapshot()
    # The other seed of the first takes 10, this one 50 more, its other seed 100.
    assert now.seconds_left == pytest.approx(160)
    assert now.share == pytest.approx(60 / 220)


def test_runs_side_by_side_share_the_time_but_a_run_is_not_divided(jobs: list[Job]) -> None:
    tracker = JobTracker(jobs)
    tracker.begin(jobs[0], lambda: RunProgress(1, 5))
    tracker.begin(jobs[2], lambda: RunProgress(1, 10))
    assert tracker.snapshot().seconds_left == pytest.approx((5 + 10 + 90 + 100) / 2)
    tracker.fail(jobs[3], "no reason")
    assert tracker.snapshot().seconds_left == pytest.approx(90)  # the second run's; there are only 15 more


def test_a_run_that_was_begun_before_counts_with_what_it_had_reached(jobs: list[Job]) -> None:
    run = api.prepare_checked(jobs[2].config, jobs[2].path, 1)
    run.go(lambda now: now.stop() if now.round == 4 else None)
    run.close()
    tracker = JobTracker(jobs[2:3])
    tracker.begin(jobs[2], RunProgress)  # it is still being opened
    now = tracker.snapshot()
    assert now.under_way[0].round == 4
    assert now.share == pytest.approx(0.4)


def test_when_all_have_finished_or_failed_nothing_is_left(jobs: list[Job]) -> None:
    tracker = JobTracker(jobs[:2])
    tracker.begin(jobs[0], lambda: RunProgress(2, 10))
    end(tracker, jobs[0])
    tracker.fail(jobs[1], "no reason")
    assert (tracker.snapshot().share, tracker.snapshot().seconds_left) == (1, 0)
    assert not tracker.unfinished
