"""What a file of `papers/` holds: a paper's runs, settings, scales, tables, figures and claims, as data.

    base: {rounds: 50, data.source: cifar10}              # what all runs set, as in the paper
    runs:
      fedmd: {method: {name: fedmd}}                      # what is compared
    settings:
      le5-a01: {name: "le = 5, α = 0.1", set: {training.epochs: 5, data.partition.alpha: 0.1}}
    scales:
      paper: {seeds: 3}                                   # nothing is scaled
      tiny: {set: {data.source: digits, rounds: 5}, says: ["digits instead of CIFAR-10"]}
    tables:
      table2:
        title: …
        columns: [le5-a01]                                # settings, or {key, name, setting, measure}
        rows:
          - {key: global, name: Global, run: fedmd, measure: server.global, paper: {le5-a01: 59.76}}
        claims:
          - {text: …, order: [global, initial]}

`papers.load` reads one and checks that everything it refers to is there.
"""

from __future__ import annotations

import math
import re
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from polyfed.runs.keys import merge

Key = Annotated[str, Field(pattern=r"^[A-Za-z0-9][\w-]*$")]
Link = Annotated[str, Field(pattern=r"^https?://\S+$")]
Fragment = dict[str, Any]
"""Some keys and values of a run file."""
Measure = Annotated[
    str,
    Field(
        pattern=r"^(area\.|falls\.|(rounds|bytes)_to\.(0\.\d+|1)\.)?(own|whole|others|amp|fm|wlp|validation|architectures|stages|server|bytes|clients|noted|sent)(\.[\w-]+)*$"
    ),
]
"""Where a number is in a line of a run's history: `whole.mean`, `stages.distilled.whole.mean`, `server.global`,
`bytes.up` (so far). The first ones are short for what is in its summary. Of a whole run are `sent.client` and
`sent.round`, the bytes that a client sent in all and in a round, on average, framing left out; and `area.` before a
measure, its mean over the run (the area under its curve, over the rounds from the first to the last evaluation): the
higher and the sooner it is high, the larger. `falls.` before a measure is by how much it falls from one evaluation to
the next, on average, which a smooth rise does not. So are `rounds_to.0.6.` and `bytes_to.0.6.` before a measure
(`rounds_to.0.6.whole.mean`): the first evaluated round at which it is at least 0.6, and the bytes that had travelled by
then (training, up and down, all clients). Of a run that never gets there it is known that it takes more than it had."""
Unit = Literal["percent", "hundredths", "thousandths", "count", "bytes", "number"]

RoundChoice = Literal["round", "each"]
"""Whether validation chooses one round for all clients, or one for each client."""

_SUFFIXES = {None: 1.0, "k": 1e3, "m": 1e6, "kB": 1e3, "MB": 1e6, "GB": 1e9}


class PaperSection(BaseModel):
    """A part of a paper's file: unknown keys are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class PrintedNumber(PaperSection):
    """A number as the paper prints it: 79.29, "76.00", 79k, 4.7m, 10e6, 74.78 ± 0.68; in the row's unit.

    A spread is shown and not used.
    """

    text: str
    value: float

    @model_validator(mode="before")
    @classmethod
    def _read(cls, given: Any) -> Any:
        if isinstance(given, int | float | str) and not isinstance(given, bool):
            found = re.fullmatch(
                r"([+-]?\d+(?:\.\d+)?(?:e\d+)?)\s*(k|m|kB|MB|GB)?(?:\s*±\s*\d+(?:\.\d+)?)?", str(given)
            )
            if found is None:
                raise ValueError("write the number as the paper prints it, such as 79.29 or 79k")
            return {"text": str(given), "value": float(found[1]) * _SUFFIXES[found[2]]}
        return given


class Setting(PaperSection):
    """Conditions under which all runs are compared."""

    name: str
    set: Fragment = {}
    runs: dict[Key, Fragment] = {}
    """What single runs set under them, such as a weight that the paper tuned for each data set."""


class Scale(PaperSection):
    """The same comparison at another size."""

    seeds: Annotated[int, Field(ge=1)] = 3
    """How many by default; seeds are 0, 1, 2 …"""
    set: Fragment = {}
    runs: dict[Key, Fragment] = {}
    settings: dict[Key, Fragment] = {}
    says: tuple[str, ...] = ()
    """What differs from the paper's scale, in words."""


class TableColumn(PaperSection):
    """A column of a table: a setting, and a measure if it is not the rows'."""

    key: Key
    name: str = ""
    group: str = ""
    """What it has in common with the columns beside it, such as a node: printed once, above them."""
    setting: Key | None = None
    measure: Measure | None = None
    unit: Unit | None = None


def _short_column(given: Any) -> Any:
    return {"key": given, "setting": given} if isinstance(given, str) else given


AnyColumn = Annotated[TableColumn, BeforeValidator(_short_column)]

RowName = Annotated[str, Field(pattern=r"^([A-Za-z0-9][\w-]*\.)?[A-Za-z0-9][\w-]*$")]
"""A row of the same table, or `table.row`."""


class TableRow(PaperSection):
    """A row of a table: a measure of a run; the difference or ratio of two rows; or the parameters of models.

    Parameters are counted, not measured: they are the same for all seeds, and so is what is derived from them alone.
    """

    key: Key
    name: str
    run: Key | None = None
    measure: Measure | None = None
    difference: tuple[RowName, RowName] | None = None
    """The first less the second, in the same column."""
    ratio: tuple[RowName, RowName] | None = None
    """The first over the second, in the same column; a plain number."""
    parameters: dict[str, Annotated[int, Field(ge=1)]] | None = None
    """How many of each model, by name."""
    unit: Unit | None = None
    paper: dict[Key, PrintedNumber] = {}
    """What the paper prints, by column."""
    note: str = ""

    @model_validator(mode="after")
    def _is_one_thing(self) -> TableRow:
        kinds = (self.run, self.difference, self.ratio, self.parameters)
        if sum(kind is not None for kind in kinds) != 1:
            raise ValueError("a row has one of: run, difference, ratio, parameters")
        if self.measure is not None and self.run is None:
            raise ValueError("only a row with a run has a measure")
        return self

    @property
    def made_of(self) -> tuple[RowName, ...]:
        """The rows that it is computed from."""
        return self.difference or self.ratio or ()


def _two_terms(given: Any) -> Any:
    if isinstance(given, list | tuple) and len(given) != 2:
        raise ValueError("an order has two terms: write a chain as several claims, each with its own text")
    return given


class Claim(PaperSection):
    """Something that the paper says of its numbers, and that can be judged on numbers measured here.

    order: the first is above the second (by more than `margin`; with one below 0, not below it by more than that).
    near: the two differ by less than `within`; with a `margin`, the first is above the second by about that much.
    ratio: the first over the second is above `at_least` or below `at_most`.
    value: the number itself is above `at_least` or below `at_most`.
    A term is `row`, `row@column`, `table.row` or `table.row@column`. Without a column a claim is judged in each of the
    table's columns, or in those that `only` names. Margins are in the rows' unit.
    """

    text: str
    order: Annotated[tuple[str, str], BeforeValidator(_two_terms)] | None = None
    margin: float = 0.0
    ratio: tuple[str, str] | None = None
    value: str | None = None
    at_least: float | None = None
    at_most: float | None = None
    near: tuple[str, str] | None = None
    within: Annotated[float, Field(gt=0)] | None = None
    only: tuple[Key, ...] = ()

    @model_validator(mode="after")
    def _is_one_thing(self) -> Claim:
        if sum(form is not None for form in (self.order, self.ratio, self.value, self.near)) != 1:
            raise ValueError("a claim has one of: order, ratio, value, near")
        is_bounded = self.at_least is not None or self.at_most is not None
        if is_bounded != (self.ratio is not None or self.value is not None):
            raise ValueError("ratio goes with at_least or at_most, and so does value")
        if self.at_least is not None and self.at_most is not None:
            raise ValueError("at_least and at_most are two claims")
        if (self.near is not None) != (self.within is not None):
            raise ValueError("near and within go together")
        if self.margin and self.order is None and self.near is None:
            raise ValueError("margin belongs to order or near")
        return self

    @property
    def terms(self) -> tuple[str, ...]:
        return self.order or self.ratio or self.near or ((self.value,) if self.value is not None else ())

    @property
    def is_plain_order(self) -> bool:
        """Whether it says which is larger and nothing else, so that no number in it has a unit."""
        return self.order is not None and self.margin == 0

    @property
    def allows(self) -> float | None:
        """How far off a difference may be: of `within`, or of a margin below 0; None where one has to be found."""
        if self.within is not None:
            return self.within
        return -self.margin if self.margin < 0 else None

    @property
    def interval(self) -> tuple[float, float]:
        """What the difference, ratio or number has to lie between, if the claim is true."""
        if self.within is not None:
            return self.margin - self.within, self.margin + self.within
        if self.order is not None:
            return self.margin, math.inf
        return (
            -math.inf if self.at_least is None else self.at_least,
            math.inf if self.at_most is None else self.at_most,
        )


class Inputs(PaperSection):
    """The input and outputs of the models whose parameters are counted."""

    shape: tuple[int, int, int]
    outputs: Annotated[int, Field(ge=1)]


class Item(PaperSection):
    """A table or figure."""

    title: str
    scales: tuple[Key, ...] = ()
    """The scales at which it can be reproduced; all of them by default."""


class PaperTable(Item):
    """A table of the paper."""

    columns: Annotated[tuple[AnyColumn, ...], Field(min_length=1)]
    rows: Annotated[tuple[TableRow, ...], Field(min_length=1)]
    unit: Unit = "percent"
    inputs: Inputs | None = None
    claims: tuple[Claim, ...] = ()

    def row(self, key: str) -> TableRow:
        return next(row for row in self.rows if row.key == key)

    def column(self, key: str) -> TableColumn:
        return next(column for column in self.columns if column.key == key)

    def unit_of(self, row: TableRow, column: TableColumn) -> Unit:
        return "number" if row.ratio is not None else row.unit or column.unit or self.unit

    def column_unit(self, column: TableColumn) -> Unit:
        """The unit of a column, but for rows that have another."""
        return column.unit or self.unit

    @property
    def groups(self) -> bool:
        """Whether its columns come in groups."""
        return any(column.group for column in self.columns)


class CurvesFigure(Item):
    """A figure of a table's rows over the rounds, a panel for each column."""

    kind: Literal["curves"]
    table: Key
    rows: Annotated[tuple[Key, ...], Field(min_length=1)]


class PanelLine(PaperSection):
    """A run's measure over time."""

    name: str
    run: Key
    measure: Measure


class LinesPanel(PaperSection):
    """One panel of a figure of lines, with its own axis."""

    title: str
    quantity: str = "accuracy in %"
    unit: Unit = "percent"
    lines: Annotated[tuple[PanelLine, ...], Field(min_length=1)]


class LinesFigure(Item):
    """A figure of panels, each with measures of its own, such as losses.

    Along x are local steps: `training.steps` per round, or one per round where a run does not set it.
    """

    kind: Literal["lines"]
    setting: Key
    panels: Annotated[tuple[LinesPanel, ...], Field(min_length=1)]

    @property
    def needed(self) -> tuple[tuple[str, str], ...]:
        """Every (run, setting) that it is drawn from."""
        return tuple((line.run, self.setting) for panel in self.panels for line in panel.lines)


class FeaturesFigure(Item):
    """A figure of one client's final model: its features of the whole test set, in two dimensions.

    A panel for each run, with the first seed.
    """

    kind: Literal["features"]
    setting: Key
    client: Annotated[int, Field(ge=0)] = 0
    runs: Annotated[dict[Key, str], Field(min_length=1)]
    """The runs, and how each is called in the figure."""

    @property
    def needed(self) -> tuple[tuple[str, str], ...]:
        """Every (run, setting) that it is drawn from."""
        return tuple((run, self.setting) for run in self.runs)


class HoldingsFigure(Item):
    """A figure of who holds what, a picture for each column; nothing is run for it."""

    kind: Literal["holdings"]
    run: Key
    columns: Annotated[tuple[AnyColumn, ...], Field(min_length=1)]

    needed: ClassVar[tuple[tuple[str, str], ...]] = ()


PaperFigure = Annotated[
    CurvesFigure | LinesFigure | FeaturesFigure | HoldingsFigure, Field(discriminator="kind")
]


class Paper(PaperSection):
    """A paper: what it compares, what it prints, what it claims."""

    id: Key
    title: str
    cite: str
    """Who wrote it and when."""
    links: tuple[Link, ...] = ()
    """Where it can be read."""
    readings: tuple[str, ...] = ()
    """What the paper leaves open, and what is done here."""
    slips: tuple[str, ...] = ()
    """Where the paper contradicts itself, and which reading is used here."""
    chosen: RoundChoice = "round"
    base: Fragment = {}
    runs: dict[Key, Fragment]
    settings: dict[Key, Setting]
    scales: Annotated[dict[Key, Scale], Field(min_length=1)]
    tables: dict[Key, PaperTable] = {}
    figures: dict[Key, PaperFigure] = {}

    def config(self, run: str, setting: str, scale: str, seed: int) -> Fragment:
        """The content of one run's file, each layer over the last: base, run, setting, scale, seed.

        Of the setting first what all runs set, then this one; of the scale all runs, this run, this setting.
        """
        size, under = self.scales[scale], self.settings[setting]
        return merge(
            self.base,
            self.runs[run],
            under.set,
            under.runs.get(run, {}),
            size.set,
            size.runs.get(run, {}),
            size.settings.get(setting, {}),
            {"name": f"{run}-{setting}-{seed}", "seed": seed},
        )

    def scales_of(self, item: Item) -> tuple[str, ...]:
        """The scales at which a table or figure can be reproduced."""
        return item.scales or tuple(self.scales)

    def column_name(self, column: TableColumn) -> str:
        """A column's name with that of its group."""
        return " ".join(part for part in (column.group, self.short_name(column)) if part)

    def short_name(self, column: TableColumn) -> str:
        """A column's name within its group."""
        if column.name or column.setting is None:
            return column.name or column.key
        return self.settings[column.setting].name
