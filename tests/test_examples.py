"""The examples run as they stand, in seconds, and say of themselves what is true."""

from __future__ import annotations

import csv
import os
import runpy
import shutil
import signal
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from pathlib import Path

import pytest
from tests.conftest import Command

import polyfed
from polyfed import plug_ins
from polyfed.federation.method import registered
from polyfed.runs.checkpoint import read_lines
from polyfed.testing import check_method, result_of

EXAMPLES = Path(__file__).parents[1] / "examples"
FILES = [path for path in sorted(EXAMPLES.glob("*/*")) if path.suffix in (".py", ".yaml")]


@pytest.fixture(params=["hospitals"])
def folder(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return begun(request.param, tmp_path, monkeypatch)


def begun(example: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of an example's folder, as the current one, with the files that its first script writes."""
    plug_ins.named_function.cache_clear()
    for file in (EXAMPLES / example).iterdir():
        shutil.copy(file, tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    runpy.run_path(next(tmp_path.glob("make_*.py")).name, run_name="__main__")
    return tmp_path


def reached(results: Path, column: str) -> dict[str, float]:
    """What each variant of a sweep reached at the last round, mean over seeds, in per cent."""
    found: defaultdict[str, list[float]] = defaultdict(list)
    with results.open() as file:
        for row in csv.DictReader(file):
            found[row["variant"]].append(100 * float(row[column]))
    return {name: statistics.fmean(values) for name, values in found.items()}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_an_example_has_at_most_forty_lines(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= 40


@pytest.mark.slow
def test_three_hospitals_lose_nothing_by_each_other(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """None of the methods is below local training by more than the noise of two seeds (of five: examples/README.md)."""
    begun("hospitals", tmp_path, monkeypatch)
    assert command("sweep", "hospitals.yaml", "--seeds", 2, "--out", "sweep").code == 0
    own = reached(Path("sweep/results.csv"), "own_last")
    assert set(own) == {"local", "fedmd", "fedavg", "fedh2l", "fedkem"}
    assert min(own["fedmd"], own["fedh2l"], own["fedkem"]) > own["local"] - 1
    assert own["fedavg"] > own["local"] - 2  # in groups of one: local training from other initial weights


@pytest.mark.slow
def test_hospitals_learn_of_classes_that_they_have_not(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun("scans", tmp_path, monkeypatch)
    assert command("sweep", "scans.yaml", "--seeds", 1, "--out", "sweep").code == 0
    everything = reached(Path("sweep/results.csv"), "whole_last")
    assert everything["fedmd"] > everything["local"] + 30
    assert everything["fedavg"] > everything["local"] + 15
    own = reached(Path("sweep/results.csv"), "own_last")
    assert own["fedkem"] > own["local"] - 1 and own["fedmd"] > own["local"] - 2


def test_the_same_federation_from_python(
    folder: Path, command: Command, capsys: pytest.CaptureFixture[str]
) -> None:
    """Arrays and functions give what files and names give, client by client, round by round."""
    runpy.run_path("from_python.py", run_name="__main__")
    local, fedmd, classes = capsys.readouterr().out.splitlines()
    assert local.startswith("local: 9") and fedmd.startswith("fedmd: 9")
    assert classes.count("malignant") + classes.count("benign") == 3
    for method, by_python in (("local", "run"), ("fedmd", "run-2")):
        assert command("run", "hospitals.yaml", "--set", f"method={method}", "--out", method).code == 0
        lines = [
            list(read_lines(run / "history.jsonl")) for run in (Path(method), Path("polyfed-runs", by_python))
        ]
        assert len(lines[0]) >= 10
        for one, other in zip(*lines, strict=True):
            assert all(one.get(key) == other.get(key) for key in ("clients", "server", "bytes"))


def test_it_is_killed_and_resumed_with_the_same_bits(folder: Path, command: Command) -> None:
    sets = ("--set", "method=fedmd", "--set", "rounds=30", "--set", "checkpoint_seconds=0", "--workers", "2")
    words = [sys.executable, "-m", "polyfed", "run", "hospitals.yaml", *sets]
    killed = subprocess.Popen([*words, "--out", "killed"], stdout=subprocess.DEVNULL, env=dict(os.environ))
    deadline = time.monotonic() + 60
    while not list(folder.glob("killed/states/server.?.safetensors")) and time.monotonic() < deadline:
        time.sleep(0.01)
    killed.send_signal(signal.SIGKILL)
    assert killed.wait() == -signal.SIGKILL
    assert not (folder / "killed" / "summary.json").exists()
    said = command("resume", "killed", "--trust", "hospital_models")
    assert said.code == 0, said.err
    assert command(*words[3:], "--out", "whole").code == 0
    assert result_of(folder / "killed") == result_of(folder / "whole")


def test_predictions_are_made_in_the_hospitals_own_units(folder: Path, command: Command) -> None:
    trust = ("--trust", "hospital_models")
    assert command("run", "hospitals.yaml", "--set", "method=fedmd", "--out", "run", "--workers", 1).code == 0
    for name, file in (("north", "north.csv"), ("south", "south.csv"), ("west", "west/test.parquet")):
        said = command("predict", "run", file, "--client", name, *trust)
        assert said.code == 0 and float(said.err.split()[1]) > 85
    said = command("predict", "run", "north.csv", "--client", "server")
    assert said.code == 2 and "--as north" in said.err
    assert command("predict", "run", "north.csv", "--client", "server", "--as", "north").code == 0
    assert command("compare", "run").code == 0


@pytest.mark.slow
@pytest.mark.parametrize("method", ["local", "fedmd", "fedh2l", "fedkem"])
def test_methods_keep_their_contract_on_it(folder: Path, method: str) -> None:
    from polyfed.runs.config import read_content

    content = read_content(Path("hospitals.yaml"))
    config = {key: content[key] for key in ("data", "models")}
    check_method(registered()[method], config=config)


def test_a_checked_method_may_be_given_data_and_models_of_ones_own(folder: Path) -> None:
    example = runpy.run_path("from_python.py")
    check_method(
        polyfed.methods.DSFL,
        config={**example["settings"], "rounds": 3},
        data=example["holdings"],
        models=example["models"],
    )
