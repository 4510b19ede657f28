"""The examples run as they stand, in seconds, and say of themselves what is true."""

from __future__ import annotations

import csv
import os
import re
import runpy
import shutil
import signal
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.csv
import pytest
from tests.conftest import Command

import polyfed
from polyfed import plug_ins
from polyfed.federation.method import registered
from polyfed.runs.checkpoint import read_lines
from polyfed.runs.config import read_content
from polyfed.runs.history import RunRecord
from polyfed.testing import check_method, result_of

EXAMPLES = Path(__file__).parents[1] / "examples"
FILES = [path for path in sorted(EXAMPLES.glob("*/*")) if path.suffix in (".py", ".yaml")]
CHECKED = ("task", "data", "models", "training")  # of a run file, on which the contract is tried


@dataclass(frozen=True)
class Example:
    """How the tests run one of the federations of CSV files."""

    settings: tuple[str, ...]
    client: str
    """Whose model is asked, and of which file."""
    at_least: float
    """What it says of that file, as far as the task measures it; at most, where less is better."""
    label: tuple[str, ...]
    methods: tuple[str, ...]
    """Which are held to the contract on it."""
    trust: tuple[str, ...] = ()

    def sets(self) -> list[str]:
        return [word for setting in self.settings for word in ("--set", setting)]


OF_CSV = {
    "attributes": Example(
        ("method=fedmd",), "harbour", 85, ("loop", "straight", "even", "large"), ("dsfl", "fedmd")
    ),
    "diabetes": Example(("method=fedavg",), "plain", 65, ("progression",), ("fedavg", "feddf")),
    "heads": Example(
        ("models.names=head_models:low_rank",),
        "market",
        80,
        ("digit",),
        ("fedavg",),
        ("--trust", "head_models"),
    ),
    "messages": Example(
        ("method={name: fedmd, distil: {optimiser: adam, lr: 0.01}}",),
        "second",
        50,
        ("topic",),
        ("fedmd",),
        ("--trust", "message_models"),
    ),
    "screening": Example(
        ("task.class_weights=balanced", "evaluate.patience=5"), "west", 80, ("finding",), ("fedavg",)
    ),
}


@pytest.fixture(params=["hospitals"])
def folder(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return begun(request.param, tmp_path, monkeypatch)


def begun(example: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of an example's folder, as the current one, with the files that its first script writes."""
    plug_ins.named_function.cache_clear()
    for file in FILES:
        if file.parent.name == example:
            shutil.copy(file, tmp_path)
            monkeypatch.delitem(sys.modules, file.stem, raising=False)  # another copy's
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    runpy.run_path(next(tmp_path.glob("make_*.py")).name, run_name="__main__")
    return tmp_path


def reached(results: Path, column: str, times: float = 100) -> dict[str, float]:
    """What each variant of a sweep reached at the last round, mean over seeds; in per cent, as it stands with 1."""
    found: defaultdict[str, list[float]] = defaultdict(list)
    with results.open() as file:
        for row in csv.DictReader(file):
            found[row["variant"]].append(times * float(row[column]))
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


@pytest.mark.evidence
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


OF_EVIDENCE = [pytest.param(name, marks=pytest.mark.evidence) for name in OF_CSV if name != "screening"]
SOME_AND_ALL = ["screening", *OF_EVIDENCE]
"""One of the CSV examples in `make test`, the others in the evidence."""


@pytest.mark.parametrize("name", ["hospitals", *SOME_AND_ALL])
def test_it_is_killed_and_resumed_with_the_same_bits(
    name: str, command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = begun(name, tmp_path, monkeypatch)
    example = OF_CSV.get(name)
    sets = ["--set", "method=fedmd"] if example is None else example.sets()
    rounds = "rounds=30" if example is None else "rounds=10"
    more = ("--set", rounds, "--set", "checkpoint_seconds=0", "--workers", "2")
    words = [sys.executable, "-m", "polyfed", "run", f"{name}.yaml", *sets, *more]
    killed = subprocess.Popen([*words, "--out", "killed"], stdout=subprocess.DEVNULL, env=dict(os.environ))
    deadline = time.monotonic() + 60
    while not list(folder.glob("killed/states/server.?.safetensors")) and time.monotonic() < deadline:
        time.sleep(0.01)
    killed.send_signal(signal.SIGKILL)
    assert killed.wait() == -signal.SIGKILL
    assert not (folder / "killed" / "summary.json").exists()
    trust = ("--trust", "hospital_models") if example is None else example.trust
    said = command("resume", "killed", *trust)
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


@pytest.mark.evidence
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


@pytest.mark.slow
@pytest.mark.parametrize("name", SOME_AND_ALL)
def test_a_client_is_asked_runs_are_compared_and_a_second_one_starts_where_the_first_ended(
    name: str, command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun(name, tmp_path, monkeypatch)
    example = OF_CSV[name]
    words = ("run", f"{name}.yaml", *example.sets(), "--workers", 1, "--no-figure")
    assert command(*words, "--out", "run").code == 0
    said = command("predict", "run", f"{example.client}.csv", "--client", example.client, *example.trust)
    assert said.code == 0, said.err
    found = re.search(r"\d+\.\d+", said.err)
    assert found
    assert is_better(name, float(found[0]), example.at_least)
    warm = command(*words, "--out", "warm", "--set", "models.init=run")
    assert warm.code == 0, warm.err
    assert command("compare", "run", "warm").code == 0
    cold, started = (first_of(Path(path)) for path in ("run", "warm"))
    assert cold["round"] == started["round"]
    assert is_better(name, started["summary"]["own"]["mean"], cold["summary"]["own"]["mean"])


@pytest.mark.slow
@pytest.mark.parametrize("name", SOME_AND_ALL)
def test_arrays_give_what_files_give(
    name: str, command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Client by client, round by round; without the server's test set, which is a file."""
    begun(name, tmp_path, monkeypatch)
    example = OF_CSV[name]
    short = ["--set", "rounds=3", "--set", "data.test_set=null", "--workers", "1"]
    assert command("run", f"{name}.yaml", *example.sets(), *short, "--out", "files").code == 0
    content = RunRecord(Path("files")).config
    holdings = {client: arrays(Path(f"{client}.csv"), example) for client in content["data"].pop("clients")}
    content["data"].pop("label")
    done = polyfed.run(content, data=holdings, workers=1, out="arrays")
    by_files, by_arrays = (list(read_lines(path / "history.jsonl")) for path in (Path("files"), done.path))
    assert len(by_files) >= 2
    for one, other in zip(by_files, by_arrays, strict=True):
        assert all(one.get(key) == other.get(key) for key in ("clients", "server", "bytes"))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "method"), [(name, method) for name, example in OF_CSV.items() for method in example.methods]
)
@pytest.mark.evidence
def test_methods_keep_their_contract_on_the_task(
    name: str, method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun(name, tmp_path, monkeypatch)
    content = read_content(Path(f"{name}.yaml"))
    config: dict[str, Any] = {key: content[key] for key in content if key in CHECKED}
    if (
        name == "screening"
    ):  # as many ill as healthy: the contract asks for more right answers than a guess has
        config["data"] = {"source": "north.csv", "label": "finding", "per_class": 55, "clients": 2}
        config["training"] = {"epochs": 20, "batch": 8, "lr": 0.1}
    check_method(registered()[method], config=config)


def is_better(name: str, one: float, other: float) -> bool:
    return one < other if name == "diabetes" else one > other


def first_of(run: Path) -> dict[str, Any]:
    """The first round at which its clients were scored; what FedMD does before the first one has no summary."""
    return next(line for line in read_lines(run / "history.jsonl") if "summary" in line)


def arrays(file: Path, example: Example) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """What a client's file has, with the columns in the order of their names' client."""
    table = pyarrow.csv.read_csv(file)
    first = pyarrow.csv.read_csv(sorted(file.parent.glob("*.csv"))[0])
    names = [column for column in first.column_names if column not in example.label]
    label = np.stack([table[word].to_numpy() for word in example.label], axis=1)
    return np.stack([table[column].to_numpy() for column in names], axis=1), (
        label if len(example.label) > 1 else label[:, 0]
    )


def swept(name: str, seeds: int, command: Command, tmp_path: Path, patch: pytest.MonkeyPatch) -> Path:
    begun(name, tmp_path, patch)
    said = command("sweep", f"{name}.yaml", "--seeds", seeds, "--out", "sweep")
    assert said.code == 0, said.err
    return Path("sweep/results.csv")


def ended_early(results: Path, rounds: int) -> bool:
    return min(reached(results, "rounds", 1).values()) < rounds


@pytest.mark.slow
def test_clinics_tell_more_together(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    results = swept("diabetes", 3, command, tmp_path, monkeypatch)
    points = reached(results, "own_last", 1)
    assert points["fedavg"] < points["local"] and points["fedmd"] < points["local"]
    assert ended_early(results, 40)


@pytest.mark.evidence
def test_weights_find_the_rare_class(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    results = swept("screening", 3, command, tmp_path, monkeypatch)
    recall, area = (reached(results, f"metrics.own.{metric}") for metric in ("recall", "pr-auc"))
    assert min(recall["weighted"], recall["drawn"]) > recall["plain"] + 20
    assert min(area["weighted"], area["drawn"]) > area["plain"]
    rounds = reached(results, "rounds", 1)
    assert max(rounds["plain-long"], rounds["weighted-long"]) < 100


@pytest.mark.slow
def test_offices_learn_what_digits_are_like_that_they_do_not_see(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    results = swept("attributes", 1, command, tmp_path, monkeypatch)
    everything = reached(results, "whole_last")
    assert min(everything["fedavg"], everything["fedmd"]) > everything["local"] + 15
    assert everything["dsfl"] > everything["local"] + 2
    assert ended_early(results, 20)


@pytest.mark.evidence
def test_desks_with_other_models_learn_words_from_each_other(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    results = swept("messages", 2, command, tmp_path, monkeypatch)
    own = reached(results, "own_last")
    assert min(own["fedavg"], own["fedmd"]) > own["local"] + 3
    assert ended_early(results, 15)


@pytest.mark.evidence
def test_heads_and_adapters_send_a_fraction_of_the_whole_model(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    results = swept("heads", 2, command, tmp_path, monkeypatch)
    own = reached(results, "own_last")
    assert own["local"] < own["heads"] < own["adapters"] - 2 < own["whole"]
    sent, rounds = reached(results, "bytes_sent_per_client", 1), reached(results, "rounds", 1)
    in_a_round = {name: sent[name] / rounds[name] for name in sent}
    assert in_a_round["heads"] * 15 < in_a_round["whole"]
    assert in_a_round["adapters"] * 5 < in_a_round["whole"]
    assert ended_early(results, 20)


def test_diabetes_from_python_is_diabetes_from_files(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun("diabetes", tmp_path, monkeypatch)
    example = runpy.run_path("from_python.py")
    polyfed.run(
        example["settings"], method="fedavg", rounds=40, data=example["holdings"], workers=1, out="arrays"
    )
    said = command("run", "diabetes.yaml", "--set", "method=fedavg", "--workers", 1, "--out", "files")
    assert said.code == 0, said.err
    by_files, by_arrays = (list(read_lines(Path(run, "history.jsonl"))) for run in ("files", "arrays"))
    for one, other in zip(by_files, by_arrays, strict=True):
        assert all(one.get(key) == other.get(key) for key in ("clients", "server", "bytes"))
