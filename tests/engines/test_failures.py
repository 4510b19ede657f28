"""Containment: a failing, slow, NaN-answering or dying client costs its own contribution to that round."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest
import torch
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
    learn,
)
from polyfed.engines import Inline, Pool
from polyfed.errors import RunError
from polyfed.federation.engine import Engine
from polyfed.runs.checkpoint import read_lines
from polyfed.runs.rounds import Run
from polyfed.testing import result_of


class TroubleSettings(MethodSettings):
    trouble: str = "none"
    mark: str = ""
    keeps: bool = True


class Troubled(Method):
    """Everyone trains; client 1 gets into trouble in round 2, after having trained."""

    name = "troubled"
    Settings = TroubleSettings
    settings: TroubleSettings

    def declare(self) -> Declaration:
        return Declaration(
            sends={"norm": Kind.METRICS}, keeps={"model", "memory"} if self.settings.keeps else set()
        )

    @client_step
    def train(self, me: Client) -> Fields:
        learn.supervised(me.model, *me.tensors(me.train), self.training, me.rng("batches"))
        me.memory["rounds"] = me.memory.get("rounds", 0) + 1
        norm = torch.stack([weight.norm() for weight in me.model.parameters()])
        if me.facts.index == 1 and me.moment.round == 2:
            norm = self.get_into_trouble(norm)
        return {"norm": norm}

    def get_into_trouble(self, norm: torch.Tensor) -> torch.Tensor:
        match self.settings.trouble:
            case "raise":
                raise ValueError("the disk\nof this client is broken")
            case "nan":
                return norm * float("nan")
            case "slow":
                time.sleep(2.5)
            case "hang":
                time.sleep(60)
            case "die":
                os.kill(os.getpid(), signal.SIGKILL)
            case "die once":
                mark = Path(self.settings.mark)
                if not mark.exists():
                    mark.touch()
                    os.kill(os.getpid(), signal.SIGKILL)
        return norm

    def round(self, t: int, fleet: Fleet, server: Server) -> None:
        replies = fleet.ask(self.train, fleet.sample())
        server.memory.setdefault("answered", []).append([reply.client.name for reply in replies])


def failures_of(run: Run) -> list[dict[str, Any]]:
    lines = read_lines(run.path / "history.jsonl")
    return [{"round": line["round"], **failure} for line in lines for failure in line.get("failures", ())]


def engine_of(kind: str, timeout: float | None = None) -> Engine:
    return Inline(timeout) if kind == "inline" else Pool(2, timeout)


CASES = [
    ("inline", "raise", "ValueError: the disk of this client is broken"),
    ("pool", "raise", "ValueError: the disk of this client is broken"),
    ("inline", "nan", "'norm' holds NaN"),
    ("pool", "nan", "'norm' holds NaN"),
    ("inline", "slow", "slow: no answer within 2 s"),
    ("pool", "slow", "slow: no answer within 2 s"),
    ("pool", "hang", "slow: no answer within 2 s"),
    ("pool", "die", "its worker died (signal SIGKILL)"),
]


@pytest.mark.parametrize("keeps", [True, False])
@pytest.mark.parametrize(("kind", "trouble", "reason"), CASES)
def test_a_client_in_trouble_is_left_out_with_its_reason_and_the_rest_go_on(
    make_run: MakeRun, kind: str, trouble: str, reason: str, keeps: bool
) -> None:
    timeout = 2.0 if trouble in ("slow", "hang") else None
    run = make_run(Troubled, engine_of(kind, timeout), settings={"trouble": trouble, "keeps": keeps})
    run.go()
    (failure,) = failures_of(run)
    assert failure["round"] == 2
    assert failure["client"] == "client-1"
    assert failure["step"] == "train"
    assert reason in failure["reason"]
    everyone = [f"client-{index}" for index in range(4)]
    assert run.server.memory["answered"] == [everyone, [everyone[0], *everyone[2:]], everyone]


@pytest.mark.parametrize("trouble", ["raise", "die"])
def test_a_client_that_failed_once_has_trained_one_round_less(make_run: MakeRun, trouble: str) -> None:
    engine = engine_of("pool")
    run = make_run(Troubled, engine, settings={"trouble": trouble}, rounds=3)
    run.open()
    run.go()
    rounds = {index: _memory_of(run, index)["rounds"] for index in range(4)}
    assert rounds == {0: 3, 1: 2, 2: 3, 3: 3}


def _memory_of(run: Run, index: int) -> dict[str, Any]:
    from polyfed.federation.message import decode

    return dict(decode(run.client_files()[index].read_bytes())["memory"])


@pytest.mark.parametrize("keeps", [True, False])
def test_a_worker_killed_once_from_outside_changes_nothing(
    make_run: MakeRun, tmp_path: Path, keeps: bool
) -> None:
    killed = make_run(
        Troubled,
        Pool(2),
        name="killed",
        settings={"trouble": "die once", "mark": str(tmp_path / "mark"), "keeps": keeps},
    )
    killed.go()
    calm = make_run(Troubled, Inline(), name="calm", settings={"keeps": keeps})
    calm.go()
    assert (tmp_path / "mark").exists()
    assert failures_of(killed) == []
    assert result_of(killed.path) == result_of(calm.path)


class AllTroubled(Troubled):
    @client_step
    def train(self, me: Client) -> Fields:
        raise ValueError("wrong input size")


@pytest.mark.parametrize("kind", ["inline", "pool"])
def test_a_round_in_which_everyone_fails_ends_the_run_with_the_reason(make_run: MakeRun, kind: str) -> None:
    run = make_run(AllTroubled, engine_of(kind))
    with pytest.raises(RunError, match=r"every client failed.*wrong input size"):
        run.go()


class Stumbling(Method):
    """Steps of a few milliseconds; the last client hangs or dies in round 2."""

    name = "stumbling"
    Settings = TroubleSettings
    settings: TroubleSettings

    def declare(self) -> Declaration:
        return Declaration()

    @client_step
    def train(self, me: Client) -> Fields:
        time.sleep(0.004)
        me.memory["rounds"] = me.memory.get("rounds", 0) + 1
        if me.facts.index == 3 and me.moment.round == 2:
            if self.settings.trouble == "hang":
                time.sleep(60)
            os.kill(os.getpid(), signal.SIGKILL)
        return {}

    def round(self, t: int, fleet: Fleet, server: Server) -> None:
        fleet.ask(self.train, fleet.sample())


@pytest.mark.parametrize("trouble", ["hang", "die"])
def test_only_the_guilty_of_several_steps_that_travelled_together_is_blamed(
    make_run: MakeRun, trouble: str
) -> None:
    run = make_run(
        Stumbling,
        Pool(1, timeout=2.0 if trouble == "hang" else None),
        settings={"trouble": trouble},
        rounds=3,
    )
    run.go()
    assert [(failure["round"], failure["client"]) for failure in failures_of(run)] == [(2, "client-3")]
    assert {index: _memory_of(run, index)["rounds"] for index in range(4)} == {0: 3, 1: 3, 2: 3, 3: 2}


@pytest.mark.parametrize("engine", [Inline(live_bytes=1), Pool(2, live_bytes=1)])
def test_a_spill_that_fails_ends_the_run_and_is_no_clients_fault(make_run: MakeRun, engine: Engine) -> None:
    run = make_run("local", engine)
    run.open()
    (run.directory.scratch / "client-0.safetensors").mkdir()  # as a full disk would: it cannot be written
    with pytest.raises(RunError, match="cannot put the state of client-0 on disk"):
        run.go()
