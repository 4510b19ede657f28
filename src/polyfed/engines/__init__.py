"""How a step reaches a client: in this process, in a pool of processes; a method cannot tell them apart."""

from polyfed.engines.engine import Answer, Call, Engine, Failure, Outcome, Population, SavedState, Task
from polyfed.engines.inline import Inline
from polyfed.engines.pool import Pool

__all__ = [
    "Answer",
    "Call",
    "Engine",
    "Failure",
    "Inline",
    "Outcome",
    "Pool",
    "Population",
    "SavedState",
    "Task",
]
