"""A client and a server: what each has, and what of it lasts.

What must last lives in `model` and `memory`, and nowhere else: so it is checkpointed, moved, rolled back and
resumed without a method's help.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from polyfed import learn
from polyfed.data import Rows
from polyfed.federation.message import Weights
from polyfed.models import Budget, memory_format
from polyfed.seeds import Seeds

State: TypeAlias = dict[str, Any]
Measurement: TypeAlias = dict[str, list[int]]


@dataclass(frozen=True)
class Facts:
    """What a client has declared of itself to the server: all that a method's round may know in advance."""

    index: int
    name: str
    samples: int
    architecture: str


@dataclass(frozen=True)
class Holdings:
    """The data that one client can see."""

    train: Rows
    validation: Rows
    test: Rows
    whole_test: Rows
    whole_validation: Rows | None = None
    """Everybody's validation rows, where the best round is to be chosen on those."""
    public: Rows | None = None
    own_public: Tensor | None = None
    """Which of the public rows come from this client's own domain; where there are no domains, its part of all."""
    everyone: Rows | None = None


@dataclass(frozen=True)
class Moment:
    """When a step happens: names its random streams, and says whether stages are measured now."""

    round: int
    sequence: int
    measuring: bool = False


@dataclass
class Client:
    """One participant: its own model, its own data, its own memory.

    `memory` may hold tensors, numbers, texts, and lists and dictionaries of these.
    """

    facts: Facts
    model: nn.Module
    data: Holdings
    seeds: Seeds
    device: torch.device
    scratch_model: Callable[[str], nn.Module]
    """A model of a named architecture to work with inside a step: load weights first, nothing of it lasts."""
    budget: Budget = field(default_factory=Budget)
    outputs: int = 0
    """How many outputs every model of the federation has."""
    answers: int | None = None
    """How many of the first outputs an answer is chosen among when the client is scored; None is all."""
    memory: State = field(default_factory=dict)
    moment: Moment = field(default_factory=lambda: Moment(0, 0))
    measured: dict[str, Measurement] = field(default_factory=dict)
    noted: dict[str, float] = field(default_factory=dict)
    _streams: dict[str, torch.Generator] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return self.facts.name

    @property
    def train(self) -> Rows:
        return self.data.train

    @property
    def public(self) -> Rows:
        """The public set. Methods that use it declare `Need.PUBLIC`, which is checked before a run starts."""
        assert self.data.public is not None
        return self.data.public

    @property
    def own_public(self) -> Tensor:
        """The places in the public set of the rows that come from this client's own domain (or are its part)."""
        assert self.data.own_public is not None
        return self.data.own_public

    def tensors(self, rows: Rows) -> tuple[Tensor, Tensor]:
        """Inputs (normalised, in the layout that this client's model is fastest with) and labels."""
        return rows.tensors(memory_format(self.model), self.device)

    def inputs(self, rows: Rows) -> Tensor:
        """Inputs alone, for public data whose labels are absent or not to be used."""
        return rows.inputs(memory_format(self.model), self.device)

    def rng(self, purpose: str) -> torch.Generator:
        """The random stream of this purpose for this client, in this round, in this step."""
        if purpose not in self._streams:
            now = self.moment
            self._streams[purpose] = self.seeds.torch(purpose, self.name, now.round, now.sequence)
        return self._streams[purpose]

    def measure(self, stage: str, *, whole: bool = True) -> None:
        """Record the model's accuracy at this stage of the round (costs nothing in rounds not evaluated).

        On the client's own validation and test rows, and on the whole test set unless that is not wanted.
        """
        if self.moment.measuring:
            self.measured[stage] = self.examine(self.model, slice(None) if whole else slice(0))

    def note(self, name: str, value: Tensor | float) -> None:
        """Record a number, such as a loss (costs nothing in rounds not evaluated); the mean over clients is kept."""
        if self.moment.measuring:
            self.noted[name] = value.item() if isinstance(value, Tensor) else value

    def note_local_loss(self, batch: int) -> None:
        """Record the model's cross-entropy on a batch of its own training data (in rounds that are evaluated)."""
        if self.moment.measuring and len(self.train):
            x, y = self.tensors(self.train)
            rows = torch.randperm(len(y), generator=self.rng("local loss"))[:batch]
            self.note("local-loss", F.cross_entropy(learn.predict(self.model, learn.take(x, rows)), y[rows]))

    def examine(self, model: nn.Module, whole: slice = slice(None)) -> Measurement:
        """[right, of] on the own validation and test rows, and on (a part of) the whole test set."""
        parts = {
            "validation": self.data.whole_validation or self.data.validation,
            "own": self.data.test,
            "whole": self.data.whole_test[whole],
        }
        with learn.evaluating(model):
            return {
                name: learn.score(model, *self.tensors(rows), self.answers)
                for name, rows in parts.items()
                if len(rows)
            }

    def enter(self, moment: Moment) -> None:
        """Begin a step: fresh random streams, nothing measured yet, no gradients or modes left from the last one."""
        learn.make_ready(self.model)
        self.moment = moment
        self.measured = {}
        self.noted = {}
        self._streams = {}

    def state(self, parts: frozenset[str] = frozenset({"model", "memory"})) -> State:
        """A copy of what lasts, exact to the bit."""
        state: State = {}
        if "model" in parts:
            state["model"] = learn.weights_of(self.model)
        if "memory" in parts:
            state["memory"] = _copied(self.memory)
        return state

    def restore(self, state: State) -> None:
        """Be what `state()` was taken from."""
        if "model" in state:
            learn.load_weights(self.model, state["model"])
        if "memory" in state:
            self.memory = state["memory"]


class Roster(Sequence[Facts]):
    """What every client declared. Facts are made when asked for: a million clients are two arrays."""

    def __init__(self, samples: Sequence[int], architectures: Sequence[str], which: Any) -> None:
        self._samples = samples
        self.architectures = tuple(architectures)
        self._which = which

    def __len__(self) -> int:
        return len(self._samples)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[place] for place in range(*index.indices(len(self)))]
        if not 0 <= index < len(self):
            raise IndexError(index)
        index = int(index)
        return Facts(index, client_name(index), int(self._samples[index]), self.architecture(index))

    def architecture(self, index: int) -> str:
        return self.architectures[int(self._which[index])]

    def __iter__(self) -> Iterator[Facts]:
        return (self[index] for index in range(len(self)))


@dataclass
class Server:
    """The server's side: a model or none, memory, the public set or none, and the roster.

    A peer-to-peer method has a server with nothing in it.
    """

    roster: Roster
    seeds: Seeds
    device: torch.device
    build: Callable[[str], nn.Module]
    outputs: int
    """How many outputs every model of the federation has."""
    model: nn.Module | None = None
    architecture: str | None = None
    public: Rows | None = None
    everyone: Rows | None = None
    memory: State = field(default_factory=dict)
    round: int = 0
    take_measure: Callable[[str, Mapping[str, Weights]], None] | None = None

    def rng(self, purpose: str) -> torch.Generator:
        """The server's random stream of this purpose in this round."""
        return self.seeds.torch(purpose, "server", self.round)

    def inputs(self, rows: Rows, model: nn.Module) -> Tensor:
        """Inputs in the layout that this model is fastest with."""
        return rows.inputs(memory_format(model), self.device)

    def measure(self, stage: str, models: Mapping[str, Weights] | None = None) -> None:
        """Record the accuracy on the whole test set at this stage of the round: of the server's model.

        models: or of these, one an architecture, as an ensemble that answers with the mean of their logits.
        """
        if models is None and self.model is not None and self.architecture is not None:
            models = {self.architecture: learn.weights_of(self.model)}
        if self.take_measure is not None and models:
            self.take_measure(stage, models)

    def shared_weights(self) -> dict[str, Weights]:
        """One set of weights an architecture, kept in memory; at first the common initial ones."""
        kept: dict[str, Weights] = self.memory.setdefault("weights", {})
        if not kept:
            for architecture in self.roster.architectures:
                kept[architecture] = learn.weights_of(self.build(architecture))
        return kept

    def state(self) -> State:
        model = learn.weights_of(self.model) if self.model is not None else {}
        return {"model": model, "memory": _copied(self.memory)}

    def restore(self, state: Mapping[str, Any]) -> None:
        if self.model is not None:
            learn.load_weights(self.model, state["model"])
        self.memory = state["memory"]


def _copied(value: Any) -> Any:
    """As `copy.deepcopy` of what a memory may hold, in a fifth of its time; it is paid in every step."""
    if isinstance(value, Tensor):
        return value.detach().clone()
    if isinstance(value, dict):
        return {name: _copied(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_copied(item) for item in value]
    return copy.deepcopy(value)


def client_name(index: int) -> str:
    """The name of the client with this number: `client-3`."""
    return f"client-{index}"
