"""What a method is: client steps, a round, and a declaration of what leaves a client.

    class FedAvg(Method):
        sends = {"weights": Kind.WEIGHTS}          # all that ever leaves a client
        needs = frozenset({Need.COMMON_ARCHITECTURE})

        @client_step
        def train(self, me: Client, weights: Weights) -> Fields: ...

        def round(self, t: int, fleet: Fleet, server: Server) -> None: ...

A method object holds settings, never state: what must last lives in `me.model`, `me.memory`, `server.model` and
`server.memory`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from enum import StrEnum
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from pydantic import BaseModel, ConfigDict, model_validator
from torch import nn

from polyfed import learn
from polyfed.errors import MethodError, nearest
from polyfed.federation.message import Fields, Kind, Weights
from polyfed.federation.nodes import Client, Facts, Server
from polyfed.learn import Training

if TYPE_CHECKING:
    from polyfed.federation.fleet import Fleet

Step = Callable[..., Any]
AnyStep = TypeVar("AnyStep", bound=Step)
AnyMethod = TypeVar("AnyMethod", bound="type[Method]")

MEASURED = "measured"  # the fields in which a step's own measurements travel: accuracies by stage,
NOTED = "noted"  # and numbers by name


class Need(StrEnum):
    """What a method must find in a federation before it can run."""

    PUBLIC = "public data"
    PUBLIC_LABELS = "labels on the public data"
    COMMON_ARCHITECTURE = "one architecture for all"
    SERVER_MODEL = "a server model"
    ALL_DATA = "everybody's data in one place"


class MethodSettings(BaseModel):
    """A method's own settings; unknown keys are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_by_name=True, serialize_by_alias=True)

    @model_validator(mode="before")
    @classmethod
    def _fill_groups(cls, given: Any) -> Any:
        """`distil: {epochs: 1}` changes one setting of a group; the others stay the method's own defaults."""
        if not isinstance(given, Mapping):
            return given
        groups = {
            name: field.default
            for name, field in cls.model_fields.items()
            if isinstance(field.default, BaseModel)
        }
        return {
            name: {**groups[name].model_dump(), **value}
            if name in groups and isinstance(value, Mapping)
            else value
            for name, value in given.items()
        }


class Method:
    """A federated algorithm. Subclass it, declare, write client steps and `round`."""

    name: ClassVar[str]
    summary: ClassVar[str] = ""
    sends: ClassVar[Mapping[str, Kind]] = {}
    """Every field that ever leaves a client, and its kind. Sending anything else is an error."""
    tells: ClassVar[Mapping[str, Kind]] = {}
    """The kinds of what the server sends, for the ledger (default: as in `sends`, else control)."""
    server: ClassVar[bool] = True
    """Whether a server takes part in learning (a peer-to-peer method says False)."""
    final_stage: ClassVar[str] = ""
    """The stage, if a method measures one, after which a client's model does not change in a round: what was measured
    then is the client's result, and need not be measured again."""

    Settings: ClassVar[type[MethodSettings]] = MethodSettings

    def __init__(self, settings: MethodSettings, training: Training) -> None:
        self.settings = settings
        self.training = training

    @property
    def needs(self) -> frozenset[Need]:
        """What the federation must have; may depend on the settings."""
        return frozenset()

    @property
    def keeps(self) -> frozenset[str]:
        """What of a client lasts from one step to the next: its model, its memory, both or nothing.

        A client whose model does not last gets its architecture's common initial model at each step.
        """
        return frozenset({"model", "memory"})

    def prepare(self, fleet: Fleet, server: Server) -> None:
        """What happens once, before the first round."""

    def round(self, t: int, fleet: Fleet, server: Server) -> None:
        """One round, top to bottom, on the server's side."""
        raise NotImplementedError(f"{type(self).__name__} has no round")

    def serves(self, server: Server, client: Facts) -> Weights | None:
        """The weights that this client would use now, or None where it uses its own model."""
        return None

    @property
    def personal(self) -> bool:
        """Whether a client that is served weights adds something of its own to them (see `personalise`)."""
        return False

    def personalise(self, me: Client, model: nn.Module) -> None:
        """Make of the served weights in `model` what this client really uses."""

    def kinds_down(self) -> Mapping[str, Kind]:
        return {**self.sends, **self.tells}


def client_step(step: AnyStep) -> AnyStep:
    """Mark a method's function as a step that `fleet.ask` can run on clients."""
    step.is_client_step = True  # type: ignore[attr-defined]
    return step


def reads_only(step: AnyStep) -> AnyStep:
    """Mark a client step that leaves model and memory as they are, so that no copy need be kept."""
    step.reads_only = True  # type: ignore[attr-defined]
    return step


def stacks(together: Step) -> Callable[[AnyStep], AnyStep]:
    """Give a client step a twin that runs several clients of one architecture at once, stacked in one tensor.

    The twin gets a list of clients and gives a list of replies. Whether it is used is part of a run's config.
    """

    def mark(step: AnyStep) -> AnyStep:
        step.together = together  # type: ignore[attr-defined]
        return step

    return mark


class Examination(Method):
    """The steps with which a run looks at its models. Every method's run has them."""

    name = "examination"
    sends: ClassVar[Mapping[str, Kind]] = {
        MEASURED: Kind.METRICS,
        NOTED: Kind.METRICS,
        "weights": Kind.WEIGHTS,
    }

    def __init__(self, subject: Method) -> None:
        super().__init__(self.Settings(), subject.training)
        self.subject = subject

    @client_step
    @reads_only
    def examine(
        self,
        me: Client,
        weights: Weights | None = None,
        models: Mapping[str, Weights] | None = None,
        part: tuple[int, int] | None = None,
    ) -> Fields:
        """Score the model that the client uses on its own data and (a part of) the test set.

        Or the models it is sent, one an architecture: of several, the mean of their logits.
        """
        model = self.used(me, weights) if models is None else self.together(me, models)
        return {MEASURED: {"": me.examine(model, slice(*part) if part else slice(None))}}

    @client_step
    @reads_only
    def final_model(self, me: Client, weights: Weights | None = None) -> Fields:
        """The model the client uses, to be written into the run directory (never asked of a deployed node)."""
        return {"weights": learn.weights_of(self.used(me, weights))}

    def used(self, me: Client, weights: Weights | None) -> nn.Module:
        """The client's own model; or the weights it is served, with what it adds to them."""
        if weights is None:
            return me.model
        model = self.together(me, {me.facts.architecture: weights})
        self.subject.personalise(me, model)
        return model

    def together(self, me: Client, models: Mapping[str, Weights]) -> nn.Module:
        members = []
        for architecture, weights in models.items():
            members.append(me.scratch_model(architecture))
            learn.load_weights(members[-1], weights)
        return members[0] if len(members) == 1 else learn.Ensemble(members)


_registered: dict[str, type[Method]] = {}


def register(method: AnyMethod) -> AnyMethod:
    """Make a method known by its name (a class decorator). Other packages use the entry point `polyfed.methods`."""
    known = _registered.get(method.name)
    if known is not None and known.__qualname__ != method.__qualname__:
        raise MethodError(f"two methods are called '{method.name}': {known} and {method}")
    _registered[method.name] = method
    return method


def registered() -> dict[str, type[Method]]:
    """Every method by name: ours, those registered in this process, and those of installed packages."""
    for entry in entry_points(group="polyfed.methods"):
        if entry.name not in _registered:
            register(entry.load())
    return dict(sorted(_registered.items()))


def find(name: str) -> type[Method]:
    """The method of this name."""
    known = registered()
    if name not in known:
        raise MethodError(f"no method '{name}': {nearest(name, known)}; `polyfed methods` lists them")
    return known[name]


def check_declared(method: Method, fields: Iterable[str], step: str) -> None:
    """Only declared knowledge leaves a client: checked on its side, before anything is encoded."""
    for field in fields:
        if field not in method.sends and field not in (MEASURED, NOTED):
            raise MethodError(
                f"{type(method).__name__}.{step} would send '{field}', which its `sends` does not declare"
                f" (declared: {', '.join(method.sends) or 'nothing'})"
            )
