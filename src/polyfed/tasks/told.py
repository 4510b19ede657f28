"""A task of somebody's own as a run directory tells of it: its scores can be shown, and none of its code is run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn, cast

from torch import Tensor

from polyfed.errors import TaskError
from polyfed.tasks.task import Reading, Tally, Task


class ToldTask(Task):
    """Scores are means over rows. Nothing can be learnt or predicted by it."""

    @classmethod
    def of(cls, name: str, measure: str, unit: str, *, smaller_is_better: bool) -> ToldTask:
        """The task of a name, by what is told of its measure."""
        facts = {
            "name": name,
            "summary": f"{name}, by its measure alone",
            "measure": measure,
            "unit": unit,
            "smaller_is_better": smaller_is_better,
            "__module__": __name__,
        }
        return cast("ToldTask", type(cls.__name__, (cls,), facts)())

    def _unknown(self) -> NoReturn:
        raise TaskError(
            f"task '{self.name}' is code of a module of its own, which is not run to read a result"
        )

    def loss(self, outputs: Tensor, labels: Tensor, *, each: bool = False) -> Tensor:
        self._unknown()

    def answer(self, outputs: Tensor, temperature: float = 1.0) -> Tensor:
        self._unknown()

    def divergence(self, outputs: Tensor, answer: Tensor, temperature: float = 1.0) -> Tensor:
        self._unknown()

    def tally(self, outputs: Tensor, labels: Tensor) -> Tally:
        self._unknown()

    def read(self, outputs: Tensor, words: Sequence[str]) -> Reading:
        self._unknown()

    def tally_of(self, said: Sequence[Any], true: Sequence[Any]) -> Tally:
        self._unknown()
