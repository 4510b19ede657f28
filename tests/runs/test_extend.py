"""A run that has finished goes on to more rounds: it ends as if it had been to have so many from the start."""

from __future__ import annotations

import json
import multiprocessing
import os
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from tests.conftest import Command

import polyfed
from polyfed import disk
from polyfed.errors import ConfigError, UserError
from polyfed.runs.checkpoint import RunDirectory
from polyfed.runs.history import RunRecord
from polyfed.testing import result_of

fork = multiprocessing.get_context("fork")

# Whatever a method keeps: clients' models, memory, the server's; decay and momentum; another cohort each round.
CONFIGS: dict[str, dict[str, Any]] = {
    "local": {
        "method": "local",
        "training": {"epochs": 1, "batch": 16, "momentum": 0.9, "keep_optimiser": True, "decay": 0.9},
    },
    "fedavg": {
        "method": "fedavg",
        "cohort": {"count": 2},
        "training": {"epochs": 1, "batch": 16, "decay": 0.9},
    },
    "ktpfl": {"method": "ktpfl", "data": {"public": {"source": "share", "share": 0.2}}},
}


def config_of(small: dict[str, Any], kind: str, **changes: Any) -> dict[str, Any]:
    content = {**small, **CONFIGS[kind], **changes}
    content["data"] = {**small["data"], **CONFIGS[kind].get("data", {})}
    return content


def everything(path: Path) -> dict[str, Any]:
    """The result, and what else is in the directory, but for times."""
    summary = json.loads((path / "summary.json").read_text())
    del summary["seconds"]
    return {
        **result_of(path),
        "summary": summary,
        "files": sorted(str(file.relative_to(path)) for file in path.rglob("*") if file.suffix != ".tmp"),
        "config": (path / "config.yaml").read_text(),
        "data": (path / "data.json").read_text(),
        "assignment": (path / "assignment.json").read_text(),
    }


@pytest.mark.parametrize("kind", list(CONFIGS))
@pytest.mark.parametrize("workers", [1, 2])
def test_an_extended_run_equals_one_of_so_many_rounds_from_the_start(
    small: dict[str, Any], tmp_path: Path, kind: str, workers: int
) -> None:
    whole = polyfed.run(config_of(small, kind, rounds=5), out=tmp_path / "whole", workers=1)
    first = polyfed.run(config_of(small, kind, rounds=2), out=tmp_path / "part", workers=workers)
    assert first.summary["rounds"] == 2
    done = polyfed.resume(first.path, rounds=5, workers=workers)
    assert done.finished
    assert everything(done.path) == everything(whole.path)


def test_a_run_that_is_not_finished_is_extended_too_or_made_shorter(
    small: dict[str, Any], tmp_path: Path
) -> None:
    for rounds in (3, 6):
        whole = polyfed.run(small, rounds=rounds, out=tmp_path / f"whole-{rounds}", workers=1)
        part = polyfed.prepare(small, rounds=5, out=tmp_path / f"part-{rounds}", workers=1)
        part.go(lambda run: run.stop() if run.round == 2 else None)
        part.close()
        polyfed.resume(part.path, rounds=rounds, workers=1)
        assert everything(part.path) == everything(whole.path)


def test_the_old_last_round_stays_evaluated_and_training_is_the_same(
    small: dict[str, Any], tmp_path: Path
) -> None:
    small = {**small, "evaluate": {"every": 2}, "method": "fedavg"}
    whole = polyfed.run(small, rounds=6, out=tmp_path / "whole", workers=1)
    polyfed.run(small, rounds=3, out=tmp_path / "part", workers=1)
    done = polyfed.resume(tmp_path / "part", rounds=6, workers=1)
    expected, found = result_of(whole.path), result_of(done.path)
    for part in ("models", "states", "server state"):
        assert found[part] == expected[part]
    lines = {line["round"]: {**line, "bytes": None} for line in found["history"]}
    assert sorted(lines) == [2, 3, 4, 6]
    assert [lines[number] for number in (2, 4, 6)] == [
        {**line, "bytes": None} for line in expected["history"]
    ]


def test_too_few_rounds_are_one_line_and_nothing_is_touched(
    command: Command, small: dict[str, Any], tmp_path: Path
) -> None:
    polyfed.run(small, out=tmp_path / "run", workers=1)
    before = everything(tmp_path / "run")
    said = command("resume", "run", "--rounds", 2)
    assert (said.code, said.err) == (2, "polyfed: run has done 3 rounds already: give more than 3\n")
    said = command("resume", "run", "--rounds", 3, "--no-figure")
    assert said.code == 0
    assert "has finished already" in said.out
    assert everything(tmp_path / "run") == before


def test_the_command_extends_a_run(command: Command, small: dict[str, Any], tmp_path: Path) -> None:
    polyfed.run(small, out=tmp_path / "run", workers=1)
    said = command("resume", "run", "--rounds", 4, "--workers", 1)
    assert said.code == 0
    assert "round 4/4" in said.out
    assert RunRecord(tmp_path / "run").summary["rounds"] == 4
    assert yaml.safe_load((tmp_path / "run" / "config.yaml").read_text())["rounds"] == 4


def test_with_other_data_nothing_is_touched(small: dict[str, Any], tmp_path: Path) -> None:
    x, y = torch.randn(60, 1, 8, 8), torch.arange(60) % 3
    content = {"data": {"clients": 2}, "models": {"names": ["mlp-small"]}, "rounds": 1}
    done = polyfed.run(content, data=(x, y), out=tmp_path / "run", workers=1)
    before = everything(done.path)
    with pytest.raises(UserError, match="not those that"):
        polyfed.resume(done.path, data=(x + 1, y), rounds=3, workers=1)
    with pytest.raises(UserError, match="data="):
        polyfed.resume(done.path, rounds=3, workers=1)
    assert everything(done.path) == before
    assert polyfed.resume(done.path, data=(x, y), rounds=3, workers=1).round == 3


# -- killed in between -----------------------------------------------------------------------------------------


def die_at(step: int) -> None:
    """Let this process be killed before the `step`-th change that an extension makes to the directory."""
    changes = [0]

    def count() -> None:
        changes[0] += 1
        if changes[0] == step:
            os.kill(os.getpid(), signal.SIGKILL)

    replace, unlink, rename = disk.write_through, Path.unlink, Path.replace

    def counting_write(path: Path, data: bytes) -> None:
        count()
        replace(path, data)

    def counting_unlink(path: Path, missing_ok: bool = False) -> None:
        count()
        unlink(path, missing_ok)

    def counting_rename(path: Path, target: Path) -> Path:
        count()
        return rename(path, target)

    disk.write_through = counting_write
    Path.unlink = counting_unlink  # type: ignore[assignment, method-assign]
    Path.replace = counting_rename  # type: ignore[assignment, method-assign]


def extend(path: Path, rounds: int, step: int) -> None:
    torch.set_num_threads(1)
    die_at(step)
    directory = RunDirectory(path, new=False)
    directory.rewind()
    directory.set_rounds(rounds)
    os._exit(0)


def test_killed_at_any_step_of_an_extension_it_is_a_whole_run(small: dict[str, Any], tmp_path: Path) -> None:
    """`kill -9` before each change to the directory; then a plain resume, and then the extension again."""
    short, whole = (
        everything(polyfed.run(small, rounds=rounds, out=tmp_path / f"whole-{rounds}", workers=1).path)
        for rounds in (2, 4)
    )
    killed = 0
    for step in range(1, 30):
        path = shutil.copytree(tmp_path / "whole-2", tmp_path / f"run-{step}")
        process = fork.Process(target=extend, args=(path, 4, step))
        process.start()
        process.join()
        rounds = yaml.safe_load((path / "config.yaml").read_text())["rounds"]
        if process.exitcode == 0:
            assert rounds == 4
            break
        assert process.exitcode == -signal.SIGKILL
        killed += 1
        assert RunRecord(path).finished is False or RunRecord(path).summary["rounds"] == rounds
        polyfed.resume(path, workers=1)
        assert everything(path) == {2: short, 4: whole}[rounds]
        polyfed.resume(path, rounds=4, workers=1)
        assert everything(path) == whole
    assert killed >= 5


def test_extended_twice_without_a_round_in_between_it_can_be_killed_in_the_second(
    small: dict[str, Any], tmp_path: Path
) -> None:
    """The first extension was killed before its first round; the second between manifest and config."""
    path = polyfed.run(small, rounds=2, out=tmp_path / "run", workers=1).path
    for rounds, step in ((4, 1000), (5, 3)):
        process = fork.Process(target=extend, args=(path, rounds, step))
        process.start()
        process.join()
    assert process.exitcode == -signal.SIGKILL
    whole = polyfed.run(small, rounds=4, out=tmp_path / "whole", workers=1)
    polyfed.resume(path, workers=1)
    assert everything(path) == everything(whole.path)


def go_on(path: Path) -> None:
    torch.set_num_threads(1)
    polyfed.resume(path, rounds=40, workers=1)


@pytest.mark.slow
def test_killed_during_the_added_rounds_it_goes_on(small: dict[str, Any], tmp_path: Path) -> None:
    whole = polyfed.run(small, rounds=40, out=tmp_path / "whole", workers=1)
    path = polyfed.run(small, rounds=2, out=tmp_path / "run", workers=1).path
    for seconds in (0.2, 0.3, 0.4, 0.5):
        process = fork.Process(target=go_on, args=(path,))
        process.start()
        process.join(seconds)
        process.kill()
        process.join()
    polyfed.resume(path, rounds=40, workers=1)
    assert everything(path) == everything(whole.path)


def test_rounds_must_be_a_number_above_what_is_done_also_from_python(
    small: dict[str, Any], tmp_path: Path
) -> None:
    done = polyfed.run(small, out=tmp_path / "run", workers=1)
    with pytest.raises(ConfigError, match="has done 3 rounds already: give more than 3"):
        polyfed.resume(done.path, rounds=1)
