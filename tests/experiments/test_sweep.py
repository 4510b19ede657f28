"""Sweeps: which runs there are, what comes of them, and that a sweep goes on whatever happens to it."""

from __future__ import annotations

import csv
import io
import json
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from PIL import Image
from rich.console import Console
from tests.conftest import Command, round_of
from tests.engines.test_tracebacks import Buggy
from torch import nn

import polyfed
from polyfed import Client, Declaration, Fields, Fleet, Server, client_step
from polyfed.data import Dirichlet
from polyfed.data.partition import Iid
from polyfed.errors import ClientFailure, ConfigError, MethodError, UserError
from polyfed.experiments.sweep import plan_sweep, read_sets, split_values
from polyfed.federation import method as methods
from polyfed.methods import Local
from polyfed.report.curves import accuracy_curves
from polyfed.report.sweeps import with_spread
from polyfed.report.tables import amount
from polyfed.runs.config import read_config
from polyfed.testing import result_of

# -- which runs ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("fedavg", ["fedavg"]),
        ("0.1, 0.01", ["0.1", "0.01"]),
        ("[mlp,cnn],[mlp]", ["[mlp,cnn]", "[mlp]"]),
        ("{kind: iid},{kind: dirichlet, alpha: 0.1}", ["{kind: iid}", "{kind: dirichlet, alpha: 0.1}"]),
        ("'a,b',c", ["'a,b'", "c"]),
        ("[\"x, ]\", '{'],y", ["[\"x, ]\", '{']", "y"]),
        ("it's,b", ["it's", "b"]),
        ("", [""]),
    ],
)
def test_commas_divide_values_but_not_within_brackets_braces_or_quotes(text: str, values: list[str]) -> None:
    assert split_values(text) == values


def test_every_combination_has_its_folder_and_its_seeds(tmp_path: Path, small: dict[str, Any]) -> None:
    small["seed"] = 5
    sets = {"method": ["local", "fedavg"], "training.lr": ["0.1", "0.01"], "rounds": ["2"]}
    plan = plan_sweep(small, sets, 2, tmp_path / "out")
    assert [str(job.path.relative_to(tmp_path / "out")) for job in plan.jobs] == [
        f"method={method},training.lr={lr}/seed-{seed}"
        for seed in (5, 6)
        for method in ("local", "fedavg")
        for lr in ("0.1", "0.01")
    ]
    assert {(job.config.rounds, job.config.seed) for job in plan.jobs} == {(2, 5), (2, 6)}
    assert [job.config.training.lr for job in plan.jobs[:2]] == [0.1, 0.01]
    assert not (tmp_path / "out").exists()


def test_variants_of_a_run_file_are_run_each_with_its_keys_and_every_value_that_is_set(
    tmp_path: Path, small: dict[str, Any]
) -> None:
    small |= {
        "method": {"name": "fedprox", "mu": 0.5},
        "variants": {"alone": {"method": "local"}, "deep": {}},
    }
    small["variants"]["deep"] = {"models.names": ["mlp"], "method": {"name": "fedprox", "mu": 0.1}}
    plan = plan_sweep(small, {}, 2, tmp_path)
    assert [(variant.name, variant.values) for variant in plan.variants] == [
        ("alone", {"variant": "alone"}),
        ("deep", {"variant": "deep"}),
    ]
    alone, deep = (variant.jobs[1].config for variant in plan.variants)
    assert (alone.method.name, alone.models.names, alone.seed) == ("local", ["mlp-small"], 1)
    assert (deep.method.settings, deep.models.names) == ({"mu": 0.1}, ["mlp"])
    assert plan.definition["file"]["variants"]["alone"] == {"method": "local"}
    plan = plan_sweep(small, {"training.lr": ["0.1", "0.2"], "rounds": ["2"]})
    assert [variant.name for variant in plan.variants] == [
        f"{name},training.lr={lr}" for name in ("alone", "deep") for lr in ("0.1", "0.2")
    ]
    assert [job.config.training.lr for job in plan.jobs] == [0.1, 0.2, 0.1, 0.2]
    assert read_config(small).method.settings == {"mu": 0.5}  # a run does not read them


@pytest.mark.parametrize(
    ("variants", "words"),
    [
        ({}, "variants: write name:"),
        (["local"], "variants: write name:"),
        ({"../up": {}}, "the name '../up' may have"),
        ({1: {}}, "the name 1 may have"),
        ({"a": "local"}, "variants.a: write what differs"),
        ({"a": {"training.lr": -1}}, "^a: training.lr: "),
        ({"a": {"training.lr.x": 1}}, "variants.a: .*nothing can be set inside it"),
        ({"a": {"method": "local"}, "b": {"method": "local"}}, "b is the same run as a"),
    ],
)
def test_a_mistake_in_variants_is_told_in_a_line(small: dict[str, Any], variants: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        plan_sweep({**small, "variants": variants}, {})


def test_settings_of_a_method_are_set_after_the_method_whatever_the_order(small: dict[str, Any]) -> None:
    small["method"] = "local"
    plan = plan_sweep(small, {"method.mu": ["0.1", "1.0"], "method": ["fedprox"]})
    assert [variant.name for variant in plan.variants] == ["method.mu=0.1", "method.mu=1.0"]
    assert [job.config.method.settings for job in plan.jobs] == [{"mu": 0.1}, {"mu": 1.0}]
    assert plan.path == Path("polyfed-runs/run-sweep")


def test_kinds_can_be_swept_over_a_file_with_settings_of_one_of_them(small: dict[str, Any]) -> None:
    small["method"] = {"name": "fedprox", "mu": 0.3}
    sets = {"data.partition.kind": ["dirichlet", "iid", "shards"], "method.name": ["fedprox", "local"]}
    plan = plan_sweep(small, sets)
    found = [(job.config.data.partition, job.config.method.settings) for job in plan.jobs]
    assert found[0] == (Dirichlet(alpha=1.0), {"mu": 0.3})
    assert found[3] == (Iid(), {})
    assert len(found) == 6
    with pytest.raises(ConfigError, match=r"kind=iid: data\.partition\.alpha: unknown key"):
        plan_sweep(small, {"data.partition.alpha": ["2"], "data.partition.kind": ["quantity", "iid"]})


def test_models_that_are_swept_need_no_brackets(small: dict[str, Any]) -> None:
    plan = plan_sweep(small, read_sets(["models.names=mlp,mlp-small,[mlp,mlp-small]", "method=local"]))
    assert [job.config.models.names for job in plan.jobs] == [["mlp"], ["mlp-small"], ["mlp", "mlp-small"]]


def test_where_nothing_varies_there_is_one_variant(small: dict[str, Any]) -> None:
    plan = plan_sweep(small, {}, 2)
    assert [job.path.parts[-2:] for job in plan.jobs] == [("base", "seed-0"), ("base", "seed-1")]


def test_names_of_folders_are_safe_short_and_differ(small: dict[str, Any]) -> None:
    partitions = ["{kind: iid}", "{kind: dirichlet, alpha: 0.1}", "{kind: dirichlet, alpha: 10}"]
    names = [variant.name for variant in plan_sweep(small, {"data.partition": partitions}).variants]
    assert names[:2] == ["data.partition=kind-iid", "data.partition=kind-dirichlet,alpha-0.1"]
    many = [f"[{', '.join(['mlp-small'] * number)}]" for number in (30, 40)]
    small["method"] = "local"
    long = [variant.name for variant in plan_sweep(small, {"models.names": many}).variants]
    assert len(set(long)) == 2
    assert max(len(name) for name in long) <= 120


def test_a_wrong_combination_is_named_before_anything_starts(tmp_path: Path, small: dict[str, Any]) -> None:
    for sets, error, words in (
        ({"training.lr": ["0.1", "-1"]}, ConfigError, r"^training\.lr=-1: training\.lr: "),
        (
            {"method": ["local", "aggregated"]},
            MethodError,
            "^method=aggregated: aggregated needs public data",
        ),
        (
            {"method": ["fedprox", "local"], "method.mu": ["1"]},
            ConfigError,
            "^method=local: method.mu: unknown",
        ),
        ({"training.lr": ["0.1", "0.10"]}, ConfigError, "the same run as"),
        ({"seed": ["1", "2"]}, ConfigError, "--seeds"),
        ({"training.lr": []}, ConfigError, "one value"),
    ):
        with pytest.raises(error, match=words):
            plan_sweep(small, sets, out=tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_sets_on_the_command_line_are_read_and_mistakes_named() -> None:
    assert read_sets(["method=local,fedavg", "rounds=3"]) == {"method": ["local", "fedavg"], "rounds": ["3"]}
    for words in (["rounds"], ["=1"], ["rounds=1,,2"], ["rounds=1", "rounds=2"]):
        with pytest.raises(ConfigError, match=r"--set rounds|--set =1"):
            read_sets(words)


# -- what comes of them --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> polyfed.SweepResult:
    small = {
        "rounds": 3,
        "data": {"limit": 300, "clients": 4},
        "models": {"names": ["mlp-small"]},
        "training": {"epochs": 1, "batch": 16},
    }
    sets = {"method": ["local", "fedavg"], "training.lr": 0.1}
    return polyfed.sweep(small, sets, seeds=2, out=tmp_path_factory.mktemp("sweep") / "out", workers=2)


def test_a_sweep_from_python_gives_records_and_rows(done: polyfed.SweepResult) -> None:
    assert list(done.runs) == ["method=local", "method=fedavg"]
    assert done.failures == []
    row = done.rows[1]
    reached = [run.summary["last"]["own"]["mean"] for run in done.runs["method=fedavg"]]
    assert row.last_own == (statistics.fmean(reached), statistics.stdev(reached))
    chosen = [run.summary["chosen"]["whole"]["mean"] for run in done.runs["method=fedavg"]]
    assert row.chosen_whole == (statistics.fmean(chosen), statistics.stdev(chosen))
    assert done.rows[0].sent == 0
    assert row.sent
    assert (row.finished, row.seeds) == (2, 2)
    assert all(run.config["training"]["lr"] == 0.1 for runs in done.runs.values() for run in runs)


def test_results_are_written_with_one_line_per_run(done: polyfed.SweepResult) -> None:
    with (done.path / "results.csv").open() as file:
        lines = list(csv.DictReader(file))
    assert [(line["method"], line["seed"]) for line in lines] == [
        ("local", "0"),
        ("local", "1"),
        ("fedavg", "0"),
        ("fedavg", "1"),
    ]
    summary = json.loads((done.path / lines[3]["folder"] / "summary.json").read_text())
    assert float(lines[3]["own_last"]) == summary["last"]["own"]["mean"]
    assert int(lines[3]["round_chosen"]) == summary["chosen"]["round"]


def test_fairness_and_bytes_of_both_directions_are_in_every_table(done: polyfed.SweepResult) -> None:
    row = done.rows[1]
    last = [run.summary["last"]["own"] for run in done.runs["method=fedavg"]]
    for found, what in ((row.worst, "worst"), (row.unevenness, "spread")):
        values = [each[what] for each in last]
        assert found == (statistics.fmean(values), statistics.stdev(values))
    down = [sum(run.summary["bytes"]["down"].values()) / 4 for run in done.runs["method=fedavg"]]
    assert row.received == pytest.approx(statistics.fmean(down))
    head, rule, local, fedavg = (done.path / "results.md").read_text().splitlines()
    assert head == "| method | all | own | worst client | over clients | server | sent | received | seconds |"
    assert rule == "| --- |" + " ---: |" * 8
    cells = fedavg.strip("| ").split(" | ")
    assert cells[:5] == [
        "`fedavg`",
        *map(with_spread, (row.last_whole, row.last_own, row.worst, row.unevenness)),
    ]
    assert cells[5:8] == ["–", amount(row.sent or 0), amount(row.received or 0)]
    assert local.split(" | ")[-3:-1] == ["nothing", "nothing"]
    with Image.open(done.path / "cost.png") as image:
        assert image.height > 500


def test_the_table_shows_mean_and_spread(done: polyfed.SweepResult) -> None:
    console = Console(width=150, record=True, file=io.StringIO())
    console.print(done.table())
    text = console.export_text()
    assert with_spread(done.rows[1].last_own) in text
    assert "±" in text
    assert with_spread((0.8123, 0.0091)) == "81.2 ± 0.9"
    assert with_spread((0.8123, None)) == "81.2"
    assert with_spread(None) == "–"


class Staged(Local):
    """Local training that is looked at in the middle of a round, and a server that does nothing."""

    name = "staged"

    def declare(self) -> Declaration:
        return replace(super().declare(), stages=("after-sharing", "at.home"))

    @client_step
    def tell(self, me: Client) -> Fields:
        me.measure("after-sharing")
        me.measure("at.home", whole=False)
        return {}

    def round(self, t: int, fleet: Fleet, server: Server) -> None:
        super().round(t, fleet, server)
        fleet.ask(self.tell, fleet.sample())
        server.measure("fused", {name: server.weights(name) for name in server.roster.architectures})


def test_a_metric_that_is_not_for_the_task_is_refused_before_the_first_run(
    tmp_path: Path, small: dict[str, Any]
) -> None:
    variants = {"evaluate.metrics": ["recall", "mae"]}
    with pytest.raises(ConfigError, match=r"mae is for regression, not for task=classification"):
        polyfed.sweep(small, variants, out=tmp_path / "out", workers=1)
    assert not (tmp_path / "out").exists()


def test_stages_of_ones_own_and_metrics_are_in_the_results_and_in_a_table(
    tmp_path: Path, small: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(methods._registered, "staged", Staged)
    content = {**small, "rounds": 2, "evaluate": {"metrics": ["macro-f1"]}}
    done = polyfed.sweep(content, {"method": ["local", "staged"]}, out=tmp_path / "out", workers=1)
    (run,) = done.runs["method=staged"]
    with (done.path / "results.csv").open() as file:
        local, staged = csv.DictReader(file)
    for when, ending in (("last", ""), ("chosen", "_chosen")):
        at = run.summary[when]
        stages = at["stages"]
        assert float(staged[f"stages.after-sharing.own{ending}"]) == stages["after-sharing"]["own"]["mean"]
        assert (
            float(staged[f"stages.after-sharing.whole{ending}"]) == stages["after-sharing"]["whole"]["mean"]
        )
        assert float(staged[f"stages.at.home.own{ending}"]) == stages["at.home"]["own"]["mean"]
        assert float(staged[f"server.fused{ending}"]) == at["server"]["fused"]
        assert float(staged[f"metrics.own.macro-f1{ending}"]) == at["metrics"]["own"]["macro-f1"]["mean"]
        fused = at["server_metrics"]["fused"]["macro-f1"]
        assert float(staged[f"server_metrics.fused.macro-f1{ending}"]) == fused
    assert "stages.at.home.whole" not in staged
    assert local["server.fused"] == ""
    assert local["metrics.whole.macro-f1"]
    console = Console(width=100, record=True, file=io.StringIO())
    console.print(done.further_table())
    text = console.export_text()
    for title in (
        "after-sharing, own test data",
        "after-sharing, whole test set",
        "at.home, own test data",
        "fused (server), whole test set",
        "macro-F1, own test data",
        "fused (server), macro-F1",
    ):
        assert title in text


def test_where_nothing_else_was_measured_there_is_no_second_table(
    tmp_path: Path, small: dict[str, Any]
) -> None:
    done = polyfed.sweep({**small, "rounds": 1}, {"method": ["local"]}, out=tmp_path / "out", workers=1)
    assert done.further_table() is None


@pytest.mark.parametrize("width", [60, 80])
def test_in_a_narrow_terminal_nothing_of_the_table_is_cut(done: polyfed.SweepResult, width: int) -> None:
    console = Console(width=width, record=True, file=io.StringIO())
    console.print(done.table())
    text = console.export_text()
    lines = [" ".join(line.split()) for line in text.splitlines()]
    for row in done.rows:
        for value in (row.last_own, row.last_whole, row.chosen_own, row.chosen_whole):
            assert any(with_spread(value) in line for line in lines)
        assert f"{row.seconds:.1f}" in text.split()
        assert all(any(value in line for line in lines) for value in row.values.values())
    assert "…" not in text
    assert max(map(len, text.splitlines())) <= width


def test_clients_that_failed_in_a_sweep_are_told_for_each_variant(
    tmp_path: Path, small: dict[str, Any], monkeypatch: pytest.MonkeyPatch, command: Command
) -> None:
    monkeypatch.setitem(methods._registered, Buggy.name, Buggy)
    small["rounds"] = 1
    sets = {"method": ["local", "buggy"]}
    words = "method=buggy: clients failed in 2 of 2 runs; 1 of 4 clients (client-1) failed in step 'train'"
    with pytest.warns(ClientFailure) as caught:
        done = polyfed.sweep(small, sets, seeds=2, out=tmp_path / "out", workers=1)
    (warning,) = caught
    assert str(warning.message).startswith(words)
    assert done.failed_clients() == [str(warning.message)]
    (tmp_path / "small.yaml").write_text(yaml.safe_dump(small))
    said = command("sweep", "small.yaml", "--set", "method=local,buggy", "--seeds", 2, "--out", "out")
    assert said.code == 0  # the runs themselves have finished
    assert words in said.out


def test_curves_are_drawn_for_few_and_for_many_variants(done: polyfed.SweepResult, tmp_path: Path) -> None:
    with Image.open(done.path / "curves.png") as image:
        assert image.width > 1000
    runs = done.runs["method=local"]
    for many in (1, 20):
        path = accuracy_curves({f"variant {n}": runs[: 1 + n % 2] for n in range(many)}, tmp_path / "c.svg")
        text = path.read_text()
        assert ("8 others" in text or "others: grey" in text) == (many == 20)
    with pytest.raises(ValueError, match="no run"):
        accuracy_curves({"none": []}, tmp_path / "c.svg")


def test_the_same_sweep_again_does_nothing_and_another_one_is_refused(
    tmp_path: Path, small: dict[str, Any]
) -> None:
    out = tmp_path / "out"
    small["rounds"] = 1
    first = polyfed.sweep(small, {"training.lr": [0.1, 0.01]}, out=out, workers=1)
    before = {path: path.stat().st_mtime_ns for path in out.rglob("*/**/*")}
    again = polyfed.sweep(small, {"training.lr": [0.1, 0.01]}, out=out, workers=1)
    assert again.rows == first.rows
    assert {path: path.stat().st_mtime_ns for path in out.rglob("*/**/*")} == before
    for content, lr, seeds, words in (
        (small, [0.1], 1, r'sets\.training\.lr is \["0\.1", "0\.01"\] there'),
        (small, [0.1, 0.01], 2, "seeds is 1 there and 2 here"),
        ({**small, "rounds": 2}, [0.1, 0.01], 1, r"file\.rounds is 1 there and 2 here"),
    ):
        with pytest.raises(ConfigError, match=words):
            polyfed.sweep(content, {"training.lr": lr}, seeds=seeds, out=out)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes").write_text("mine")
    with pytest.raises(ConfigError, match="holds no sweep"):
        polyfed.sweep(small, {}, out=tmp_path / "mine")


def test_a_run_that_fails_is_reported_and_the_others_are_there(
    tmp_path: Path, small: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    result = polyfed.sweep(small, {"training.lr": [0.1, 1e30]}, out=tmp_path / "out", workers=2)
    (failure,) = result.failures
    assert failure.job.config.training.lr == 1e30
    assert "every client failed" in caplog.text
    assert [(row.finished, row.last_own is None) for row in result.rows] == [(1, False), (0, True)]


# -- whatever happens ----------------------------------------------------------------------------------------

LONG = {"method": "local", "rounds": 100, "checkpoint_seconds": 1000}
WORDS = (
    "sweep",
    "long.yaml",
    "--set",
    "training.lr=0.1,0.01",
    "--seeds",
    "2",
    "--out",
    "out",
    "--workers",
    "2",
)


def started(folder: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", "from polyfed.cli import main; main()", *WORDS],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def wait_until(truth: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 300
    while process.poll() is None and not truth():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_sweep_that_is_stopped_and_whose_process_is_killed_ends_as_if_nothing_had_happened(
    tmp_path: Path, small: dict[str, Any]
) -> None:
    """A real Ctrl-C to the whole group; the same command again; then `kill -9` of a run in the middle."""
    (tmp_path / "long.yaml").write_text(yaml.safe_dump({**small, **LONG}))
    first, second, third, fourth = (
        tmp_path / "out" / f"training.lr={lr}" / f"seed-{seed}" for seed in (0, 1) for lr in (0.1, 0.01)
    )

    process = started(tmp_path)
    wait_until(lambda: min(round_of(first), round_of(second)) >= 2, process)
    os.killpg(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert "finishing the rounds under way" in err
    assert "the same command goes on" in out
    assert "Traceback" not in out + err
    saved = [json.loads((path / "manifest.json").read_text())["round"] for path in (first, second)]
    assert min(saved) >= 2
    assert not third.exists()

    process = started(tmp_path)
    wait_until(lambda: min(round_of(third), round_of(fourth)) >= 2, process)
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    os.kill(int(children[-1]), signal.SIGKILL)  # the youngest, which is the least far
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    assert "its process died" in " ".join(err.split())
    assert "(4 of 4)" in out

    for path, lr, seed in ((first, 0.1, 0), (second, 0.01, 0), (third, 0.1, 1), (fourth, 0.01, 1)):
        content = {**small, **LONG, "seed": seed, "training": {**small["training"], "lr": lr}}
        alone = polyfed.run(content, out=tmp_path / "alone" / path.parent.name / path.name, workers=1)
        assert result_of(path) == result_of(alone.path)


def test_what_was_swept_can_be_read_again(done: polyfed.SweepResult) -> None:
    definition = json.loads((done.path / "sweep.json").read_text())
    assert definition["sets"] == {"method": ["local", "fedavg"], "training.lr": ["0.1"]}
    assert definition["seeds"] == 2
    assert read_config(definition["file"]).rounds == 3


# -- the user's own data and models --------------------------------------------------------------------------


def own_data() -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    rng = np.random.default_rng(0)
    y = np.arange(120) % 3
    return rng.normal(size=(120, 5)).astype(np.float32) + y[:, None], y


def narrow() -> nn.Module:
    return nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 3))


def broad() -> nn.Module:
    return nn.Sequential(nn.Linear(5, 32), nn.ReLU(), nn.Linear(32, 3))


OWN_SWEEP: dict[str, Any] = {"rounds": 2, "method": "local", "data": {"clients": 2}, "stack": 1}


@pytest.mark.parametrize("workers", [1, 2])
def test_own_data_and_models_are_swept_and_the_same_call_goes_on(tmp_path: Path, workers: int) -> None:
    given: dict[str, Any] = {"data": own_data(), "models": [narrow, broad], "out": tmp_path / "out"}
    sets = {"training.lr": [0.1, 0.01]}
    done = polyfed.sweep(OWN_SWEEP, sets, **given, workers=workers)
    assert done.failures == []
    assert [row.finished for row in done.rows] == [1, 1]
    run = done.runs["training.lr=0.01"][0]
    assert run.config["models"]["names"] == ["narrow", "broad"]
    alone = polyfed.run(
        {**OWN_SWEEP, "training": {"lr": 0.01}},
        data=own_data(),
        models=[narrow, broad],
        out=tmp_path / "alone",
        workers=1,
    )
    assert result_of(run.path)["ledger"] == result_of(alone.path)["ledger"]
    assert run.summary["last"] == alone.summary["last"]

    # One run is taken back to the middle and goes on, the other is not touched.
    before = (run.path / "summary.json").stat().st_mtime_ns
    other = done.runs["training.lr=0.1"][0].path
    expected = result_of(other)
    (other / "summary.json").unlink()
    again = polyfed.sweep(OWN_SWEEP, sets, **given, workers=workers)
    assert [row.finished for row in again.rows] == [1, 1]
    assert result_of(other) == expected
    assert (run.path / "summary.json").stat().st_mtime_ns == before


def test_a_sweep_with_other_own_data_or_models_is_refused(tmp_path: Path) -> None:
    x, y = own_data()
    out = tmp_path / "out"
    polyfed.sweep(OWN_SWEEP, {}, data=(x, y), models=[narrow], out=out, workers=1)
    for data, models, message in (
        ((x + 1, y), [narrow], "holds another sweep, data is"),
        ((x, y), [broad], r'holds another sweep, models is \["narrow"\] there and \["broad"\] here'),
        ((x, y), None, "holds another sweep"),
    ):
        content = OWN_SWEEP if models else {**OWN_SWEEP, "models": {"names": ["mlp-small"]}}
        with pytest.raises(ConfigError, match=message):
            polyfed.sweep(content, {}, data=data, models=models, out=out, workers=1)


def test_an_own_model_that_does_not_fit_is_named_before_anything_starts(tmp_path: Path) -> None:
    def wrong() -> nn.Module:
        return nn.Linear(5, 2)

    with pytest.raises(UserError, match="model 'wrong' has 2 outputs"):
        polyfed.sweep(OWN_SWEEP, {}, data=own_data(), models=[wrong], out=tmp_path / "out", workers=1)
    assert not (tmp_path / "out").exists()
