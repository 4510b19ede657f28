"""The `data` section of a run file: one data set that is cut, or what each client brings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import BaseModel, Field, ValidationError, field_validator, model_validator

from polyfed.data import Dirichlet, Function, Listed, Natural, PartitionSettings, PublicSettings, Rotated
from polyfed.federation.roster import why_not_a_name, why_not_names
from polyfed.schema import SECTION, OneOrMore, as_list, explain

DEFAULT_CLIENTS = 8
OF_ONE_SET = ("source", "limit", "per_class", "names", "partition")
"""Keys that say which data set is cut, and how: not for clients that bring their own."""

Share = Annotated[float, Field(ge=0, lt=1)]
Normalise: TypeAlias = Literal["auto", "client", "all", "none"]


class TrainAndTest(BaseModel):
    """A client's rows in two files: those of `test` are never trained on."""

    model_config = SECTION

    train: Annotated[str, Field(min_length=1)]
    test: Annotated[str, Field(min_length=1)] | None = None


Brings: TypeAlias = Annotated[str, Field(min_length=1)] | TrainAndTest


def _brings(name: object, given: Any) -> Any:
    """What a client brings, checked here: of a wrong one of two kinds pydantic would tell what both should be."""
    if isinstance(given, TrainAndTest) or (isinstance(given, str) and given):
        return given
    if not isinstance(given, Mapping):
        raise ValueError(f"'{name}' brings a file, a folder, or {{train: a file, test: a file}}")  # noqa: TRY004
    try:
        return TrainAndTest.model_validate(given)
    except ValidationError as error:
        raise ValueError(explain(error, TrainAndTest, str(name))) from None


class Data(BaseModel):
    """Which data, and who holds what of it."""

    model_config = SECTION

    source: str = "digits"
    """A named set (`polyfed data` lists them), a parquet, CSV or .npz file, or a folder of images by class."""
    image: str | None = None
    """The column with images, where polyfed cannot find it by itself."""
    label: str | list[str] | None = None
    """The column with labels, where polyfed cannot find it by itself; for multilabel, the column of each class."""
    drop: list[str] = []
    """Columns of a table that are not learnt from, such as an id."""
    inputs: Literal["numbers", "tokens"] = "numbers"
    """What columns and arrays are: numbers, which are normalised; or token ids (rows × positions), which stay whole
    numbers, for models that look them up in an embedding."""
    size: Annotated[int, Field(ge=8)] | None = None
    """Resize images to so many pixels a side."""
    limit: Annotated[int, Field(ge=2)] | None = None
    """Use only this many rows; the shares of classes are kept."""
    per_class: Annotated[int, Field(ge=1)] | None = None
    """Use only this many rows of each class."""
    clients: Annotated[int, Field(ge=1)] | dict[str, Brings] | None = None
    """How many clients; where not given, as many as a natural partition or `names` has, else 8. Or what each client
    brings, by its name: {north: north.csv, south: {train: south.parquet, test: south-test.parquet}, west: scans/}."""
    each: Annotated[str, Field(min_length=1)] | None = None
    """Instead of `clients`: a pattern such as hospitals/*/data.csv. Every file or folder that matches is what one
    client brings, and what * stands for is its name."""
    classes: list[str] = []
    """The classes in the order that the clients have agreed on. Where not given: all that occur, if the clients'
    classes overlap."""
    normalise: Normalise = "auto"
    """By whose statistics inputs are normalised: each client's own training rows (client), the same for all (all), or
    not at all (none). auto: client where clients bring their own data, all where one data set is cut; none of token
    ids, which stay as they are."""
    test_set: Annotated[str, Field(min_length=1)] | None = None
    """A file or folder that the server has, on which models are scored; nobody trains on it."""
    names: Annotated[list[str], OneOrMore] | None = None
    """The clients' names, in their order, for files and history. Where not given: the words of a natural partition's
    column, else client-0, client-1 …"""
    partition: PartitionSettings = Dirichlet()
    validation: Share = 0.1
    """Share of each client's rows on which the best round is chosen."""
    test: Share = 0.2
    """Share of each client's rows on which it is scored; of a client that brings test rows apart, those are."""
    public: PublicSettings = PublicSettings()

    @property
    def is_brought(self) -> bool:
        """Whether clients bring their own data."""
        return self.each is not None or isinstance(self.clients, Mapping)

    @property
    def normalised(self) -> Normalise:
        """By whose statistics inputs are normalised, with `auto` decided."""
        if self.inputs == "tokens":
            return "none"
        if self.normalise == "auto":
            return "client" if self.is_brought else "all"
        return self.normalise

    def client_count(self) -> int | None:
        if isinstance(self.clients, int):
            return self.clients
        if isinstance(self.partition, Natural | Rotated | Listed | Function):
            return None
        return DEFAULT_CLIENTS if self.names is None else len(self.names)

    def reading(self) -> dict[str, Any]:
        """How files are read, as `data.load` takes it."""
        read = {"image": self.image, "label": self.label, "drop": self.drop, "size": self.size}
        return {**read, "inputs": self.inputs}

    def code_names(self) -> list[str]:
        """Names that stand for functions of the user's own."""
        return [self.partition.function] if isinstance(self.partition, Function) else []

    def brought(self, clients: Mapping[str, str | TrainAndTest]) -> Data:
        """The section with what each client brings, and nothing that is for one data set."""
        changes = {"clients": dict(clients), "each": None}
        found = self.model_copy(update=changes)
        return found.model_copy(update={"normalise": found.normalised})

    def as_file(self) -> dict[str, Any]:
        """The section that gives exactly this one."""
        left_out = set(OF_ONE_SET) if self.is_brought else set()
        return self.model_dump(mode="json", exclude=left_out)

    @field_validator("partition", mode="before")
    @classmethod
    def _read_partition(cls, value: Any) -> Any:
        """A partition whose kind is left out is the default one."""
        return {"kind": "dirichlet", **value} if isinstance(value, Mapping) else value

    @field_validator("drop", "classes", mode="before")
    @classmethod
    def _read_words(cls, value: Any) -> Any:
        """Words as text, where YAML reads 7 as a number."""
        words = as_list(value)
        if not isinstance(words, list | tuple):
            return value
        return [str(word) if isinstance(word, int) and not isinstance(word, bool) else word for word in words]

    @field_validator("classes")
    @classmethod
    def _check_classes(cls, classes: list[str]) -> list[str]:
        twice = [word for word in classes if classes.count(word) > 1]
        if twice:
            raise ValueError(f"'{twice[0]:.60}' is there twice")
        if len(classes) == 1:
            raise ValueError("at least two classes are needed to learn anything")
        return classes

    @field_validator("label")
    @classmethod
    def _check_label(cls, label: str | list[str] | None) -> str | list[str] | None:
        twice = [name for name in label if label.count(name) > 1] if isinstance(label, list) else []
        if twice:
            raise ValueError(f"'{twice[0]:.60}' is there twice")
        return label

    @field_validator("clients", mode="before")
    @classmethod
    def _read_clients(cls, value: Any) -> Any:
        """The clients by name; whatever is not a number of them."""
        if not isinstance(value, Mapping):
            if isinstance(value, str) or (value is not None and not isinstance(value, int | float)):
                raise ValueError(
                    "give a number of clients, or what each brings: {north: north.csv, south: scans/}"
                )
            return value
        if (reason := why_not_names(list(value))) is not None:
            raise ValueError(reason)
        return {name: _brings(name, given) for name, given in value.items()}

    @field_validator("names")
    @classmethod
    def _check_names(cls, names: list[str] | None) -> list[str] | None:
        seen: set[str] = set()
        for name in names or ():
            if (reason := why_not_a_name(name)) is not None:
                raise ValueError(reason)
            if name in seen:
                raise ValueError(f"'{name}' is there twice: every client needs a name of its own")
            seen.add(name)
        return names

    @model_validator(mode="after")
    def _one_way(self) -> Data:
        """One data set that is cut, or what each client brings."""
        if self.each is not None and self.clients is not None:
            raise ValueError("clients and each: give one of them")
        cut = [key for key in OF_ONE_SET if key in self.model_fields_set]
        if self.is_brought and cut:
            raise ValueError(
                f"{cut[0]} is for one data set that is cut, and here each client brings its own: leave it out"
            )
        return self

    @model_validator(mode="after")
    def _one_name_each(self) -> Data:
        if self.names is not None and isinstance(self.clients, int) and len(self.names) != self.clients:
            raise ValueError(
                f"{len(self.names)} names for {self.clients} clients; give one for each, or none"
            )
        return self

    @model_validator(mode="after")
    def _tokens_as_they_are(self) -> Data:
        if self.inputs == "tokens" and self.normalise in ("client", "all"):
            raise ValueError(f"token ids are not normalised: leave normalise={self.normalise} out")
        return self

    @model_validator(mode="after")
    def _leave_some(self) -> Data:
        if self.validation + self.test >= 1:
            raise ValueError("validation and test together must leave some rows to train on")
        return self
