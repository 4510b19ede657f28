"""What a field of a reply must be, and the one door at which replies are checked.

A method's `sends` gives every field that may leave a client its kind, and may say what it must be:

| declaration                      | what is let in                                                              |
|----------------------------------|-----------------------------------------------------------------------------|
| `Table(rows, columns)`           | numbers, rows × columns; logits unless another kind is named                |
| `Probabilities(rows, columns)`   | such a table whose rows are not below 0 and add up to 1                     |
| `Indices(below)`                 | whole numbers from 0 up to, not including, a size                           |
| `LikeWeights(sent)`              | tensors of the names, shapes and types of a field that the client was sent  |
| `Number(least, most)`            | one number in a range                                                       |
| a bare `Kind`                    | anything that can travel                                                    |

Sizes are given by name: `outputs` (of every model), `classes` (of the private data), `public` (rows of the public set),
or a field that was sent or is in the same reply, for its length. Nothing may be NaN or infinite.

A reply that is refused is left out, and the reason stands in the run's history. Peers' messages in gossip pass the same
door. What a client measured and noted on the way (`REPORT`) does so too, before it leaves the client.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import torch
from torch import Tensor

from polyfed import learn
from polyfed.errors import MethodError
from polyfed.federation.message import Fields, Kind, first_not_finite

PARTS_SCORED = ("validation", "own", "whole")
PARTS_WITH_METRICS = ("own", "whole")
SHORT_NAME = re.compile(r"[\w][\w .:+-]{0,39}")


@dataclass(frozen=True)
class Surroundings:
    """What a field is compared with: the federation's sizes, what the client was sent, the rest of its reply."""

    sizes: Mapping[str, int]
    sent: Fields = field(default_factory=dict)
    reply: Fields = field(default_factory=dict)

    def size(self, name: str) -> int:
        """A size by name."""
        if name in self.sizes:
            return self.sizes[name]
        for fields in (self.sent, self.reply):
            value = fields.get(name)
            if isinstance(value, Tensor) and value.dim():
                return len(value)
        raise MethodError(
            f"'{name}' is not a size: use {', '.join(self.sizes)}, or a field that was sent or is in the reply"
        )


@dataclass(frozen=True)
class Field:
    """A field that may leave a client: its kind, and what it must be. This one may be anything."""

    kind: Kind = field(default=Kind.CONTROL, kw_only=True)

    def refusal(self, name: str, value: Any, around: Surroundings) -> str | None:
        """Why this value is of no use; nothing if it is."""
        return None


Declared: TypeAlias = Mapping[str, Field | Kind]


@dataclass(frozen=True)
class Table(Field):
    """Numbers, rows × columns."""

    rows: str = "rows"
    columns: str = "outputs"
    kind: Kind = field(default=Kind.LOGITS, kw_only=True)

    def refusal(self, name: str, value: Any, around: Surroundings) -> str | None:
        shape = around.size(self.rows), around.size(self.columns)
        if isinstance(value, Tensor) and value.is_floating_point() and value.shape == shape:
            return None
        return f"its {name} are not a table of {shape[0]} rows × {shape[1]} {self.columns}"


@dataclass(frozen=True)
class Probabilities(Table):
    """A table whose rows are probabilities."""

    kind: Kind = field(default=Kind.POSTERIORS, kw_only=True)

    def refusal(self, name: str, value: Any, around: Surroundings) -> str | None:
        reason = super().refusal(name, value, around)
        if reason is None and not learn.are_probabilities(value):
            reason = f"its {name} are not probabilities: each at least 0, and 1 in sum"
        return reason


@dataclass(frozen=True)
class Indices(Field):
    """Row numbers: a list of whole numbers below a size, at least one."""

    below: str = "public"
    kind: Kind = field(default=Kind.INDICES, kw_only=True)

    def refusal(self, name: str, value: Any, around: Surroundings) -> str | None:
        end = around.size(self.below)
        if (
            isinstance(value, Tensor)
            and value.dtype in (torch.int32, torch.int64)
            and value.dim() == 1
            and len(value)
            and 0 <= int(value.min()) <= int(value.max()) < end
        ):
            return None
        return f"its {name} are not row numbers from 0 to {end - 1}"


@dataclass(frozen=True)
class LikeWeights(Field):
    """Tensors like those that the client was sent. Names, shapes and types are the same; of some names `only`.

    sent: the field that they are like.
    """

    sent: str = "weights"
    only: Callable[[str], bool] | None = None
    kind: Kind = field(default=Kind.WEIGHTS, kw_only=True)

    def refusal(self, name: str, value: Any, around: Surroundings) -> str | None:
        if not isinstance(value, Mapping) or not value:
            return f"its reply has no {name} at all"
        model: Any = around.sent.get(self.sent)
        if not isinstance(model, Mapping):
            raise MethodError(
                f"'{name}' must be like '{self.sent}', which was not sent: send it to the clients"
            )
        expected = {key: like for key, like in model.items() if self.only is None or self.only(key)}
        if value.keys() != expected.keys():
            return f"its {name} have other names than the model's"
        for key, like in expected.items():
            tensor = value[key]
            if not isinstance(tensor, Tensor) or tensor.shape != like.shape:
                return f"its {name} '{key}' are of another size than the model's"
            if tensor.dtype != like.dtype:
                return (
                    f"its {name} '{key}' are of another type ({tensor.dtype}) than the model's ({like.dtype})"
                )
        return None


@dataclass(frozen=True)
class Number(Field):
    """One number in a range, its ends included."""

    least: float = -math.inf
    most: float = math.inf
    kind: Kind = field(default=Kind.METRICS, kw_only=True)

    def refusal(self, name: str, value: Any, around: Surroundings) -> str | None:
        if (
            isinstance(value, int | float)
            and not isinstance(value, bool)
            and self.least <= value <= self.most
        ):
            return None
        return f"its {name} is not a number from {self.least:g} to {self.most:g}"


@dataclass(frozen=True)
class Measurements(Field):
    """Accuracies by stage, {stage: {part: [right, of]}}, and metrics: {stage: {metrics: {part: {name: share}}}}."""

    kind: Kind = field(default=Kind.METRICS, kw_only=True)

    def refusal(self, name: str, value: Any, around: Surroundings) -> str | None:
        if not _named(value) or not all(_is_measurement(parts) for parts in value.values()):
            return f"its {name} are not accuracies by stage"
        if not all(_has_metrics(parts) for parts in value.values()):
            return f"its {name} hold metrics that are not {', '.join(learn.METRICS)} of a scored part"
        return None


@dataclass(frozen=True)
class Notes(Field):
    """Numbers by name."""

    kind: Kind = field(default=Kind.METRICS, kw_only=True)

    def refusal(self, name: str, value: Any, around: Surroundings) -> str | None:
        if _named(value) and all(
            isinstance(number, int | float) and not isinstance(number, bool) for number in value.values()
        ):
            return None
        return f"its {name} are not numbers by name: note a number under a short name"


REPORT: Mapping[str, Field] = {"measured": Measurements(), "noted": Notes()}


def field_of(declared: Field | Kind) -> Field:
    """A bare kind says nothing of what the field must be."""
    return declared if isinstance(declared, Field) else Field(kind=declared)


def kinds_of(declared: Declared) -> dict[str, Kind]:
    """The kind of each field."""
    return {name: field_of(what).kind for name, what in declared.items()}


def why_refused(
    declared: Declared, required: Sequence[str], fields: Fields, around: Surroundings
) -> str | None:
    """Why these fields are not let in; nothing if they are. `required` are the fields that must be there."""
    for name in required:
        if name not in fields:
            return f"its reply has no {name}"
    for name in fields:
        if name not in declared:
            return f"its reply has a field '{name}' that the method does not declare"
    spoilt = first_not_finite(fields)
    if spoilt is not None:
        return f"its {spoilt} hold NaN or infinity"
    reasons = (field_of(declared[name]).refusal(name, value, around) for name, value in fields.items())
    return next((reason for reason in reasons if reason is not None), None)


def why_report_refused(report: Fields) -> str | None:
    """Why a client's measurements and notes are not let out; nothing if they are. A loss may be NaN."""
    nothing = Surroundings({})
    reasons = (REPORT[name].refusal(name, value, nothing) for name, value in report.items())
    return next((reason for reason in reasons if reason is not None), None)


def _named(value: Any) -> bool:
    return isinstance(value, Mapping) and all(
        isinstance(name, str) and SHORT_NAME.fullmatch(name) for name in value
    )


def _is_score(score: Any) -> bool:
    return (
        isinstance(score, list | tuple)
        and len(score) == 2
        and all(type(count) is int for count in score)
        and 0 <= score[0] <= score[1]
    )


def _is_measurement(parts: Any) -> bool:
    return isinstance(parts, Mapping) and all(
        part == "metrics" or (part in PARTS_SCORED and _is_score(score)) for part, score in parts.items()
    )


def _has_metrics(parts: Mapping[str, Any]) -> bool:
    """Whether the metrics, if there are any, are known ones, in their range, of parts that were scored."""
    metrics = parts.get("metrics", {})
    return isinstance(metrics, Mapping) and all(
        part in PARTS_WITH_METRICS
        and part in parts
        and isinstance(found, Mapping)
        and all(_is_metric(name, value, rows=parts[part][1]) for name, value in found.items())
        for part, found in metrics.items()
    )


def _is_metric(name: Any, value: Any, rows: int) -> bool:
    if name == learn.CONFUSION:
        return (
            isinstance(value, list)
            and all(isinstance(row, list) and len(row) == len(value) for row in value)
            and all(type(count) is int and count >= 0 for row in value for count in row)
            and sum(map(sum, value)) == rows
        )
    return name in learn.METRICS and type(value) in (int, float) and 0 <= value <= 1
