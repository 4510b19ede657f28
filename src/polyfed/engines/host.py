"""The clients that live in one process: runs their steps as transactions and keeps their states.

A step gets a client's state and a message, and gives a new state and a reply. If it raises or answers with NaN,
the client's state is what it was before, and the outcome is a `Failure` with its reason.
"""

from __future__ import annotations

import logging
import time
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from polyfed import disk, learn
from polyfed.engines.machine import cores, memory
from polyfed.engines.process_setup import keep_freed_memory
from polyfed.errors import MethodError, RunError
from polyfed.federation.engine import Answer, Call, Failure, Outcome, Population, SavedState, Task
from polyfed.federation.message import Fields, Weights, decode, encode, first_not_finite, tensors_in
from polyfed.federation.method import MEASURED, NOTED, Examination, Method, Step, check_declared
from polyfed.federation.nodes import Client, client_name

logger = logging.getLogger(__name__)

# States kept in memory by one process before the oldest go to disk: a quarter of the memory, if every core has one.
LIVE_BYTES = max(128 * 2**20, memory() // (4 * cores()))
REASON_LENGTH = 300


class Host:
    """Runs steps for its clients; holds the live ones, spills the others to `scratch`."""

    def __init__(
        self,
        population: Population,
        method: Method,
        scratch: Path,
        *,
        timeout: float | None = None,
        live_bytes: int = LIVE_BYTES,
    ) -> None:
        keep_freed_memory()
        self.timeout = timeout
        self.population = population
        self.method = method
        self.examination = Examination(method)
        self.scratch = scratch
        self.live_bytes = live_bytes
        self._live: OrderedDict[int, Client] = OrderedDict()
        self._sizes: dict[int, int] = {}
        self._model_bytes: dict[int, int] = {}
        self._files: dict[int, Path] = {}
        self._changed: set[int] = set()
        self._live_total = 0
        self._scratch_models: dict[str, nn.Module] = {}
        self._bench: dict[tuple[str, int], nn.Module] = {}
        self._initial: dict[str, Weights] = {}
        self._common: tuple[bytes, dict[str, Any], int] = (b"", {}, 0)

    # -- steps -----------------------------------------------------------------------------------------------

    def run_unit(self, task: Task, unit: Sequence[Call]) -> list[Outcome]:
        """Do a task's step for the clients of one unit."""
        step = self._step(task)
        together = getattr(step, "together", None)
        if together is not None and len(unit) > 1:
            try:
                return self._run_together(task, together, unit)
            except Exception as error:
                # One of them spoils the stack: alone, each answers for itself.
                logger.debug("stacked step failed, running one by one: %s", describe(error))
        return [self._run_alone(task, step, call) for call in unit]

    def _step(self, task: Task) -> Step:
        owner = self.examination if task.examining else self.method
        step = getattr(owner, task.step, None)
        if not getattr(step, "is_client_step", False):
            raise MethodError(f"{type(owner).__name__} has no client step '{task.step}'")
        assert step is not None
        return step  # type: ignore[no-any-return]

    def _run_alone(self, task: Task, step: Step, call: Call) -> Outcome:
        started = time.perf_counter()
        reads_only = getattr(step, "reads_only", False)
        me: Client | None = None
        before: dict[str, Any] = {}
        try:
            me = self.client(call.client)
            if not reads_only:
                before = me.state(self.method.keeps)
            payload = self._payload(task, call)
            me.enter(task.moment)
            _seed_layers(me)
            fields = step(me, **payload) or {}
            data = self._sealed(task, me, fields)
            if self.timeout is not None and time.perf_counter() - started > self.timeout:
                raise TimeoutError(too_slow(self.timeout))
        except RunError:
            raise  # not this client's fault, and not to be gone on with
        except Exception as error:
            if me is not None:
                me.restore(before)
            return Failure(call.client, task.step, describe(error))
        if not reads_only:
            self._keep(me)
        return Answer(call.client, data, time.perf_counter() - started)

    def _run_together(self, task: Task, together: Step, unit: Sequence[Call]) -> list[Outcome]:
        started = time.perf_counter()
        us = [self.client(call.client, place) for place, call in enumerate(unit)]
        before = [me.state(self.method.keeps) for me in us]
        try:
            for me in us:
                me.enter(task.moment)
            _seed_layers(us[0])
            replies = together(self.method, us, [self._payload(task, call) for call in unit])
            sealed = [self._sealed(task, me, fields) for me, fields in zip(us, replies, strict=True)]
            if self.timeout is not None and time.perf_counter() - started > self.timeout * len(us):
                raise TimeoutError(too_slow(self.timeout))
        except Exception:
            for me, state in zip(us, before, strict=True):
                me.restore(state)
            raise
        for me in us:
            self._keep(me)
        seconds = (time.perf_counter() - started) / len(unit)
        return [Answer(call.client, data, seconds) for call, data in zip(unit, sealed, strict=True)]

    def _payload(self, task: Task, call: Call) -> dict[str, Any]:
        if self._common[0] is not task.common:
            fields = decode(task.common)
            self._common = (task.common, fields, _version(fields))
        payload = {**self._common[1], **decode(call.own)}
        if call.heard:
            payload["heard"] = [(sender, decode(data)) for sender, data in call.heard]
        return payload

    def _sealed(self, task: Task, me: Client, fields: Fields) -> bytes:
        """The encoded reply, once it is known to hold what was declared, and numbers."""
        owner = self.examination if task.examining else self.method
        check_declared(owner, fields, task.step)
        spoilt = first_not_finite(fields)
        if spoilt is not None:
            raise FloatingPointError(f"its reply '{spoilt}' holds NaN or infinity")
        if _version(self._common[1]) != self._common[2]:
            self._common = (b"", {}, 0)
            raise MethodError(f"step '{task.step}' changes what it was sent in place: clone it first")
        own: Fields = {MEASURED: me.measured, NOTED: me.noted}
        return encode({**fields, **{name: found for name, found in own.items() if found}})

    # -- clients and their states ----------------------------------------------------------------------------

    def client(self, index: int, place: int = 0) -> Client:
        """The client as it was left: live, from its file, or new. `place` is its place in a stack."""
        keeps = self.method.keeps
        me = self._live.get(index)
        if me is not None:
            self._live.move_to_end(index)
            if "model" not in keeps:
                me.model = self._common_model(index, place)
            return me
        model = self.population.own_model(index) if "model" in keeps else self._common_model(index, place)
        me = self.population.client(index, model, self.scratch_model)
        if index in self._files:
            me.restore(decode(self._files[index].read_bytes()))
        if keeps:
            self._admit(index, me)
        return me

    def _common_model(self, index: int, place: int) -> nn.Module:
        """One model object an architecture (and place), set back to the common initial weights for each step."""
        architecture = self.population.architecture(index)
        if (architecture, place) not in self._bench:
            self._bench[architecture, place] = self.population.build(architecture)
        model = self._bench[architecture, place]
        if architecture not in self._initial:
            self._initial[architecture] = learn.weights_of(model)
        learn.load_weights(model, self._initial[architecture])
        return model

    def scratch_model(self, architecture: str) -> nn.Module:
        """One model object an architecture, for a step to work with; what it holds is left from the last use."""
        if architecture not in self._scratch_models:
            self._scratch_models[architecture] = self.population.build(architecture)
        return self._scratch_models[architecture]

    def _keep(self, me: Client) -> None:
        if self.method.keeps:
            self._changed.add(me.facts.index)
            self._admit(me.facts.index, me)

    def _admit(self, index: int, me: Client) -> None:
        """Count a client among the live ones; the longest unused go to disk where there are too many."""
        if index not in self._live:
            self._model_bytes[index] = _bytes_of(me.model) if "model" in self.method.keeps else 0
        self._live[index] = me
        self._live_total -= self._sizes.get(index, 0)
        self._sizes[index] = self._model_bytes[index] + sum(tensor.nbytes for tensor in tensors_in(me.memory))
        self._live_total += self._sizes[index]
        while self._live_total > self.live_bytes and len(self._live) > 1:
            self.evict(next(iter(self._live)))

    def evict(self, index: int) -> Path | None:
        """Put a client's state on disk, where any host can fetch it; None if it never changed."""
        me = self._live.get(index)
        if me is not None:
            if index in self._changed:
                path = self.scratch / f"{client_name(index)}.safetensors"
                data = self._encoded(me)
                try:
                    path.write_bytes(data)
                except OSError as error:
                    raise RunError(f"cannot put the state of {me.name} on disk: {describe(error)}") from error
                self._files[index] = path
            del self._live[index]
            self._live_total -= self._sizes.pop(index)
            del self._model_bytes[index]
        return self._files.get(index)

    def _encoded(self, me: Client) -> bytes:
        try:
            return encode(me.state(self.method.keeps))
        except TypeError as error:
            raise RunError(f"what {me.name} keeps in its memory cannot be saved: {error}") from error

    def release(self, index: int) -> tuple[Path | None, bool]:
        """Give a client away to another host: where its state is, and whether it has been saved as it is now."""
        path = self.evict(index)
        changed = index in self._changed
        self._changed.discard(index)
        self._files.pop(index, None)
        return path, changed

    def receive(self, index: int, path: Path | None, changed: bool) -> None:
        """Take over a client that another host gave away."""
        if path is not None:
            self._files[index] = path
        if changed:
            self._changed.add(index)

    def save(self, directory: Path, label: str) -> list[SavedState]:
        """Write every state that changed since the last save into `directory`."""
        saved = []
        for index in sorted(self._changed):
            me = self._live.get(index)
            data = self._encoded(me) if me is not None else self._files[index].read_bytes()
            path = directory / f"{client_name(index)}.{label}.safetensors"
            disk.write_through(path, data)
            self._files[index] = path
            saved.append(SavedState(index, path.name, disk.digest(data)))
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


def too_slow(timeout: float) -> str:
    return f"slow: no answer within {timeout:g} s"


def describe(error: BaseException) -> str:
    """An exception in one line."""
    text = " ".join(str(error).split())
    name = type(error).__name__
    return f"{name}: {text}"[:REASON_LENGTH] if text else name


def _seed_layers(me: Client) -> None:
    """Layers that draw by themselves (dropout) use the global generator: it is named too, anew for each step.

    Not `torch.manual_seed`: it formats a stack trace for every kind of device that is not there, 0.4 ms a call.
    """
    number = me.seeds.number("layers", me.name, me.moment.round, me.moment.sequence)
    torch.default_generator.manual_seed(number)
    if me.device.type != "cpu":
        torch.manual_seed(number)


def _version(fields: Fields) -> int:
    """Grows whenever one of the tensors is changed in place."""
    return sum(tensor._version for tensor in tensors_in(fields))


def _bytes_of(model: nn.Module) -> int:
    return sum(tensor.nbytes for tensor in learn.named_tensors(model).values())
