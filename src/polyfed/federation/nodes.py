"""A client and a server: what each has, and what of it lasts.

What must last lives in `model` and `memory`, and nowhere else: so it is checkpointed, moved, rolled back and
resumed without a method's help.
"""

from __future__ import annotations

import copy
import functools
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal, Protocol, TypeAlias, TypedDict

import torch
from torch import Tensor, nn

from polyfed import learn
from polyfed.data import Limits, Rows
from polyfed.errors import MethodError
from polyfed.federation.fields import LOCAL_LOSS
from polyfed.federation.message import Fields, Weights
from polyfed.federation.roster import Facts, Roster
from polyfed.federation.shelf import Shelf
from polyfed.learn import Training
from polyfed.models import memory_format
from polyfed.seeds import Seeds
from polyfed.tasks import CLASSIFICATION, Tally, Task

State: TypeAlias = dict[str, Any]
Part = Literal["validation", "own", "whole", "others"]


class Measurement(TypedDict, total=False):
    """A tally of the task, [sum, rows], by part; further metrics by part where the run asks for them, or the sums of
    which they are made, where those of several clients are to be added.

    The parts are the client's own validation and test rows, (a part of) the whole test set, and of that the rows that
    are not its own.
    """

    validation: Tally
    own: Tally
    whole: Tally
    others: Tally
    metrics: dict[Part, learn.Metrics]
    sums: dict[Part, dict[str, Any]]


@dataclass(frozen=True)
class ClientData:
    """The data that one client can see: what it holds, and what all can see."""

    train: Rows
    validation: Rows
    test: Rows
    whole_test: Rows | None
    """The whole test set, as this client normalises it; None where there is none."""
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


class ScratchModels(Protocol):
    """Models to work with inside a step."""

    def __call__(self, architecture: str, place: int = 0) -> nn.Module:
        """A model of a named architecture with the common initial weights, ready to be trained; nothing of it lasts.

        place: two of one architecture are asked for by two places.
        """


class Observer(Protocol):
    """Looks at models for a client: evaluation's part of a step."""

    @property
    def metrics(self) -> Sequence[learn.Metric]:
        """What is asked for beside the task's own score."""

    def scores(self, me: Client, model: nn.Module, whole: slice) -> Measurement:
        """What was measured on the client's own validation and test rows, and on (a part of) the whole test set."""

    def local_loss(self, me: Client, batch: int) -> float:
        """The task's loss of the client's model on a batch of its own training data."""


class NodeTensors:
    """Rows as tensors, on the node's device and in the layout that a model is fastest with."""

    device: torch.device

    def tensors(self, rows: Rows, model: nn.Module | None = None) -> tuple[Tensor, Tensor]:
        """Inputs (normalised, in the layout of this model, by default the node's own) and labels."""
        return rows.tensors(self._layout(model), self.device)

    def inputs(self, rows: Rows, model: nn.Module | None = None) -> Tensor:
        """Inputs alone, for public data whose labels are absent or not to be used."""
        return rows.inputs(self._layout(model), self.device)

    def _layout(self, model: nn.Module | None) -> torch.memory_format:
        chosen = getattr(self, "model", None) if model is None else model
        return memory_format(chosen) if chosen is not None else torch.contiguous_format


@dataclass
class Client(NodeTensors):
    """One participant: its own model, its own data, its own memory.

    `memory` may hold tensors, numbers, texts, and lists and dictionaries of these.
    """

    facts: Facts
    model: nn.Module
    data: ClientData
    seeds: Seeds
    device: torch.device
    scratch_model: ScratchModels
    """`me.scratch_model("lenet5")`: a model to work with inside a step; nothing of it lasts."""
    observer: Observer
    run_training: Training = field(default_factory=Training)
    run_task: Task = CLASSIFICATION
    """What is learnt in this run."""
    shape: tuple[int, ...] = ()
    """Of one input, as a model sees it."""
    outputs: int = 0
    """How many outputs every model of the federation has."""
    classes: int = 0
    """How many classes the private data have: the first of the outputs."""
    memory: State = field(default_factory=dict)
    residuals: dict[str, Tensor] = field(default_factory=dict)
    """What was left out when its messages were packed, by field: it is sent later (see `wire`)."""
    moment: Moment = field(default_factory=lambda: Moment(0, 0))
    measured: dict[str, Measurement] = field(default_factory=dict)
    noted: dict[str, float | None] = field(default_factory=dict)
    _streams: dict[str, torch.Generator] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return self.facts.name

    @property
    def round(self) -> int:
        return self.moment.round

    @property
    def training(self) -> Training:
        """How the client trains in this round: the run's settings, with the learning rate that is left by now."""
        return self.run_training.in_round(self.moment.round)

    @functools.cached_property
    def task(self) -> Task:
        """What the client learns: the run's task, with classes weighted as the client has them, if so set."""
        task = self.run_task
        return task.for_labels(self.train.labels) if task.is_weighted else task

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

    def rng(self, purpose: str) -> torch.Generator:
        """The random stream of this purpose for this client, in this round, in this step."""
        if purpose not in self._streams:
            now = self.moment
            self._streams[purpose] = self.seeds.torch(purpose, self.name, now.round, now.sequence)
        return self._streams[purpose]

    def measure(self, stage: str, *, model: nn.Module | None = None, whole: bool = True) -> None:
        """Record the model's score (its accuracy, say) at this stage of the round.

        On the client's own validation and test rows, and on the whole test set unless that is not wanted. It costs
        nothing in rounds that are not evaluated, and on clients beyond as many as are scored.

        model: another one than the client's, such as a scratch model, or a module that answers in another way.
        """
        if self.moment.measuring:
            scored = self.model if model is None else model
            self.measured[stage] = self.observer.scores(self, scored, slice(None) if whole else slice(0))

    def note(self, name: str, value: Tensor | float) -> None:
        """Record a number, such as a loss (costs nothing where nothing is measured); the mean over clients is kept.

        One that is NaN or infinite is recorded as nothing.
        """
        if self.moment.measuring:
            number = float(value.item() if isinstance(value, Tensor) else value)
            self.noted[name] = number if math.isfinite(number) else None

    def note_local_loss(self) -> None:
        """Record the model's loss on a batch of its own training data (in rounds that are evaluated)."""
        if self.moment.measuring and len(self.train):
            self.note(LOCAL_LOSS, self.observer.local_loss(self, self.training.batch))

    def report(self) -> Fields:
        """What was measured and noted in this step: it travels beside the reply."""
        found: dict[str, Any] = {"measured": self.measured, "noted": self.noted}
        return {name: value for name, value in found.items() if value}

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
            state["memory"] = copied(self.memory)
        if "residuals" in parts:
            state["residuals"] = dict(self.residuals)  # they are replaced, never changed
        return state

    def restore(self, state: State) -> None:
        """Be what `state()` was taken from."""
        if "model" in state:
            learn.load_weights(self.model, state["model"])
        if "memory" in state:
            self.memory = state["memory"]
        if "residuals" in state:
            self.residuals = state["residuals"]


@dataclass
class Assistant(NodeTensors):
    """What a server step works with, on whichever worker it runs: public data and models, nothing that lasts."""

    device: torch.device
    scratch_model: ScratchModels
    shape: tuple[int, ...]
    outputs: int
    classes: int
    public: Rows | None
    test: Rows | None
    """The whole test set, for evaluation alone; None where there is none."""
    task: Task = CLASSIFICATION
    """What is learnt."""


class Jobs(Protocol):
    """Where the jobs of a server step are put, one by one."""

    def put(self, **job: Any) -> None:
        """Add a job with these fields."""


class Workers(Protocol):
    """All of the engine's workers, for the server's own work."""

    def spread(
        self, step: Callable[..., Any], fold: Callable[[dict[str, Any]], object], payload: Fields
    ) -> AbstractContextManager[Jobs]:
        """Run a server step for each job that is put; results are folded in the order of the jobs."""


class ServerObserver(Protocol):
    """Looks at the server's models: evaluation's part of a round."""

    def measure(self, stage: str, models: Mapping[str, Weights]) -> None:
        """Record the score on the whole test set of a model, or of several as an ensemble."""


@dataclass
class Server(NodeTensors):
    """The server's side: a model or none, memory, the public set or none, and the roster.

    A peer-to-peer method has a server with nothing in it.
    """

    roster: Roster
    seeds: Seeds
    device: torch.device
    build: Callable[[str], nn.Module]
    shape: tuple[int, ...]
    """Of one input, as a model sees it."""
    outputs: int
    """How many outputs every model of the federation has."""
    classes: int
    """How many classes the private data have: the first of the outputs."""
    limits: Limits | None = None
    """The smallest and the largest normalised value of each channel of images of 8 bits; None of other inputs."""
    model: nn.Module | None = None
    architecture: str | None = None
    public: Rows | None = None
    memory: State = field(default_factory=dict)
    """Saved whole at every checkpoint: for little. Much (a model for each client) belongs on the shelf."""
    shelf: Shelf = field(default_factory=Shelf)
    task: Task = CLASSIFICATION
    """What is learnt."""
    round: int = 0
    workers: Workers | None = None
    observer: ServerObserver | None = None

    def rng(self, purpose: str) -> torch.Generator:
        """The server's random stream of this purpose in this round."""
        return self.seeds.torch(purpose, "server", self.round)

    def spread(
        self, step: Callable[..., Any], *, fold: Callable[[dict[str, Any]], object], **payload: Any
    ) -> AbstractContextManager[Jobs]:
        """Run a server step for many jobs on all of the engine's workers; what each gives is folded in their order.

            with server.spread(self.answer, fold=teacher.add, rows=rows) as teachers:
                for reply in fleet.stream(self.train, cohort):
                    teachers.put(weights=reply["weights"])

        Jobs are done while more are put, a few at a time; all are done when the block ends. If something is raised in
        it, those that wait are dropped; if a job fails, the run ends with its reason.

        step: a function of the method marked with `@server_step`; it gets an `Assistant`, the payload and the job's
            fields. Bit-equal to doing it in place.
        fold: takes the fields that a job gave.
        payload: what goes to every job, sent to each worker once.
        """
        assert self.workers is not None, "a server works within a run"
        return self.workers.spread(step, fold, payload)

    def measure(self, stage: str, models: Mapping[str, Weights] | None = None) -> None:
        """Record the score on the whole test set at this stage of the round: of the server's model.

        models: or of these, one per architecture, as an ensemble that answers with the mean of their logits.
        """
        if models is None and self.model is not None and self.architecture is not None:
            models = {self.architecture: learn.weights_of(self.model)}
        if self.observer is not None and models:
            self.observer.measure(stage, models)

    def weights(self, architecture: str) -> Mapping[str, Tensor]:
        """The shared weights of an architecture, at first the common initial ones. To be read: see `put_weights`."""
        return MappingProxyType(self._shared_weights()[architecture])

    def put_weights(self, architecture: str, weights: Mapping[str, Tensor]) -> None:
        """Make these the shared weights of an architecture from now on; entries that are not given stay."""
        kept = self._shared_weights()
        unknown = sorted(weights.keys() - kept[architecture].keys())
        if unknown:
            raise MethodError(f"weights of another architecture: '{unknown[0]}' is not in {architecture}")
        kept[architecture] = {
            **kept[architecture],
            **weights,
        }  # a new one: who has read the last one keeps that

    def _shared_weights(self) -> dict[str, Weights]:
        """One set of weights per architecture, kept in memory."""
        kept: dict[str, Weights] = self.memory.setdefault("weights", {})
        if not kept:
            for architecture in self.roster.architectures:
                kept[architecture] = learn.weights_of(self.build(architecture))
        return kept

    def state(self) -> State:
        model = learn.weights_of(self.model) if self.model is not None else {}
        return {"model": model, "memory": copied(self.memory)}

    def restore(self, state: Mapping[str, Any]) -> None:
        if self.model is not None:
            learn.load_weights(self.model, state["model"])
        self.memory = state["memory"]


def copied(value: Any) -> Any:
    """As `copy.deepcopy` of what a memory may hold, in a fifth of its time; it is paid in every step."""
    if isinstance(value, Tensor):
        return value.detach().clone()
    if isinstance(value, dict):
        return {name: copied(item) for name, item in value.items()}
    if isinstance(value, list):
        return [copied(item) for item in value]
    if isinstance(value, Mapping):
        return copied(dict(value))
    return copy.deepcopy(value)
