"""Failed clients, folded: who, where, how often and why in a few lines; and as a warning in Python."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.conftest import MakeRun
from tests.engines.test_tracebacks import Buggy, place
from torch import Tensor, nn

import polyfed
from polyfed import ClientFailure
from polyfed.runs.failures import MOST_REASONS, failed_steps, failure_lines, failures_in_a_line
from polyfed.runs.history import RunRecord


def line(number: int, *failures: tuple[str, str, str]) -> dict[str, Any]:
    """A line of a history: client, step and reason of each failure."""
    keys = ("client", "step", "reason")
    return {"round": number, "failures": [dict(zip(keys, failure, strict=True)) for failure in failures]}


def words(*lines: dict[str, Any]) -> list[str]:
    return [failed.words(8) for failed in failed_steps(lines)]


def test_the_same_reason_is_told_once() -> None:
    lines = [line(number, ("b", "train", "boom"), ("a", "train", "boom")) for number in range(1, 11)]
    assert words(*lines) == ["2 of 8 clients (b, a) failed in step 'train', rounds 1–10, 20 times: boom"]


def test_the_most_frequent_comes_first_and_steps_are_told_apart() -> None:
    found = words(
        line(1, ("a", "train", "boom"), ("b", "distil", "boom")),
        {"round": 2},
        line(3, ("b", "distil", "boom")),
    )
    assert found == [
        "1 of 8 clients (b) failed in step 'distil', rounds 1, 3, 2 times: boom",
        "1 of 8 clients (a) failed in step 'train', round 1: boom",
    ]


def test_reasons_that_differ_in_numbers_alone_are_folded_but_not_places() -> None:
    same = words(line(1, ("a", "train", "loss is 3.5 (my.py:7)"), ("b", "train", "loss is 1e+20 (my.py:7)")))
    assert same == [
        "2 of 8 clients (a, b) failed in step 'train', round 1: loss is 3.5 (my.py:7) (and alike)"
    ]
    other = words(line(1, ("a", "train", "KeyError (my.py:7)"), ("b", "train", "KeyError (my.py:9)")))
    assert len(other) == 2


def test_many_clients_and_many_rounds_are_abridged() -> None:
    lines = [line(number, (f"c{number}", "train", "boom")) for number in range(1, 20, 2)]
    assert words(*lines) == [
        "10 of 8 clients (c1, c3, c5, …) failed in step 'train', 10 rounds between 1 and 19: boom"
    ]


def test_what_fails_before_the_first_round_is_said_so() -> None:
    assert "before the first round: boom" in words(line(0, ("a", "train", "boom")))[0]
    both = words(line(0, ("a", "train", "boom")), line(1, ("a", "train", "boom")))[0]
    assert "before the first round and round 1, 2 times: boom" in both


def test_of_many_reasons_the_most_frequent_are_told(tmp_path: Path) -> None:
    many = failed_steps([line(1, *(("a", "train", "x" * number) for number in range(1, 9)))])
    lines = failure_lines(many, 8, tmp_path)
    assert len(lines) == MOST_REASONS + 2
    assert lines[-2] == "and 3 other reasons, 3 times"
    assert lines[-1] == f"all are in {tmp_path / 'history.jsonl'}"
    assert "\n" not in failures_in_a_line(many, 8, tmp_path)
    assert "; and 7 other reasons; all are in" in failures_in_a_line(many, 8, tmp_path)


def test_a_record_tells_what_failed_and_where_the_tracebacks_are(make_run: MakeRun) -> None:
    run = make_run(Buggy, rounds=2)
    run.go()
    told, log = RunRecord(run.path).failure_lines
    assert told == (
        "1 of 4 clients (client-1) failed in step 'train', rounds 1–2, 2 times:"
        f" KeyError: 'missing' ({place()})"
    )
    assert log == f"tracebacks are in {run.path / 'failures.log'}"
    fine = make_run("local", rounds=1)
    fine.go()
    assert RunRecord(fine.path).failure_lines == []


# -- in Python -----------------------------------------------------------------------------------------------


class Fine(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.out(x.flatten(1))
        return logits


class RaisesInTraining(Fine):
    def forward(self, x: Tensor) -> Tensor:
        if self.training and torch.is_grad_enabled():
            raise RuntimeError("no [training] for me")
        return super().forward(x)


def test_a_run_that_ends_with_failures_warns_in_one_line(tmp_path: Path, small: dict[str, Any]) -> None:
    small |= {"models": {}, "method": "local", "stack": 1}
    with pytest.warns(ClientFailure) as caught:
        done = polyfed.run(
            small, models={"fine": Fine, "raises": RaisesInTraining}, out=tmp_path / "run", workers=1
        )
    (warning,) = caught
    assert warning.filename == __file__  # where `run` was called
    text = str(warning.message)
    assert text.startswith("2 of 4 clients (client-1, client-3) failed in step 'train', rounds 1–3, 6 times")
    assert f"RuntimeError: no [training] for me ({Path(__file__).name}:" in text
    assert text.endswith(f"tracebacks are in {done.path / 'failures.log'}")
    assert "\n" not in text
    assert done.finished


def test_a_run_that_is_resumed_warns_of_what_failed_before_too(tmp_path: Path, small: dict[str, Any]) -> None:
    small |= {"models": {}, "method": "local", "stack": 1}
    models = {"fine": Fine, "raises": RaisesInTraining}
    with pytest.warns(ClientFailure, match="round 1, 2 times|round 1: "):
        polyfed.run(small, models=models, out=tmp_path / "run", workers=1, listener=lambda now: now.stop())
    with pytest.warns(ClientFailure, match="rounds 1–3, 6 times"):
        polyfed.resume(tmp_path / "run", models=models, workers=1)


def test_a_run_without_failures_does_not_warn(tmp_path: Path, small: dict[str, Any]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        polyfed.run(small, rounds=1, out=tmp_path / "run", workers=1)
