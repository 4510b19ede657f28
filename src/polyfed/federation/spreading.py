"""The server's own work on all of an engine's workers: jobs are put one by one, results are folded in their order."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from polyfed.errors import RunError, StepFailed
from polyfed.federation.engine import Call, Engine, Failure, Request
from polyfed.federation.message import decode, encode
from polyfed.federation.nodes import Moment
from polyfed.federation.program import step_name

JOBS_PER_WORKER = 3  # taken together: enough to even out, few enough to hold in memory


class Jobs:
    """Jobs of one server step. Some wait until there are enough for all workers; then they are done."""

    def __init__(
        self,
        engine: Engine,
        step: str,
        moment: Moment,
        payload: Mapping[str, Any],
        fold: Callable[[dict[str, Any]], object],
    ) -> None:
        """step: its name in the run's program. payload: what goes to every job. fold: what is done with a result."""
        self.engine = engine
        self.step = step
        self.moment = moment
        self.fold = fold
        self._common = encode(payload)
        self._waiting: list[bytes] = []
        self._size = JOBS_PER_WORKER * engine.width

    def put(self, **job: Any) -> None:
        """Add a job with these fields. Results of earlier ones may be folded meanwhile."""
        self._waiting.append(encode(job))
        # The last jobs are up to half as many more, since few alone would leave workers idle.
        if len(self._waiting) > self._size + self._size // 2:
            ready, self._waiting = self._waiting[: self._size], self._waiting[self._size :]
            self._do(ready)

    def finish(self) -> None:
        """Do what is left."""
        if self._waiting:
            ready, self._waiting = self._waiting, []
            self._do(ready)

    def _do(self, jobs: Sequence[bytes]) -> None:
        request = Request(self.step, self.moment, self._common, [[Call(None, job)] for job in jobs])
        for outcome in self.engine.run(request):
            if isinstance(outcome, Failure):
                raise RunError(
                    f"round {self.moment.round}: the server's step '{step_name(self.step)}': {outcome.reason}"
                ) from StepFailed(outcome.traceback)
            self.fold(decode(outcome.reply))
