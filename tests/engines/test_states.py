"""States that do not fit in memory live on disk; clients move between workers; nothing of it shows."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.conftest import MakeRun

from polyfed import Client, Declaration, Fields, Fleet, Kind, Method, Server, client_step, learn, machine
from polyfed.engines import Inline, Pool
from polyfed.federation.fleet import EngineFleet
from polyfed.testing import result_of


def test_states_beyond_the_bound_live_on_disk_and_give_the_same_result(make_run: MakeRun) -> None:
    roomy = make_run("local", Inline())
    roomy.go()
    tight = make_run("local", Inline(live_bytes=1))
    tight.open()
    tight._rounds(None)
    host = tight.engine.host  # type: ignore[attr-defined]
    assert len(host._live) == 1
    tight.go()
    assert result_of(roomy.path) == result_of(tight.path)


def test_a_tight_pool_gives_the_same_result(make_run: MakeRun) -> None:
    roomy = make_run("local", Inline())
    roomy.go()
    tight = make_run("local", Pool(2, live_bytes=1))
    tight.go()
    assert result_of(roomy.path) == result_of(tight.path)


@pytest.mark.slow
def test_workers_that_are_spawned_give_the_same_result_as_forked_ones(make_run: MakeRun) -> None:
    forked, spawned = (make_run("local", Pool(2, start_method=how), rounds=2) for how in ("fork", "spawn"))
    forked.go()
    spawned.go()
    assert result_of(forked.path) == result_of(spawned.path)


class Lopsided(Method):
    """Cohorts that leave one worker idle unless clients move: first all, then those of the fuller worker."""

    name = "lopsided"

    def declare(self) -> Declaration:
        return Declaration(sends={"count": Kind.METRICS})

    @client_step
    def train(self, me: Client) -> Fields:
        me.memory["count"] = me.memory.get("count", 0) + 1
        learn.supervised(me.model, *me.tensors(me.train), self.training, me.rng("batches"))
        return {"count": me.memory["count"]}

    def round(self, t: int, fleet: Fleet, server: Server) -> None:
        assert isinstance(fleet, EngineFleet)
        homes = fleet.engine.scheduler.homes if isinstance(fleet.engine, Pool) else {}
        cohort = fleet.sample()
        if server.memory.get("crowd"):
            cohort = [facts for facts in cohort if facts.index in server.memory["crowd"]]
        elif homes:
            places = list(homes.values())
            full = max(set(places), key=places.count)
            server.memory["crowd"] = [index for index, home in homes.items() if home == full]
        replies = fleet.ask(self.train, cohort)
        server.memory.setdefault("counts", []).append([reply["count"] for reply in replies])
        server.memory["homes"] = sorted({homes[facts.index] for facts in cohort})


def test_a_client_that_moves_to_another_worker_takes_its_state_along(make_run: MakeRun) -> None:
    training = {"epochs": 20}
    run = make_run(Lopsided, Pool(2), rounds=5, training=training, data={"clients": 8}, evaluate={"every": 5})
    run.go()
    crowd = run.server.memory["crowd"]
    assert len(crowd) >= 4
    assert run.server.memory["homes"] == [0, 1]
    counts = run.server.memory["counts"]
    assert counts[-1] == [len(counts)] * len(crowd)


class Large(Method):
    """Payloads and replies far larger than a pipe's buffer, both ways at once."""

    name = "large"

    def declare(self) -> Declaration:
        return Declaration(
            sends={"back": Kind.FEATURES}, tells={"common": Kind.FEATURES, "own": Kind.FEATURES}
        )

    @client_step
    def echo(self, me: Client, common: torch.Tensor, own: torch.Tensor) -> Fields:
        return {"back": torch.cat([common, own])}

    def round(self, t: int, fleet: Fleet, server: Server) -> None:
        def own(client: Any) -> Fields:
            return {"own": torch.full((300_000,), float(client.index))}

        replies = fleet.ask(self.echo, fleet.sample(), each=own, common=torch.ones(500_000))
        for reply in replies:
            assert reply["back"][0] == 1
            assert bool((reply["back"][500_000:] == reply.client.index).all())
        server.memory["answers"] = len(replies)


def test_large_messages_pass_both_ways_and_leave_no_files(make_run: MakeRun) -> None:
    run = make_run(Large, Pool(2), rounds=2, data={"clients": 8})
    run.open()
    run._rounds(None)
    assert run.server.memory["answers"] == 8
    assert list(run.directory.scratch.glob("*.blob")) == []


class Streamed(Method):
    """Many clients whose steps take unlike times, asked one window after the other."""

    name = "streamed"

    def declare(self) -> Declaration:
        return Declaration(sends={"count": Kind.METRICS})

    @client_step
    def train(self, me: Client) -> Fields:
        time.sleep(0.001 if me.facts.index % 7 else 0.02)
        me.memory["count"] = me.memory.get("count", 0) + 1
        return {"count": me.memory["count"]}

    def round(self, t: int, fleet: Fleet, server: Server) -> None:
        cohort = fleet.sample()
        answered = [reply.client.index for reply in fleet.stream(self.train, cohort)]
        assert answered == [facts.index for facts in cohort]


def test_clients_that_move_within_a_stream_do_not_hold_it_up(make_run: MakeRun) -> None:
    run = make_run(
        Streamed,
        Pool(8),
        rounds=8,
        data={"clients": 64, "limit": None, "partition": {"kind": "iid"}},
        cohort={"count": 48},
        evaluate={"every": 8, "clients": 1},
    )
    run.go()
    assert run.finished


def test_a_limit_of_a_control_group_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = machine.memory()
    monkeypatch.setattr(machine, "CGROUPS", tmp_path / "cgroup")
    monkeypatch.setattr(machine, "OWN_CGROUPS", tmp_path / "own")
    assert machine.memory() <= whole * 2**20  # neither file is there
    for name, own, where in (
        ("new", "0::/job/step\n", "job/memory.max"),
        ("old", "9:cpu:/\n4:memory,hugetlb:/job/step\n", "memory/job/step/memory.limit_in_bytes"),
    ):
        monkeypatch.setattr(machine, "CGROUPS", tmp_path / name)
        (tmp_path / "own").write_text(own)
        file = tmp_path / name / where
        file.parent.mkdir(parents=True)
        file.write_text("max\n")
        assert machine.memory() > 1000
        file.write_text("1000\n")
        assert machine.memory() == 1000
