"""The schema of a run file. Unknown keys are errors that name the nearest key; ranges are checked here, once."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import torch
import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from polyfed.data import Dirichlet, Natural, PartitionSettings, PublicSettings, Rotated
from polyfed.errors import ConfigError, nearest
from polyfed.federation.method import Method, find
from polyfed.learn import Training
from polyfed.models import Budget

DEFAULT_CLIENTS = 8

Share = Annotated[float, Field(ge=0, lt=1)]


class Section(BaseModel):
    """A part of a run file."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class MethodChoice(Section):
    """`method: fedprox`, or `method: {name: fedprox, mu: 0.1}`."""

    name: str = "fedavg"
    settings: dict[str, Any] = {}


class Data(Section):
    """Which data, and who holds what of it."""

    source: str = "digits"
    """A named set (`polyfed data` lists them), a parquet, CSV or .npz file, or a folder of images by class."""
    image: str | None = None
    label: str | None = None
    size: Annotated[int, Field(ge=8)] | None = None
    limit: Annotated[int, Field(ge=2)] | None = None
    """Use only so many rows (class shares kept)."""
    per_class: Annotated[int, Field(ge=1)] | None = None
    """Use only so many rows of each class."""
    clients: Annotated[int, Field(ge=1)] | None = None
    """How many clients; where not given, as many as a natural partition has, else 8."""
    partition: PartitionSettings = Dirichlet()
    validation: Share = 0.1
    """Share of each client's rows on which the best round is chosen."""
    test: Share = 0.2
    """Share of each client's rows on which it is scored."""
    public: PublicSettings = PublicSettings()

    def client_count(self) -> int | None:
        natural = isinstance(self.partition, Natural | Rotated)
        return self.clients if natural or self.clients is not None else DEFAULT_CLIENTS

    @field_validator("partition", mode="before")
    @classmethod
    def _read_partition(cls, value: Any) -> Any:
        """A partition whose kind is left out is the default one."""
        return {"kind": "dirichlet", **value} if isinstance(value, Mapping) else value

    @model_validator(mode="after")
    def _leave_some(self) -> Data:
        if self.validation + self.test >= 1:
            raise ValueError("validation and test together must leave some rows to train on")
        return self


class BudgetSection(Section):
    """What a client can afford; empty is no limit."""

    parameters: Annotated[int, Field(ge=1)] | None = None
    macs: Annotated[int, Field(ge=1)] | None = None
    memory_mb: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None

    def budget(self) -> Budget:
        memory = None if self.memory_mb is None else int(self.memory_mb * 1e6)
        return Budget(parameters=self.parameters, macs=self.macs, memory_bytes=memory)


class Models(Section):
    """Which model each client trains."""

    names: Annotated[list[str], Field(min_length=1)] = ["mlp"]
    assign: Literal["round-robin", "random", "budget"] = "round-robin"
    clients: dict[str, str] = {}
    """By name, for single clients or ranges: {"0-5": wrn-10-1, "7": vgg11}. Overrides `assign`."""
    budgets: list[BudgetSection] = []
    """For `assign: budget` and drop-out by budget: dealt out to the clients in turn."""
    norm: Literal["batch", "group"] = "batch"
    server: str | None = None
    """The server's model, for methods that have one."""

    @field_validator("clients", mode="before")
    @classmethod
    def _read_clients(cls, value: Any) -> Any:
        """YAML takes the 7 of {7: cnn} for a number."""
        return {str(key): name for key, name in value.items()} if isinstance(value, Mapping) else value

    def budget_of(self, client: int) -> Budget:
        return self.budgets[client % len(self.budgets)].budget() if self.budgets else Budget()


class Cohort(Section):
    """Who takes part in a round."""

    fraction: Annotated[float, Field(gt=0, le=1)] = 1.0
    count: Annotated[int, Field(ge=1)] | None = None
    """So many clients a round, instead of a fraction."""
    dropout: Share = 0.0
    """Share of them that drops out (0.4 leaves 60 %)."""
    dropout_by: Literal["chance", "budget"] = "chance"
    """Drop others by chance each round, or for good those with the smallest budgets."""

    def size(self, clients: int) -> int:
        if self.count is not None:
            if self.count > clients:
                raise ConfigError(f"cohort.count is {self.count}, but there are only {clients} clients")
            return self.count
        return max(1, round(self.fraction * clients))


class Evaluation(Section):
    """When and how models are looked at."""

    every: Annotated[int, Field(ge=1)] = 1
    """Rounds between evaluations; the last round is always evaluated."""
    clients: Annotated[int, Field(ge=1)] = 100
    """At most so many clients are scored (drawn once), so that cost does not grow with the population."""
    test_rows: Annotated[int, Field(ge=0)] | None = None
    """Score on so many rows of the whole test set (drawn once) instead of all."""
    validation: Literal["own", "everyone"] = "own"
    """Whether a client's best round is chosen on its own validation rows, or on everybody's (as FedH2L does it)."""
    outputs: Literal["all", "private"] = "all"
    """Where outputs also stand for public classes: may an answer be one of those (and be wrong), or is the best
    among the private classes taken?"""


class RunConfig(Section):
    """One run."""

    name: Annotated[str, Field(pattern=r"^[\w-][\w.-]*$")] = "run"
    """The name of the run directory; letters, digits, dots and dashes."""
    method: MethodChoice = MethodChoice()
    rounds: Annotated[int, Field(ge=1)] = 20
    seed: Annotated[int, Field(ge=0)] = 0
    data: Data = Data()
    models: Models = Models()
    training: Training = Training()
    cohort: Cohort = Cohort()
    evaluate: Evaluation = Evaluation()
    timeout: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    """Seconds a client may take for one step before it is left out of the round."""
    checkpoint_seconds: Annotated[float, Field(ge=0)] = 30.0
    """Seconds between checkpoints (0: after every round); more where saving would take over a twentieth of the time."""
    device: Literal["auto", "cpu", "cuda", "mps"] = "auto"
    stack: Literal["auto"] | Annotated[int, Field(ge=1)] = "auto"
    """How many clients of one small architecture are trained stacked in one tensor."""
    server_threads: Annotated[int, Field(ge=1)] = 1

    @field_validator("method", mode="before")
    @classmethod
    def _read_method(cls, value: Any) -> Any:
        if isinstance(value, str):
            return {"name": value}
        if isinstance(value, Mapping) and "settings" not in value:
            return {
                "name": value.get("name", "fedavg"),
                "settings": {key: item for key, item in value.items() if key != "name"},
            }
        return value

    def make_method(self) -> Method:
        """The method with its settings; a mistake in them is a `ConfigError`."""
        kind = find(self.method.name)
        try:
            settings = kind.Settings(**self.method.settings)
        except ValidationError as error:
            raise ConfigError(explain(error, kind.Settings, "method")) from None
        return kind(settings, self.training)

    def as_file(self) -> dict[str, Any]:
        """The run file that gives exactly this config."""
        content = self.model_dump(mode="json")
        content["method"] = {"name": self.method.name, **self.method.settings}
        return content


def read_config(source: Path | Mapping[str, Any], overrides: Sequence[str] = ()) -> RunConfig:
    """A run file (or its content), with `a.b=c` overrides, checked."""
    content = _read_yaml(source) if isinstance(source, Path) else dict(source)
    for override in overrides:
        _override(content, override)
    try:
        config = RunConfig.model_validate(content)
    except ValidationError as error:
        raise ConfigError(explain(error, RunConfig)) from None
    config.make_method()
    return config


def _read_yaml(path: Path) -> dict[str, Any]:
    try:
        content = yaml.safe_load(path.read_text())
    except FileNotFoundError:
        raise ConfigError(f"no run file {path}; `polyfed new {path}` writes one to start from") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read {path}: {error}") from None
    except yaml.YAMLError as error:
        raise ConfigError(f"{path} is not YAML: {' '.join(str(error).split())}") from None
    if content is None:
        content = {}
    if not isinstance(content, dict):
        raise ConfigError(f"{path} must hold keys and values; `polyfed new` shows how")
    return content


def _override(content: dict[str, Any], override: str) -> None:
    path, equals, text = override.partition("=")
    if not equals or not all(path.split(".")):
        raise ConfigError(f"--set {override}: write it as key=value, such as training.lr=0.1")
    try:
        value = yaml.safe_load(text)
    except yaml.YAMLError:
        value = text
    if isinstance(value, str) and re.fullmatch(r"[+-]?\d+(\.\d*)?[eE][+-]?\d+", value):
        value = float(value)  # YAML wants 1.0e-3 and takes 1e-3 for a text
    *parents, last = path.split(".")
    place = content
    for key in parents:
        inner = place.get(key)
        if key == "method" and isinstance(inner, str):
            inner = {"name": inner}
        if inner is not None and not isinstance(inner, dict):
            raise ConfigError(f"--set {override}: '{key}' is a value, nothing can be set inside it")
        place[key] = dict(inner or {})
        place = place[key]
    if path == "method" and isinstance(value, str) and isinstance(content.get("method"), dict):
        value = {"name": value}  # another method: the old one's settings do not apply
    place[last] = value


def explain(error: ValidationError, schema: type[BaseModel], prefix: str = "") -> str:
    """A validation error in one line: where, what, and what to do."""
    first, *others = error.errors()
    path, known = _follow(schema, first["loc"])
    where = ".".join([*([prefix] if prefix else []), *path]) or "the file"
    same = [other for other in others if _follow(schema, other["loc"])[0] == path]
    left = len(others) - len(same)
    more = f" (and {left} more)" if left else ""
    if first["type"] == "extra_forbidden":
        return f"{where}: unknown key, {nearest(path[-1], known)}{more}"
    # Where one of several types would do, each has something to say.
    said = [each["msg"].removeprefix("Value error, ") for each in (first, *same)]
    message = ", or ".join(f"{text[0].lower()}{text[1:]}" for text in said)
    given = first.get("input")
    shown = f", not {given!r}" if isinstance(given, (str, int, float, bool)) else ""
    return f"{where}: {message}{shown}{more}"


def _follow(schema: type[BaseModel], location: Sequence[Any]) -> tuple[list[str], list[str]]:
    """The keys on the way to an error as they stand in the file, and the keys known where it ends.

    pydantic's own location also names the member of a union that it tried: that is no key of the file.
    """
    path: list[str] = []
    options = [schema]
    known = _keys(schema)
    for part in location:
        tagged = [option for option in options if _tag(option) == part]
        if tagged and len(options) > 1:
            options = tagged
        elif isinstance(part, int) or not _is_type_name(part):
            path.append(str(part))
            known = [key for option in options for key in _keys(option)]
            fields = [option.model_fields.get(str(part)) for option in options]
            options = [
                model for field in fields if field for model in _models_in(field.annotation)
            ] or options
    return path, known


def _keys(schema: type[BaseModel]) -> list[str]:
    return [field.alias or name for name, field in schema.model_fields.items()]


def _is_type_name(part: str) -> bool:
    return part in {"int", "float", "str", "bool", "constrained-int"} or "[" in part


def _tag(model: type[BaseModel]) -> Any:
    kind = model.model_fields.get("kind")
    return kind.default if kind is not None else None


def _models_in(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for argument in get_args(annotation) for model in _models_in(argument)]


def pick_device(wish: str) -> torch.device:
    """The device for `auto`, `cpu`, `cuda` or `mps`."""
    available = {
        "cuda": torch.cuda.is_available(),
        "mps": torch.backends.mps.is_available(),
        "cpu": True,
    }
    if wish == "auto":
        return torch.device(next(name for name, there in available.items() if there))
    if not available[wish]:
        raise ConfigError(f"device: there is no {wish} here; use auto or cpu")
    return torch.device(wish)
