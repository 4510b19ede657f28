"""What a method is: client steps, a round, and a declaration of what leaves a client.

    class FedAvg(Method):
        def declare(self) -> Declaration:
            return Declaration(
                sends={"weights": LikeWeights("weights")},        # all that ever leaves a client
                needs={Need.COMMON_ARCHITECTURE: ""},
            )

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
from importlib.metadata import EntryPoint, entry_points
from typing import Any, ClassVar, Protocol, TypeAlias, TypeVar, overload

from pydantic import BaseModel, ConfigDict, model_validator
from torch import Tensor, nn

from polyfed import plug_ins
from polyfed.errors import MethodError, nearest
from polyfed.federation.declaration import Declaration, Kept, Need
from polyfed.federation.message import Fields
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

    declared: Declaration
    """What `declare` says, worked out once: it holds as long as the object does."""

    def __init__(self) -> None:
        try:
            self.declared = self.declare()
        except MethodError as error:
            raise MethodError(f"{type(self).__name__} declares {error}") from error
        if not isinstance(self.declared, Declaration):
            raise MethodError(f"{type(self).__name__}.declare gives {self.declared!r:.80}, not a Declaration")

    def declare(self) -> Declaration:
        """What leaves a client, what reaches it, and all else that others must know (see `Declaration`)."""
        raise MethodError(f"nothing: {_HOW_TO_DECLARE}")


_HOW_TO_DECLARE = "write declare(self) -> Declaration in it"


class Method(StepOwner):
    """A federated algorithm. Subclass it, declare, write client steps and `round`."""

    name: ClassVar[str]
    summary: ClassVar[str] = ""

    Settings: ClassVar[type[MethodSettings]] = MethodSettings

    def __init__(self, settings: MethodSettings, training: Training) -> None:
        self.settings = settings
        self.training = training
        super().__init__()

    @property
    def moments(self) -> frozenset[Kept]:
        """Where clients' optimisers keep their moments, for `keeps`: in memory, if `training.keep_optimiser` is set."""
        return frozenset({"memory"}) if self.training.keep_optimiser else frozenset()

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
        if not self.declared.sends_weights or Need.ALL_DATA in self.declared.needs:
            return None
        return server if server is not None and "model" in self.declared.keeps else client.architecture

    def serves(self, server: Server, client: Facts) -> Mapping[str, Tensor] | None:
        """The weights that this client would use now, or None where it uses its own model.

        A client that keeps no model uses the shared weights of its architecture (`server.weights`).
        """
        return None if "model" in self.declared.keeps else server.weights(client.architecture)

    def personalise(self, me: Client, model: nn.Module) -> None:
        """Make of the served weights in `model` what this client really uses (of a method that declares `personal`)."""


@overload
def client_step(step: AnyStep) -> AnyStep: ...
@overload
def client_step(*, sends: Sequence[str]) -> Callable[[AnyStep], AnyStep]: ...
def client_step(step: Step | None = None, *, sends: Sequence[str] = ()) -> Any:
    """Mark a method's function as a step that the fleet can run on clients.

    sends: the fields that every reply of this step must have; a reply without one of them is refused. (Those that
        method does not declare, with the settings as they are, do not count.)
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
    """Refuse what is not the class of a method, has no name, or does not itself declare what it sends.

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
    if "declare" not in vars(method):  # what an ancestor sends need not be all that this one does
        inherits = method.declare is not Method.declare
        same = (
            f", with `return super().declare()` if it is as of {method.__mro__[1].__name__}"
            if inherits
            else ""
        )
        raise MethodError(f"{method.__name__} does not say what leaves a client: {_HOW_TO_DECLARE}{same}")


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


def check_declared(owner: StepOwner, fields: Iterable[str], step: str) -> None:
    """Only declared knowledge leaves a client: checked on its side, before anything is encoded."""
    for field in fields:
        if field not in owner.declared.sends:
            raise MethodError(
                f"{type(owner).__name__}.{step} would send '{field}', which its `sends` does not declare"
                f" (declared: {', '.join(owner.declared.sends) or 'nothing'})"
            )


def check_told(owner: StepOwner, fields: Iterable[str], step: Step) -> None:
    """Every byte is counted by its kind: what the server sends must have one."""
    for field in fields:
        if field not in owner.declared.kinds_down:
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
