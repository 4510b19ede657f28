"""Looking at models: on clients, of the server, at stages of a round, and what is written of it. Training knows
nothing of it, and it changes nothing of training.

Clients with a model of their own score it on their validation and test rows and on the whole test set. Where one model
is shared by many, the whole test set is cut into as many parts as it has clients, each scores one part, and the counts
are added: it is seen once. The server's models are scored on all of the engine's workers; so is a shared one where
further metrics are asked for, because an AUC does not add up over parts. Where there is no whole test set, clients look
at the server's models: sums are added, and of metrics that do not add up the mean over clients is taken.
"""

from __future__ import annotations

import functools
import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from polyfed import learn
from polyfed.data import Rows
from polyfed.federation.declaration import ANY_TASK, Declaration
from polyfed.federation.engine import DIVERGED, Failure
from polyfed.federation.fields import OwnWeights
from polyfed.federation.fleet import EngineFleet
from polyfed.federation.message import Fields, Kind, Weights
from polyfed.federation.method import (
    ForEach,
    Method,
    Reply,
    Step,
    StepOwner,
    client_step,
    reads_only,
    server_step,
)
from polyfed.federation.nodes import Assistant, Client, Measurement, Part, ScratchModels, Server
from polyfed.federation.roster import Facts, Roster
from polyfed.learn import Metric
from polyfed.runs import metrics
from polyfed.runs.federation import Federation
from polyfed.tasks import CLASSIFICATION, Task

NAME = "evaluation"
RESULT = "result"  # the stage under which the steps below report
SERVER_PARTS = 32  # into so many parts, at most, the test set is cut for a server's model


class ClientObserver:
    """Scores a client's models during a step."""

    def __init__(
        self,
        among: int | None,
        metrics: Sequence[Metric] = (),
        task: Task = CLASSIFICATION,
        *,
        choosing: bool = False,
    ) -> None:
        """among: of how many of the first outputs the best is taken for the answer; None for all of them.

        metrics: what is wanted beside the task's own score, on test rows; where rounds are chosen by one of them
            (`choosing`), on validation rows as well.

        task: what is learnt, which says how good a model is.
        """
        self.task = task
        self.among = among
        self.metrics = tuple(metrics)
        self.choosing = choosing

    def scores(self, me: Client, model: nn.Module, whole: slice) -> Measurement:
        parts: dict[Part, Rows] = {
            "validation": me.data.whole_validation or me.data.validation,
            "own": me.data.test,
        }
        if me.data.whole_test is not None:
            parts["whole"] = me.data.whole_test[whole]
        return self.measured(me, model, parts)

    def measured(
        self, me: Client, model: nn.Module, parts: Mapping[Part, Rows], *, to_add: bool = False
    ) -> Measurement:
        """What a model reaches on these rows; what has no rows is left out. to_add: see `note`."""
        found: Measurement = {}
        with learn.evaluating(model):
            for part, rows in parts.items():
                if len(rows):
                    x, y = me.tensors(rows, model)
                    self.note(found, part, learn.predict(model, x), y, to_add=to_add)
        return found

    def note(
        self, found: Measurement, part: Part, logits: Tensor, y: Tensor, *, to_add: bool = False
    ) -> None:
        """Add to a measurement what these logits say of a part.

        to_add: metrics that add up are given as sums, to be added to those of other clients.
        """
        if not bool(torch.isfinite(logits).any()):
            raise FloatingPointError(f"its model answers with no finite number, {DIVERGED} training.lr")
        logits = logits[:, : self.among]
        found[part] = self.task.tally(logits, y)
        if not self.metrics or (part == "validation" and not self.choosing):
            return
        alone = self.metrics
        if to_add:
            found.setdefault("sums", {})[part] = learn.sums_of(logits, y, self.metrics, self.task)
            alone = tuple(metric for metric in alone if metric.sums_for(self.task) is None)
        found.setdefault("metrics", {})[part] = learn.metrics_of(logits, y, alone, self.task)

    def local_loss(self, me: Client, batch: int) -> float:
        x, y = me.tensors(me.train)
        rows = torch.randperm(len(y), generator=me.rng("local loss"))[:batch]
        return me.task.loss(learn.predict(me.model, learn.take(x, rows)), y[rows]).item()


def observer_of(federation: Federation) -> ClientObserver:
    """What looks at models as a run's config says."""
    return ClientObserver(
        federation.scored_outputs,
        federation.metrics,
        federation.task,
        choosing=federation.config.evaluate.choose_by is not None,
    )


class EvaluationSteps(StepOwner):
    """The steps with which a run looks at its models. Every method's run has them."""

    def __init__(self, method: Method, observer: ClientObserver) -> None:
        self.method = method
        self.observer = observer
        if observer.metrics:
            learn.load_metrics()  # here, so that processes that are forked find them loaded
        super().__init__()

    def declare(self) -> Declaration:
        return Declaration(
            sends={"weights": OwnWeights()},
            tells={"part": Kind.CONTROL, "models": Kind.WEIGHTS},
            stages=(RESULT,),
            tasks=ANY_TASK,
        )

    @client_step
    @reads_only
    def examine(
        self, me: Client, weights: Weights | None = None, part: tuple[int, int] | None = None
    ) -> Fields:
        """Score the model that the client uses on its own data and (a part of) the test set."""
        model = self._used(me, weights)
        me.measured[RESULT] = self.observer.scores(me, model, slice(*part) if part else slice(None))
        return {}

    @client_step
    @reads_only
    def examine_servers(self, me: Client, models: Mapping[str, Weights]) -> Fields:
        """Score the server's model, or several that answer with their mean logits, on the client's own test rows."""
        model = _together(me.scratch_model, models)
        me.measured[RESULT] = self.observer.measured(me, model, {"own": me.data.test}, to_add=True)
        return {}

    @client_step(sends=("weights",))
    @reads_only
    def final_model(self, me: Client, weights: Weights | None = None) -> Fields:
        """The model the client uses, to be written into the run directory (never asked of a deployed node)."""
        return {"weights": learn.weights_of(self._used(me, weights))}

    @server_step
    def score_part(self, helper: Assistant, models: Mapping[str, Weights], part: tuple[int, int]) -> Fields:
        """The tally on a part of the test set: of a model, or of several that answer with their mean logits.

        Where metrics are asked for, the logits themselves: they stay at the server.
        """
        assert helper.test is not None, "parts are of a test set that there is"
        model = _together(helper.scratch_model, models)
        x, y = helper.tensors(helper.test[slice(*part)], _first(model))
        if self.observer.metrics:
            return {"logits": learn.predict(model, x), "labels": y}
        return {"score": learn.score(model, x, y, self.observer.among, self.observer.task)}

    def _used(self, me: Client, weights: Weights | None) -> nn.Module:
        """The client's own model; or the weights it is served, with what it adds to them."""
        if weights is None:
            return me.model
        model = _together(me.scratch_model, {me.facts.architecture: weights})
        self.method.personalise(me, model)
        return model


def _together(scratch_model: ScratchModels, models: Mapping[str, Weights]) -> nn.Module:
    members = []
    for architecture, weights in models.items():
        members.append(scratch_model(architecture))
        learn.load_weights(members[-1], weights)
    return members[0] if len(members) == 1 else learn.Ensemble(members)


def _first(model: nn.Module) -> nn.Module:
    """The model whose layout the inputs get: an ensemble's members need not agree."""
    return next(iter(model.members)) if isinstance(model, learn.Ensemble) else model


class Evaluation:
    """What a run knows of its models in a round: what clients and server measured, and its own look at the end."""

    def __init__(
        self,
        steps: EvaluationSteps,
        fleet: EngineFleet,
        scored: Sequence[Facts],
        count_test_rows: Callable[[], int],
        *,
        others: bool,
        no_whole_test: bool = False,
    ) -> None:
        """scored: the clients that are looked at. count_test_rows: of the whole test set, which may be costly to put
        together. others: whether that is made of the clients' own test rows, so that the others' can be told apart.
        no_whole_test: whether there is none."""
        self.steps = steps
        self.method = steps.method
        self.fleet = fleet
        self.scored = scored
        self._count_test_rows = count_test_rows
        self.others = others
        self.no_whole_test = no_whole_test
        self._server: dict[str, Measurement] = {}

    @property
    def task(self) -> Task:
        """What is learnt."""
        return self.steps.observer.task

    @property
    def metrics(self) -> tuple[Metric, ...]:
        """What is asked for beside the task's own score."""
        return self.steps.observer.metrics

    @functools.cached_property
    def test_rows(self) -> int:
        return self._count_test_rows()

    def begin(self) -> None:
        """A new round: nothing is known yet."""
        self._server = {}

    # -- the server's ----------------------------------------------------------------------------------------

    def measure(self, stage: str, models: Mapping[str, Weights]) -> None:
        """Score a server's model, or several as an ensemble (in rounds that are evaluated).

        On the whole test set; where there is none, on the clients' own test rows.
        """
        if not self.fleet.measuring:
            return
        if self.test_rows:
            self._server[stage] = self._on_whole(models)
        elif self.no_whole_test and (found := self._on_clients(models)):
            self._server[stage] = found

    def _on_clients(self, models: Mapping[str, Weights]) -> Measurement:
        """What a model reaches on the own test rows of all that are scored: each looks at its own, sums are added."""
        found = self._looked(self.steps.examine_servers, self.scored, None, {"models": dict(models)})
        return metrics.added([measured[RESULT] for measured in found.values()], self.metrics, self.task)

    def _on_whole(self, models: Mapping[str, Weights]) -> Measurement:
        """What a model, or several as an ensemble, reach on the whole test set, on all of the engine's workers."""
        # Cut where evaluation's batches end: the same batches as in one go, so the same bits.
        batches = -(-self.test_rows // learn.EVALUATION_BATCH)
        rows = learn.EVALUATION_BATCH * -(-batches // SERVER_PARTS)
        parts: list[dict[str, Any]] = []
        with self.fleet.spread(self.steps.score_part, parts.append, {"models": dict(models)}) as jobs:
            for start in range(0, self.test_rows, rows):
                jobs.put(part=[start, start + rows])
        if not self.metrics:
            return {"whole": metrics.added_tallies([part["score"] for part in parts])}
        found: Measurement = {}
        logits, labels = (torch.cat([part[field] for part in parts]) for field in ("logits", "labels"))
        self.steps.observer.note(found, "whole", logits, labels)
        return metrics.with_nulls(found, self.metrics)

    # -- the clients' ----------------------------------------------------------------------------------------

    def look(self, server: Server) -> dict[int, Measurement]:
        """Every scored client's score with the model it would use now; costs the method nothing in the ledger."""
        known = self._measured().get(self.method.declared.final_stage, {})
        scores: dict[int, Measurement] = {}
        for members, served in self._groups(self.scored, server):
            if served is not None and not self.method.declared.personal:
                scores.update(self._shared(members, served))
            else:
                scores.update({facts.index: known[facts.index] for facts in members if facts.index in known})
                others = [facts for facts in members if facts.index not in known]
                scores.update(self._examined(others, _served(served)))
        if self.others:
            scores = {index: metrics.with_others(score) for index, score in scores.items()}
        return scores

    def _shared(self, members: Sequence[Facts], weights: Weights) -> dict[int, Measurement]:
        """One model for many: the whole test set is cut into parts, each scored by another member.

        Not so where metrics are asked for: then members look at their own rows alone.
        """
        if self.metrics:
            scores = self._examined(members, {"weights": weights}, {facts.index: [0, 0] for facts in members})
            if not scores or not self.test_rows:
                return scores
            whole = self._on_whole({members[0].architecture: weights})
            return {index: _with_whole(score, whole) for index, score in scores.items()}
        cuts = [place * self.test_rows // len(members) for place in range(len(members) + 1)]
        parts = {facts.index: [cuts[place], cuts[place + 1]] for place, facts in enumerate(members)}
        scores = self._examined(members, {"weights": weights}, parts)
        seen = [score["whole"] for score in scores.values() if "whole" in score]
        if seen:
            scores = {
                index: {**score, "whole": metrics.added_tallies(seen)} for index, score in scores.items()
            }
        return scores

    def _examined(
        self,
        clients: Sequence[Facts],
        payload: Mapping[str, Any],
        parts: Mapping[int, list[int]] | None = None,
    ) -> dict[int, Measurement]:
        each = (lambda facts: {"part": parts[facts.index]}) if parts is not None else None
        found = self._looked(self.steps.examine, clients, each, payload)
        return {index: self._filled(measured)[RESULT] for index, measured in found.items()}

    def _looked(
        self, step: Step, clients: Sequence[Facts], each: ForEach | None, payload: Mapping[str, Any]
    ) -> dict[int, dict[str, Measurement]]:
        """What clients measured in a step that looks at models, by stage, as it came."""
        before = len(self.fleet.reports)
        for _ in self.fleet.look(step, clients, each, **payload):
            pass
        found = self.fleet.reports[before:]
        del self.fleet.reports[before:]
        return {facts.index: report["measured"] for facts, report in found}  # type: ignore[misc]

    def final_models(self, clients: Sequence[Facts], server: Server) -> Iterator[Reply]:
        """The model that each client uses, one after the other."""
        for members, served in self._groups(clients, server):
            yield from self.fleet.look(self.steps.final_model, members, None, **_served(served))

    def _groups(self, clients: Sequence[Facts], server: Server) -> list[tuple[list[Facts], Weights | None]]:
        """Clients that use models of their own, and those that are served the same weights."""
        groups: dict[str | None, tuple[list[Facts], Weights | None]] = {}
        for facts in clients:
            weights = self.method.serves(server, facts)
            key = None if weights is None else facts.architecture
            groups.setdefault(key, ([], weights))[0].append(facts)
        return list(groups.values())

    # -- what is written -------------------------------------------------------------------------------------

    def _measured(self) -> dict[str, dict[int, Measurement]]:
        """What clients measured in this round, by stage."""
        stages: defaultdict[str, dict[int, Measurement]] = defaultdict(dict)
        for facts, report in self.fleet.reports:
            for stage, measurement in self._filled(report.get("measured", {})).items():
                stages[stage][facts.index] = measurement
        return stages

    def _filled(self, measured: Any) -> dict[str, Measurement]:
        """What a client measured, by stage, with None for every metric that has no value."""
        return {stage: metrics.with_nulls(found, self.metrics) for stage, found in measured.items()}

    def line(self, scores: Mapping[int, Measurement], roster: Roster) -> dict[str, Any]:
        """A round's part of the history: the result, stages, notes, the server's models, failures."""
        line: dict[str, Any] = {}
        if scores:
            line["summary"] = metrics.summarise(scores, roster.architecture, self.task, self.metrics)
            line["clients"] = {roster[index].name: score for index, score in sorted(scores.items())}
        stages = self._measured()
        if stages:
            line["stages"] = {
                stage: metrics.summarise(
                    dict(sorted(found.items())), roster.architecture, self.task, self.metrics
                )
                for stage, found in stages.items()
            }
        notes: defaultdict[str, list[float]] = defaultdict(list)
        for _, report in self.fleet.reports:
            for name, value in _notes(report).items():
                notes[name] += [] if value is None else [value]
        if notes:
            line["noted"] = {name: _mean(values) if values else None for name, values in notes.items()}
        if self._server:
            part: Part = "own" if self.no_whole_test else "whole"
            line["server"] = {stage: self.task.value(found[part]) for stage, found in self._server.items()}
            if self.metrics:
                line["server_metrics"] = {
                    stage: found["metrics"][part] for stage, found in self._server.items()
                }
        if self.fleet.failures:
            line["failures"] = [_told(failure, roster) for failure in self.fleet.failures]
        return line


def _served(weights: Weights | None) -> dict[str, Any]:
    return {} if weights is None else {"weights": weights}


def _mean(values: Sequence[float]) -> float:
    return math.fsum(value / len(values) for value in values)  # whose sum may be too large for a number


def _notes(report: Fields) -> dict[str, float | None]:
    return report.get("noted", {})  # type: ignore[return-value]


def _with_whole(score: Measurement, whole: Measurement) -> Measurement:
    """A client's measurement on its own rows, with that of a shared model on the whole test set."""
    return {**score, **whole, "metrics": {**score.get("metrics", {}), **whole["metrics"]}}


def _told(failure: Failure, roster: Roster) -> dict[str, Any]:
    assert failure.client is not None
    return {"client": roster[failure.client].name, "step": failure.step, "reason": failure.reason}
