"""Many runs: sweeps over values and seeds, and papers whose tables are measured again."""

from polyfed.experiments.grid import run_jobs
from polyfed.experiments.jobs import Job, JobFailure, Snapshot
from polyfed.experiments.sweep import SweepPlan, SweepResult, plan_sweep, read_sets

__all__ = [
    "Job",
    "JobFailure",
    "Snapshot",
    "SweepPlan",
    "SweepResult",
    "plan_sweep",
    "read_sets",
    "run_jobs",
]
