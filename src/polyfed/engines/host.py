"""The clients that live in one process: runs their steps as transactions and keeps their states.

A step gets a client's state and a message, and gives a new state and a reply. If it raises or answers with NaN,
the client's state is what it was before, and the outcome is a `Failure` with its reason.
"""

from __future__ import annotations

import dataclasses
import functools
import logging
import time
import traceback
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from polyfed import disk, learn
from polyfed.disk import SavedState
from polyfed.engines.initial_models import InitialModels
from polyfed.engines.process_setup import keep_freed_memory
from polyfed.engines.torch_settings import settings_put_back
from polyfed.engines.transaction import Transaction
from polyfed.errors import (
    MessageError,
    MethodError,
    RunError,
    describe,
    place_in_users_code,
    was_asked_for,
)
from polyfed.federation.engine import DIVERGED, Call, Failure, Outcome, Population, Request, Success
from polyfed.federation.fields import why_report_refused
from polyfed.federation.message import (
    EMPTY,
    Fields,
    decode,
    encode,
    first_not_finite,
    has_memory,
    plain,
    tensors_in,
)
from polyfed.federation.method import Step, check_declared, learning_rates
from polyfed.federation.nodes import Assistant, Client, copied
from polyfed.federation.program import Program, step_name
from polyfed.machine import cores, memory
from polyfed.models import reset_loose

logger = logging.getLogger(__name__)

MOST_TOLD = 100_000  # characters of a traceback

# States kept in memory by one process before the oldest go to disk: a quarter of the memory, if every core has one.
LIVE_BYTES = max(128 * 2**20, memory() // (4 * cores()))


class Host:
    """Runs steps for its clients; holds the live ones, spills the others to `scratch`."""

    def __init__(
        self,
        population: Population,
        program: Program,
        scratch: Path,
        *,
        timeout: float | None = None,
        live_bytes: int = LIVE_BYTES,
    ) -> None:
        keep_freed_memory()
        self.timeout = timeout
        self.population = population
        self.program = program
        self.keeps = program.keeps
        self.scratch = scratch
        self.live_bytes = live_bytes
        self._live: OrderedDict[int, Client] = OrderedDict()
        self._sizes: dict[int, int] = {}
        self._model_bytes: dict[int, int] = {}
        self._files: dict[int, Path] = {}
        self._changed: set[int] = set()
        self._live_total = 0
        self._common_models = InitialModels(population)
        self._scratch_models = InitialModels(population)
        self._assistant: Assistant | None = None
        self._common: tuple[bytes, dict[str, Any]] = (b"", {})

    # -- steps -----------------------------------------------------------------------------------------------

    def run_unit(self, request: Request, unit: Sequence[Call]) -> list[Outcome]:
        """Do a request's step for the clients of one unit, or a job of the server's."""
        step = self.program.step(request.step)
        if unit[0].client is None:
            return [self._run_job(request, step, call) for call in unit]
        together = getattr(step, "together", None)
        if together is not None and len(unit) > 1:
            outcomes = self._run_stacked(request, together, unit)
            if outcomes is not None:
                return outcomes
        return [self._run_alone(request, step, call) for call in unit]

    def _run_stacked(self, request: Request, together: Step, unit: Sequence[Call]) -> list[Outcome] | None:
        """A stack's outcomes; None if one of its clients spoils it: alone, each answers for itself."""
        try:
            us = [self.client(index, place) for place, index in enumerate(_clients(unit))]
            outcomes = self._run_together(request, together, unit, us)
        except (_StepRaised, _NotMade) as error:
            logger.debug("stacked step failed, running one by one: %s", describe(error.__cause__ or error))
            return None
        for index, me in zip(_clients(unit), us, strict=True):
            self._keep(index, me)
        return outcomes

    def _run_job(self, request: Request, step: Step, call: Call) -> Outcome:
        """A part of the server's work: nothing of it lasts here."""
        started = time.perf_counter()
        if self._assistant is None:
            self._assistant = self.population.assistant(self._scratch_models.take)
        self._scratch_models.forget()
        try:
            with settings_put_back():
                reply = encode(step(self._assistant, **self._payload(request, call)))
        except BaseException as error:
            return _failure(request, call, error)
        return Success(None, reply, time.perf_counter() - started)

    def _run_alone(self, request: Request, step: Step, call: Call) -> Outcome:
        """One client's step. Whatever is raised in between is the client's failure; around it, the engine's."""
        started = time.perf_counter()
        assert call.client is not None
        reads_only = self._reads_only(request, step)
        try:
            me = self.client(call.client)
        except _NotMade as error:
            return _failure(request, call, error.__cause__ or error)
        transaction = self._begin(me, request, call, reads_only=reads_only)
        _seed_layers(me)
        try:
            payload = self._payload(request, call)
            with settings_put_back():
                # At once: what a step gives back may have code of its own, which must not run later.
                fields = plain(step(me, **payload) or {})
            reply, report = self._sealed(request, call, me, fields, transaction)
            if self.timeout is not None and time.perf_counter() - started > self.timeout:
                raise TimeoutError(too_slow(self.timeout))
        except BaseException as error:
            failure = _failure(request, call, error)
            transaction.roll_back()
            return failure
        if not reads_only:
            self._keep(call.client, me)
        return Success(call.client, reply, time.perf_counter() - started, report)

    def _run_together(
        self, request: Request, together: Step, unit: Sequence[Call], us: Sequence[Client]
    ) -> list[Outcome]:
        """A stack's outcomes; `_StepRaised` if there are none, and its clients are what they were before."""
        started = time.perf_counter()
        transactions = [
            self._begin(me, request, call, reads_only=False) for me, call in zip(us, unit, strict=True)
        ]
        _seed_layers(us[0])
        try:
            payloads = [self._payload(request, call) for call in unit]
            with settings_put_back():
                replies = plain(together(self.program.owner(request.step), us, payloads))
            if replies is None:
                raise ValueError("these clients cannot be stacked after all")
            sealed = [
                self._sealed(request, *each) for each in zip(unit, us, replies, transactions, strict=True)
            ]
            if self.timeout is not None and time.perf_counter() - started > self.timeout * len(us):
                raise TimeoutError(too_slow(self.timeout))
        except BaseException as error:
            if was_asked_for(error):
                raise
            for transaction in transactions:
                transaction.roll_back()
            raise _StepRaised from error
        seconds = (time.perf_counter() - started) / len(unit)
        return [
            Success(index, reply, seconds, report)
            for index, (reply, report) in zip(_clients(unit), sealed, strict=True)
        ]

    def _begin(self, me: Client, request: Request, call: Call, *, reads_only: bool) -> Transaction:
        """Get a client ready for a step."""
        me.enter(dataclasses.replace(request.moment, measuring=call.measuring))
        self._scratch_models.forget()
        reset_loose(me.model)
        new_model = functools.partial(self.population.own_model, me.facts.index)
        return Transaction(me, self.keeps, reads_only=reads_only, new_model=new_model)

    def _check_finite(self, model: nn.Module) -> None:
        """Training that diverged is a failed step: the client keeps the weights that it had before."""
        try:
            trained = learn.trained_tensors(model)
        except Exception:  # a model that is not kept may be left in pieces
            return
        if all(map(has_memory, trained)) and not learn.all_finite(trained):
            rates = learning_rates(self.program.method)
            raise FloatingPointError(f"its weights are no longer finite, {DIVERGED} {rates}")

    def _reads_only(self, request: Request, step: Step) -> bool:
        """Whether a step leaves a client's state as it is: it says so, and packing its reply leaves nothing."""
        owner = self.program.owner(request.step)
        left = self.program.wire_up(owner).leaves_residuals(owner.declared.kinds_up)
        return getattr(step, "reads_only", False) and not left

    def _sent_to_all(self, request: Request) -> dict[str, Any]:
        """What all clients of a request were sent, as it arrived: to be read, not changed."""
        if self._common[0] is not request.common:
            self._common = request.common, self._arrived(request, request.common)
        return self._common[1]

    def _arrived(self, request: Request, data: bytes) -> dict[str, Any]:
        kinds = self.program.owner(request.step).declared.kinds_down
        return self.program.wire.unpack(decode(data), kinds, "down")

    def _payload(self, request: Request, call: Call) -> dict[str, Any]:
        # One may change what it was sent: the others must not notice.
        payload: dict[str, Any] = {**copied(self._sent_to_all(request)), **self._arrived(request, call.own)}
        if call.heard:
            wire = self.program.wire
            kinds = self.program.owner(request.step).declared.kinds_up
            payload["heard"] = [
                (sender, wire.unpack(decode(data), kinds, "up")) for sender, data in call.heard
            ]
        return payload

    def _sealed(
        self, request: Request, call: Call, me: Client, fields: Fields, transaction: Transaction
    ) -> tuple[bytes, bytes]:
        """The encoded reply and report, once they are known to hold what was declared, and numbers."""
        owner = self.program.owner(request.step)
        short = step_name(request.step)
        report = encode(Client.report(me))  # its own, whatever the step put in its place
        transaction.commit()
        if not transaction.reads_only:
            self._check_finite(me.model)
        check_declared(owner, fields, short)
        declared = owner.declared
        wire = self.program.wire_up(owner)
        packed: Fields = fields
        spoilt = first_not_finite(fields)
        if spoilt is None and wire.packs("up"):
            # Once more from the bytes: a step may have changed what it was given.
            sent = (
                None if request.aloud else {**self._sent_to_all(request), **self._arrived(request, call.own)}
            )
            packed = wire.pack(
                fields,
                declared.kinds_up,
                "up",
                sent=sent,
                residuals=me.residuals,
                lasting=declared.lasting,
            )
            spoilt = first_not_finite(packed)  # what is finite in 32 bits need not be so in 16
        if spoilt is not None:
            raise FloatingPointError(f"its reply '{spoilt}' holds NaN or infinity")
        if report != EMPTY:  # as it will arrive: an object may show one thing and send another
            reason = why_report_refused(
                decode(report),
                declared.stages,
                declared.notes,
                me.outputs,
                me.run_task,
                me.observer.metrics,
            )
            if reason is not None:
                raise MethodError(f"step '{short}': {reason}")
        return encode(packed), report

    # -- clients and their states ----------------------------------------------------------------------------

    def client(self, index: int, place: int = 0) -> Client:
        """The client as it was left: live, from its file, or new. `place` is its place in a stack."""
        me = self._live.get(index)
        own = "model" in self.keeps
        if me is not None:
            self._live.move_to_end(index)
            if not own:
                me.model = self._common_model(index, place)
            return me
        state = self._stored(index)
        try:
            model = self.population.own_model(index) if own else self._common_model(index, place)
            me = self.population.client(index, model, self._scratch_models.take)
        except Exception as error:
            raise _NotMade from error
        me.restore(state)
        if self.keeps:
            self._admit(index, me)
        return me

    def _stored(self, index: int) -> dict[str, Any]:
        """A client's state from its file, if it has one."""
        path = self._files.get(index)
        try:
            return decode(disk.read_file(path)) if path is not None else {}
        except (OSError, MessageError) as error:
            name = self.population.name(index)
            raise RunError(f"cannot read the state of {name} again: {describe(error)}") from error

    def _common_model(self, index: int, place: int) -> nn.Module:
        """The model of a client that does not keep one: its architecture's, with the common initial weights."""
        return self._common_models.reset(self.population.architecture(index), place)

    def _keep(self, index: int, me: Client) -> None:
        if self.keeps:
            self._changed.add(index)
            self._admit(index, me)

    def _admit(self, index: int, me: Client) -> None:
        """Count a client among the live ones; the longest unused go to disk where there are too many."""
        if index not in self._live:
            self._model_bytes[index] = _bytes_of(me.model) if "model" in self.keeps else 0
        self._live[index] = me
        self._live_total -= self._sizes.get(index, 0)
        self._sizes[index] = self._model_bytes[index] + sum(
            tensor.nbytes for kept in (me.memory, me.residuals) for tensor in tensors_in(kept)
        )
        self._live_total += self._sizes[index]
        while self._live_total > self.live_bytes and len(self._live) > 1:
            self.evict(next(iter(self._live)))

    def evict(self, index: int) -> Path | None:
        """Put a client's state on disk, where any host can fetch it; None if it never changed."""
        me = self._live.get(index)
        if me is not None:
            if index in self._changed:
                self._files[index] = self._spilled(index, self._encoded(me))
            del self._live[index]
            self._live_total -= self._sizes.pop(index)
            del self._model_bytes[index]
        return self._files.get(index)

    def _spilled(self, index: int, state: bytes) -> Path:
        name = self.population.name(index)
        path = self.scratch / f"{name}.safetensors"
        try:
            path.write_bytes(state)
        except OSError as error:
            raise RunError(f"cannot put the state of {name} on disk: {describe(error)}") from error
        return path

    def _encoded(self, me: Client) -> bytes:
        try:
            return encode(me.state(self.keeps))
        except Exception as error:
            raise RunError(f"what {me.name} keeps cannot be saved: {describe(error)}") from error

    def give(self, index: int) -> tuple[bytes | None, bool]:
        """Give a client away: its state (None if it is still the initial one), and whether it is not saved as it is."""
        path = self.evict(index)
        changed = index in self._changed
        self._changed.discard(index)
        self._files.pop(index, None)
        return disk.read_file(path) if path is not None else None, changed

    def take(self, index: int, state: bytes | None, changed: bool) -> None:
        """Take over a client that another host gave away."""
        if state is not None:
            self._files[index] = self._spilled(index, state)
        if changed:
            self._changed.add(index)

    def save(self, directory: Path, label: str) -> list[SavedState]:
        """Write every state that changed since the last save into `directory`."""
        saved = []
        for index in sorted(self._changed, key=self.population.name):
            me = self._live.get(index)
            data = self._encoded(me) if me is not None else disk.read_file(self._files[index])
            name = self.population.name(index)
            path = directory / f"{name}.{label}.safetensors"
            disk.write_through(path, data)
            self._files[index] = path
            saved.append(SavedState(name, path.name, disk.digest(data)))
        self._changed.clear()
        return saved

    def restore(self, states: Mapping[int, Path]) -> None:
        """Forget all states but these."""
        self._live.clear()
        self._sizes.clear()
        self._model_bytes.clear()
        self._live_total = 0
        self._changed.clear()
        self._files = dict(states)


class _StepRaised(Exception):
    """A stacked step failed; its cause says why."""


class _NotMade(Exception):
    """A client or its model could not be made, in code that may be the user's; its cause says why."""


def _clients(unit: Sequence[Call]) -> list[int]:
    return [call.client for call in unit if call.client is not None]


def _failure(request: Request, call: Call, error: BaseException) -> Failure:
    """Why a step failed, and where in the user's own code, if it was there. Raised again if it was no step's doing."""
    if was_asked_for(error):
        raise error
    try:
        place = place_in_users_code(error)
        reason = f"{describe(error)} ({place})" if place else describe(error)
        told = "".join(traceback.format_exception(error))
    except BaseException:  # an exception is anybody's object: asking it anything may fail
        reason = told = f"{type(error).__name__:.100}, of which nothing can be told"
    readable = told[-MOST_TOLD:].encode(errors="backslashreplace").decode()
    return Failure(call.client, step_name(request.step), reason, readable)


def too_slow(timeout: float) -> str:
    return f"slow: no answer within {timeout:g} s"


def _seed_layers(me: Client) -> None:
    """Layers that draw by themselves (dropout) use the global generator: it is named too, anew for each step.

    Not `torch.manual_seed`: it formats a stack trace for every kind of device that is not there, 0.4 ms a call.
    """
    number = me.seeds.number("layers", me.name, me.moment.round, me.moment.sequence)
    torch.default_generator.manual_seed(number)
    if me.device.type != "cpu":
        torch.manual_seed(number)


def _bytes_of(model: nn.Module) -> int:
    return sum(tensor.nbytes for tensor in learn.named_tensors(model).values())
