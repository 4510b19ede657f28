"""Curves: which lines are worth a colour."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from polyfed.report.curves import MOST_LINES, _worth_a_colour
from polyfed.tasks import CLASSIFICATION, Regression, Task


@pytest.mark.parametrize(("task", "left_out"), [(CLASSIFICATION, "0"), (Regression(), str(MOST_LINES))])
def test_the_lines_that_are_best_on_validation_have_a_colour(task: Task, left_out: str) -> None:
    runs: dict[str, Any] = {
        str(number): [SimpleNamespace(summary={"last": {"validation": 0.01 * (1 + number)}})]
        for number in range(MOST_LINES + 1)
    }
    runs["without"] = [SimpleNamespace(summary={"last": {}})]
    assert set(runs) - set(_worth_a_colour(runs, task)) == {left_out, "without"}
