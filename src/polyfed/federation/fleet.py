"""What a method sees of the others: it samples a cohort, asks, streams, lets peers gossip.

Replies come in the clients' order, never in the order of arrival. A client that fails is left out of the replies,
with its reason in the run's history.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from polyfed.errors import MethodError, RunError
from polyfed.federation.engine import Answer, Call, Engine, Failure, Outcome, Task
from polyfed.federation.ledger import Ledger, Purpose
from polyfed.federation.message import EMPTY, Fields, Kind, Weights, bytes_by_kind, decode, encode
from polyfed.federation.method import MEASURED, NOTED, Examination, Method, Step
from polyfed.federation.nodes import Facts, Measurement, Moment, Roster, Server, client_name
from polyfed.federation.topology import TopologyName, neighbours
from polyfed.seeds import Seeds

STREAM_WINDOW = 32  # replies under way ahead of the one that is being folded in


@dataclass(frozen=True)
class Reply:
    """What one client answered: `reply["logits"]`, and who it was: `reply.client`."""

    client: Facts
    fields: Mapping[str, Any]

    def __getitem__(self, name: str) -> Any:
        return self.fields[name]


@dataclass(frozen=True)
class Cohorts:
    """Who takes part: how many are sampled each round, and which of them drop out."""

    count: int
    dropout: float = 0.0
    weak: Sequence[int] | None = None
    """With drop-out by budget: the clients too weak to take part, for good. Else everyone drops out by chance."""


class Fleet:
    """The clients as a method sees them. Nothing here knows which engine carries a step."""

    def __init__(
        self,
        engine: Engine,
        method: Method,
        roster: Roster,
        seeds: Seeds,
        ledger: Ledger,
        cohorts: Cohorts,
        stack: int = 1,
        stackable: frozenset[str] = frozenset(),
    ) -> None:
        self.engine = engine
        self.method = method
        self.roster = roster
        self.seeds = seeds
        self.ledger = ledger
        self.cohorts = cohorts
        self.stack = stack
        self.stackable = stackable
        self.round = 0
        self.measuring = False
        self.under_way = ""
        """Which step is being done, and by how many of how many clients it has been: for a progress bar."""
        self.failures: list[Failure] = []
        self.measured: defaultdict[str, dict[int, Measurement]] = defaultdict(dict)
        self.noted: defaultdict[str, list[float]] = defaultdict(list)
        self._examination = Examination(method)
        self._kinds_up = {**method.sends, **Examination.sends}
        self._sequence = 0
        self._answers = 0

    def begin(self, number: int, *, measuring: bool) -> None:
        """A new round: its random streams, its failures, its measurements."""
        self.round = number
        self.measuring = measuring
        self.failures = []
        self.measured.clear()
        self.noted.clear()
        self._sequence = 0
        self._answers = 0

    def end(self) -> None:
        """Refuse to go on if not one client answered in this round: a mistake that more rounds will not mend."""
        if self.failures and not self._answers:
            last = self.failures[-1]
            raise RunError(
                f"round {self.round}: every client failed, {client_name(last.client)} in step '{last.step}'"
                f" thus: {last.reason}"
            )

    # -- who -------------------------------------------------------------------------------------------------

    def everyone(self) -> list[Facts]:
        """All clients, drop-outs included. Costs the whole population: for set-up, not for rounds."""
        return list(self.roster)

    def sample(self) -> list[Facts]:
        """This round's cohort, in the clients' order. The same each time it is asked in one round."""
        rng = self.seeds.numpy("cohort", self.round)
        population = len(self.roster)
        if self.cohorts.count == population:
            chosen = list(range(population))
        else:
            chosen = sorted(rng.choice(population, self.cohorts.count, replace=False, shuffle=False).tolist())
        weak = self.cohorts.weak
        if weak is not None:
            absent = set(weak)
        else:
            gone = round(self.cohorts.dropout * len(chosen))
            absent = set(rng.choice(chosen, gone, replace=False).tolist()) if gone else set()
        present = [self.roster[index] for index in chosen if index not in absent]
        if not present:
            raise RunError(f"round {self.round}: every client dropped out; lower cohort.dropout")
        return present

    # -- asking ----------------------------------------------------------------------------------------------

    def ask(
        self,
        step: Step,
        to: Sequence[Facts],
        each: Callable[[Facts], Fields] | None = None,
        **payload: Any,
    ) -> list[Reply]:
        """Run a client step on each of these clients and give back their replies.

        `payload` goes to all of them (and is encoded once); `each(client)` adds what goes to one alone.
        """
        return list(self._replies(step, to, each, payload, window=None))

    def stream(
        self,
        step: Step,
        to: Sequence[Facts],
        each: Callable[[Facts], Fields] | None = None,
        **payload: Any,
    ) -> Iterator[Reply]:
        """As `ask`, one reply after the other: a large cohort's replies are never in memory at once."""
        return self._replies(step, to, each, payload, window=STREAM_WINDOW)

    def gossip(
        self,
        say: Step,
        hear: Step,
        topology: TopologyName,
        among: Sequence[Facts],
        **payload: Any,
    ) -> None:
        """Every peer says something, then hears what its neighbours said: `hear(me, heard=[(name, fields), …])`.

        One that says nothing (no fields) is not heard; one whose neighbours all said nothing has nothing to do.
        """
        places = {facts.index: facts for facts in among}
        links = neighbours(topology, list(places), self.seeds.torch("topology", self.round, self._sequence))
        listeners = Counter(other for others in links.values() for other in others)
        said: dict[int, bytes] = {}
        sizes: dict[int, Mapping[Kind, int]] = {}
        for outcome in self._outcomes(say, among, None, payload, window=None):
            if isinstance(outcome, Answer):
                facts = places[outcome.client]
                reply, message, size = self._open(outcome, facts, "training")
                if reply.fields:
                    said[facts.index], sizes[facts.index] = message, size
                # Counted once already. What a peer says to nobody is not sent, nor is nothing.
                more = (listeners[facts.index] if reply.fields else 0) - 1
                self.ledger.count(facts.name, "up", size, "training", times=more)
        hears = {index: [other for other in links[index] if other in said] for index in links}
        for index, others in hears.items():
            for other in others:
                self.ledger.count(places[index].name, "down", sizes[other], "training")
        heard = {
            index: tuple((places[other].name, said[other]) for other in others)
            for index, others in hears.items()
        }
        hearing = [facts for facts in among if heard[facts.index]]
        for outcome in self._outcomes(hear, hearing, None, {}, window=None, heard=heard):
            if isinstance(outcome, Answer):
                self._receive(outcome, places[outcome.client], "training")

    def _replies(
        self,
        step: Step,
        to: Sequence[Facts],
        each: Callable[[Facts], Fields] | None,
        payload: Fields,
        window: int | None,
        purpose: Purpose = "training",
    ) -> Iterator[Reply]:
        known = {facts.index: facts for facts in to}
        for outcome in self._outcomes(step, to, each, payload, window, purpose=purpose):
            if isinstance(outcome, Answer):
                yield self._receive(outcome, known[outcome.client], purpose)

    def _outcomes(
        self,
        step: Step,
        to: Sequence[Facts],
        each: Callable[[Facts], Fields] | None,
        payload: Fields,
        window: int | None,
        *,
        purpose: Purpose = "training",
        heard: Mapping[int, tuple[tuple[str, bytes], ...]] | None = None,
    ) -> Iterator[Outcome]:
        if not getattr(step, "is_client_step", False):
            raise MethodError(f"'{step.__name__}' is not a client step: mark it with @client_step")
        owner: Method = step.__self__  # type: ignore[attr-defined]
        # The number names the steps' random streams: looking at a model must not change what comes after.
        self._sequence += not isinstance(owner, Examination)
        calls = []
        common = encode(payload)
        kinds = owner.kinds_down()
        down = bytes_by_kind(payload, len(common), kinds)
        for facts in to:
            own = each(facts) if each is not None else {}
            data = encode(own) if own else EMPTY
            calls.append(Call(facts.index, data, heard[facts.index] if heard is not None else ()))
            self.ledger.count(facts.name, "down", down, purpose)
            if own:
                self.ledger.count(facts.name, "down", bytes_by_kind(own, len(data), kinds), purpose)
        task = Task(
            step=step.__name__,
            moment=Moment(self.round, self._sequence, self.measuring),
            common=common,
            units=self._units(step, to, calls),
            examining=isinstance(owner, Examination),
            window=window,
        )
        self.under_way = f"{task.step} 0/{len(calls)}"
        for done, outcome in enumerate(self.engine.run(task), start=1):
            self.under_way = f"{task.step} {done}/{len(calls)}"
            if isinstance(outcome, Failure):
                self.failures.append(outcome)
            else:
                self._answers += 1
            yield outcome

    def _units(self, step: Step, to: Sequence[Facts], calls: Sequence[Call]) -> list[list[Call]]:
        """One call a unit; or up to `stack` neighbours of one architecture, where the step can stack them."""
        if self.stack <= 1 or not hasattr(step, "together"):
            return [[call] for call in calls]
        units: list[list[Call]] = []
        last: str | None = None
        for facts, call in zip(to, calls, strict=True):
            same = facts.architecture == last and last in self.stackable
            if same and len(units[-1]) < self.stack:
                units[-1].append(call)
            else:
                units.append([call])
            last = facts.architecture
        return units

    def _receive(self, answer: Answer, facts: Facts, purpose: Purpose) -> Reply:
        return self._open(answer, facts, purpose)[0]

    def _open(
        self, answer: Answer, facts: Facts, purpose: Purpose
    ) -> tuple[Reply, bytes, Mapping[Kind, int]]:
        """A client's reply, its message and the message's bytes by kind, without what was measured on the way."""
        fields = decode(answer.reply)
        message = answer.reply
        measured, noted = fields.pop(MEASURED, {}), fields.pop(NOTED, {})
        if measured or noted:
            message = encode(fields)
            aside = {Kind.METRICS: len(answer.reply) - len(message)}
            self.ledger.count(facts.name, "up", aside, "evaluation")
        for stage, measurement in measured.items():
            self.measured[stage][answer.client] = measurement
        for name, value in noted.items():
            self.noted[name].append(value)
        sizes = bytes_by_kind(fields, len(message), self._kinds_up)
        self.ledger.count(facts.name, "up", sizes, purpose)
        return Reply(facts, fields), message, sizes

    # -- looking at the models -------------------------------------------------------------------------------

    def examine(self, clients: Sequence[Facts], server: Server, whole_rows: int) -> dict[int, Measurement]:
        """Every client's accuracy with the model it would use now; costs the method nothing in the ledger."""
        scores: dict[int, Measurement] = {}
        for members, served in self._groups(clients, server):
            if served is not None and not self.method.personal:
                scores.update(self.examine_shared(members, {members[0].architecture: served}, whole_rows))
            else:
                payload: Fields = {} if served is None else {"weights": served}
                known = self.measured.get(self.method.final_stage, {})
                scores.update({facts.index: known[facts.index] for facts in members if facts.index in known})
                others = [facts for facts in members if facts.index not in known]
                list(self._replies(self._examination.examine, others, None, payload, None, "evaluation"))
                scores.update(self.measured.pop("", {}))
        return scores

    def _groups(self, clients: Sequence[Facts], server: Server) -> list[tuple[list[Facts], Weights | None]]:
        """Clients that use models of their own, and those that are served the same weights."""
        groups: dict[str | None, tuple[list[Facts], Weights | None]] = {}
        for facts in clients:
            weights = self.method.serves(server, facts)
            key = None if weights is None else facts.architecture
            groups.setdefault(key, ([], weights))[0].append(facts)
        return list(groups.values())

    def examine_shared(
        self, members: Sequence[Facts], models: Mapping[str, Weights], whole_rows: int
    ) -> dict[int, Measurement]:
        """One model (or ensemble) for many: the whole test set is cut into parts, each scored by another member."""
        cuts = [place * whole_rows // len(members) for place in range(len(members) + 1)]
        parts = {facts.index: [cuts[place], cuts[place + 1]] for place, facts in enumerate(members)}
        payload: Fields = {"models": dict(models)}
        each = lambda facts: {"part": parts[facts.index]}  # noqa: E731
        list(self._replies(self._examination.examine, members, each, payload, None, "evaluation"))
        scores = self.measured.pop("", {})
        whole = [score["whole"] for score in scores.values() if "whole" in score]
        if whole:
            total = [sum(part[0] for part in whole), sum(part[1] for part in whole)]
            scores = {index: {**score, "whole": total} for index, score in scores.items()}
        return scores

    def final_models(self, clients: Sequence[Facts], server: Server) -> Iterator[Reply]:
        """The model that each client uses, one after the other."""
        step = self._examination.final_model
        for members, served in self._groups(clients, server):
            payload: Fields = {} if served is None else {"weights": served}
            yield from self._replies(step, members, None, payload, STREAM_WINDOW, "evaluation")

    def reject(self, reply: Reply, reason: str) -> None:
        """Leave a reply out that turned out to be of no use, with the reason in the history."""
        self.failures.append(Failure(reply.client.index, "reply", reason))
