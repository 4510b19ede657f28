"""When a run ends because validation does not improve any more: a function of its history alone, and of nothing else.

So a run that was killed and goes on, or goes over several processes, ends in the same round.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from polyfed.runs import metrics
from polyfed.runs.config import Evaluation
from polyfed.tasks import CLASSIFICATION, Task


class Patience:
    """Counts the evaluations in a row in which validation did not improve, up to `evaluate.patience`."""

    def __init__(self, settings: Evaluation, task: Task = CLASSIFICATION) -> None:
        self._settings = settings
        self._by = metrics.Criterion.of(settings, task)
        self._best: float | None = None
        self._best_round = 0
        self._waited = 0

    def see(self, line: Mapping[str, Any]) -> None:
        """The history's next line."""
        # A round that was evaluated only since the run had once ended there is not in an undisturbed run's history.
        if line["round"] % self._settings.every:
            return
        found = self._by.of_round(line)
        if found is None:
            return
        if self._best is None or found > self._best + self._settings.min_change:
            self._best, self._best_round, self._waited = found, line["round"], 0
        else:
            self._waited += 1

    @property
    def spent(self) -> bool:
        """Whether the run ends here."""
        return self._settings.patience is not None and self._waited >= self._settings.patience

    def words(self) -> str:
        """Why it ends."""
        least = f" by more than {self._settings.min_change:g}" if self._settings.min_change else ""
        times = "1 evaluation" if self._waited == 1 else f"{self._waited} evaluations in a row"
        of = "" if self._by.metric is None else f" {self._by.metric.title}"
        return f"validation{of} has not improved{least} for {times} (best: round {self._best_round})"
