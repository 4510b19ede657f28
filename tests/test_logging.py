"""What is logged: with -v all that happens; without it nothing but warnings."""

from __future__ import annotations

import logging
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.conftest import MakeRun
from torch import nn

import polyfed
from polyfed import Client, Declaration, Fields, Fleet, Method, Server, client_step, data
from polyfed.engines import Pool


def told(caplog: pytest.LogCaptureFixture) -> str:
    return "\n".join(caplog.messages)


@pytest.fixture(autouse=True)
def _everything(caplog: pytest.LogCaptureFixture) -> None:
    for name in ("polyfed", "polyfed.data"):  # a command that was tried before may have set both
        caplog.set_level(logging.DEBUG, logger=name)


def test_a_run_tells_of_its_set_up_rounds_evaluations_and_checkpoints(
    make_run: MakeRun, caplog: pytest.LogCaptureFixture
) -> None:
    run = make_run("local", rounds=2, evaluate={"every": 2})
    run.go()
    said = told(caplog)
    for part in (
        r"digits: 10 classes; 4 clients train on \d+ to \d+ rows each, \d+ in all; public: none",
        r"local with 4 × mlp-small; 10 outputs, stack \d, on cpu, seed 0",
        r"inline: every step in this process",
        r"round 1: learnt in [\d.]+ s, not evaluated",
        r"round 2: learnt in [\d.]+ s, evaluated 4 clients in [\d.]+ s",
        r"checkpoint after round 2: the server's state and 4 more, \d+\.\d kB, in [\d.]+ s",
    ):
        assert re.search(part, said), part


def test_going_on_is_told(make_run: MakeRun, caplog: pytest.LogCaptureFixture) -> None:
    run = make_run("local", rounds=2)
    run.go(lambda now: now.stop())
    run.close()
    polyfed.resume(run.path, workers=1)
    assert f"{run.path}: going on after round 1 of 2" in told(caplog)


def test_the_cache_is_told_of(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(2):
        data.load("digits", limit=20, cache_dir=tmp_path)
    said = told(caplog)
    assert f"digits: 20 rows, now in the cache {tmp_path}" in said
    assert f"digits: 20 rows, from the cache {tmp_path}" in said


def test_where_files_were_found_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = tmp_path / "mine.csv"
    file.write_text("a,label\n1,x\n2,y\n")
    data.load(file)
    assert f"train split: found in {file}" in told(caplog)


def test_what_a_trial_decided_is_told(
    tmp_path: Path, small: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    def net() -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))

    polyfed.prepare(small, models={"net": net}, out=tmp_path / "out", workers=1).close()
    assert re.search(r"net, by a trial: channels-last (True|False), stacked (True|False)", told(caplog))


class Dying(Method):
    """Client 1 fails; in round 2 its worker is killed."""

    name = "dying"

    def declare(self) -> Declaration:
        return Declaration(keeps=frozenset())

    @client_step
    def train(self, me: Client) -> Fields:
        if me.facts.index == 1:
            if me.round == 2:
                os.kill(os.getpid(), signal.SIGKILL)
            raise ValueError("no luck")
        return {}

    def round(self, t: int, fleet: Fleet, server: Server) -> None:
        fleet.ask(self.train, fleet.sample())


def test_workers_that_die_and_steps_that_fail_are_told(
    make_run: MakeRun, caplog: pytest.LogCaptureFixture
) -> None:
    make_run(Dying, Pool(2, start_method="fork"), rounds=2).go()
    said = told(caplog)
    assert "pool: 2 workers, started by fork" in said
    assert re.search(r"round 1: client-1 failed in step 'train': ValueError: no luck", said)
    assert re.search(r"worker \d, in round 2, step train: .*SIGKILL.*; another was started", said)


@pytest.mark.slow
def test_only_with_v_is_it_seen(tmp_path: Path, small: dict[str, Any]) -> None:
    (tmp_path / "small.yaml").write_text(yaml.safe_dump(small))

    def stderr(*words: str) -> str:
        command = [sys.executable, "-m", "polyfed", *words, "--workers", "1"]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
        return done.stderr

    lines = stderr("-v", "run", "small.yaml").splitlines()
    assert [line for line in lines if not re.match(r"[\d-]{10} [\d:,]+ (DEBUG|INFO) ", line)] == []
    assert any("checkpoint after round 3" in line for line in lines)
    assert stderr("run", "small.yaml") == ""
