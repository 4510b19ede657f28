"""What a field of a reply must be, and the one door at which replies are checked.

A method's `sends` gives every field that may leave a client its kind, and may say what it must be:

| declaration                      | what is let in                                                              |
|----------------------------------|-----------------------------------------------------------------------------|
| `Table(rows, columns)`           | numbers, rows × columns; logits unless another kind is named                |
| `Probabilities(rows, columns)`   | such a table whose rows are answers of the task: not below 0, adding up to 1 |
| `Indices(below)`                 | whole numbers from 0 up to, not including, a size; all different if so told |
| `Counts(rows)`                   | whole numbers from 1, as many as a size says; in sum at most the client's rows |
| `LikeWeights(sent)`              | tensors of the names, shapes and types of a field that the client was sent  |
| `OwnWeights()`                   | tensors of the names, shapes and types of the client's own model            |
| `RowNumbers(wanted, of)`         | by layer as many different row numbers as were asked for                    |
| `Number(least, most)`            | one number in a range                                                       |
| a bare `Kind`                    | anything that can travel                                                    |

Sizes are given by name: `outputs` (of every model), `classes` (of the private data), `public` (rows of the public set),
`features` (of every model, where the method declares `Need.COMMON_FEATURES`), or a field that was sent or is in the
same reply, for its length. Nothing may be NaN or infinite, or far larger than what the others send (see `outliers`).

A reply that is refused is left out, and the reason stands in the run's history. Peers' messages in gossip pass the same
door. What a client measured and noted on the way does so too, before it leaves the client and when it arrives: scores
at the stages, and numbers under the names, that its method declares (`stages`, `notes`), and nothing else.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeAlias

import torch
from torch import Tensor

from polyfed import learn
from polyfed.errors import MethodError
from polyfed.federation.message import Fields, Kind, first_not_finite
from polyfed.learn import Metric
from polyfed.tasks import CLASSIFICATION, Task, Trait

PARTS_SCORED = ("validation", "own", "whole")
LOCAL_LOSS = "local-loss"  # what every method may note
NAME_SHOWN = 24
FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)  # what numbers may travel in
MOST_COUNTED = 2**53  # whole numbers beyond are not exact in any float


@dataclass(frozen=True)
class Surroundings:
    """What a field is compared with: the federation's sizes, what the client was sent, the rest of its reply."""

    sizes: Mapping[str, int]
    sent: Fields = field(default_factory=dict)
    reply: Fields = field(default_factory=dict)
    own_model: Callable[[], Mapping[str, Tensor]] = dict
    """Tensors of the names, shapes and types of the client's own model."""
    samples: float = math.inf
    """How many training rows the client said that it holds."""
    task: Task = CLASSIFICATION
    """What is learnt: it says what an answer can be."""

    def size(self, name: str) -> int:
        """A size by name; a `NoSize` if there is none of that name."""
        if name in self.sizes:
            return self.sizes[name]
        for fields in (self.sent, self.reply):
            value = fields.get(name)
            if isinstance(value, Tensor) and value.dim():
                return len(value)
        raise NoSize(name)


class NoSize(Exception):
    """A size that nothing gives: a mistake in a declaration, or a reply that does not say it."""


@dataclass(frozen=True)
class Field:
    """A field that may leave a client: its kind, and what it must be. This one may be anything."""

    kind: Kind = field(default=Kind.CONTROL, kw_only=True)
    spread: float = field(default=1.0, kw_only=True)
    """How many times more than in other fields honest clients may differ in this one, in size: the run's `outliers` is
    multiplied by it. Infinity: by any factor."""

    words: ClassVar[str] = "anything that can travel"
    """What it must be, for people."""

    def __str__(self) -> str:
        return self.words.format(**vars(self))

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
    words = "numbers, {rows} × {columns}"

    def refusal(self, name: str, value: Any, around: Surroundings) -> str | None:
        shape = around.size(self.rows), around.size(self.columns)
        if isinstance(value, Tensor) and value.dtype in FLOATS and value.shape == shape:
            return None
        return f"its {name} are not a table of {shape[0]} rows × {shape[1]} {self.columns}"


@dataclass(frozen=True)
class Probabilities(Table):
    """A table whose rows are probabilities: of one class each, or of several at once, as the task has it."""

    kind: Kind = field(default=Kind.POSTERIORS, kw_only=True)
    words = "probabilities, {rows} × {columns}"

    def refusal(self, name: str, value: Any, around: Surroundings) -> str | None:
        reason = super().refusal(name, value, around)
        if reason is None and not around.task.is_answer(value):
            one = ", and 1 in sum" if Trait.ONE_CLASS in around.task.traits else ", at most 1"
            reason = f"its {name} are not probabilities: each at least 0{one}"
        return reason


@dataclass(frozen=True)
class Indices(Field):
    """Row numbers: a list of whole numbers below a size, at least one; none of them twice, if `distinct`."""

    below: str = "public"
    distinct: bool = False
    kind: Kind = field(default=Kind.INDICES, kw_only=True)
    words = "row numbers below {below}"

    def refusal(self, name: str, value: Any, around: Surroundings) -> str | None:
        end = around.size(self.below)
        if _are_indices(value, end, distinct=self.distinct):
            return None
        return f"its {name} are not {'different ' if self.distinct else ''}row numbers from 0 to {end - 1}"


@dataclass(frozen=True)
class Counts(Field):
    """How many there are of each: whole numbers, none below 1."""

    rows: str = "rows"
    kind: Kind = field(default=Kind.STATISTICS, kw_only=True)
    words = "whole numbers from 1, as many as {rows}"

    def refusal(self, name: str, value: Any, around: Surroundings) -> str | None:
        length = around.size(self.rows)
        if (
            isinstance(value, Tensor)
            and value.dtype in (torch.int32, torch.int64)
            and value.shape == (length,)
            and bool((value > 0).all())
        ):
            more = sum(value.tolist()) > around.samples
            return f"its {name} add up to more rows than it holds" if more else None
        return f"its {name} are not {length} whole numbers from 1"


@dataclass(frozen=True)
class LikeWeights(Field):
    """Tensors like those that the client was sent. Names, shapes and types are the same; of some names `only`.

    sent: the field that they are like.
    rows: the field of the reply (a `RowNumbers`) that names layers of which these rows alone are there.
    """

    sent: str = "weights"
    only: Callable[[str], bool] | None = None
    rows: str | None = None
    kind: Kind = field(default=Kind.WEIGHTS, kw_only=True)
    words = "tensors like the {sent} that it was sent"

    def __str__(self) -> str:
        some = ", some of them" if self.only is not None else ""
        return super().__str__() + (f", only the rows in {self.rows}" if self.rows is not None else some)

    def refusal(self, name: str, value: Any, around: Surroundings) -> str | None:
        if not isinstance(value, Mapping) or not value:
            return f"its reply has no {name} at all"
        model = self._model(name, around)
        expected = {key: like for key, like in model.items() if self.only is None or self.only(key)}
        if value.keys() != expected.keys():
            return f"its {name} have other names than the model's"
        for key, like in expected.items():
            tensor = value[key]
            if not isinstance(tensor, Tensor) or tensor.shape != self._shape(key, like, around):
                return f"its {name} '{key}' are of another size than the model's"
            if tensor.dtype != like.dtype:
                return (
                    f"its {name} '{key}' are of another type ({tensor.dtype}) than the model's ({like.dtype})"
                )
            if not _is_possible(key, tensor):
                return f"its {name} '{key}' hold numbers that no model has there"
        return None

    def sent_rows(self, name: str, around: Surroundings) -> Mapping[str, Tensor]:
        """What the client was sent, entry by entry like its reply: of layers of which it sent rows, these rows."""
        model = self._model(name, around)
        chosen: Any = around.reply.get(self.rows) if self.rows is not None else None
        if not isinstance(chosen, Mapping):
            return model
        return {
            key: tensor[chosen[layer].long()] if tensor.dim() and layer in chosen else tensor
            for key, tensor in model.items()
            for layer in (learn.layer_of(key),)
        }

    def _model(self, name: str, around: Surroundings) -> Mapping[str, Tensor]:
        """What the tensors are to be like."""
        model: Any = around.sent.get(self.sent)
        if not isinstance(model, Mapping):
            raise MethodError(
                f"'{name}' must be like '{self.sent}', which was not sent: send it to the clients"
            )
        return model

    def _shape(self, key: str, like: Tensor, around: Surroundings) -> torch.Size:
        chosen: Any = around.reply.get(self.rows) if self.rows is not None else None
        rows = chosen.get(learn.layer_of(key)) if isinstance(chosen, Mapping) else None
        if isinstance(rows, Tensor) and rows.dim() and like.dim():
            return torch.Size((len(rows), *like.shape[1:]))
        return like.shape


@dataclass(frozen=True)
class OwnWeights(LikeWeights):
    """Tensors like those of the client's own model, which it was not sent."""

    words = "tensors like those of its own model"

    def sent_rows(self, name: str, around: Surroundings) -> Mapping[str, Tensor]:
        return {}  # what the server knows of the client's model are names, shapes and types

    def _model(self, name: str, around: Surroundings) -> Mapping[str, Tensor]:
        return around.own_model()


@dataclass(frozen=True)
class RowNumbers(Field):
    """Rows of some layers, by the layers' names: as many of each as were asked for, all different.

    wanted: the field that was sent with the number of rows by layer. of: the field that was sent with the weights.
    """

    wanted: str
    of: str = "weights"
    kind: Kind = field(default=Kind.INDICES, kw_only=True)
    words = "row numbers of layers of the {of}, as many as {wanted} asks for"

    def refusal(self, name: str, value: Any, around: Surroundings) -> str | None:
        wanted: Any = around.sent.get(self.wanted)
        model: Any = around.sent.get(self.of)
        if not isinstance(wanted, Mapping) or not isinstance(model, Mapping):
            raise MethodError(
                f"'{name}' are rows of '{self.of}', as '{self.wanted}' asks: send both to the clients"
            )
        if not isinstance(value, Mapping) or value.keys() != wanted.keys():
            return f"its {name} are not those of the layers that were asked for"
        for layer, count in wanted.items():
            rows, end = value[layer], len(model[f"{layer}.weight"])
            if not (_are_indices(rows, end, distinct=True) and len(rows) == count):
                return f"its {name} of '{layer}' are not {count} different row numbers from 0 to {end - 1}"
        return None


@dataclass(frozen=True)
class Number(Field):
    """One number in a range, its ends included."""

    least: float = -math.inf
    most: float = math.inf
    kind: Kind = field(default=Kind.METRICS, kw_only=True)
    spread: float = field(
        default=1e7, kw_only=True
    )  # steps, squared norms: of clients that hold 1 row or 100,000
    words = "a number from {least:g} to {most:g}"

    def refusal(self, name: str, value: Any, around: Surroundings) -> str | None:
        if (
            isinstance(value, int | float)
            and not isinstance(value, bool)
            and self.least <= value <= self.most
        ):
            return None
        return f"its {name} is not a number from {self.least:g} to {self.most:g}"


def _is_possible(key: str, tensor: Tensor) -> bool:
    """Whether an entry of a model can be what it is: a variance is not below 0, a counter can be counted on."""
    if key.endswith("running_var"):
        return bool((tensor >= 0).all())
    return tensor.is_floating_point() or not tensor.numel() or bool(_magnitude(tensor) <= MOST_COUNTED)


def _magnitude(tensor: Tensor) -> int:
    """The largest magnitude among whole numbers."""
    return max(abs(int(tensor.min())), abs(int(tensor.max())))


def _are_indices(value: Any, end: int, *, distinct: bool) -> bool:
    """Whether this is a list of whole numbers from 0 up to, not including, an end; at least one."""
    return (
        isinstance(value, Tensor)
        and value.dtype in (torch.int32, torch.int64)
        and value.dim() == 1
        and len(value) > 0
        and 0 <= int(value.min()) <= int(value.max()) < end
        and not (distinct and len(value.unique()) < len(value))
    )


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
    try:
        return next((reason for reason in reasons if reason is not None), None)
    except NoSize as missing:
        name = str(missing)
        if name in declared:
            return f"its reply does not say how many {name} there are"
        raise MethodError(
            f"'{name}' is not a size: use {', '.join(around.sizes)}, or a field that was sent or is in the reply"
        ) from None


def why_report_refused(
    report: Fields,
    stages: Sequence[str],
    notes: Sequence[str],
    outputs: int,
    task: Task = CLASSIFICATION,
    metrics: Sequence[Metric] = (),
) -> str | None:
    """Why a client's measurements and notes are not let through; nothing if they are.

    stages, notes: what the method declares. outputs: how many every model has. task: what is learnt. metrics: what the
    run asks for beside the task's own score.
    """
    if not report.keys() <= {"measured", "noted"}:
        return "it reports something else than measurements and notes"
    reason = _why_measured_refused(report.get("measured", {}), stages, outputs, task, metrics)
    return reason or _why_noted_refused(report.get("noted", {}), notes)


def _why_measured_refused(
    measured: Any, stages: Sequence[str], outputs: int, task: Task, metrics: Sequence[Metric]
) -> str | None:
    if not isinstance(measured, Mapping):
        return "what it measured are not scores by stage"
    for stage, parts in measured.items():
        if stage not in stages:
            return f"it measures at {_shown(stage)}, which the method does not declare: add it to `stages`"
        if not _is_measurement(parts, task):
            return f"what it measured at '{stage}' are not scores of {task.name}"
        if not _has_metrics(parts, outputs, task, metrics):
            asked = ", ".join(metric.name for metric in metrics)
            return f"what it measured at '{stage}' are not {asked or 'scores alone'} of a scored part"
    return None


def _why_noted_refused(noted: Any, notes: Sequence[str]) -> str | None:
    if not isinstance(noted, Mapping):
        return "what it noted are not numbers by name"
    for name, number in noted.items():
        if name not in notes and name != LOCAL_LOSS:
            return f"it notes {_shown(name)}, which the method does not declare: add it to `notes`"
        if number is not None and not (type(number) is float and math.isfinite(number)):
            return f"what it noted as '{name}' is not a number"
    return None


def _shown(name: Any) -> str:
    """A name that somebody else chose, short: it may carry what should not leave a client."""
    return repr(name if isinstance(name, str) else type(name).__name__)[:NAME_SHOWN]


def _is_measurement(parts: Any, task: Task) -> bool:
    return isinstance(parts, Mapping) and all(
        part in ("metrics", "sums") or (part in PARTS_SCORED and task.admits(score))
        for part, score in parts.items()
    )


def _has_metrics(parts: Mapping[str, Any], outputs: int, task: Task, metrics: Sequence[Metric]) -> bool:
    """Whether the metrics, and their sums, are those asked for, in their range, of parts that were scored."""
    known = {metric.name: metric for metric in metrics}
    values, sums = parts.get("metrics", {}), parts.get("sums", {})
    return (
        all(isinstance(each, Mapping) and each.keys() <= set(PARTS_SCORED) for each in (values, sums))
        and parts.keys() >= values.keys() | sums.keys()
        and all(
            isinstance(found, Mapping)
            and all(
                name in known and known[name].admits(value, parts[part][1], outputs)
                for name, value in found.items()
            )
            for part, found in values.items()
        )
        and all(
            learn.admits_sums(found, parts[part][1], outputs, metrics, task) for part, found in sums.items()
        )
    )
