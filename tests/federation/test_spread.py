"""The server's own work on all workers: in order, bit-equal to doing it in place, whatever happens to a worker."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.conftest import MakeRun
from torch import Tensor
from torch.nn import functional as F

from polyfed import (
    Assistant,
    Client,
    Declaration,
    Fields,
    Fleet,
    Kind,
    Method,
    MethodSettings,
    Server,
    client_step,
    learn,
)
from polyfed.engines import Inline, Pool
from polyfed.errors import MethodError, RunError
from polyfed.federation.engine import Engine, Request, Success
from polyfed.federation.fleet import STREAM_WINDOW
from polyfed.federation.message import encode
from polyfed.federation.method import server_step
from polyfed.federation.nodes import Moment
from polyfed.federation.spreading import Jobs
from polyfed.testing import failures_of, result_of


class SpreadSettings(MethodSettings):
    mark: str = ""
    keeps: bool = False


class Teaching(Method):
    """Clients send their weights; each becomes a job: train a copy a little and answer on public rows."""

    name = "teaching"
    Settings = SpreadSettings
    settings: SpreadSettings

    def declare(self) -> Declaration:
        return Declaration(
            sends={"weights": Kind.WEIGHTS}, keeps={"model", "memory"} if self.settings.keeps else set()
        )

    @client_step(sends=("weights",))
    def train(self, me: Client) -> Fields:
        learn.supervised(me.model, *me.tensors(me.train), me.training, me.rng("batches"))
        return {"weights": learn.weights_of(me.model)}

    @server_step
    def study(
        self, helper: Assistant, client: int, architecture: str, weights: Any, rows: Tensor, lr: float
    ) -> Fields:
        assert helper.public is not None
        model = helper.scratch_model(architecture)
        learn.load_weights(model, weights)
        x, y = helper.tensors(helper.public[rows], model)
        for _ in range(3):
            F.cross_entropy(model(x), y).backward()
            with torch.no_grad():
                for parameter in model.parameters():
                    assert parameter.grad is not None
                    parameter.sub_(lr * parameter.grad)
                    parameter.grad = None
        self.trouble(client)
        return {"client": client, "answers": learn.predict(model, x)}

    def trouble(self, client: int) -> None:
        """Here something may happen."""

    def jobs(self, fleet: Fleet) -> Iterator[dict[str, Any]]:
        for reply in fleet.stream(self.train, fleet.sample()):
            client = reply.client
            yield {
                "client": client.index,
                "architecture": client.architecture,
                "weights": reply["weights"],
            }

    def round(self, t: int, fleet: Fleet, server: Server) -> None:
        seen: list[int] = []
        found: list[dict[str, Any]] = []
        ahead: list[int] = []

        def fold(said: dict[str, Any]) -> None:
            found.append(said)
            ahead.append(len(seen) - len(found))

        with server.spread(self.study, fold=fold, rows=torch.arange(20), lr=0.1) as students:
            for job in self.jobs(fleet):
                seen.append(job["client"])
                students.put(**job)
        assert [said["client"] for said in found] == seen == [facts.index for facts in fleet.sample()]
        server.memory["ahead"] = max(ahead)
        server.memory.setdefault("answers", []).append(torch.stack([said["answers"] for said in found]))


class InPlace(Teaching):
    """The same without `spread`: one job after the other, in the server's process."""

    def round(self, t: int, fleet: Fleet, server: Server) -> None:
        models: dict[str, Any] = {}

        def scratch(architecture: str, place: int = 0) -> Any:
            return models.setdefault(architecture, server.build(architecture))

        assert server.public is not None
        helper = Assistant(
            server.device,
            scratch,
            server.shape,
            server.outputs,
            server.classes,
            server.public,
            server.public,
        )
        found = [self.study(helper, **job, rows=torch.arange(20), lr=0.1) for job in self.jobs(fleet)]
        server.memory.setdefault("answers", []).append(torch.stack([said["answers"] for said in found]))  # type: ignore[misc]


SMALL: dict[str, Any] = {
    "rounds": 2,
    "data": {"clients": 7, "public": {"source": "share", "share": 0.2}},
    "models": {"names": ["mlp-small", "cnn-small"]},
}


def answers(make_run: MakeRun, method: type[Method], engine: Engine, **changes: Any) -> bytes:
    run = make_run(method, engine, **{**SMALL, **changes})
    run.go()
    assert failures_of(run.path) == []
    return encode({"answers": run.server.memory["answers"]})


@pytest.mark.parametrize("keeps", [True, False])
def test_results_come_in_order_and_are_the_same_bits_on_every_engine_and_in_place(
    make_run: MakeRun, keeps: bool
) -> None:
    settings = {"keeps": keeps}
    expected = answers(make_run, InPlace, Inline(), settings=settings)
    for engine in (Inline(), Pool(2), Pool(3)):
        assert answers(make_run, Teaching, engine, settings=settings) == expected


@pytest.mark.parametrize("engine", [Inline(), Pool(3)], ids=["inline", "pool"])
def test_jobs_are_taken_from_a_stream_while_it_goes_on(make_run: MakeRun, engine: Engine) -> None:
    """More replies than are ever under way at once; and never all of them in memory."""
    clients = STREAM_WINDOW + 13
    run = make_run(
        Teaching,
        engine,
        rounds=2,
        data={**SMALL["data"], "clients": clients, "limit": 600, "partition": {"kind": "iid"}},
        evaluate={"every": 2, "clients": 1},
    )
    run.go()
    assert [len(table) for table in run.server.memory["answers"]] == [clients] * 2
    assert run.server.memory["ahead"] < clients // 2


def test_nothing_of_the_servers_own_work_is_counted_as_sent(make_run: MakeRun) -> None:
    totals = []
    for method in (InPlace, Teaching):
        run = make_run(method, **SMALL)
        run.go()
        totals.append(result_of(run.path)["ledger"])
    assert totals[0] == totals[1]


class Broken(Teaching):
    def trouble(self, client: int) -> None:
        if client == 5:
            raise ValueError("the fifth\nis too much")


@pytest.mark.parametrize("keeps", [True, False])
@pytest.mark.parametrize("engine", [Inline(), Pool(2)], ids=["inline", "pool"])
def test_an_error_in_a_server_step_ends_the_run_with_its_reason(
    make_run: MakeRun, engine: Engine, keeps: bool
) -> None:
    run = make_run(Broken, engine, settings={"keeps": keeps}, **SMALL)
    expected = "round 1: the server's step 'study': ValueError: the fifth is too much"
    with pytest.raises(RunError, match=expected):
        run.go()


class Dying(Teaching):
    """The worker of the fourth job is killed, several times."""

    def trouble(self, client: int) -> None:
        mark = Path(self.settings.mark)
        deaths = mark.stat().st_size if mark.exists() else 0
        if client == 3 and deaths < 4:
            mark.write_bytes(b"." * (deaths + 1))
            os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize("keeps", [True, False])
def test_a_worker_killed_in_a_server_step_changes_no_bit(
    make_run: MakeRun, tmp_path: Path, keeps: bool
) -> None:
    killed = make_run(
        Dying, Pool(2), name="killed", settings={"keeps": keeps, "mark": str(tmp_path / "mark")}, **SMALL
    )
    killed.go()
    calm = make_run(Teaching, Inline(), name="calm", settings={"keeps": keeps}, **SMALL)
    calm.go()
    assert (tmp_path / "mark").stat().st_size == 4
    assert failures_of(killed.path) == []
    found, expected = result_of(killed.path), result_of(calm.path)
    for part in ("models", "states", "history", "ledger"):
        assert found[part] == expected[part]
    said = [encode({"answers": run.server.memory["answers"]}) for run in (killed, calm)]
    assert said[0] == said[1]


class Unmarked(Teaching):
    def study(self, *args: Any, **kwargs: Any) -> Fields:
        return {}


def test_a_function_that_is_not_a_server_step_is_refused(make_run: MakeRun) -> None:
    with pytest.raises(MethodError, match="'study' is not a server step: mark it with @server_step"):
        make_run(Unmarked, **SMALL).go()


class Echo:
    """An engine of two workers that gives every job back, and remembers how many it was given at a time."""

    width = 2

    def __init__(self) -> None:
        self.taken: list[int] = []

    def run(self, request: Request) -> Iterator[Success]:
        self.taken.append(len(request.units))
        for [call] in request.units:
            yield Success(None, call.own, 0.0)


def spread_over(engine: Any, count: int) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    jobs = Jobs(engine, "method.study", Moment(1, 1), {}, found.append)
    for number in range(count):
        jobs.put(number=number)
    jobs.finish()
    return found


def test_jobs_are_taken_few_at_a_time_folded_in_their_order_and_none_is_left_over_alone() -> None:
    for count in range(100):
        engine = Echo()
        assert spread_over(engine, count) == [{"number": number} for number in range(count)]
        assert all(taken <= 9 for taken in engine.taken)
        assert all(taken >= 4 for taken in engine.taken) or count < 4


def test_without_jobs_nothing_is_run() -> None:
    engine = Echo()
    assert spread_over(engine, 0) == []
    assert engine.taken == []


class Stumbling(Teaching):
    """Something is raised between two jobs."""

    def jobs(self, fleet: Fleet) -> Iterator[dict[str, Any]]:
        for number, job in enumerate(super().jobs(fleet)):
            if number == 2:
                raise ValueError("the server stumbles")
            yield job

    def trouble(self, client: int) -> None:
        raise AssertionError("nothing is done for a round that failed")


def test_what_is_raised_between_jobs_is_told_and_jobs_that_wait_are_dropped(make_run: MakeRun) -> None:
    with pytest.raises(ValueError, match="the server stumbles"):
        make_run(Stumbling, **SMALL).go()
