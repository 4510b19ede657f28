"""A run goes on only with the data that it began with: those learnt from, those tested on, the public ones."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.conftest import SMALL

import polyfed
from polyfed.errors import ConfigError, RunError
from polyfed.runs.history import RunRecord
from polyfed.runs.manifest import other_data, read_manifest, seal


def rows(seed: int, count: int = 80) -> tuple[torch.Tensor, torch.Tensor]:
    draw = torch.Generator().manual_seed(seed)
    return torch.rand(count, 1, 8, 8, generator=draw), torch.arange(count) % 4


def write(path: Path, seed: int) -> Path:
    x, y = rows(seed)
    np.savez(path, x=(x * 255).to(torch.uint8).permute(0, 2, 3, 1).numpy(), y=y.numpy())
    return path


def stopped(path: Path, **settings: Any) -> Path:
    content = {**SMALL, "data": {"clients": 2, **settings.pop("section", {})}, "method": "local"}
    run = polyfed.prepare(content, out=path, workers=1, **settings)
    run.go(lambda now: now.stop())
    run.close()
    return path


@pytest.mark.parametrize("part", ["training", "test"])
def test_a_run_is_not_resumed_with_other_rows_to_learn_from_or_to_test_on(tmp_path: Path, part: str) -> None:
    data = {"train": rows(1), "test": rows(2, 40)}
    path = stopped(tmp_path / "run", data=data)
    other = {**data, "train" if part == "training" else "test": rows(3, 80 if part == "training" else 40)}
    with pytest.raises(RunError, match=rf"not those that .* began with \({part}"):
        polyfed.resume(path, data=other, workers=1)
    assert polyfed.resume(path, data=data, workers=1).finished


def test_a_run_is_not_resumed_with_another_public_set(tmp_path: Path) -> None:
    public = write(tmp_path / "public.npz", 1)
    section = {"public": {"source": str(public), "classes": "other"}}
    path = stopped(tmp_path / "run", data=rows(2), section=section)
    write(public, 3)
    with pytest.raises(RunError, match=r"not those that .* began with \(public\)"):
        polyfed.resume(path, data=rows(2), workers=1)
    write(public, 1)
    assert polyfed.resume(path, data=rows(2), workers=1).finished


@pytest.mark.parametrize(
    ("there", "here", "words"),
    [
        ({"a": "1", "b": "2"}, {"b": "2", "a": "1"}, ""),
        ({"training": "1", "test": "2"}, {"training": "1", "test": "3"}, "test"),
        ({"north": "1", "south": "2"}, {"north": "3", "south": "4"}, "north and south"),
        ({"north": "1"}, {"north": "1", "west": "2"}, "west"),
        ({"north": "1", "west": "2"}, {"north": "1"}, "west"),
        ({str(n): "" for n in range(20)}, {}, " and ".join([*map(str, range(8)), "12 more"])),
    ],
)
def test_fingerprints_say_which_data_are_others(
    there: dict[str, str], here: dict[str, str], words: str
) -> None:
    assert other_data(there, here) == words


def test_runs_on_other_test_rows_are_not_compared(tmp_path: Path) -> None:
    train = rows(1)
    records = []
    for seed in (2, 3):
        data = {"train": train, "test": rows(seed, 40)}
        content = {**SMALL, "rounds": 1, "data": {"clients": 2}, "method": "local"}
        records.append(RunRecord(polyfed.run(content, data=data, out=tmp_path / str(seed), workers=1).path))
    assert records[0].differences(records[1]) == ["other data"]
    assert records[0].differences(records[0]) == []


def test_a_sweep_is_not_gone_on_with_over_other_test_rows(tmp_path: Path) -> None:
    content = {**SMALL, "rounds": 1, "data": {"clients": 2}, "method": "local"}
    data = {"train": rows(1), "test": rows(2, 40)}
    polyfed.sweep(content, {}, data=data, out=tmp_path / "sweep", workers=1)
    with pytest.raises(ConfigError, match="holds another sweep, data is"):
        polyfed.sweep(content, {}, data={**data, "test": rows(3, 40)}, out=tmp_path / "sweep", workers=1)


def test_another_version_of_torch_is_said_in_one_line_and_the_run_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = stopped(tmp_path / "run", data=rows(1))
    with caplog.at_level(logging.WARNING):
        polyfed.prepare(SMALL, out=tmp_path / "other", workers=1).close()
        assert not [line for line in caplog.messages if "torch" in line]
        manifest = {**read_manifest(path), "torch": "1.0.0"}
        (path / "manifest.json").write_text(json.dumps({**manifest, "digest": seal(manifest)}))
        assert polyfed.resume(path, data=rows(1), workers=1).finished
    (line,) = [line for line in caplog.messages if "torch" in line]
    assert line == (
        f"{path} was begun with torch 1.0.0 and goes on with torch {torch.__version__}:"
        " results may differ in the last bits"
    )
