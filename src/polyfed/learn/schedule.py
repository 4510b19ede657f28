"""How the learning rate changes, over the rounds of a run or over the steps of one round."""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal, Self, TypeAlias

from pydantic import BaseModel, BeforeValidator, Field, model_validator

from polyfed.schema import SECTION

FALLING = ("cosine", "linear")
"""Kinds that fall towards zero, and so must know where they end."""


class Schedule(BaseModel):
    """A share of the learning rate for each place: each round of a run, or each step of a round."""

    model_config = SECTION

    kind: Literal["constant", "cosine", "linear", "step"] = "constant"
    """constant: the whole rate. cosine, linear: it falls from there towards zero, which it does not reach. step: it is
    multiplied by `factor` after every so many."""
    warm_up: Annotated[int, Field(ge=0)] = 0
    """Over so many at first it rises in equal parts: with 3 it is a quarter, a half, three quarters, then whole."""
    every: Annotated[int, Field(ge=1)] | None = None
    """Of step: after how many it falls; those of the warm-up do not count."""
    factor: Annotated[float, Field(gt=0, lt=1)] = 0.1
    """Of step: what the rate is multiplied by."""
    length: Annotated[int, Field(ge=1)] | None = None
    """Of cosine and linear: over how many it falls, the warm-up included; then it stays as it is. null: over the run's
    rounds, or over the steps of a round."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        steps, falls = self.kind == "step", self.kind in FALLING
        if steps and self.every is None:
            raise ValueError("a schedule of kind step needs `every`: after how many the rate falls")
        if not steps and (self.every is not None or self.factor != type(self).model_fields["factor"].default):
            raise ValueError(f"`every` and `factor` are for kind step, not for {self.kind}")
        if self.length is not None and not falls:
            raise ValueError(f"`length` is for kinds cosine and linear, not for {self.kind}")
        if self.length is not None and self.warm_up >= self.length:
            raise ValueError(f"a warm-up of {self.warm_up} leaves nothing of a length of {self.length}")
        return self

    @property
    def changes(self) -> bool:
        """Whether the rate is ever another."""
        return self.kind != "constant" or self.warm_up > 0

    def share(self, place: int, length: int | None = None) -> float:
        """The share of the learning rate at a place, from 0. `length`: of all, where the schedule does not say it."""
        end = self.length if self.length is not None else length
        if self.kind in FALLING:
            if end is None:
                raise ValueError(
                    f"a {self.kind} schedule must know over how many it falls: give its `length`"
                )
            place = min(place, end - 1)
        if place < self.warm_up:
            return (place + 1) / (self.warm_up + 1)
        place -= self.warm_up
        if self.kind == "step":
            assert self.every is not None
            return float(self.factor ** (place // self.every))
        if self.kind == "constant":
            return 1.0
        assert end is not None
        if self.kind == "linear":
            return 1 - place / (end - self.warm_up)
        return (1 + math.cos(math.pi * place / (end - self.warm_up))) / 2


def _read(value: Any) -> Any:
    return {"kind": value} if isinstance(value, str) else value


AnySchedule: TypeAlias = Annotated[Schedule, BeforeValidator(_read)]
"""`cosine` is short for `{kind: cosine}`."""
