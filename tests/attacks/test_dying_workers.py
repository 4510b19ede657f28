"""A worker that is killed costs nothing, whenever it is killed; and none outlives its parent."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.conftest import MakeRun

from polyfed import (
    Client,
    Declaration,
    Fields,
    Fleet,
    Kind,
    Method,
    MethodSettings,
    Server,
    client_step,
    disk,
)
from polyfed.engines import Host, Inline, Pool, pool
from polyfed.engines.scheduler import Move
from polyfed.errors import RunError
from polyfed.federation.engine import Outcome, Population, Request
from polyfed.federation.program import Program
from polyfed.runs import result, rounds
from polyfed.runs.checkpoint import read_lines
from polyfed.runs.rounds import Run
from polyfed.testing import result_of


def kill_a_worker(engine: Pool, which: int = 0) -> None:
    worker = engine._workers[which].process
    os.kill(worker.pid or 0, signal.SIGKILL)
    worker.join()


class KilledWhileSaving(Pool):
    """Loses a worker at chosen saves: before it is asked, or after the others have answered."""

    def __init__(self, saves: set[int], which: int) -> None:
        super().__init__(2)
        self.saves, self.which, self.count = saves, which, 0

    def save(self, directory: Path, label: str) -> list[disk.SavedState]:
        self.count += 1
        if self.count in self.saves:
            kill_a_worker(self, self.which)
        return super().save(directory, label)


@pytest.mark.parametrize("which", [0, 1])
@pytest.mark.parametrize("method", ["local", "fedavg"])
def test_a_worker_killed_at_any_save_costs_nothing(make_run: MakeRun, method: str, which: int) -> None:
    """The first commit, those between rounds, the last one, and several after each other."""
    expected = make_run(method, Inline())
    expected.go()
    for saves in ({1}, {3}, {5}, {1, 2, 4}):
        run = make_run(method, KilledWhileSaving(saves, which))
        run.go()
        assert result_of(run.path) == result_of(expected.path), saves


class SlowToSave(Pool):
    """In round 2 a worker is killed while it writes, and the other has answered already."""

    killer: subprocess.Popen[bytes] | None = None

    def save(self, directory: Path, label: str) -> list[disk.SavedState]:
        if label == "2" and self.killer is None:
            worker = self._workers[1].process.pid or 0
            os.kill(worker, signal.SIGSTOP)
            self.killer = subprocess.Popen(["sh", "-c", f"sleep 0.3; kill -9 {worker}"])
        return super().save(directory, label)


def test_the_answers_of_the_others_do_not_stay_in_the_pipes(make_run: MakeRun) -> None:
    expected = make_run("local", Inline(), rounds=4)
    expected.go()
    engine = SlowToSave(2)
    run = make_run("local", engine, rounds=4)
    run.go()
    assert engine.killer is not None
    assert engine.killer.wait() == 0
    assert result_of(run.path) == result_of(expected.path)


def stop(engine: Pool, which: int) -> None:
    os.kill(engine._workers[which].process.pid or 0, signal.SIGSTOP)


class Stopping(Pool):
    """Stops a worker, which does not die of it: while saving, while a client moves, in a step, and at the end."""

    def __init__(self, where: str, timeout: float | None) -> None:
        super().__init__(2, timeout)
        self.where, self.first = where, [worker.process for worker in self._workers]

    def open(self, population: Population, program: Program, scratch: Path) -> None:
        super().open(population, program, scratch)
        self.first = [worker.process for worker in self._workers]

    def save(self, directory: Path, label: str) -> list[disk.SavedState]:
        if label == "2" and self.where == "save":
            self.where = ""
            stop(self, 1)
        return super().save(directory, label)

    def run(self, request: Request) -> Iterator[Outcome]:
        if request.moment.round == 2 and self.where in ("move", "step"):
            moved, self.where = self.where == "move", ""
            client, home = next((client, home) for client, home in self.scheduler.homes.items())
            stop(self, home)
            if moved:
                self._move(Move(client, home, 1 - home))
        return super().run(request)

    def close(self) -> None:
        if self.where == "close":
            stop(self, 0)
        super().close()


@pytest.mark.parametrize(
    ("where", "timeout"),
    [("save", 2.5), ("save", None), ("move", 2.5), ("move", None), ("step", None), ("close", None)],
)
def test_a_worker_that_is_stopped_is_replaced_wherever_the_pool_waits_for_it(
    make_run: MakeRun, monkeypatch: pytest.MonkeyPatch, where: str, timeout: float | None
) -> None:
    monkeypatch.setattr(pool, "STOPPED_SECONDS", 0.5)
    expected = make_run("local", Inline())
    expected.go()
    engine = Stopping(where, timeout)
    run = make_run("local", engine)
    run.go()
    run.close()
    assert not any(map(is_running, [process.pid or 0 for process in engine.first]))
    assert result_of(run.path) == result_of(expected.path)


def test_a_slow_disk_is_waited_for_longer_than_the_timeout_of_a_step(
    make_run: MakeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = Host.save

    def slow(self: Host, directory: Path, label: str) -> list[disk.SavedState]:
        time.sleep(0.5)
        return whole(self, directory, label)

    monkeypatch.setattr(Host, "save", slow)
    engine = Pool(2, timeout=0.2)
    run = make_run("local", engine, rounds=1)
    run.open()
    before = [worker.process for worker in engine._workers]
    engine.save(run.path, "slow")
    assert [worker.process for worker in engine._workers] == before
    assert all(process.is_alive() for process in before)


@pytest.mark.parametrize("method", ["local", "fedavg"])
def test_a_worker_killed_while_final_models_are_collected_costs_nothing(
    make_run: MakeRun, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    expected = make_run(method, Inline())
    expected.go()
    engine = Pool(2)
    run = make_run(method, engine)
    conclude = result.conclude
    kills: list[int] = []

    def killed_first(run: Run) -> None:
        if len(kills) < 2:
            kills.append(1)
            kill_a_worker(engine)
        conclude(run)

    monkeypatch.setattr(result, "conclude", killed_first)
    run.go()
    assert kills
    assert result_of(run.path) == result_of(expected.path)


class MortalSettings(MethodSettings):
    keeps: bool = True


class Mortal(Method):
    """Client 1 takes its worker along in every round."""

    name = "mortal"
    Settings = MortalSettings
    settings: MortalSettings

    def declare(self) -> Declaration:
        return Declaration(sends={"count": Kind.METRICS}, keeps={"memory"} if self.settings.keeps else set())

    @client_step
    def live(self, me: Client) -> Fields:
        if me.facts.index == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        me.memory["lived"] = me.memory.get("lived", 0) + 1
        return {"count": me.memory["lived"]}

    def round(self, t: int, fleet: Fleet, server: Server) -> None:
        replies = fleet.ask(self.live, fleet.sample())
        server.memory["alive"] = [reply.client.name for reply in replies]


@pytest.mark.parametrize("keeps", [True, False])
def test_a_client_that_kills_its_worker_in_every_round_does_not_end_the_run(
    make_run: MakeRun, monkeypatch: pytest.MonkeyPatch, keeps: bool
) -> None:
    monkeypatch.setattr(rounds, "LOST_WORKERS_ALLOWED", 4)
    many = 6  # two workers are lost in each: together more than are allowed without a round more
    run = make_run(Mortal, Pool(2), settings={"keeps": keeps}, rounds=many, evaluate={"every": many})
    run.go()
    assert run.finished
    failures = [line["failures"] for line in read_lines(run.path / "history.jsonl") if "failures" in line]
    assert len(failures) == many
    assert run.server.memory["alive"] == ["client-0", "client-2", "client-3"]


class Deaf(Method):
    """Client 1 closes every descriptor that it has and goes on for ever."""

    name = "deaf"

    def declare(self) -> Declaration:
        return Declaration()

    @client_step
    def listen(self, me: Client) -> Fields:
        if me.facts.index == 1:
            os.closerange(3, 256)
            while True:
                time.sleep(0.01)
        return {}

    def round(self, t: int, fleet: Fleet, server: Server) -> None:
        fleet.ask(self.listen, fleet.sample())


def test_a_worker_that_closes_its_pipe_and_goes_on_is_killed(make_run: MakeRun) -> None:
    engine = Pool(2)
    run = make_run(Deaf, engine, rounds=1)
    run.open()
    first = [worker.process for worker in engine._workers]
    run.go()
    assert run.finished
    assert not any(process.is_alive() for process in first)
    (failure,) = list(read_lines(run.path / "history.jsonl"))[-1]["failures"]
    assert failure["client"] == "client-1"


CHILD = """
import sys, time, polyfed
from polyfed.engines import Pool
from polyfed.runs.checkpoint import RunDirectory
from polyfed.runs.config import read_config
from polyfed.runs.rounds import Run
from polyfed.runs.setup import set_up
from pathlib import Path

data = {"limit": 300, "clients": 4}
config = read_config({"method": "local", "rounds": 100000, "data": data, "models": {"names": ["mlp-small"]}})
engine = Pool(2)
run = Run(set_up(config), engine, RunDirectory(Path(sys.argv[1]), new=True))
run.open()
print(*[worker.process.pid for worker in engine._workers], flush=True)
run.go()
"""


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_workers_end_with_a_parent_that_is_killed_and_do_not_hold_its_lock(tmp_path: Path) -> None:
    path = tmp_path / "run"
    with subprocess.Popen(
        [sys.executable, "-c", CHILD, str(path)], stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as parent:
        assert parent.stdout is not None
        workers = [int(pid) for pid in parent.stdout.readline().split()]
        assert len(workers) == 2
        os.kill(workers[0], signal.SIGSTOP)  # one that cannot notice by itself that its pipe is closed
        parent.kill()
    disk.lock(path).close()  # at once: no worker holds it
    deadline = time.monotonic() + 10
    while any(map(is_running, workers)) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not any(map(is_running, workers))


def test_a_process_that_is_forked_off_does_not_hold_the_lock(tmp_path: Path) -> None:
    held = disk.lock(tmp_path)
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()

    def stay() -> None:
        theirs.send("here")
        theirs.recv()

    process = context.Process(target=stay)
    process.start()
    ours.recv()
    held.close()
    disk.lock(tmp_path).close()
    ours.send("end")
    process.join()


def test_the_reason_is_told_when_workers_are_lost_without_end(
    make_run: MakeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rounds, "LOST_WORKERS_ALLOWED", 3)
    run = make_run("local", KilledWhileSaving(set(range(2, 100)), 0))
    with pytest.raises(
        RunError,
        match="4 workers were lost in round 1, the last one because a worker died or was stopped while saving",
    ):
        run.go()
