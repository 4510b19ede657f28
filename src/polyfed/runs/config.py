"""The schema of a run file. Unknown keys are errors that name the nearest key; ranges are checked here, once."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import torch
from pydantic import BaseModel, Field, ValidationError, ValidationInfo, field_validator
from yaml import YAMLError

import polyfed.methods  # noqa: F401  (registers them)
from polyfed import tasks
from polyfed.errors import ConfigError
from polyfed.federation.method import Method, MethodSettings, find
from polyfed.federation.wire import WireSettings
from polyfed.learn import Training, Wish, can_stack, over_rounds, own_functions, read_wishes
from polyfed.machine import cores
from polyfed.models import Budget, Output, modules_to_trust, trust_flags
from polyfed.plug_ins import REFERENCE
from polyfed.runs.data_section import Data, Share
from polyfed.runs.keys import outer_first, parse_assignment, set_key
from polyfed.schema import SECTION, OneOrMore, as_list, check_sizes, explain
from polyfed.tasks import Task
from polyfed.yaml_files import UnfitYaml, parse_yaml, read_yaml

LONGEST_TIMEOUT = 1e6  # seconds, twelve days; the system's clocks overflow far above
MOST_FEATURES = 2**16  # a layer of this width takes some hundred MB
STACK_MOST = 10  # more clients in one stack measured no faster
VARIANTS = "variants"  # the section of a run file that sweeps alone read
RUN_NAME = re.compile(r"[\w-][\w.-]*")

ModelName = Annotated[str, Field(max_length=250)]


class Section(BaseModel):
    """A part of a run file."""

    model_config = SECTION


class MethodChoice(Section):
    """`method: fedprox`, or `method: {name: fedprox, mu: 0.1}`."""

    name: Annotated[str, Field(max_length=100)] = "fedavg"
    settings: dict[str, Any] = {}


class TaskChoice(Section):
    """`task: regression`, or `task: {name: binary, threshold: 0.3}`."""

    name: Annotated[str, Field(max_length=200)] = "classification"
    settings: dict[str, Any] = {}


class BudgetSection(Section):
    """What a client can afford; a key that is not set is not limited."""

    parameters: Annotated[int, Field(ge=1)] | None = None
    macs: Annotated[int, Field(ge=1)] | None = None
    memory_mb: Annotated[float, Field(gt=0, le=1e12)] | None = None

    def budget(self) -> Budget:
        memory = None if self.memory_mb is None else int(self.memory_mb * 1e6)
        return Budget(parameters=self.parameters, macs=self.macs, memory_bytes=memory)


class OwnModel(Section):
    """How a model of the user's own is trained fastest: decided by a short trial when a run is set up."""

    channels_last: bool = False
    """Whether its images are laid out channels-last."""
    stack: bool = False
    """Whether several clients of it are trained stacked in one tensor (if `stack` is more than 1)."""


class Adapter(Section):
    """How a model that answers with more than logits, or takes its input by name, is used as any other."""

    output: Output | None = None
    """Where the logits are in what it answers: a key, the name of an attribute, or a place in a tuple; found out where
    one entry alone is a tensor rows × outputs, or is called logits."""
    input: Annotated[str, Field(pattern=r"^[A-Za-z_]\w*$", max_length=100)] | None = None
    """The name under which its forward takes the inputs, where it does not take them as its first argument."""


SMALLEST_MODEL = "smallest"
"""What `models.server` may be beside a name."""


class Models(Section):
    """Which model each client trains."""

    names: Annotated[list[ModelName], OneOrMore, Field(min_length=1)] = ["mlp"]
    """`polyfed models` lists them; `my_models:small_net` is a function of a module of one's own. Several are dealt out
    to the clients."""
    assign: Literal["round-robin", "random", "budget"] = "round-robin"
    clients: dict[str, ModelName] = {}
    """For single clients, by name or number, and ranges: {north: wrn-10-1, "0-5": vgg11}. Overrides `assign`."""
    shares: dict[ModelName, Annotated[float, Field(ge=0, le=1)]] = {}
    """The share of all clients, drawn at random, that trains a model: {wrn-40-1: 0.5}. The others are dealt the other
    names."""
    budgets: Annotated[list[BudgetSection], OneOrMore] = []
    """For `assign: budget` and drop-out by budget: dealt out to the clients in turn."""
    norm: Literal["batch", "group"] = "batch"
    features: Annotated[int, Field(ge=1, le=MOST_FEATURES)] | None = None
    """How many features every built-in model has: a linear layer of this width, with ReLU, in front of its head. null
    leaves each with its own (`polyfed models` lists them)."""
    server: ModelName | None = None
    """The server's model, for methods that have one; `smallest` is the clients' with the fewest parameters, and what
    FedORION takes where none is named."""
    init: Annotated[str, Field(min_length=1)] | None = None
    """An earlier run's directory: each client starts from its own model of that run, the server from the server's. Or a
    .safetensors file, from which all start."""
    init_except: Annotated[list[str], OneOrMore] = []
    """Parts that start anew all the same, by the names of their tensors: [head] leaves out head.weight, head.bias."""
    adapt: dict[ModelName, Adapter] = {}
    """For models that return a tuple, a dict or an object, or take their input by name:
    {net: {output: logits, input: input_ids}}."""
    own: dict[str, OwnModel] = {}
    """For models given from Python, filled in by a trial: {net: {channels_last: true, stack: false}}."""

    def all_names(self) -> list[str]:
        """Every model that is named here."""
        server = [self.server] if self.server and self.server != SMALLEST_MODEL else []
        return [*self.names, *self.shares, *self.clients.values(), *server]

    @field_validator("init", mode="before")
    @classmethod
    def _read_init(cls, value: Any) -> Any:
        """A path that holds wherever the run is resumed from."""
        if not isinstance(value, str | Path) or not str(value):
            return value
        return str(Path(value).expanduser().absolute())

    @field_validator("shares")
    @classmethod
    def _check_shares(cls, shares: dict[str, float]) -> dict[str, float]:
        if sum(shares.values()) > 1 + 1e-9:
            raise ValueError(f"the shares add up to {sum(shares.values()):g}: 1 is all clients")
        return shares

    @field_validator("clients", mode="before")
    @classmethod
    def _read_clients(cls, value: Any) -> Any:
        """Names of clients as text: YAML reads the 7 of {7: cnn} as a number."""
        return {str(key): name for key, name in value.items()} if isinstance(value, Mapping) else value


class Cohort(Section):
    """Who takes part in a round."""

    fraction: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Share of the clients that takes part in a round: the nearest whole number (of two as near the even one), at least
    one. Papers that round down may have one client less; `count` says how many exactly."""
    count: Annotated[int, Field(ge=1)] | None = None
    """How many clients take part in a round, instead of a fraction."""
    dropout: Share = 0.0
    """Share of them that drops out (0.4 leaves 60 %)."""
    dropout_by: Literal["chance", "budget"] = "chance"
    """`chance`: others drop out each round; `budget`: always those with the smallest budgets."""

    def size(self, clients: int) -> int:
        if self.count is not None:
            if self.count > clients:
                raise ConfigError(f"cohort.count is {self.count}, but there are only {clients} clients")
            return self.count
        return max(1, round(self.fraction * clients))


class Evaluation(Section):
    """When and how models are evaluated."""

    every: Annotated[int, Field(ge=1)] = 1
    """Rounds between evaluations; the last round is always evaluated."""
    patience: Annotated[int, Field(ge=1)] | None = None
    """End the run when validation has not improved for so many evaluations in a row; null: never before the last
    round."""
    min_change: Annotated[float, Field(ge=0, le=1e15, allow_inf_nan=False)] = 0.0
    """For `patience`: by more than this must validation be better than ever before, to count as improved (what is shown
    in % is a share from 0 to 1; an error is in its own unit)."""
    choose_by: Annotated[str, Field(max_length=250)] | None = None
    """By which of `metrics`, on validation rows (mean over clients), the best round is chosen and patience counts:
    pr-auc, say, where one class is rare; null: by the task's own score."""
    clients: Annotated[int, Field(ge=1)] = 100
    """At most this many clients are scored (drawn once), after a round and within it, so that cost does not grow with
    the population."""
    test_rows: Annotated[int, Field(ge=0)] | None = None
    """Score on this many rows of the whole test set (drawn once) instead of all."""
    validation: Literal["own", "everyone"] = "own"
    """Whether a client's best round is chosen on its own validation rows, or on everybody's, as in FedH2L."""
    outputs: Literal["all", "private"] = "all"
    """If outputs also stand for public classes: `all` lets an answer be one of those (and be wrong), `private` takes
    the best among the private classes."""
    metrics: list[Wish] = []
    """Metrics beside the task's own score, on a client's own test rows and the whole test set: `polyfed metrics` lists
    them; `all` is every one that suits the task. Others of scikit-learn by name, {name: fbeta_score, beta: 2}; or a
    function of one's own, my_module:cost."""

    @field_validator("metrics", mode="before")
    @classmethod
    def _read_metrics(cls, value: Any) -> Any:
        """`auc` for `[auc]`, `auc, f1` for both, and `all`; in one order, each once."""
        wanted = as_list(value)
        return read_wishes(wanted) if isinstance(wanted, list | tuple) else value


class RunConfig(Section):
    """One run."""

    name: str = "run"
    """The name of the run directory; letters, digits, dots and dashes."""
    method: MethodChoice = MethodChoice()
    task: TaskChoice = TaskChoice()
    """What is learnt: classification, binary, multilabel or regression, with its settings; or a class of a module of
    one's own, my_tasks:Tagging."""
    rounds: Annotated[int, Field(ge=1)] = 20
    seed: Annotated[int, Field(ge=0)] = 0
    data: Data = Data()
    models: Models = Models()
    training: Training = Training()
    cohort: Cohort = Cohort()
    evaluate: Evaluation = Evaluation()
    wire: WireSettings = WireSettings()
    """How what travels is packed, by direction and kind: {up: {weights: top-0.05}, down: {weights: int8}}."""
    timeout: Annotated[float, Field(gt=0, le=LONGEST_TIMEOUT)] | None = None
    """Seconds a client may take for one step before it is left out of the round; null: as long as it takes."""
    outliers: Annotated[float, Field(ge=2, allow_inf_nan=False)] | None = 20.0
    """How many times larger than the others' a client's reply may be (its weights: the difference to what it was sent)
    before it is left out of the round; null: by any factor."""
    checkpoint_seconds: Annotated[float, Field(ge=0)] = 30.0
    """Seconds between checkpoints (0: after every round); more where saving would take over a twentieth of the time."""
    device: Literal["auto", "cpu", "cuda", "mps"] = "auto"
    stack: Literal["auto"] | Annotated[int, Field(ge=1)] = "auto"
    """How many clients of one small architecture are trained stacked in one tensor."""
    server_threads: Annotated[int, Field(ge=1, le=1024)] = 1
    """Threads for the steps of the server's own model: as many as cores where the server distils much. It changes the
    last bits of results, the number of workers does not."""

    @field_validator("name")
    @classmethod
    def _check_name(cls, name: str) -> str:
        if not RUN_NAME.fullmatch(name):
            raise ValueError(
                f"'{name:.60}' cannot be a folder's name: use letters, digits, dots and dashes, no dot first"
            )
        return name

    @field_validator("method", "task", mode="before")
    @classmethod
    def _read_choice(cls, value: Any, info: ValidationInfo) -> Any:
        """A name, or a name and settings beside it."""
        if isinstance(value, str):
            return {"name": value}
        if isinstance(value, Mapping) and "settings" not in value:
            usual = cls.model_fields[str(info.field_name)].default.name
            return {
                "name": value.get("name", usual),
                "settings": {key: item for key, item in value.items() if key != "name"},
            }
        return value

    def method_settings(self) -> MethodSettings:
        """The method's settings, in a run of so many rounds; a mistake in them is a `ConfigError`."""
        settings = settings_of(find(self.method.name), self.method.settings)
        return over_rounds(settings, self.rounds, "method.")

    def make_method(self) -> Method:
        """The method with its settings."""
        return find(self.method.name)(self.method_settings(), self.training)

    def make_task(self) -> Task:
        """What is learnt, as its settings say; a mistake in them is a `ConfigError`."""
        return checked_settings(tasks.find(self.task.name), self.task.settings, "task", self.task.name)

    def stack_size(self, clients: int) -> int:
        """How many clients of one architecture are trained stacked, where they can be."""
        if self.stack != "auto":
            return self.stack
        return min(STACK_MOST, -(-self.cohort.size(clients) // cores())) if can_stack(self.training) else 1

    def as_file(self) -> dict[str, Any]:
        """The run file that gives exactly this config."""
        content = self.model_dump(mode="json")
        content["data"] = self.data.as_file()
        for key, choice in (("method", self.method), ("task", self.task)):
            content[key] = {"name": choice.name, **choice.settings}
        return content

    def code_names(self) -> list[str]:
        """Every name here that may stand for a function of a module of the user's own."""
        trainings = {"training": self.training.model_dump(), "method": self.method.settings}
        own = [*self.models.all_names(), *self.data.code_names(), self.task.name]
        return [*own, *_augmentations(trainings), *own_functions(self.evaluate.metrics)]

    @property
    def to_trust(self) -> str:
        """What a command that reads a run with this config must be given: ` --trust my_models`."""
        return trust_flags(modules_to_trust(self.code_names()))


def _augmentations(content: Mapping[str, Any]) -> list[str]:
    """Every text under a key `augment`, at any depth: where a method has training settings is its own affair."""
    found = []
    for key, value in content.items():
        if isinstance(value, Mapping):
            found += _augmentations(value)
        elif key == "augment" and isinstance(value, str):
            found.append(value)
    return found


def settings_of(method: type[Method], given: Mapping[str, Any]) -> MethodSettings:
    """A method's settings from what was given for them; a mistake in it is a `ConfigError`."""
    return checked_settings(method.Settings, given, "method", method.name)


Settings = TypeVar("Settings", bound=BaseModel)


def checked_settings(schema: type[Settings], given: Mapping[str, Any], section: str, whose: str) -> Settings:
    """What was given in a section, as its schema has it; a mistake in it is a `ConfigError`."""
    if given and not schema.model_fields:
        raise ConfigError(f"{section}.{next(iter(given))}: unknown key, {whose} has no settings of its own")
    try:
        return schema(**given)
    except ValidationError as error:
        raise ConfigError(explain(error, schema, section)) from None


def read_config(source: Path | Mapping[str, Any], overrides: Sequence[str] = ()) -> RunConfig:
    """A run file (or its content), with `a.b=c` overrides, checked."""
    content = read_content(source)
    content.pop(VARIANTS, None)
    given = {key: (override, value) for override in overrides for key, value in [_read_override(override)]}
    for key in outer_first(given):
        override, value = given[key]
        try:
            set_key(content, key, value)
        except ConfigError as error:
            raise ConfigError(f"--set {override}: {error}") from None
    try:
        config = RunConfig.model_validate(content)
    except ValidationError as error:
        raise ConfigError(explain(error, RunConfig)) from None
    config = over_rounds(config, config.rounds)
    check_sizes({**config.model_dump(exclude={"seed"}), "method": config.method_settings().model_dump()})
    if not REFERENCE.fullmatch(config.task.name):  # nobody's code is run for reading a file
        config.make_task()
    return config


def read_content(source: Path | Mapping[str, Any]) -> dict[str, Any]:
    """The keys and values of a run file, or of what was given in its place, not checked yet."""
    if isinstance(source, Path):
        if source.is_dir():
            raise ConfigError(f"{source} is a folder, not a run file{_instead_of_folder(source)}")
        return read_yaml(source, f"no run file {source}; `polyfed new {source}` writes one to start from")
    return dict(source)


def _instead_of_folder(folder: Path) -> str:
    if (folder / "manifest.json").exists():
        return f": `polyfed resume {folder}` goes on with the run in it"
    files = sorted(folder.glob("*.yaml"))
    return f": perhaps {files[0]}" if files else "; `polyfed new` writes one to start from"


def _read_override(override: str) -> tuple[str, Any]:
    parsed = parse_assignment(override)
    if parsed is None:
        raise ConfigError(f"--set {override}: write it as key=value, such as training.lr=0.1")
    key, text = parsed
    if not text.strip():
        raise ConfigError(f"--set {override}: the value is missing; write null for none")
    try:
        return key, _read_value(text)
    except UnfitYaml as error:
        raise ConfigError(f"--set {override}: {error}") from None


def _read_value(text: str) -> Any:
    try:
        value = parse_yaml(text)
    except UnfitYaml:
        raise
    except YAMLError:
        return text
    if isinstance(value, str) and re.fullmatch(r"[+-]?\d+(\.\d*)?[eE][+-]?\d+", value):
        return float(value)  # YAML expects 1.0e-3 and reads 1e-3 as text
    return value


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
