"""What a `summary.json` must be for its readers: checked where no digest says that it is as it was written."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, FiniteFloat, NonNegativeInt, PositiveInt, ValidationError

Counts = list[list[NonNegativeInt]]


class _Part(BaseModel):
    model_config = ConfigDict(extra="allow", strict=True)


class _Spread(_Part):
    """A number over clients; None where a metric has no value."""

    mean: FiniteFloat | None
    worst: FiniteFloat | None
    best: FiniteFloat | None = None
    spread: FiniteFloat | None = None


class _Accuracy(_Part):
    mean: FiniteFloat
    worst: FiniteFloat
    best: FiniteFloat
    spread: FiniteFloat


class _Scores(_Part):
    own: _Accuracy = _Accuracy(mean=0, worst=0, best=0, spread=0)
    whole: _Accuracy = _Accuracy(mean=0, worst=0, best=0, spread=0)
    amp: FiniteFloat = 0
    fm: FiniteFloat = 0
    wlp: FiniteFloat = 0
    validation: FiniteFloat = 0
    metrics: dict[str, dict[str, _Spread | Counts]] = {}
    architectures: dict[str, dict[str, FiniteFloat]] = {}


class _Round(_Scores):
    stages: dict[str, _Scores] = {}
    server: dict[str, FiniteFloat] = {}
    server_metrics: dict[str, dict[str, FiniteFloat | Counts | None]] = {}


class _LastRound(_Round):
    architectures: dict[str, dict[str, FiniteFloat]]


class _ChosenRound(_Round):
    round: PositiveInt


class _Summary(_Part):
    name: str
    method: str
    rounds: PositiveInt
    last: _LastRound
    chosen: _ChosenRound | None
    bytes: dict[Literal["up", "down"], dict[str, NonNegativeInt]]
    clients: PositiveInt
    seconds: FiniteFloat
    failures: NonNegativeInt
    diverged: list[str] = []
    missing: dict[str, str] = {}


def is_summary(content: Any) -> bool:
    """Whether this is what a run writes as its summary, but for the values of its numbers."""
    try:
        found = _Summary.model_validate(content)
    except (ValidationError, RecursionError, OverflowError):
        return False
    return len(found.bytes) == 2  # up and down
