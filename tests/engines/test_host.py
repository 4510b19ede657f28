"""A process's clients: scratch models that nothing lasts in, and states that are given to other processes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.conftest import MakeRun

from polyfed import Client, Declaration, Fields, Fleet, Kind, Method, Server, client_step, learn
from polyfed.engines import Inline, Pool
from polyfed.engines.host import Host
from polyfed.federation.engine import Call, Engine, Request, Success
from polyfed.federation.message import EMPTY, decode, encode
from polyfed.federation.nodes import Moment
from polyfed.models import memory_format
from polyfed.testing import failures_of

# -- scratch models ------------------------------------------------------------------------------------------

ARCHITECTURE = "cnn-small"


def untouched(model: torch.nn.Module, initial: dict[str, torch.Tensor]) -> bool:
    """Whether a model is as new: weights, statistics, modes, gradients, what is trained."""
    return (
        encode(learn.weights_of(model)) == encode(initial)
        and all(module.training for module in model.modules())
        and all(parameter.grad is None and parameter.requires_grad for parameter in model.parameters())
    )


class Scribbler(Method):
    """Every client finds scratch models as new, and leaves them in every way spoilt."""

    name = "scribbler"

    def declare(self) -> Declaration:
        return Declaration(sends={"fine": Kind.METRICS}, tells={"initial": Kind.WEIGHTS}, keeps=frozenset())

    @client_step(sends=("fine",))
    def scribble(self, me: Client, initial: Any) -> Fields:
        first, second = me.scratch_model(ARCHITECTURE, 0), me.scratch_model(ARCHITECTURE, 1)
        fine = first is not second and first is not me.model and second is not me.model
        fine &= untouched(first, initial) and untouched(second, initial)
        x, _ = me.tensors(me.train, first)
        first(x).sum().backward()
        for parameter in first.parameters():
            parameter.data.add_(1.0)
            parameter.requires_grad = False
        first.eval()
        fine &= untouched(second, initial)
        again = me.scratch_model(ARCHITECTURE)
        fine &= again is first and not untouched(again, initial)
        return {"fine": int(fine)}

    def round(self, t: int, fleet: Fleet, server: Server) -> None:
        initial = learn.weights_of(server.build(ARCHITECTURE))
        replies = fleet.ask(self.scribble, fleet.sample(), initial=initial)
        server.memory["fine"] = [reply["fine"] for reply in replies]


@pytest.mark.parametrize("engine", [Inline(), Pool(1)], ids=["inline", "pool"])
def test_nothing_that_a_client_leaves_in_a_scratch_model_is_there_for_the_next(
    make_run: MakeRun, engine: Engine
) -> None:
    run = make_run(Scribbler, engine, rounds=2, models={"names": [ARCHITECTURE]})
    run.go()
    assert failures_of(run.path) == []
    assert run.server.memory["fine"] == [1] * 4


def test_inputs_come_in_the_layout_of_the_model_that_is_named(make_run: MakeRun) -> None:
    """`cnn-small` is fastest with channels last, `mlp-small` with plain inputs."""
    run = make_run("local", models={"names": ["mlp-small", ARCHITECTURE]})
    run.open()
    host = run.engine.host  # type: ignore[attr-defined]
    me: Client = host.client(0)
    other = me.scratch_model(ARCHITECTURE)
    assert memory_format(me.model) != memory_format(other)
    for model in (me.model, other):
        x, y = me.tensors(me.train, model)
        assert x.is_contiguous(memory_format=memory_format(model))
        assert torch.equal(me.inputs(me.train, model), x)
        assert len(x) == len(y) == len(me.train)
    own, _ = me.tensors(me.train)
    assert own.stride() == me.inputs(me.train, me.model).stride()
    assert own.stride() != me.inputs(me.train, other).stride()
    assert torch.equal(own, me.inputs(me.train, other))


# -- states that move ----------------------------------------------------------------------------------------


class Counter(Method):
    name = "counter"

    def declare(self) -> Declaration:
        return Declaration()

    @client_step
    def count(self, me: Client) -> Fields:
        me.memory["count"] = me.memory.get("count", 0) + 1
        with torch.no_grad():
            next(me.model.parameters()).add_(1.0)
        return {}

    def round(self, t: int, fleet: Fleet, server: Server) -> None:
        fleet.ask(self.count, fleet.sample())


@pytest.fixture
def hosts(make_run: MakeRun, tmp_path: Path) -> list[Host]:
    """Three processes' hosts that share a folder, as a pool's workers do."""
    run = make_run(Counter)
    (tmp_path / "shared").mkdir()
    return [Host(run.federation.population, run.program, tmp_path / "shared") for _ in range(3)]


def count(host: Host, client: int) -> None:
    request = Request("method.count", Moment(1, 1), EMPTY, [[Call(client)]])
    (outcome,) = host.run_unit(request, request.units[0])
    assert isinstance(outcome, Success)


def state(host: Host, client: int) -> bytes:
    return encode(host.client(client).state())


@pytest.mark.parametrize("saved", [True, False], ids=["saved", "unsaved"])
@pytest.mark.parametrize("evicted", [True, False], ids=["evicted", "live"])
@pytest.mark.parametrize("looked_at", [True, False], ids=["looked at", "passed on"])
def test_a_state_that_moves_twice_is_not_lost(
    hosts: list[Host], tmp_path: Path, saved: bool, evicted: bool, looked_at: bool
) -> None:
    first, second, third = hosts
    count(first, 0)
    count(first, 1)
    expected = state(first, 0)
    if saved:
        (tmp_path / "checkpoint").mkdir()
        assert [row.owner for row in first.save(tmp_path / "checkpoint", "1")] == ["client-0", "client-1"]
    for old, new in ((first, second), (second, third)):
        if evicted:
            old.evict(0)
        given, changed = old.give(0)
        assert given is not None and encode(decode(given)) == expected
        assert changed is not saved  # what is not saved yet is the next host's to save
        new.take(0, given, changed)
        if looked_at:
            assert state(new, 0) == expected
        if evicted:
            new.evict(0)
    assert state(third, 0) == expected
    count(third, 0)
    assert third.client(0).memory["count"] == 2
    (tmp_path / "later").mkdir()
    assert [row.owner for row in third.save(tmp_path / "later", "2")] == ["client-0"]
    left = [] if saved else ["client-1"]
    assert [row.owner for row in first.save(tmp_path / "later", "2")] == left
    assert second.save(tmp_path / "later", "2") == []


def test_what_was_given_away_is_no_longer_saved_where_it_was(hosts: list[Host], tmp_path: Path) -> None:
    first, second, _ = hosts
    count(first, 0)
    second.take(0, *first.give(0))
    (tmp_path / "saved").mkdir()
    assert first.save(tmp_path / "saved", "1") == []
    (row,) = second.save(tmp_path / "saved", "1")
    assert row.file is not None
    assert decode((tmp_path / "saved" / row.file).read_bytes())["memory"]["count"] == 1


def test_a_client_that_comes_back_is_as_it_was_elsewhere(hosts: list[Host]) -> None:
    first, second, _ = hosts
    count(first, 0)
    second.take(0, *first.give(0))
    count(second, 0)
    first.take(0, *second.give(0))
    assert first.client(0).memory["count"] == 2


def test_a_client_that_never_did_anything_moves_with_nothing(hosts: list[Host]) -> None:
    first, second, third = hosts
    expected = state(third, 0)
    first.client(0)
    given, changed = first.give(0)
    assert (given, changed) == (None, False)
    second.take(0, given, changed)
    assert state(second, 0) == expected
