"""Runs that learn something else than one class for each row: set-up, scores, directions, predictions, refusals."""

from __future__ import annotations

import csv
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.datasets import load_diabetes
from tests.conftest import Command

import polyfed
from polyfed.errors import ConfigError, DataError, MethodError, ModelError, TaskError
from polyfed.federation.method import registered
from polyfed.learn import Training
from polyfed.runs.checkpoint import read_lines
from polyfed.runs.config import read_config
from polyfed.runs.history import RunRecord
from polyfed.testing import result_of

NAMES = ("north", "south", "west")
SCALE = {"name": "regression", "scale": {"mean": 150, "std": 75}, "unit_name": "mg"}


def diabetes() -> tuple[Any, Any]:
    return load_diabetes(return_X_y=True, scaled=False)  # type: ignore[no-any-return]


@pytest.fixture
def clinics(tmp_path: Path) -> dict[str, Any]:
    """Three files, each with its columns in another order."""
    x, y = diabetes()
    for place, name in enumerate(NAMES):
        columns = {f"c{column}": x[place::3, column] for column in range(10)} | {"target": y[place::3]}
        order = sorted(columns, reverse=place == 1)
        with (tmp_path / f"{name}.csv").open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(order)
            writer.writerows(zip(*(columns[column] for column in order), strict=True))
    return {
        "task": SCALE,
        "rounds": 6,
        "data": {"clients": {name: str(tmp_path / f"{name}.csv") for name in NAMES}},
        "models": {"names": ["mlp-small"]},
        "training": {"lr": 0.02},
    }


def test_numbers_are_learnt_from_files_and_their_errors_are_in_their_own_unit(
    clinics: dict[str, Any], tmp_path: Path
) -> None:
    done = [
        polyfed.run(clinics, method="fedavg", out=tmp_path / str(workers), workers=workers)
        for workers in (1, 2)
    ]
    assert result_of(done[0].path) == result_of(done[1].path)
    own = done[0].summary["last"]["own"]
    assert 40 < own["best"] < own["mean"] < own["worst"] < 75  # the spread of the numbers is 77
    line = list(read_lines(done[0].path / "history.jsonl"))[-1]
    total, rows = line["clients"]["north"]["own"]
    y = diabetes()[1]
    held = done[0].federation.holdings.of(0).test
    said = polyfed.load_model(done[0].path, "north").predict((held.raw, held.labels), as_client="north")
    assert said.score == pytest.approx(math.sqrt(total / rows), rel=1e-5)
    assert said.tally is not None and said.tally[1] == rows == len(held)
    assert np.abs(np.array(said.answers) - y.mean()).max() < 200  # not on the scale of learning


def test_the_chosen_round_is_the_one_with_the_smallest_error(clinics: dict[str, Any], tmp_path: Path) -> None:
    done = polyfed.run(clinics, method="local", out=tmp_path / "run", workers=1)
    lines = [line for line in read_lines(done.path / "history.jsonl") if "summary" in line]
    best = min(lines, key=lambda line: (line["summary"]["validation"], line["round"]))
    assert done.summary["chosen"]["round"] == best["round"]
    assert done.summary["last"]["wlp"] == done.summary["last"]["own"]["worst"]


def test_a_stopped_regression_goes_on_as_if_nothing_had_been(clinics: dict[str, Any], tmp_path: Path) -> None:
    whole = polyfed.run(clinics, method="local", out=tmp_path / "whole", workers=1)
    part = polyfed.prepare(clinics, method="local", out=tmp_path / "part", workers=1)
    part.go(lambda run: run.stop() if run.round == 2 else None)
    part.close()
    assert result_of(polyfed.resume(part.path, workers=2).path) == result_of(whole.path)


def test_predict_writes_numbers_and_their_error(
    clinics: dict[str, Any], tmp_path: Path, command: Command
) -> None:
    done = polyfed.run(clinics, method="local", out=tmp_path / "run", workers=1)
    said = command("predict", done.path, tmp_path / "south.csv", "--client", "south")
    assert said.code == 0
    header, first, *_ = said.out.splitlines()
    assert header == "row,target" and 0 < float(first.split(",")[1]) < 400
    assert "RMSE " in said.err and " mg (147 rows)" in said.err
    with pytest.raises(AttributeError, match="a regression gives no classes: use answers"):
        _ = polyfed.load_model(done.path, "south").predict(str(tmp_path / "south.csv")).classes


# -- the scale is agreed ---------------------------------------------------------------------------------------


def test_a_scale_is_given_or_of_public_rows_and_never_pooled_in_silence(tmp_path: Path) -> None:
    config: dict[str, Any] = {"task": "regression", "rounds": 1, "data": {"clients": 3}}
    with pytest.raises(
        TaskError, match=r"clients must agree on the scale .* task.scale=\{mean: 150, std: 80\}"
    ):
        polyfed.run(config, method="local", data=diabetes(), out=tmp_path / "a")
    x, y = diabetes()
    for scale, mean in (("pooled", y.mean()), ("none", 0.0)):
        task = {"name": "regression", "scale": scale}
        done = polyfed.run(
            config,
            task=task,
            method="local",
            data=(x, y),
            out=tmp_path / scale,
            workers=1,
            training={"lr": 1e-6},
        )
        assert done.config.task.settings["scale"]["mean"] == pytest.approx(mean, rel=1e-5)
    config["data"] = {"clients": 3, "public": {"source": "share", "share": 0.3}}
    done = polyfed.run(config, method="local", data=(x, y), out=tmp_path / "public", workers=1)
    public = done.federation.holdings.public
    assert public is not None
    assert done.config.task.settings["scale"]["mean"] == pytest.approx(float(public.labels.mean()), rel=1e-5)
    kept = RunRecord(done.path).config["task"]
    assert kept["scale"] == done.config.task.settings["scale"]  # decided once, and part of the run


def test_pooling_is_refused_where_each_client_has_its_own(clinics: dict[str, Any], tmp_path: Path) -> None:
    task = {"name": "regression", "scale": "pooled"}
    with pytest.raises(TaskError, match="pooled needs everybody's labels in one place"):
        polyfed.run({**clinics, "task": task}, method="local", out=tmp_path / "run")


# -- what does not go together ---------------------------------------------------------------------------------


@pytest.mark.parametrize("method", registered())
@pytest.mark.parametrize("task", ["binary", "multilabel", "regression"])
def test_a_method_that_makes_no_sense_is_refused_before_there_is_a_folder(
    method: str, task: str, tmp_path: Path
) -> None:
    kind = registered()[method]
    declared = kind(kind.Settings(), Training()).declared
    if task in declared.task_names:
        return
    with pytest.raises(MethodError, match=f"{method} is not for task={task}: it needs .*local") as told:
        polyfed.run(method=method, task=task, data=diabetes(), out=tmp_path / "run")
    assert "\n" not in str(told.value) and not (tmp_path / "run").exists()


def test_a_refusal_names_the_setting_that_does_without(tmp_path: Path) -> None:
    with pytest.raises(MethodError, match=r"set method\.ensemble=mean, or use"):
        polyfed.run(method="fedkem", task="regression", data=diabetes(), out=tmp_path / "run")
    with pytest.raises(MethodError, match=r"set method\.lwof=null, or use"):
        method = {"name": "fedmd", "lwof": {"temperature": 2}}
        polyfed.run(method=method, task="regression", data=diabetes(), out=tmp_path / "run")
    with pytest.raises(MethodError, match=r"method.distil.temperature softens probabilities.*leave it at 1"):
        method = {"name": "fedmd", "distil": {"temperature": 2}}
        polyfed.run(method=method, task="regression", data=diabetes(), out=tmp_path / "run")


def test_data_and_models_must_fit_the_task(tmp_path: Path) -> None:
    x, y = diabetes()
    with pytest.raises(TaskError, match=r"task=binary: the data have 3 classes \(0, 1, 2\)"):
        polyfed.run(task="binary", data=(x, np.arange(len(x)) % 3), out=tmp_path / "a")
    with pytest.raises(DataError, match="one class for each row: set task=classification"):
        polyfed.run(task="regression", out=tmp_path / "b")
    task = {"name": "regression", "scale": "none"}
    with pytest.raises(
        ModelError, match="model 'net' has 2 outputs, but a regression of value has 1: give it 1"
    ):
        polyfed.run(
            task=task,
            data=(x, y),
            models={"net": lambda: polyfed.models.build("mlp-small", (10,), 2)},
            out=tmp_path / "c",
        )


def test_the_command_line_tells_it_in_one_line(command: Command, tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text("method: dsfl\ntask: regression\n")
    said = command("run", file)
    assert said.code == 2 and said.err.count("\n") == 1
    assert "dsfl is not for task=regression: it needs answers that are probabilities" in said.err


# -- class weights ---------------------------------------------------------------------------------------------


def imbalanced() -> tuple[Any, Any]:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(1500, 6)).astype(np.float32)
    return x, ((x[:, 0] + x[:, 1] + 0.5 * rng.normal(size=1500)) > 2.7).astype(np.int64)  # about 3 %


def test_class_weights_find_more_of_a_rare_class(tmp_path: Path) -> None:
    x, y = imbalanced()
    assert 0.02 < y.mean() < 0.06
    found = {}
    for weights in (None, "balanced"):
        done = polyfed.run(
            {"method": "fedavg", "rounds": 5, "data": {"clients": 3, "partition": {"kind": "iid"}}},
            task={"name": "binary", "class_weights": weights},
            data=(x, y),
            out=tmp_path / str(weights),
            workers=1,
        )
        said = polyfed.load_model(done.path, "client-0").predict(x)
        found[weights] = np.mean([word == "1" for word, true in zip(said.classes, y, strict=True) if true])
    assert found["balanced"] > found[None] + 0.1


@pytest.mark.parametrize("task", ["classification", "binary", "multilabel"])
def test_weighted_clients_that_ask_for_a_stack_learn_as_one_by_one(task: str, tmp_path: Path) -> None:
    x, y = imbalanced()
    labels = np.stack([y, 1 - y], axis=1) if task == "multilabel" else y
    models = []
    for stack in (1, 3):
        done = polyfed.run(
            {"method": "fedavg", "rounds": 2, "data": {"clients": 3}, "models": {"names": ["mlp-small"]}},
            task={"name": task, "class_weights": "balanced"},
            data=(x, labels),
            stack=stack,
            out=tmp_path / str(stack),
            workers=stack,
        )
        models.append(result_of(done.path)["models"])
    assert models[0] == models[1]


# -- directories from anybody ----------------------------------------------------------------------------------


def test_a_forged_score_that_no_task_has_is_refused(
    clinics: dict[str, Any], tmp_path: Path, command: Command
) -> None:
    done = polyfed.run(clinics, method="local", out=tmp_path / "run", workers=1)
    data = json.loads((done.path / "data.json").read_text())
    assert data["measure"] == {"measure": "RMSE", "unit": "mg", "smaller_is_better": True}
    text = (done.path / "data.json").read_text()
    (done.path / "data.json").write_text(text.replace('"RMSE"', "7"))
    assert command("show", done.path).code == 2


def test_balanced_draws_are_refused_where_there_are_no_classes(tmp_path: Path) -> None:
    training = {"sampling": "balanced"}
    with pytest.raises(ConfigError, match=r"training\.sampling: balanced draws classes alike often"):
        polyfed.run(task=SCALE, training=training, data=diabetes(), out=tmp_path / "run")
    polyfed.run(task="binary", training=training, data=imbalanced(), rounds=1, out=tmp_path / "b", workers=1)


def test_a_sweep_of_regressions_that_is_given_again_takes_its_runs_for_finished(
    tmp_path: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though the scale that was left open stands decided in each run's config."""
    monkeypatch.chdir(tmp_path)
    x, y = diabetes()
    table = np.column_stack([x, y])
    np.savetxt(
        "d.csv", table, delimiter=",", header=",".join([*map("c{}".format, range(10)), "y"]), comments=""
    )
    Path("s.yaml").write_text(
        "method: local\nrounds: 1\ntask: {name: regression, scale: pooled}\n"
        "data: {source: d.csv, clients: 3}\ntraining: {lr: 0.01}\n"
    )
    assert command("sweep", "s.yaml", "--seeds", 2, "--out", "sweep", "--workers", 1).code == 0
    times = [path.stat().st_mtime_ns for path in sorted(Path("sweep").rglob("summary.json"))]
    again = command("sweep", "s.yaml", "--seeds", 2, "--out", "sweep", "--workers", 1)
    assert again.code == 0, again.err
    assert [path.stat().st_mtime_ns for path in sorted(Path("sweep").rglob("summary.json"))] == times
    other = command("sweep", "s.yaml", "--seeds", 2, "--out", "sweep", "--set", "task=classification")
    assert other.code == 2


def test_public_rows_of_another_table_must_have_the_same_classes(tmp_path: Path) -> None:
    for name, columns in (("own", "a,dust,crack"), ("public", "a,dust,rust")):
        rows = [f"{row},{row % 2},{row % 3 == 0:d}" for row in range(40)]
        (tmp_path / f"{name}.csv").write_text("\n".join([columns, *rows]) + "\n")
    section = {"source": str(tmp_path / "own.csv"), "label": ["dust", "crack"], "clients": 2}
    public = {"source": str(tmp_path / "public.csv")}
    with pytest.raises(DataError, match="no column 'crack'"):
        polyfed.run(
            {"data": {**section, "public": public}}, task="multilabel", method="local", out=tmp_path / "a"
        )


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        (
            {"task": {"name": "regression", "scale": {"mean": 0, "std": 1}}},
            r"set task\.scale=\{mean: 150, std: 75\}",
        ),
        ({"data": {"drop": ["c3"]}}, "has learnt from the columns c0, c1"),
        ({"task": "classification", "data": {"label": "c1"}}, "has learnt from the columns"),
    ],
)
def test_models_whose_outputs_meant_something_else_are_not_started_from(
    clinics: dict[str, Any], tmp_path: Path, changes: dict[str, Any], reason: str
) -> None:
    """Tensors of one size would not show it."""
    first = polyfed.run({**clinics, "rounds": 1}, method="local", out=tmp_path / "first", workers=1)
    content = {**clinics, **changes, "data": {**clinics["data"], **changes.get("data", {})}}
    content["models"] = {**clinics["models"], "init": str(first.path)}
    with pytest.raises(ConfigError, match=reason):
        polyfed.run(content, method="local", out=tmp_path / "next")
    assert not (tmp_path / "next").exists()


def test_numbers_with_more_digits_than_are_learnt_are_refused(tmp_path: Path) -> None:
    x, _ = diabetes()
    with pytest.raises(DataError, match=r"have more digits than are learnt .* subtract a constant"):
        polyfed.run(task=SCALE, data=(x, 1e9 + np.arange(len(x))), out=tmp_path / "run")


def test_a_setting_of_a_task_that_is_named_by_a_word_can_be_set() -> None:
    assert read_config({"task": "multilabel"}, ["task.threshold=0.3"]).task.settings == {"threshold": 0.3}


@pytest.mark.parametrize("hidden", [{"label": "none"}, {"labels": "none"}])
@pytest.mark.parametrize(("task", "method"), [("multilabel", "dsfl"), ("regression", "feddf")])
def test_public_rows_of_a_table_need_no_labels_where_none_are_learnt_from(
    hidden: dict[str, str], task: str, method: str, tmp_path: Path
) -> None:
    own = [f"{row % 7},{row % 5},{row % 2},{row % 3 == 0:d}" for row in range(60)]
    (tmp_path / "own.csv").write_text("\n".join(["a,b,x,y", *own]) + "\n")
    (tmp_path / "public.csv").write_text("\n".join(["a,b", *(row[:3] for row in own)]) + "\n")
    labels = {"label": ["x", "y"]} if task == "multilabel" else {"label": "y", "drop": ["x"]}
    data: dict[str, Any] = {"source": str(tmp_path / "own.csv"), "clients": 2, **labels}
    data["public"] = {"source": str(tmp_path / "public.csv"), **hidden}
    scale = {"scale": "none"} if task == "regression" else {}
    content = {"data": data, "rounds": 1, "models": {"server": "mlp-small"}, "training": {"lr": 0.001}}
    polyfed.run(content, task={"name": task, **scale}, method=method, out=tmp_path / "run", workers=1)
    del data["public"][next(iter(hidden))]
    with pytest.raises(DataError, match=r"set data\.public\.label=none"):
        polyfed.run(content, task={"name": task, **scale}, method=method, out=tmp_path / "other")
