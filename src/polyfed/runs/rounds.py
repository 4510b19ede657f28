"""A federation over time: rounds, evaluation, checkpoints, stopping, going on."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from polyfed.engines import with_gradients
from polyfed.errors import (
    CheckpointError,
    Divergence,
    RoundSpoilt,
    RunError,
    StepFailed,
    WorkerLost,
    describe,
)
from polyfed.federation.engine import DIVERGED, Engine, Failure
from polyfed.federation.fleet import EngineFleet
from polyfed.federation.ledger import Ledger
from polyfed.federation.method import learning_rates
from polyfed.federation.program import Program
from polyfed.federation.shelf import Shelf
from polyfed.federation.wire import Wire
from polyfed.models import reset_loose
from polyfed.runs import evaluation, result
from polyfed.runs.checkpoint import RunDirectory, disk_trouble
from polyfed.runs.evaluation import Evaluation, EvaluationSteps, observer_of
from polyfed.runs.failures import log_failures, name_of
from polyfed.runs.federation import Federation, cohorts_of, scored_clients
from polyfed.runs.manifest import data_digest, other_data
from polyfed.runs.metrics import SERVER_MODEL
from polyfed.runs.patience import Patience
from polyfed.runs.signals import ROUND_SECONDS
from polyfed.runs.soundness import Soundness

logger = logging.getLogger(__name__)

Listener = Callable[["Run"], None]

LOST_WORKERS_ALLOWED = 100  # without a round more than ever before
SAVING_SHARE = 20  # a checkpoint comes after so many times what the last one took, if that is later


class Run:
    """One run in its directory. `go()` does the rounds; `stop()` ends it after the round under way, to be gone on with;
    `finish()` gives it its result where it is."""

    def __init__(
        self, federation: Federation, engine: Engine, directory: RunDirectory, *, extended: bool = False
    ) -> None:
        """extended: it is to go on to `rounds`, although it has ended before."""
        self.federation = federation
        self.config = federation.config
        self.method = federation.method
        self.engine = engine
        self.directory = directory
        self.round = 0
        self.prepared = False
        self.seconds = 0.0
        self.last: dict[str, Any] | None = None
        self._stopping = False
        self._finishing = False
        self._under_way = False
        self._extended = extended
        self._asked_to_end = False
        """Whether its last round is the one in which it was asked to finish."""
        self._open = False
        self._saved_at = time.monotonic()
        self._pause = self.config.checkpoint_seconds
        self._left_out: dict[int, dict[int, str]] = {}
        """By round, the clients whose replies spoilt it, with the reasons: it is done again without them."""
        self._soundness = Soundness()
        self._saving_pause = 0.0
        self._steps = EvaluationSteps(self.method, observer_of(federation))
        self.program = Program(
            self.method, {evaluation.NAME: self._steps}, Wire(self.config.wire, federation.task)
        )
        self._reset()

    def _reset(self) -> None:
        """What a run is before its first round."""
        self.patience = Patience(self.config.evaluate, self.federation.task)
        self.ledger = Ledger()
        self.server = self.federation.server()
        self.server.shelf = Shelf(self.directory.scratch / "shelf")
        self.fleet = EngineFleet(
            self.engine,
            self.program,
            self.federation.roster,
            self.federation.seeds,
            self.ledger,
            cohorts_of(self.config, len(self.federation.roster)),
            self.federation.sizes,
            self.federation.population.build,
            int(self.config.stack),
            self.federation.stackable(),
            self.config.evaluate.clients,
            self.config.outliers,
            self.federation.task,
            self.federation.metrics,
        )
        roster = self.federation.roster
        scored = scored_clients(self.config, self.federation.seeds, len(roster))
        self.evaluation = Evaluation(
            self._steps,
            self.fleet,
            [roster[index] for index in scored],
            lambda: self.federation.whole_rows,
            others=self.federation.own_in_whole,
            no_whole_test=self.federation.holdings.whole_test_is == "none",
        )
        self.server.workers = self.fleet
        self.server.observer = self.evaluation

    # -- life ------------------------------------------------------------------------------------------------

    @property
    def path(self) -> Path:
        return self.directory.path

    @property
    def finished(self) -> bool:
        """Whether the last round is done."""
        return self.round >= self.config.rounds or self.stopped is not None

    @property
    def stopped(self) -> str | None:
        """Why this round is the last one, although there were to be more, in words."""
        if self.round >= self.config.rounds or not (self.patience.spent or self._asked_to_end):
            return None
        reason = self.patience.words() if self.patience.spent else "it was asked to finish"
        return f"after round {self.round} of {self.config.rounds}: {reason}"

    def stop(self) -> None:
        """End after the round under way, with a checkpoint."""
        self._stopping = True

    def finish(self) -> Run:
        """Give a run that was stopped or killed its result and models where it is, and close it.

        Nothing is trained; if its last round was not evaluated, that is done now. Called while the run goes on (by its
        listener, say), it ends after the round under way.
        """
        if not (self._under_way or self.directory.manifest.get("round")):
            raise RunError(f"{self.path} has done no round yet: there is nothing to finish")
        self._finishing = self._stopping = True
        if not self._under_way:
            if self.directory.closed:
                self.directory = RunDirectory(self.path, new=False)
            try:
                self.go()
            finally:
                self.close()
        return self

    def open(self) -> None:
        """Start the engine and set the run up, or back to its last checkpoint. `go` does it where need be."""
        if not self._open:
            self._open = True
            self.engine.open(self.federation.population, self.program, self.directory.scratch)
            self._begin()

    @with_gradients
    def go(self, listener: Listener | None = None) -> None:
        """Do the rounds that are left. Afterwards the run is finished, or stopped and saved."""
        threads = torch.get_num_threads()
        torch.set_num_threads(self.config.server_threads)
        self._under_way = True
        try:
            self.open()
            self._through_losses(lambda: self._rounds(listener))
        except OSError as error:
            raise disk_trouble(error, self.path) from error
        finally:
            self._under_way = False
            torch.set_num_threads(threads)
            self._stop_engine()

    def close(self) -> None:
        """Let go of the engine and of the directory."""
        self._stop_engine()
        self.directory.close()

    def _stop_engine(self) -> None:
        if self._open:
            self.engine.close()
        self._open = False

    @property
    def summary(self) -> dict[str, Any]:
        """The result of a finished run."""
        return self.directory.files.summary()

    def _begin(self) -> None:
        if self.directory.manifest:
            before = self.directory.manifest["torch"]
            if before != torch.__version__:
                logger.warning(
                    "%s was begun with torch %s and goes on with torch %s: results may differ in the last bits",
                    *(self.path, before, torch.__version__),
                )
            self._go_back()
            self._set_rounds()
        else:
            self.directory.write_config(self.config.as_file())
            self.directory.write_description(self.federation.description)
            self.directory.write_assignment(self.federation.assignment.model_dump())
            self.engine.restore({})
            self._through_losses(self._commit)

    def _set_rounds(self) -> None:
        """Go on to as many rounds as the config says now; beyond the end of its patience, without any."""
        aside = self._extended and self.patience.spent
        if aside:
            patient = self.config.evaluate.model_copy(update={"patience": None})
            self.config = self.config.model_copy(update={"evaluate": patient})
            self.patience = Patience(patient, self.federation.task)
        self.directory.set_rounds(self.config.rounds, without_patience=aside, again=self._extended)
        self._asked_to_end, self._extended = bool(self.directory.manifest.get("ended")), False

    def _through_losses(self, phase: Callable[[], None]) -> None:
        """Do a phase of the run. Whenever a worker is lost with the states in it, go back and do it again."""
        furthest, lost = self.round, 0
        while True:
            try:
                return phase()
            except WorkerLost as error:
                if self.round > furthest:
                    furthest, lost = self.round, 0
                lost += 1
                if lost > LOST_WORKERS_ALLOWED:
                    raise RunError(
                        f"{lost} workers were lost in round {furthest + 1}, the last one because {error}"
                    ) from error
                logger.warning("%s; going back to round %d", error, self.directory.manifest.get("round", 0))
                if self.directory.manifest:
                    self._go_back()
                else:
                    self.engine.restore({})
            except RoundSpoilt as spoilt:
                self._left_out.setdefault(spoilt.round, {}).update(spoilt.clients)
                names = ", ".join(self.federation.roster.name(index) for index in sorted(spoilt.clients))
                logger.warning("round %d is done again without %s", spoilt.round, names)
                self._go_back()

    def _rounds(self, listener: Listener | None) -> None:
        """The rounds that are left, checkpoints between them, and what is written at the end."""
        while not self.finished and not self._stopping:
            number, began = self.round, time.monotonic()
            if self.prepared:
                self._one_round()
            else:
                self._prepare()
            self._commit_if_due(time.monotonic() - began)
            if listener is not None and self.round > number:
                listener(self)
        manifest = self.directory.manifest
        if (manifest["round"], manifest["prepared"]) != (self.round, self.prepared):
            self._commit()
        if self._finishing and self.round and not self.finished:
            self._end_here()
        if self.finished and not self.directory.concluded:
            result.conclude(self)

    def _commit_if_due(self, round_seconds: float) -> None:
        """Save, if enough time has passed; sooner after a round so long that the next may be abandoned (SIGTERM)."""
        due = time.monotonic()
        pause = self._saving_pause if round_seconds >= ROUND_SECONDS else self._pause
        # A round that was done again is not done a third time: who spoilt it may do so in the next one, too.
        if due - self._saved_at >= pause or self.round in self._left_out:
            self._commit()
            if self._pause:  # states of gigabytes: most of the time is for learning
                self._saving_pause = SAVING_SHARE * (time.monotonic() - due)
                self._pause = max(self.config.checkpoint_seconds, self._saving_pause)

    def _prepare(self) -> None:
        """What a method does once, before its first round: round 0 of the history."""
        started = time.perf_counter()
        self._open_round(0, measuring=True)
        self._learn(lambda: self.method.prepare(self.fleet, self.server))
        self.seconds = time.perf_counter() - started
        logger.debug("%s: prepared in %.2f s", self.path, self.seconds)
        self._write(0, {})
        self.prepared = True

    def _one_round(self) -> None:
        number = self.round + 1
        started = time.perf_counter() - self.seconds
        evaluating = number % self.config.evaluate.every == 0 or number == self.config.rounds
        self._open_round(number, measuring=evaluating)
        before = time.perf_counter()
        self._learn(lambda: self.method.round(number, self.fleet, self.server))
        learnt = time.perf_counter()
        again = f"`polyfed resume {self.path}` tries the last round again"
        scores = self._look(again=again if number == self.config.rounds else "") if evaluating else {}
        self.seconds = time.perf_counter() - started
        logger.debug(
            "%s: round %d: learnt in %.2f s, %s",
            *(self.path, number, learnt - before),
            f"evaluated {len(scores)} clients in {time.perf_counter() - learnt:.2f} s"
            if evaluating
            else "not evaluated",
        )
        self._write(number, scores)
        self.round = number

    def _learn(self, phase: Callable[[], None]) -> None:
        """The method's part of a round. If no client answered, that is the reason, whatever came of it."""
        try:
            phase()
        except (WorkerLost, RoundSpoilt):
            raise
        except Exception:
            self._end_learning()
            raise
        self._end_learning()
        self._check_soundness()

    def _check_soundness(self) -> None:
        """Refuse a round after which the server has nothing to share; without the client that did it, if one did."""
        fault = self._soundness.fault(self.server)
        if fault is None:
            return
        suspect = self.fleet.most_suspect()
        number = self.fleet.round
        if suspect is None:
            raise Divergence(
                f"round {number}: {fault}, and no client stands out: lower {learning_rates(self.method)};"
                f" `polyfed resume {self.path}` goes on after round {self.directory.manifest['round']}"
            )
        raise RoundSpoilt(number, {suspect: f"with its reply {fault}"})

    def _end_learning(self) -> None:
        """Keep the tracebacks of what failed. If nobody answered, that ends the run."""
        self._log_failures(self.fleet.failures)
        self.fleet.end()

    def _look(self, *, again: str) -> dict[int, Any]:
        """Every scored client's measurement. A last round in which there is none ends the run: it has no result.

        again: of a last round, what does it again; nothing of others.
        """
        before = len(self.fleet.failures)
        scores = self.evaluation.look(self.server)
        failures = self.fleet.failures[before:]
        self._log_failures(failures)
        if not scores:
            reason = f"round {self.fleet.round}: no client could be scored"
            cause = None
            for failure in failures[-1:]:
                reason += (
                    f", {name_of(failure, self.federation.roster)} in step '{failure.step}': {failure.reason}"
                )
                cause = StepFailed(failure.traceback) if failure.traceback else None
            if again:
                kind = Divergence if DIVERGED in reason else RunError
                raise kind(f"{reason}; {again}") from cause
            logger.warning("%s", reason)
        return scores

    def _log_failures(self, failures: Sequence[Failure]) -> None:
        log_failures(failures, self.fleet.round, self.federation.roster, self.directory.folder)

    def _open_round(self, number: int, *, measuring: bool) -> None:
        self.fleet.begin(number, measuring=measuring, left_out=self._left_out.get(number))
        self.evaluation.begin()
        self.server.round = number
        if self.server.model is not None:
            reset_loose(self.server.model)

    def _write(self, number: int, scores: Mapping[int, Any]) -> None:
        """The round's lines in history and ledger."""
        line = {"round": number, **self.evaluation.line(scores, self.federation.roster)}
        entry = self.ledger.close_round(number)
        if entry is not None:
            self.directory.ledger.append(entry)
        if len(line) > 1:
            line["bytes"] = {"up": self.ledger.total("up"), "down": self.ledger.total("down")}
            line["seconds"] = round(self.seconds, 3)
            self.directory.history.append(line)
            self.directory.history.flush()
            self.last = line
            self.patience.see(line)

    # -- checkpoints -----------------------------------------------------------------------------------------

    def _commit(self) -> None:
        began = time.perf_counter()
        label = str(self.round) if self.prepared else "start"
        states = self.directory.states_path
        saved = self.engine.save(states, label) + self.server.shelf.save(states, label)
        facts = {
            "prepared": self.prepared,
            "seconds": self.seconds,
            "finished": self.finished,
            "data": data_digest(self.federation.fingerprints),
        }
        self.directory.commit(self.round, label, self.server.state(), saved, facts)
        self._saved_at = time.monotonic()
        if logger.isEnabledFor(logging.DEBUG):
            names = [self.directory.manifest["server"][0], *(state.file for state in saved if state.file)]
            size = sum((states / name).stat().st_size for name in names)
            logger.debug(
                "%s: checkpoint after round %d: the server's state and %d more, %.1f kB, in %.2f s",
                *(self.path, self.round, len(names) - 1, size / 1e3, time.perf_counter() - began),
            )

    def _go_back(self) -> None:
        """Be what the last checkpoint was."""
        state = self.directory.rewind()
        manifest = self.directory.manifest
        if manifest["data"] != data_digest(self.federation.fingerprints):
            began = self.directory.files.description().fingerprints
            others = other_data(began, self.federation.fingerprints)
            raise RunError(
                f"the data are not those that {self.path} began with ({others}): it cannot be resumed with others"
            )
        self._reset()
        try:
            self.server.restore(state)
            self.server.shelf.restore(self.directory.shelf_files())
            for line in self.directory.ledger.lines():
                self.ledger.replay(line)
            self.last = None
            for line in self.directory.history.lines():
                self.last = line
                self.patience.see(line)
        except (LookupError, TypeError, ValueError, AttributeError, RuntimeError) as error:
            raise CheckpointError(
                f"{self.path} was edited: what it says of its last checkpoint is no such thing ({describe(error)})"
            ) from error
        self.round = manifest["round"]
        self.prepared = manifest["prepared"]
        self._asked_to_end = manifest.get("ended", False)
        self.seconds = manifest["seconds"]
        self.engine.restore(self.client_files())
        logger.info("%s: going on after round %d of %d", self.path, self.round, self.config.rounds)

    def client_files(self) -> dict[int, Path]:
        """The clients' state files by the clients' numbers, as engines want them."""
        files: dict[int, Path] = {}
        names = self.federation.roster.names
        for name, path in self.directory.state_files().items():
            if name not in names:
                raise CheckpointError(
                    f"{self.path} was edited: it has a state of {name!r:.100}, which is not a client"
                )
            files[names.index(name)] = path
        return files

    # -- the end ---------------------------------------------------------------------------------------------

    def _end_here(self) -> None:
        """Make this round the last one, evaluated: looking at models changes nothing of the run."""
        evaluated = [line["round"] for line in self.directory.history.lines() if "summary" in line]
        if self.round not in evaluated:
            self._open_round(self.round, measuring=True)
            if self.server.model is not None:
                self.server.measure(SERVER_MODEL)
            self._write(self.round, self._look(again=f"`polyfed finish {self.path}` tries again"))
        self.directory.end_here()
        self._asked_to_end = True
