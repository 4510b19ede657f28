"""SIGTERM ends a command within seconds wherever it is, and what it leaves goes on to the same result."""

from __future__ import annotations

import contextlib
import itertools
import multiprocessing
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.attacks.test_dying_workers import is_running
from tests.conftest import MakeRun

from polyfed import (
    Client,
    Declaration,
    Fields,
    Fleet,
    Method,
    MethodSettings,
    Server,
    client_step,
    learn,
    register,
)
from polyfed.cli import commands as cli
from polyfed.runs import rounds, signals
from polyfed.runs.manifest import read_manifest
from polyfed.testing import result_of

FORK = multiprocessing.get_context("fork")


class StuckSettings(MethodSettings):
    where: str = "nowhere"
    marks: str = ""


class Stuck(Method):
    """Gets stuck in some place, in round 3 unless it is before the first, and leaves a mark just before."""

    name = "stuck"
    Settings = StuckSettings
    settings: StuckSettings

    def declare(self) -> Declaration:
        return Declaration()

    def get_stuck(self) -> None:
        if Path(self.settings.marks, "free").exists():
            return
        Path(self.settings.marks, str(os.getpid())).touch()
        match self.settings.where:
            case "c":
                max(itertools.repeat(0))  # an operation in C that never ends and lets nobody else run
            case "deaf":
                while True:
                    with contextlib.suppress(BaseException):
                        time.sleep(600)
            case "stopped":
                os.kill(os.getpid(), signal.SIGSTOP)
            case _:
                time.sleep(600)

    def prepare(self, fleet: Fleet, server: Server) -> None:
        if self.settings.where == "prepare":
            self.get_stuck()

    @client_step
    def train(self, me: Client) -> Fields:
        learn.supervised(me.model, *me.tensors(me.train), self.training, me.rng("batches"))
        if me.round == 3 and me.facts.index == 1 and self.settings.where in ("step", "c", "deaf", "stopped"):
            self.get_stuck()
        return {}

    def round(self, t: int, fleet: Fleet, server: Server) -> None:
        fleet.ask(self.train, fleet.sample())
        if t == 3 and self.settings.where == "round":
            self.get_stuck()


class Command:
    """A command in a process of its own; what it says is in a file."""

    def __init__(self, folder: Path, *words: object) -> None:
        self.said = folder / "said"
        self.process = FORK.Process(target=self._main, args=([str(word) for word in words],))
        self.process.start()

    def _main(self, words: list[str]) -> None:
        with self.said.open("w") as file:
            for number in (1, 2):
                os.dup2(file.fileno(), number)
        sys.stdout, sys.stderr = os.fdopen(1, "w"), os.fdopen(2, "w")
        register(Stuck)
        signals.ROUND_SECONDS, signals.END_SECONDS, rounds.SAVING_SHARE = 0.5, 3.0, 0
        vars(rounds)["ROUND_SECONDS"] = 0.0
        sys.argv = ["polyfed", *words]
        cli.main()

    def ended(self) -> tuple[int | None, str]:
        """Its exit code and what it said."""
        self.process.join(60)
        code = self.process.exitcode
        self.process.kill()
        return code, self.said.read_text()

    def terminated_once_stuck(self, marks: Path, count: int = 1) -> tuple[int | None, str]:
        """The same, after SIGTERM came while it was stuck."""
        while len(list(marks.iterdir())) < count:
            assert self.process.is_alive(), self.said.read_text()
            time.sleep(0.02)
        self.process.terminate()
        return self.ended()


@pytest.fixture
def marks(tmp_path: Path) -> Path:
    (tmp_path / "marks").mkdir()
    return tmp_path / "marks"


@pytest.fixture
def file(tmp_path: Path, small: dict[str, Any], marks: Path) -> Path:
    method = {"name": "stuck", "marks": str(marks)}
    content = {**small, "method": method, "checkpoint_seconds": 1000, "rounds": 4}
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(content))
    return tmp_path / "run.yaml"


CASES = [
    ("step", "inline", 130),
    ("step", "pool", 130),
    ("prepare", "pool", 130),
    ("round", "inline", 130),
    ("stopped", "pool", 130),
    ("c", "inline", -signal.SIGKILL),
    ("deaf", "inline", -signal.SIGKILL),
]


@pytest.mark.parametrize(("where", "engine", "code"), CASES)
def test_a_run_that_is_stuck_ends_with_its_last_round_saved(
    tmp_path: Path, file: Path, marks: Path, where: str, engine: str, code: int
) -> None:
    workers = ["--engine", engine, "--workers", "1" if engine == "inline" else "2"]
    command = Command(
        tmp_path, "run", file, "--set", f"method.where={where}", "--out", tmp_path / "out", *workers
    )
    ended, said = command.terminated_once_stuck(marks)
    assert ended == code, said
    assert "polyfed resume" in said
    assert "Traceback" not in said
    assert read_manifest(tmp_path / "out")["round"] == (0 if where == "prepare" else 2)


def test_a_run_that_was_stuck_goes_on_to_the_same_result(tmp_path: Path, file: Path, marks: Path) -> None:
    run = ["run", file, "--set", "method.where=step", "--workers", "2", "--no-figure", "--out"]
    Command(tmp_path, *run, tmp_path / "out").terminated_once_stuck(marks)
    (marks / "free").touch()
    for words in (["resume", tmp_path / "out", "--no-figure"], [*run, tmp_path / "calm"]):
        code, said = Command(tmp_path, *words).ended()
        assert code == 0, said
    assert result_of(tmp_path / "out") == result_of(tmp_path / "calm")


def test_a_sweep_whose_runs_are_stuck_ends_with_all_its_processes(
    tmp_path: Path, file: Path, marks: Path
) -> None:
    words = ["sweep", file, "--seeds", 2, "--out", tmp_path / "swept", "--set", "method.where=deaf"]
    code, said = Command(tmp_path, *words, "--workers", "2").terminated_once_stuck(marks, 2)
    assert code == 130, said
    assert "the same command goes on" in said
    assert len(list(marks.iterdir())) == 2
    while any(is_running(int(mark.name)) for mark in marks.iterdir()):
        time.sleep(0.02)


def test_a_round_so_long_that_the_next_may_be_abandoned_is_saved_at_its_end(
    make_run: MakeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved: dict[float, list[int]] = {}
    for long in (0.0, 1000.0):
        monkeypatch.setattr(rounds, "ROUND_SECONDS", long)
        monkeypatch.setattr(rounds, "SAVING_SHARE", 0)
        run = make_run("local", checkpoint_seconds=1000)
        seen = saved[long] = []
        run.go(lambda now, seen=seen: seen.append(now.directory.manifest["round"]))  # type: ignore[misc]
    assert saved == {0.0: [1, 2, 3], 1000.0: [0, 0, 0]}
