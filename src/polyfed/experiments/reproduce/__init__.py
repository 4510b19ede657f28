"""Reproducing a paper's table: plan its runs, carry them out, and set what came out beside what the paper prints.

plan = make_plan("000/table2", scale="tiny")
carry_out(list(plan.jobs.values()))                  # polyfed.grid
outcome, files = conclude(plan)                      # the table, with the paper's claims judged
"""

from __future__ import annotations

from polyfed.experiments.reproduce.outcome import conclude
from polyfed.experiments.reproduce.plan import (
    OUT,
    SCALE,
    Plan,
    check_ready,
    make_plan,
    settings_of,
    states_of,
)

__all__ = ["OUT", "SCALE", "Plan", "check_ready", "conclude", "make_plan", "settings_of", "states_of"]
