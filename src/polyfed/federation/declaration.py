"""What a method says of itself, once, in one object: what leaves a client, what reaches it, what is kept and measured.

    def declare(self) -> Declaration:
        return Declaration(
            sends={"logits": Table("rows", "outputs")},        # all that ever leaves a client
            tells={"rows": Kind.INDICES},
            needs={Need.PUBLIC: "", **when(self.settings.global_, {Need.SERVER_MODEL: "method.global=false"})},
        )

It may depend on settings. Fleet, engines, checks before a run and `polyfed methods NAME` read it and nothing else.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, fields
from enum import StrEnum
from types import MappingProxyType
from typing import Any, Literal, TypeVar, get_args

from polyfed.errors import MethodError
from polyfed.federation.fields import Declared, Field, LikeWeights, kinds_of
from polyfed.federation.message import Kind
from polyfed.tasks import Task, Trait, lacking, registered

Key = TypeVar("Key")
Value = TypeVar("Value")

Kept = Literal["model", "memory"]

# What a task must have, for a declaration's `tasks`.
ANY_TASK: Mapping[Trait, str] = MappingProxyType({})
"""Any task: nothing is done with a model's outputs but what the task itself does."""
TABLES: Mapping[Trait, str] = MappingProxyType({Trait.TABLE: ""})
"""Outputs travel, or are averaged: classes, several classes at once, numbers."""
LABELS: Mapping[Trait, str] = MappingProxyType({**TABLES, Trait.PROBABILITIES: ""})
"""Answers are compared as probabilities: classes, or several classes at once."""
CLASSES: Mapping[Trait, str] = MappingProxyType({**LABELS, Trait.ONE_CLASS: ""})
"""Each row has one class."""


class Need(StrEnum):
    """What a method must find in a federation before it can run."""

    PUBLIC = "public data"
    PUBLIC_LABELS = "labels on the public data"
    COMMON_ARCHITECTURE = "one architecture for all"
    COMMON_FEATURES = "one feature size for all"
    SERVER_MODEL = "a server model"
    ALL_DATA = "everybody's data in one place"


def when(condition: object, entries: Mapping[Key, Value]) -> Mapping[Key, Value]:
    """Entries of a declaration that are there on a condition: `{**when(settings.labels, {…})}`."""
    return entries if condition else {}


@dataclass(frozen=True, kw_only=True)
class Declaration:
    """What a method sends, tells, needs, keeps and measures. A mistake in it is a `MethodError`."""

    sends: Declared = field(default_factory=dict)
    """Every field that ever leaves a client: its kind, and what it must be (see `fields`). Sending anything else is an
    error."""
    tells: Mapping[str, Kind] = field(default_factory=dict)
    """The kinds of what the server sends, for the ledger, where `sends` has no field of that name. What steers a step
    (a name, a number of steps) is `Kind.CONTROL`. Sending down anything else is an error."""
    needs: Mapping[Need, str] = field(default_factory=dict)
    """What the federation must have, each with the method's own setting that does without it (`method.global=false`),
    to be told where the need is not met; empty if none does."""
    keeps: AbstractSet[Kept] = frozenset({"model", "memory"})
    """What of a client lasts from one step to the next. A client whose model does not last gets its architecture's
    common initial model at each step, and is served the shared weights."""
    stages: Sequence[str] = ()
    """The stages of a round at which clients measure their models (`me.measure`), in their order."""
    final_stage: str = ""
    """The stage, if there is one, after which a client's model does not change in a round: what was measured then is
    the client's result, and need not be measured again."""
    notes: Sequence[str] = ()
    """The names under which clients note numbers (`me.note`), beside `local-loss`."""
    single_replies: bool = True
    """Whether the round reads what single clients sent (`ask`, `stream`, peers in gossip). A method that only takes
    means (`fleet.mean`) says False, which is enforced: then nobody need ever see one client's reply."""
    server: bool = True
    """Whether a server takes part in learning (a peer-to-peer method says False)."""
    server_model: str | None = None
    """The server's model where a run does not name one: `smallest` of the clients', or none."""
    personal: bool = False
    """Whether a client that is served weights adds something of its own to them (see `Method.personalise`)."""
    tasks: Mapping[Trait, str] = field(default_factory=lambda: CLASSES)
    """What a task must have for the method to make sense (`ANY_TASK`, `TABLES`, `LABELS`, `CLASSES`), each with the
    method's own setting that does without it, as in `needs`. Any other task is refused before a run."""

    def __post_init__(self) -> None:
        for name, reason in itertools.chain(_wrong_types(self), _contradictions(self)):
            raise MethodError(f"{name}: {reason}")
        # What is declared holds for a whole run: nobody changes it on the way.
        for name in _MAPPINGS:
            object.__setattr__(self, name, MappingProxyType(dict(getattr(self, name))))
        for name in _SETS:
            object.__setattr__(self, name, frozenset(getattr(self, name)))
        for name in _SEQUENCES:
            object.__setattr__(self, name, tuple(getattr(self, name)))

    def __reduce__(self) -> Any:
        """Views of mappings cannot be pickled: workers that are not forked get a declaration made anew."""
        given = {part.name: getattr(self, part.name) for part in fields(self)}
        given |= {name: dict(given[name]) for name in _MAPPINGS}
        return functools.partial(Declaration, **given), ()

    @functools.cached_property
    def kinds_up(self) -> Mapping[str, Kind]:
        """The kind of each field that leaves a client."""
        return MappingProxyType(kinds_of(self.sends))

    @functools.cached_property
    def kinds_down(self) -> Mapping[str, Kind]:
        """The kind of each field that the server may send."""
        return MappingProxyType({**self.kinds_up, **self.tells})

    @functools.cached_property
    def lasting(self) -> frozenset[str]:
        """The fields of replies whose entries stand for the same each time: all of what is like what was sent."""
        return frozenset(
            name for name, what in self.sends.items() if isinstance(what, LikeWeights) and not what.rows
        )

    def suits(self, task: Task) -> bool:
        """Whether the method makes sense for a task."""
        return lacking(task, self.tasks) is None

    @property
    def task_names(self) -> list[str]:
        """The known tasks for which the method makes sense."""
        return [name for name, kind in registered().items() if self.suits(kind())]

    @property
    def sends_weights(self) -> bool:
        """Whether weights or gradients leave a client: both tell much of its model and its data."""
        return not {Kind.WEIGHTS, Kind.GRADIENTS}.isdisjoint(self.kinds_up.values())


_MAPPINGS: dict[str, tuple[type, type | tuple[type, ...], str]] = {
    "sends": (str, (Field, Kind), "names of fields, each with a kind or what it must be"),
    "tells": (str, Kind, "names of fields, each with its kind"),
    "needs": (Need, str, "needs, each with the setting that does without it, or with an empty text"),
    "tasks": (
        Trait,
        str,
        "traits of tasks, each with the setting that does without it, or with an empty text",
    ),
}
_SETS: dict[str, tuple[str, ...]] = {"keeps": get_args(Kept)}
_SEQUENCES = ("stages", "notes")
_BOOLEANS = ("single_replies", "server", "personal")


def _wrong_types(said: Declaration) -> Iterator[tuple[str, str]]:
    """The parts of a declaration that are not what they should be: name and reason."""
    for name, (key, value, words) in _MAPPINGS.items():
        given = getattr(said, name)
        if not isinstance(given, Mapping) or not all(
            isinstance(one, key) and isinstance(other, value) for one, other in given.items()
        ):
            yield name, f"give {words}, not {given!r:.80}"
    for name, known in _SETS.items():
        given = getattr(said, name)
        if not isinstance(given, AbstractSet) or not given <= set(known):
            yield name, f"give a set of {', '.join(known)}, not {given!r:.80}"
    for name in _SEQUENCES:
        given = getattr(said, name)
        if not isinstance(given, tuple | list) or not all(isinstance(one, str) for one in given):
            yield name, f"give a tuple of names, not {given!r:.80}"
    for name in _BOOLEANS:
        if not isinstance(getattr(said, name), bool):
            yield name, f"give True or False, not {getattr(said, name)!r:.80}"
    if said.server_model is not None and not isinstance(said.server_model, str):
        yield "server_model", f"give a model's name, 'smallest' or None, not {said.server_model!r:.80}"
    if not isinstance(said.final_stage, str):
        yield "final_stage", f"give a name, not {said.final_stage!r:.80}"


def _contradictions(said: Declaration) -> Iterator[tuple[str, str]]:
    """The parts of a declaration that do not go with the others: name and reason."""
    if said.final_stage and said.final_stage not in said.stages:
        yield "final_stage", f"{said.final_stage!r:.80} is not among the stages: add it to `stages`"
    kinds = kinds_of(said.sends)
    for name, kind in said.tells.items():
        if kinds.get(name, kind) != kind:
            yield (
                "tells",
                f"'{name}' is of the kind {kinds[name]} in `sends` and {kind} here: give one of them",
            )
    for name in _SEQUENCES:
        twice = [each for each in getattr(said, name) if list(getattr(said, name)).count(each) > 1]
        if twice:
            yield name, f"{twice[0]!r:.80} is there twice"
