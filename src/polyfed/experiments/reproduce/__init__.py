"""Reproducing a paper's table: plan its runs, do them, and show what came out beside what the paper prints.

plan = plan_reproduction("lwof/table2", scale="tiny")
run_jobs(list(plan.jobs.values()))                   # polyfed.experiments.run_jobs
measured, files = conclude(plan)                     # the table, with the paper's claims judged
"""

from __future__ import annotations

from pathlib import Path

from polyfed.experiments.papers.results import MeasuredTable
from polyfed.experiments.reproduce.listing import paper_details, papers_overview, plan_tables
from polyfed.experiments.reproduce.plan import (
    DEFAULT_OUT,
    DEFAULT_SCALE,
    ReproductionPlan,
    check_ready,
    plan_reproduction,
)
from polyfed.experiments.reproduce.tables import full_report

__all__ = [
    "DEFAULT_OUT",
    "DEFAULT_SCALE",
    "ReproductionPlan",
    "check_ready",
    "conclude",
    "full_report",
    "paper_details",
    "papers_overview",
    "plan_reproduction",
    "plan_tables",
]


def conclude(plan: ReproductionPlan) -> tuple[MeasuredTable | None, list[Path]]:
    """Read a plan's runs and write what came out: the table (None for a figure), and the files' paths."""
    # Imported only where something is drawn: matplotlib takes half a second of every launch.
    from polyfed.experiments.reproduce import measured  # noqa: PLC0415

    return measured.conclude(plan)
