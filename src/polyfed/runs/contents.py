"""What the JSON files of a run directory must be for their readers.

A run directory may come from anybody, and whoever forges a file can forge its digest. So what is read is checked here,
once: types, sizes, and whether the parts agree, before anything is built from it. `assignment.json` is in `assignment`.
"""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, Strict, ValidationError, model_validator

from polyfed.data import Agreement, InputForm
from polyfed.federation.ledger import Purpose
from polyfed.federation.message import Direction
from polyfed.learn import CONFUSION, is_metric_name, known_metric
from polyfed.runs.assignment import MOST, Count
from polyfed.runs.holdings import WholeTest

LARGEST = 1e15  # rounds, seconds and any other number of a run: far above any
LARGEST_METRIC = 1e30
ROUNDING = 1e-9  # by which a mean of numbers at the end of a range may be outside
LARGEST_SUM = 1e40  # of squared errors, and their variance
LARGEST_INPUT = 3.5e38  # what fits into 32 bits
MOST_INPUTS = 50_000_000  # numbers in one row: as many as an image may have pixels

Number = Annotated[float, Field(ge=-LARGEST, le=LARGEST, allow_inf_nan=False)]
Place = Annotated[int, Field(ge=0, le=int(LARGEST))]
Size = Annotated[int, Field(ge=1, le=MOST_INPUTS)]
Counts = list[list[Count]]
Name = Annotated[str, Field(max_length=250)]  # of a model or a client: it becomes a file's name


class _Part(BaseModel):
    model_config = ConfigDict(extra="allow", strict=True, frozen=True)


Form = TypeVar("Form", bound=BaseModel)


def read_as(schema: type[Form], content: Any) -> Form | None:
    """What a file says; None if it is not what a run writes, whatever the values of its numbers and texts."""
    try:
        return schema.model_validate(content)
    except (ValidationError, RecursionError, OverflowError):
        return None


# -- manifest.json and models/clients.json ---------------------------------------------------------------------

Mark = Annotated[tuple[Annotated[Count, Strict()], str], Strict(False)]
"""Length and digest of a log; a tuple is a list in JSON."""


class Manifest(_Part):
    """What the manifest says; see `manifest`."""

    round: Place
    prepared: bool
    seconds: Annotated[float, Field(ge=0, le=LARGEST, allow_inf_nan=False)]
    torch: str
    data: str
    config: str
    next_config: str = ""
    description: str
    assignment: str
    server: Annotated[list[str], Field(min_length=2, max_length=2)]
    history: Mark
    ledger: Mark
    states: Mark
    result: dict[str, str] | None
    ended: bool = False
    """Whether its round is the last, although the config says more: it was asked to finish."""


class Clients(_Part):
    """Which client has which model: `models/clients.json`."""

    architectures: Annotated[list[Name], Field(min_length=1)]
    which: Annotated[list[Count], Field(min_length=1)]
    names: list[Name] | None = None
    files: dict[str, str]
    missing: dict[str, str] = {}

    @model_validator(mode="after")
    def _agrees(self) -> Clients:
        if max(self.which) >= len(self.architectures):
            raise ValueError("a client has an architecture that there is not")
        if self.names is not None and len(self.names) != len(self.which):
            raise ValueError("not a name for each client")
        return self


# -- data.json -------------------------------------------------------------------------------------------------


Constant = Annotated[float, Field(ge=-LARGEST_INPUT, le=LARGEST_INPUT, allow_inf_nan=False)]
Means = list[Constant]
Deviations = list[Annotated[Constant, Field(gt=0)]]
Pair = Annotated[tuple[Means, Deviations], Strict(False)]
"""Normalisation constants: a mean and a deviation for each channel or feature; a tuple is a list in JSON."""


class Measured(_Part):
    """How scores are shown, for readers that do not run the code of a task of the user's own."""

    measure: Annotated[str, Field(max_length=100)]
    unit: Annotated[str, Field(max_length=40)]
    smaller_is_better: bool


class Description(_Part):
    """What the data are, and what is learnt of them: `data.json`."""

    clients: list[str] | None
    partition_column: str | None
    outputs: list[str]
    shape: Annotated[list[Size], Field(min_length=1, max_length=3)]
    features: list[str]
    scaled: bool
    constants: Pair | dict[str, Pair]
    """By what rows are normalised: the same for all, or by the client's name."""
    classes: Annotated[list[str], Field(min_length=1)]
    label_columns: list[str]
    image: str | None
    largest_id: Place | None = None
    whole_test: WholeTest
    measure: Measured
    fingerprints: dict[str, str]

    @model_validator(mode="after")
    def _agrees(self) -> Description:
        if len(self.shape) == 2 or math.prod(self.shape) > MOST_INPUTS:
            raise ValueError("a row is some features, or an image of height, width and channels")
        if self.features and [len(self.features)] != self.shape:
            raise ValueError("not a name for each feature")
        if self.scaled and len(self.shape) != 3:
            raise ValueError("only images are scaled")
        if self.largest_id is not None and len(self.shape) != 1:
            raise ValueError("images are not token ids")
        known = self.constants if isinstance(self.constants, dict) else {"": self.constants}
        if any(not len(mean) == len(std) == self.shape[-1] for mean, std in known.values()):
            raise ValueError("not a mean and a deviation for each channel or feature")
        if known is self.constants and self.clients is not None and set(self.clients) != set(known):
            raise ValueError("not a mean and a deviation for each client")
        if self.outputs[: len(self.classes)] != self.classes:
            raise ValueError("the first outputs stand for the classes")
        return self

    @property
    def agreement(self) -> Agreement:
        """What all rows have in common."""
        return Agreement(
            shape=tuple(self.shape),
            features=tuple(self.features),
            scaled=self.scaled,
            classes=tuple(self.classes),
            label_columns=tuple(self.label_columns),
            image=self.image,
            largest_id=self.largest_id,
        )

    def form(self, client: str) -> InputForm | None:
        """What new rows are brought into, for the model that a client uses; None for one who has no form of its own.

        client: its name; or `server`, which normalises as all do, if all do alike.
        """
        constants = self.constants
        if isinstance(constants, dict):
            if client not in constants:
                return None
            constants = constants[client]
        mean, std = constants
        return InputForm.of(self.agreement, (tuple(mean), tuple(std)))


# -- summary.json and history.jsonl ----------------------------------------------------------------------------


MetricNumber = Annotated[float, Field(ge=-LARGEST_METRIC, le=LARGEST_METRIC, allow_inf_nan=False)]


class _Spread(_Part):
    """A metric over clients; None where it has no value."""

    mean: MetricNumber | None
    worst: MetricNumber | None
    best: MetricNumber | None = None
    spread: MetricNumber | None = None


def _metrics(found: dict[str, Any]) -> dict[str, Any]:
    """Metrics that there are, each in its range; only `confusion` is a matrix."""
    for name, value in found.items():
        if not is_metric_name(name):
            raise ValueError("not a metric")
        if value is not None and isinstance(value, list) != (name == CONFUSION):
            raise ValueError("only confusion is a matrix")
        metric = known_metric(name)
        numbers = [value] if isinstance(value, float | int) else []
        if isinstance(value, _Spread):
            numbers = [each for each in (value.mean, value.worst, value.best) if each is not None]
        if any(not metric.least - ROUNDING <= number <= metric.most + ROUNDING for number in numbers):
            raise ValueError("a metric outside of its range")
    return found


PartScored = Literal["validation", "own", "whole"]
MetricName = Annotated[str, Field(max_length=250)]
Metrics = Annotated[dict[MetricName, _Spread | Counts | None], AfterValidator(_metrics)]
ServerMetrics = Annotated[dict[MetricName, MetricNumber | Counts | None], AfterValidator(_metrics)]
ClientMetrics = ServerMetrics


class _ScoreSpread(_Part):
    mean: Number
    worst: Number
    best: Number
    spread: Number


_NONE = _ScoreSpread(mean=0, worst=0, best=0, spread=0)


class _Scores(_Part):
    own: _ScoreSpread = _NONE
    whole: _ScoreSpread = _NONE
    amp: Number = 0
    fm: Annotated[float, Field(ge=0, le=LARGEST_SUM, allow_inf_nan=False)] = 0
    wlp: Number = 0
    validation: Number = 0
    metrics: dict[PartScored, Metrics] = {}
    architectures: dict[str, dict[str, Number]] = {}


class _Round(_Scores):
    stages: dict[str, _Scores] = {}
    server: dict[str, Number] = {}
    server_metrics: dict[str, ServerMetrics] = {}


class _LastRound(_Round):
    architectures: dict[str, dict[str, Number]]


class _ChosenRound(_Round):
    round: Annotated[int, Field(ge=1, le=int(LARGEST))]


class Summary(_Part):
    """The result of a run: `summary.json`."""

    name: str
    method: str
    rounds: Annotated[int, Field(ge=1, le=int(LARGEST))]
    last: _LastRound
    chosen: _ChosenRound | None
    bytes: Annotated[dict[Direction, dict[str, Count]], Field(min_length=2)]
    clients: Annotated[int, Field(ge=1, le=MOST)]
    seconds: Number
    failures: Count
    stopped: Annotated[str, Field(max_length=1000)] | None = None
    """Why it ended before its last round, in words."""
    diverged: list[str] = []
    missing: dict[str, str] = {}


Sum = Annotated[float, Field(ge=0, le=LARGEST_SUM, allow_inf_nan=False)]
Score = Annotated[tuple[Count | Sum, Count], Strict(False)]
"""A tally: a sum over rows, and how many; a tuple is a list in JSON."""


class _ClientScore(_Part):
    own: Score = (0, 1)
    whole: Score = (0, 1)
    validation: Score = (0, 1)
    others: Score = (0, 1)
    metrics: dict[PartScored, ClientMetrics] = {}

    @model_validator(mode="after")
    def _of_some(self) -> _ClientScore:
        if not all((self.own[1], self.whole[1], self.validation[1], self.others[1])):
            raise ValueError("a score of no rows")
        return self


class _Failure(_Part):
    client: str
    step: str
    reason: str


class HistoryLine(_Part):
    """A round of `history.jsonl`; one that was evaluated has a summary and the clients' scores."""

    round: Place
    summary: _Scores = _Scores()
    clients: dict[str, _ClientScore] = {}
    stages: dict[str, _Scores] = {}
    server: dict[str, Number] = {}
    server_metrics: dict[str, ServerMetrics] = {}
    bytes: dict[Direction, Count] = {}
    failures: list[_Failure] = []

    @model_validator(mode="after")
    def _agrees(self) -> HistoryLine:
        if "summary" in self.model_fields_set and "clients" not in self.model_fields_set:
            raise ValueError("an evaluation without clients")
        return self


class LedgerLine(_Part):
    """A round of `ledger.jsonl`."""

    round: Place
    rows: list[Annotated[tuple[str, Direction, str, Purpose, Annotated[Count, Strict()]], Strict(False)]]
