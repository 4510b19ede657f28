"""Weights that are no longer finite: the client is named, when it happens and at the end, and so is what to lower."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.conftest import Command, MakeRun
from torch import nn

import polyfed
from polyfed import Client, Fields, Method, client_step
from polyfed.engines import Inline, Pool
from polyfed.errors import CheckpointError, ClientFailure
from polyfed.methods import local_training
from polyfed.methods.local import Local
from polyfed.report.tables import result_table
from polyfed.runs.history import RunRecord

REASON = "its weights are no longer finite, training diverged: lower training.lr (0.1)"


def diverging(client: int, begin: int) -> type[Method]:
    """Every client alone; the weights of one are not finite from some round on."""

    class Diverging(Local):
        name = "diverging"

        @client_step
        def train(self, me: Client) -> Fields:
            local_training.train(me)
            if me.facts.index == client and me.round >= begin:
                next(me.model.parameters()).data.fill_(float("inf"))
            return {}

    return Diverging


@pytest.mark.parametrize("engine", [Inline(), Pool(2)], ids=["inline", "pool"])
def test_a_client_that_diverges_is_named_in_the_round_and_in_the_table(
    make_run: MakeRun, engine: Any
) -> None:
    run = make_run(diverging(1, 2), engine)
    run.go()
    lines = list(RunRecord(run.path).history)
    found = {line["round"]: [each["client"] for each in line.get("failures", ())] for line in lines}
    assert found == {1: [], 2: ["client-1"], 3: ["client-1"]}
    assert REASON in lines[1]["failures"][0]["reason"]
    assert run.summary["diverged"] == ["client-1"]
    rows = result_table(RunRecord(run.path), None).columns
    shown = dict(zip(rows[0]._cells, rows[1]._cells, strict=True))
    assert shown["diverged (weights not finite)"] == "client-1"
    # It has the weights of its last round that was one.
    assert run.summary.get("missing") is None
    model = polyfed.load_model(run.path, "client-1")
    assert all(bool(torch.isfinite(tensor).all()) for tensor in model.state_dict().values())


def test_a_final_model_that_is_missing_since_its_client_diverged_is_said_to_be_so(make_run: MakeRun) -> None:
    run = make_run(diverging(2, 1))
    run.go()
    assert list(run.summary["missing"]) == ["client-2"]
    with pytest.raises(
        CheckpointError, match=r"client-2 has no final model in .*: it failed: .*no longer finite"
    ):
        polyfed.load_model(run.path, "client-2")


def test_a_mask_of_minus_infinity_is_not_divergence(small: dict[str, Any], tmp_path: Path) -> None:
    class Masked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(64, 10)
            self.register_buffer("mask", torch.full((3,), -torch.inf), persistent=False)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            out: torch.Tensor = self.layer(x.flatten(1))
            return out

    small.pop("models")
    done = polyfed.run({**small, "method": "local"}, models=[Masked], out=tmp_path / "run", workers=1)
    assert done.summary["failures"] == 0


def test_polyfed_run_warns_of_a_client_that_diverged(
    small: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Local, "train", vars(diverging(1, 2))["train"])
    with pytest.warns(ClientFailure, match=r"client-1\) failed .* training diverged: lower training\.lr"):
        polyfed.run({**small, "method": "local"}, out=tmp_path / "run", workers=1)


def test_where_no_model_is_finite_the_command_ends_with_exit_code_1(command: Command) -> None:
    command("new", "a.yaml")
    said = command(
        *("run", "a.yaml", "--set", "method=local", "--set", "training.lr=1e30", "--set", "data.limit=200"),
    )
    assert said.code == 1
    assert said.err.count("\n") == 1
    assert "every client failed" in said.err
    assert "lower training.lr (1e+30)" in said.err


def test_a_run_in_which_some_diverge_says_so_at_its_end(command: Command) -> None:
    command("new", "a.yaml")
    said = command(
        *(
            "run",
            "a.yaml",
            "--set",
            "method=local",
            "--set",
            "training.lr=30",
            "--set",
            "training.momentum=0.9",
        ),
        *("--set", "rounds=2", "--set", "models.names=cnn", "--set", "seed=0"),
    )
    assert said.code == 0
    failed = json.loads(Path("polyfed-runs/run/summary.json").read_text())["diverged"]
    assert f"failed ({failed[0]}" in said.out + said.err
    assert "its weights are no longer finite, training diverged: lower training.lr (30)" in said.out
