"""The fleet of a run: it samples cohorts, carries steps to clients through an engine, and checks what comes back.

Replies come in the clients' order, never in the order of arrival. A client that fails, or whose reply is refused, is
left out, with its reason in the run's history.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from polyfed import learn
from polyfed.errors import Divergence, MethodError, RoundSpoilt, RunError, StepFailed
from polyfed.federation.cohorts import Cohorts
from polyfed.federation.door import Door
from polyfed.federation.engine import DIVERGED, Call, Engine, Failure, Request, Success
from polyfed.federation.ledger import Ledger, Purpose
from polyfed.federation.message import EMPTY, Fields, Kind, bytes_by_kind, decode, encode
from polyfed.federation.method import (
    NO_DEFAULT,
    ForEach,
    Reply,
    Step,
    StepOwner,
    check_told,
)
from polyfed.federation.nodes import Moment
from polyfed.federation.outliers import Extents, most_suspect, outliers
from polyfed.federation.program import Program, step_name
from polyfed.federation.roster import Facts, Roster
from polyfed.federation.spreading import Jobs
from polyfed.federation.topology import TopologyName, neighbours
from polyfed.learn import Metric, TableMean, WeightedMean
from polyfed.seeds import Seeds
from polyfed.tasks import CLASSIFICATION, Task

STREAM_WINDOW = 32  # replies under way ahead of the one that is being folded in


@dataclass(frozen=True)
class Asked:
    """One ask under way: what is asked of whom, and what they were sent."""

    step: Step
    owner: StepOwner
    name: str
    to: Sequence[Facts]
    payload: Fields
    own: Mapping[int, Fields]
    purpose: Purpose
    required: Sequence[str]
    """The fields without which a reply is refused."""
    aloud: bool = False
    """Whether peers hear the replies. Then they may be empty, and are differences to nothing."""
    arrived: dict[str, Any] = field(default_factory=dict)
    """What all were sent, as it arrived: what their replies are differences to."""
    extents: dict[int, Extents] = field(default_factory=dict)
    """How large the replies are that were let in, by client."""


class EngineFleet:
    """The clients of a run, reached through an engine. Nothing here knows which one."""

    def __init__(
        self,
        engine: Engine,
        program: Program,
        roster: Roster,
        seeds: Seeds,
        ledger: Ledger,
        cohorts: Cohorts,
        sizes: Mapping[str, int],
        build: Callable[[str], nn.Module],
        stack: int = 1,
        stackable: frozenset[str] = frozenset(),
        most_measured: int | None = None,
        outliers: float | None = None,
        task: Task = CLASSIFICATION,
        metrics: Sequence[Metric] = (),
    ) -> None:
        """sizes: what declared fields are compared with (outputs, classes, public rows).

        build: makes a model of an architecture, for replies that must be like one.

        most_measured: how many of the clients that do a step measure its stages, at most.

        outliers: how many times larger than the others' a reply may be (see `outliers`); None: by any factor.

        task: what is learnt, which says what answers and scores can be. metrics: what is asked for beside its score.
        """
        self.engine = engine
        self.program = program
        self.roster = roster
        self.seeds = seeds
        self.ledger = ledger
        self.cohorts = cohorts
        self.sizes = sizes
        self.stack = stack
        self.stackable = stackable
        self.most_measured = most_measured
        self.outliers = outliers
        self.task = task
        self.metrics = tuple(metrics)
        self._build = build
        self._models: dict[str, dict[str, Tensor]] = {}
        self.round = 0
        self.measuring = False
        self.under_way = ""
        """Which step is being done, and by how many of how many clients it has been: for a progress bar."""
        self.failures: list[Failure] = []
        self.reports: list[tuple[Facts, Fields]] = []
        """What clients measured and noted in this round, in the order of their replies."""
        self.left_out: Mapping[int, str] = {}
        """The clients whose replies are refused in this round, with the reasons: they spoilt it when it was tried."""
        self._sequence = 0
        self._asked_of: set[int] = set()
        self._accepted: set[str] = set()
        self._extents: list[Mapping[int, Extents]] = []

    def begin(self, number: int, *, measuring: bool, left_out: Mapping[int, str] | None = None) -> None:
        """A new round: its random streams, its failures, its reports."""
        self.round = number
        self.measuring = measuring
        self.left_out = left_out or {}
        self.failures = []
        self.reports = []
        self._sequence = 0
        self._asked_of = set()
        self._accepted = set()
        self._extents = []

    def end(self) -> None:
        """Refuse to go on if every client failed in this round, in a step that nobody got through.

        Whichever step it is, and whatever went well before it: a mistake that more rounds will not mend.
        """
        if not self._asked_of <= {failure.client for failure in self.failures}:
            return
        for last in reversed(self.failures):
            if last.step not in self._accepted:
                assert last.client is not None
                kind = Divergence if DIVERGED in last.reason else RunError
                raise kind(
                    f"round {self.round}: every client failed, {self.roster.name(last.client)} in step '{last.step}':"
                    f" {last.reason}"
                ) from (StepFailed(last.traceback) if last.traceback else None)

    def most_suspect(self) -> int | None:
        """The client whose replies in this round are the largest beside the others'; None if none stands out."""
        return most_suspect(self._extents)

    # -- who -------------------------------------------------------------------------------------------------

    @cached_property
    def holders(self) -> NDArray[np.int64]:
        """The clients that hold training rows. The others have nothing to teach: they take no part in learning."""
        return self.roster.holders()

    def everyone(self) -> list[Facts]:
        return [self.roster[index] for index in self.holders]

    def sample(self) -> list[Facts]:
        chosen = self.cohorts.draw(self.holders, self.seeds.numpy("cohort", self.round))
        return [self.roster[index] for index in chosen]

    # -- asking ----------------------------------------------------------------------------------------------

    def ask(
        self, step: Step, to: Sequence[Facts], each: ForEach | None = None, **payload: Any
    ) -> list[Reply]:
        return list(self._single(self._replies(step, to, each, payload, window=None)))

    def stream(
        self, step: Step, to: Sequence[Facts], each: ForEach | None = None, **payload: Any
    ) -> Iterator[Reply]:
        return self._single(self._replies(step, to, each, payload, window=STREAM_WINDOW))

    def look(
        self, step: Step, to: Sequence[Facts], each: ForEach | None = None, **payload: Any
    ) -> Iterator[Reply]:
        """As `stream`, for steps that only look at models: counted as evaluation, and no random stream moves on."""
        return self._replies(step, to, each, payload, window=STREAM_WINDOW, purpose="evaluation")

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
        mean: WeightedMean | TableMean | None = None
        for reply in self._replies(step, to, None, payload, window=STREAM_WINDOW, required=(field,)):
            value = reply[field]
            if mean is None:
                mean = TableMean() if isinstance(value, Tensor) else WeightedMean()
            mean.add(value, 1.0 if share is None else share(reply.client))
        if mean is not None and mean.total:
            return mean.result()
        if default is NO_DEFAULT:
            raise RunError(f"round {self.round}: no client gave a reply to '{step.__name__}' that is of use")
        return default

    def gossip(
        self, say: Step, hear: Step, topology: TopologyName, among: Sequence[Facts], **payload: Any
    ) -> None:
        places = {facts.index: facts for facts in among}
        links = neighbours(topology, list(places), self.seeds.torch("topology", self.round, self._sequence))
        listeners = Counter(other for others in links.values() for other in others)
        said: dict[int, bytes] = {}
        sizes: dict[int, Mapping[Kind, int]] = {}
        asked = self._asked(say, among, None, payload, aloud=True)
        heard_of = [
            (outcome, *self._checked(outcome, asked)) for outcome in self._outcomes(asked, window=None)
        ]
        refused = self._outliers(asked)
        for outcome, reply, size in heard_of:
            if reply is None or reply.client.index in refused:
                continue
            index = reply.client.index
            if reply.fields:
                said[index], sizes[index] = outcome.reply, size
            # Counted once already. What a peer says to nobody is not sent, nor is nothing.
            more = (listeners[index] if reply.fields else 0) - 1
            self.ledger.count(reply.client.name, "up", size, "training", times=more)
        hears = {index: [other for other in links[index] if other in said] for index in links}
        for index, others in hears.items():
            for other in others:
                self.ledger.count(places[index].name, "down", sizes[other], "training")
        heard = {
            index: tuple((places[other].name, said[other]) for other in others)
            for index, others in hears.items()
        }
        hearing = [facts for facts in among if heard[facts.index]]
        asked = self._asked(hear, hearing, None, {})
        for outcome in self._outcomes(asked, window=None, heard=heard):
            self._checked(outcome, asked)

    @contextmanager
    def spread(self, step: Step, fold: Callable[[dict[str, Any]], object], payload: Fields) -> Iterator[Jobs]:
        """Run a server step for each job that is put; nothing of it leaves the server, so nothing is counted."""
        if not getattr(step, "is_server_step", False):
            raise MethodError(f"'{step.__name__}' is not a server step: mark it with @server_step")
        moment = Moment(self.round, self._sequence)
        jobs = Jobs(self.engine, self.program.name_of(step), moment, payload, fold)
        yield jobs
        jobs.finish()  # not where something was raised in between

    def _replies(
        self,
        step: Step,
        to: Sequence[Facts],
        each: ForEach | None,
        payload: Fields,
        window: int | None,
        purpose: Purpose = "training",
        required: Sequence[str] = (),
    ) -> Iterator[Reply]:
        asked = self._asked(step, to, each, payload, purpose, required)
        checked = (self._checked(outcome, asked)[0] for outcome in self._outcomes(asked, window))
        replies = (reply for reply in checked if reply is not None)
        if window is None:  # all are here before the first is read
            known = list(replies)
            outliers = self._outliers(asked)
            yield from (reply for reply in known if reply.client.index not in outliers)
            return
        yield from replies
        spoilt = self._outliers(asked)
        if spoilt:  # and read already
            raise RoundSpoilt(self.round, spoilt)

    def _outliers(self, asked: Asked) -> dict[int, str]:
        """The clients whose replies to this ask are far larger than the others'; they failed."""
        if self.outliers is None or asked.purpose != "training":
            return {}
        found = outliers(asked.extents, self.outliers)
        short = step_name(asked.name)
        self.failures += [Failure(index, short, reason) for index, reason in found.items()]
        return found

    def _single(self, replies: Iterator[Reply]) -> Iterator[Reply]:
        """Replies that a method's round is going to read one by one."""
        method = self.program.method
        for reply in replies:
            if reply.fields and not method.declared.single_replies:
                raise MethodError(
                    f"{type(method).__name__} says that it reads no single replies (single_replies=False):"
                    " use fleet.mean, or leave that out"
                )
            yield reply

    def _asked(
        self,
        step: Step,
        to: Sequence[Facts],
        each: ForEach | None,
        payload: Fields,
        purpose: Purpose = "training",
        required: Sequence[str] = (),
        *,
        aloud: bool = False,
    ) -> Asked:
        if not getattr(step, "is_client_step", False):
            raise MethodError(f"'{step.__name__}' is not a client step: mark it with @client_step")
        name = self.program.name_of(step)
        own = {facts.index: each(facts) for facts in to} if each is not None else {}
        owner = self.program.owner(name)
        check_told(
            owner, [*payload, *dict.fromkeys(field for fields in own.values() for field in fields)], step
        )
        promised = [field for field in getattr(step, "required", ()) if field in owner.declared.sends]
        asked = Asked(step, owner, name, to, payload, own, purpose, [*promised, *required], aloud)
        if purpose == "training":
            self._extents.append(asked.extents)
            self._asked_of.update(facts.index for facts in to)
        return asked

    def _outcomes(
        self,
        asked: Asked,
        window: int | None,
        heard: Mapping[int, tuple[tuple[str, bytes], ...]] | None = None,
    ) -> Iterator[Success]:
        """The outcomes of the clients that did not fail."""
        # The number names the steps' random streams: looking at a model must not change what comes after.
        self._sequence += asked.purpose == "training"
        calls = []
        kinds = asked.owner.declared.kinds_down
        packed = self.program.wire.pack(asked.payload, kinds, "down")
        common = encode(packed)
        down = bytes_by_kind(packed, len(common), kinds)
        if self.program.wire_up(asked.owner).packs("up"):
            # A copy: a method may change what it sends while replies come in.
            asked.arrived.update(self.program.wire.unpack(decode(common), kinds, "down"))
        measuring = self._measuring(asked.to)
        for facts in asked.to:
            own = self.program.wire.pack(asked.own.get(facts.index, {}), kinds, "down")
            data = encode(own) if own else EMPTY
            from_others = heard[facts.index] if heard is not None else ()
            calls.append(Call(facts.index, data, from_others, facts.index in measuring))
            self.ledger.count(facts.name, "down", down, asked.purpose)
            if own:
                self.ledger.count(facts.name, "down", bytes_by_kind(own, len(data), kinds), asked.purpose)
        request = Request(
            step=asked.name,
            moment=Moment(self.round, self._sequence),
            common=common,
            units=self._units(asked, calls),
            window=window,
            aloud=asked.aloud,
        )
        short = step_name(asked.name)
        self.under_way = f"{short} 0/{len(calls)}"
        for done, outcome in enumerate(self.engine.run(request), start=1):
            self.under_way = f"{short} {done}/{len(calls)}"
            if isinstance(outcome, Failure):
                self.failures.append(outcome)
            else:
                yield outcome

    def _measuring(self, to: Sequence[Facts]) -> frozenset[int]:
        """The clients that measure stages now: all, or as many as may; the same ones in all steps where they can be."""
        if not self.measuring:
            return frozenset()
        asked = [facts.index for facts in to]
        if self.most_measured is not None and len(asked) > self.most_measured:
            order = self.seeds.numpy("measured clients").permutation(len(self.roster))
            asked = sorted(asked, key=lambda index: order[index])[: self.most_measured]
        return frozenset(asked)

    def _like_model(self, architecture: str) -> dict[str, Tensor]:
        """Names, shapes and types of an architecture's tensors; without their numbers, which take room."""
        if architecture not in self._models:
            tensors = learn.named_tensors(self._build(architecture))
            self._models[architecture] = {name: tensor.to("meta") for name, tensor in tensors.items()}
        return self._models[architecture]

    def _units(self, asked: Asked, calls: Sequence[Call]) -> list[list[Call]]:
        """One call per unit; or up to `stack` neighbours of one architecture, where the step can stack them."""
        if self.stack <= 1 or not hasattr(asked.step, "together"):
            return [[call] for call in calls]
        units: list[list[Call]] = []
        last: str | None = None
        for facts, call in zip(asked.to, calls, strict=True):
            same = facts.architecture == last and last in self.stackable
            if same and len(units[-1]) < self.stack:
                units[-1].append(call)
            else:
                units.append([call])
            last = facts.architecture
        return units

    def _checked(self, success: Success, asked: Asked) -> tuple[Reply | None, Mapping[Kind, int]]:
        """A client's reply and its bytes by kind; no reply where it is refused."""
        assert success.client is not None
        facts = self.roster[success.client]
        own = asked.own.get(facts.index, {})
        wire = self.program.wire_up(asked.owner)
        door = Door(
            asked.owner.declared, wire, self.sizes, asked.required, asked.aloud, self.task, self.metrics
        )
        arrived = door.open(
            success.reply,
            success.report,
            sent={**asked.payload, **own},
            arrived=None if asked.aloud else self._as_it_arrived(asked, own),
            own_model=lambda: self._like_model(facts.architecture),
            samples=facts.samples,
        )
        training = asked.purpose == "training"
        self.ledger.count(facts.name, "up", arrived.bytes, asked.purpose)
        if success.report != EMPTY:
            self.ledger.count(facts.name, "up", {Kind.METRICS: len(success.report)}, "evaluation")
        refusal = self.left_out.get(facts.index) if training and arrived.fields else None
        refusal = arrived.refusal or refusal
        short = step_name(asked.name)
        if refusal is not None:
            self.failures.append(Failure(facts.index, short, refusal))
            return None, arrived.bytes
        asked.extents[facts.index] = arrived.extents
        if arrived.report:
            self.reports.append((facts, arrived.report))
        self._accepted.add(short)
        return Reply(facts, arrived.fields), arrived.bytes

    def _as_it_arrived(self, asked: Asked, own: Fields) -> Fields:
        """What a client was sent, as it arrived; nothing where replies are not packed, and so no differences."""
        if not self.program.wire_up(asked.owner).packs("up"):
            return {}
        wire, kinds = self.program.wire, asked.owner.declared.kinds_down
        return {**asked.arrived, **wire.unpack(wire.pack(own, kinds, "down"), kinds, "down")}
