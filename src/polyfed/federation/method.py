"""What a method is: client steps, a round, and a declaration of what leaves a client.

    class FedAvg(Method):
        sends = {"weights": LikeWeights("weights")}        # all that ever leaves a client
        needs = frozenset({Need.COMMON_ARCHITECTURE})

        @client_step(sends=("weights",))
        def train(self, me: Client, weights: Weights) -> Fields: ...

        def round(self, t: int, fleet: Fleet, server: Server) -> None: ...

A method object holds settings, never state: what must last lives in `me.model`, `me.memory`, `server.model`,
`server.memory` and `server.shelf`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from importlib.metadata import EntryPoint, entry_points
from typing import Any, ClassVar, Protocol, TypeAlias, TypeVar, overload

from pydantic import BaseModel, ConfigDict, model_validator
from torch import nn

from polyfed import plug_ins
from polyfed.errors import MethodError, nearest
from polyfed.federation.fields import Declared, LikeWeights, kinds_of
from polyfed.federation.message import Fields, Kind, Weights
from polyfed.federation.nodes import Client, Server
from polyfed.federation.roster import Facts, FederationFacts
from polyfed.federation.topology import TopologyName
from polyfed.learn import Training
from polyfed.schema import SECTION

Step: TypeAlias = Callable[..., Any]
AnyStep = TypeVar("AnyStep", bound=Step)
AnyMethod = TypeVar("AnyMethod", bound="type[Method]")
ForEach: TypeAlias = Callable[[Facts], Fields]

NO_DEFAULT = object()
PLUG_INS = "polyfed.methods"  # the entry point group of other packages' methods


class Need(StrEnum):
    """What a method must find in a federation before it can run."""

    PUBLIC = "public data"
    PUBLIC_LABELS = "labels on the public data"
    COMMON_ARCHITECTURE = "one architecture for all"
    COMMON_FEATURES = "one feature size for all"
    SERVER_MODEL = "a server model"
    ALL_DATA = "everybody's data in one place"

    def __init__(self, _text: str) -> None:
        self.otherwise = ""
        """The setting of the method's own that would do without this, to be told where a need is not met."""

    def unless(self, setting: str) -> Need:
        """The same need, with the setting that would do without: `Need.SERVER_MODEL.unless("method.global=false")`."""
        need = str.__new__(Need, self.value)
        need._name_, need._value_, need.otherwise = self.name, self.value, setting
        return need


class MethodSettings(BaseModel):
    """A method's own settings; unknown keys are errors."""

    model_config = ConfigDict(**SECTION, validate_by_name=True, serialize_by_alias=True)

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


@dataclass(frozen=True)
class Reply:
    """What one client answered: `reply["logits"]`, and who it was: `reply.client`."""

    client: Facts
    fields: Mapping[str, Any]

    def __getitem__(self, name: str) -> Any:
        return self.fields[name]


class Fleet(Protocol):
    """The clients as a method's round sees them.

    Replies come in the clients' order. One that fails, or whose reply is refused (see `fields`), is left out, with the
    reason in the run's history.
    """

    round: int

    def everyone(self) -> list[Facts]:
        """All clients, drop-outs included. Costs the whole population: for set-up, not for rounds."""

    def sample(self) -> list[Facts]:
        """This round's cohort, in the clients' order. The same each time it is asked in one round."""

    def ask(
        self, step: Step, to: Sequence[Facts], each: ForEach | None = None, **payload: Any
    ) -> list[Reply]:
        """Run a client step on each of these clients and give back their replies.

        `payload` goes to all of them (and is encoded once); `each(client)` adds what goes to one alone.
        """

    def stream(
        self, step: Step, to: Sequence[Facts], each: ForEach | None = None, **payload: Any
    ) -> Iterator[Reply]:
        """As `ask`, one reply after the other: a large cohort's replies are never in memory at once."""

    def mean(
        self,
        step: Step,
        to: Sequence[Facts],
        field: str,
        *,
        share: Callable[[Facts], float] | None = None,
        default: Any = NO_DEFAULT,
        **payload: Any,
    ) -> Any:
        """The mean of one field of the replies, as one operation: single replies are not seen.

        share: by how much each client counts; all count the same by default. default: what to give back if no reply
        was of use; without it, that ends the run. If every client of the round failed, it ends all the same.
        """

    def gossip(
        self, say: Step, hear: Step, topology: TopologyName, among: Sequence[Facts], **payload: Any
    ) -> None:
        """Every peer says something, then hears what its neighbours said: `hear(me, heard=[(name, fields), …])`.

        One that says nothing (no fields), or whose message is refused, is not heard; one whose neighbours all said
        nothing has nothing to do.
        """


class StepOwner:
    """Something with steps: a method, or what a run needs beside it."""

    sends: ClassVar[Declared] = {}
    """Every field that ever leaves a client: its kind, and what it must be (see `fields`). Sending anything else is
    an error. May be a property, where it depends on settings."""
    tells: ClassVar[Mapping[str, Kind]] = {}
    """The kinds of what the server sends, for the ledger, where `sends` has no field of that name. What steers a step
    (a name, a number of steps) is `Kind.CONTROL`. Sending down anything else is an error."""
    stages: ClassVar[Sequence[str]] = ()
    """The stages of a round at which clients measure their models (`me.measure`), in their order."""
    notes: ClassVar[Sequence[str]] = ()
    """The names under which clients note numbers (`me.note`), beside `local-loss`."""

    def kinds_up(self) -> dict[str, Kind]:
        return kinds_of(self.sends)

    def kinds_down(self) -> dict[str, Kind]:
        return {**self.kinds_up(), **self.tells}

    def lasting(self) -> frozenset[str]:
        """The fields of replies whose entries stand for the same each time: all of what is like what was sent."""
        return frozenset(
            name for name, field in self.sends.items() if isinstance(field, LikeWeights) and not field.rows
        )


class Method(StepOwner):
    """A federated algorithm. Subclass it, declare, write client steps and `round`."""

    name: ClassVar[str]
    summary: ClassVar[str] = ""
    single_replies: ClassVar[bool] = True
    """Whether the round reads what single clients sent (`ask`, `stream`, peers in gossip). A method that only takes
    means (`fleet.mean`) says False, which is enforced: then nobody need ever see one client's reply. What a class says
    holds for its own `round`, not for one that a subclass writes. May be a property, where it depends on settings."""
    server: ClassVar[bool] = True
    """Whether a server takes part in learning (a peer-to-peer method says False)."""
    default_server: ClassVar[str | None] = None
    """The server's model where a run does not name one: `smallest` of the clients', or none."""
    final_stage: ClassVar[str] = ""
    """The stage, if a method measures one, after which a client's model does not change in a round: what was measured
    then is the client's result, and need not be measured again."""

    Settings: ClassVar[type[MethodSettings]] = MethodSettings

    def __init__(self, settings: MethodSettings, training: Training) -> None:
        self.settings = settings
        self.training = training

    @property
    def needs(self) -> frozenset[Need]:
        """What the federation must have; may depend on the settings.

        `need.unless("method.global=false")` also says which setting would do without, for the message where it is
        not met.
        """
        return frozenset()

    @property
    def keeps(self) -> frozenset[str]:
        """What of a client lasts from one step to the next: its model, its memory, both or nothing.

        A client whose model does not last gets its architecture's common initial model at each step.
        """
        return frozenset({"model", "memory"})

    def check(self, federation: FederationFacts) -> None:
        """Raise a `MethodError` if this federation is not one for the method; before anything of a run is written.

        For what `needs` cannot say. It is called again when a run is resumed.
        """

    def prepare(self, fleet: Fleet, server: Server) -> None:
        """What happens once, before the first round."""

    def round(self, t: int, fleet: Fleet, server: Server) -> None:
        """One round, top to bottom, on the server's side."""
        raise NotImplementedError(f"{type(self).__name__} has no round")

    def exchanged(self, client: Facts, server: str | None) -> str | None:
        """The model whose weights a client is sent and sends back in a round, by its name; None if others travel.

        From it the cost of a run is predicted (FedKEM, Eq. 6). A client that keeps a model of its own and sends weights
        exchanges the server's model (`server`: its name), where there is one; others exchange their own.
        """
        if not {Kind.WEIGHTS, Kind.GRADIENTS} & set(self.kinds_up().values()) or Need.ALL_DATA in self.needs:
            return None
        return server if server is not None and "model" in self.keeps else client.architecture

    def serves(self, server: Server, client: Facts) -> Weights | None:
        """The weights that this client would use now, or None where it uses its own model."""
        return None

    @property
    def personal(self) -> bool:
        """Whether a client that is served weights adds something of its own to them (see `personalise`)."""
        return False

    def personalise(self, me: Client, model: nn.Module) -> None:
        """Make of the served weights in `model` what this client really uses."""


@overload
def client_step(step: AnyStep) -> AnyStep: ...
@overload
def client_step(*, sends: Sequence[str]) -> Callable[[AnyStep], AnyStep]: ...
def client_step(step: Step | None = None, *, sends: Sequence[str] = ()) -> Any:
    """Mark a method's function as a step that the fleet can run on clients.

    sends: the fields that every reply of this step must have; a reply without one of them is refused. (Those that
        `sends` of the method does not declare, with the settings as they are, do not count.)
    """

    def mark(step: AnyStep) -> AnyStep:
        step.is_client_step = True  # type: ignore[attr-defined]
        step.required = tuple(sends)  # type: ignore[attr-defined]
        return step

    return mark if step is None else mark(step)


def server_step(step: AnyStep) -> AnyStep:
    """Mark a method's function as a part of the server's work that `server.spread` can run on all cores.

    It gets an `Assistant` and the fields of a job, and gives a dictionary of fields. It keeps nothing.
    """
    step.is_server_step = True  # type: ignore[attr-defined]
    return step


def reads_only(step: AnyStep) -> AnyStep:
    """Mark a client step that leaves model and memory as they are, so that no copy need be kept."""
    step.reads_only = True  # type: ignore[attr-defined]
    return step


def stacks(together: Step) -> Callable[[AnyStep], AnyStep]:
    """Give a client step a twin that runs several clients of one architecture at once, stacked in one tensor.

    The twin gets a list of clients and of their payloads and gives a list of replies, or None if these cannot be
    stacked after all: then they run one by one. Whether it is used is part of a run's config.
    """

    def mark(step: AnyStep) -> AnyStep:
        step.together = together  # type: ignore[attr-defined]
        return step

    return mark


_registered: dict[str, type[Method]] = {}


def check_class(method: Any, taker: str) -> None:
    """Refuse what is not the class of a method, or has no name.

    taker: the function that was given it.
    """
    if isinstance(method, Method):
        kind = type(method).__name__
        raise MethodError(f"{taker} takes the class of a method: pass {kind}, not an object of it")
    if not (isinstance(method, type) and issubclass(method, Method)):
        raise MethodError(f"{taker} takes the class of a method: {method!r:.80} is none")
    name = getattr(method, "name", None)
    if not isinstance(name, str) or not name:
        raise MethodError(f'{method.__name__} has no name: write name = "{method.__name__.lower()}" in it')


def register(method: AnyMethod) -> AnyMethod:
    """Make a method known by its name (a class decorator). Other packages use the entry point `polyfed.methods`."""
    check_class(method, "register")
    known = _registered.get(method.name)
    # A module that is run again defines the same class again; a built-in method has only one place.
    if known is not None and (known.__qualname__ != method.__qualname__ or _ours(known) != _ours(method)):
        raise MethodError(
            f"two methods are called '{method.name}', {_place(known)} and {_place(method)}: rename one"
        )
    _registered[method.name] = method
    return method


def _ours(method: type[Method]) -> bool:
    return method.__module__.startswith("polyfed.")


def _place(method: type) -> str:
    return f"{method.__module__}:{method.__qualname__}"


def registered() -> dict[str, type[Method]]:
    """Every method by name: ours, those registered in this process, and those of installed packages.

    A plug-in that cannot be used is left out, with one line in the log.
    """
    for entry in entry_points(group=PLUG_INS):
        if entry.name not in _registered:
            try:
                _load(entry)
            except MethodError as error:
                plug_ins.warn_once(str(error))
        else:
            _warn_if_hidden(entry)
    return dict(sorted(_registered.items()))


def find(name: str) -> type[Method]:
    """The method of this name. Plug-ins of other names are not loaded for it; one that it hides is told so."""
    for entry in entry_points(group=PLUG_INS, name=name):
        if name not in _registered:
            _load(entry)
        else:
            _warn_if_hidden(entry)
    if name not in _registered:
        raise MethodError(f"no method '{name}': {nearest(name, registered(), 'polyfed methods')}")
    return _registered[name]


def _load(entry: EntryPoint) -> None:
    """Register a plug-in's method under the name of its entry point; a `MethodError` if that cannot be."""
    kind = plug_ins.load(entry, "method", MethodError)
    if not (isinstance(kind, type) and issubclass(kind, Method)):
        raise MethodError(
            f"the plug-in '{entry.name}' ({entry.value}) is not a Method: make it a class of it"
        )
    if getattr(kind, "name", None) != entry.name:
        raise MethodError(
            f"the plug-in '{entry.name}' ({entry.value}) calls itself '{getattr(kind, 'name', '')}': use one name"
        )
    register(kind)


def _warn_if_hidden(entry: EntryPoint) -> None:
    """Say that a plug-in is not used, because another method has its name. It is not imported for that."""
    try:
        own = entry.load() if entry.module in sys.modules else None
    except AttributeError:
        own = None
    used = _registered[entry.name]
    if not isinstance(own, type) or _place(own) != _place(used):
        plug_ins.warn_once(
            f"the plug-in {entry.value} is not used: there is a method called '{entry.name}' already,"
            f" {_place(used)}; rename the plug-in"
        )


def reads_single_replies(method: Method) -> bool:
    """Whether a method's round may read what single clients sent: what the class says that wrote the round."""
    for kind in type(method).__mro__:
        if "single_replies" in vars(kind):
            said = vars(kind)["single_replies"]
            return bool(said.__get__(method) if isinstance(said, property) else said)
        if "round" in vars(kind):
            return True
    return True


def check_declared(owner: StepOwner, fields: Iterable[str], step: str) -> None:
    """Only declared knowledge leaves a client: checked on its side, before anything is encoded."""
    for field in fields:
        if field not in owner.sends:
            raise MethodError(
                f"{type(owner).__name__}.{step} would send '{field}', which its `sends` does not declare"
                f" (declared: {', '.join(owner.sends) or 'nothing'})"
            )


def check_told(owner: StepOwner, fields: Iterable[str], step: Step) -> None:
    """Every byte is counted by its kind: what the server sends must have one."""
    kinds = owner.kinds_down()
    for field in fields:
        if field not in kinds:
            raise MethodError(
                f"{type(owner).__name__} sends '{field}' down to its step '{step.__name__}', which neither `tells` nor"
                f' `sends` declares: add "{field}" and its kind to `tells`'
            )


def learning_rates(method: Method) -> str:
    """The settings to lower where weights are no longer finite, with their values: `training.lr (0.5)`."""
    rates = {"training.lr": method.training.lr}
    for name, value in method.settings.model_dump(by_alias=True).items():
        inner = value if isinstance(value, Mapping) else {"": value}
        rates |= {
            f"method.{name}.{key}".rstrip("."): rate
            for key, rate in inner.items()
            if (key or name).endswith("lr") and isinstance(rate, float)
        }
    return " or ".join(f"{name} ({rate:g})" for name, rate in rates.items())
