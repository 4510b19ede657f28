"""Looking at models: metrics beyond accuracy, and rounds in which nobody can be looked at."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Callable, Iterator
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.conftest import MakeRun
from tests.readers import whole_test
from torch import Tensor, nn

from polyfed import Client, Declaration, Fleet, Method, MethodSettings, Server, client_step, learn, plug_ins
from polyfed.data import Rows
from polyfed.engines import Inline, Pool
from polyfed.errors import ConfigError, RunError, StepFailed
from polyfed.federation.engine import Engine
from polyfed.federation.message import Fields, Weights
from polyfed.federation.roster import Facts
from polyfed.learn import metrics_of
from polyfed.methods import local_training
from polyfed.methods.local import Local
from polyfed.runs.api import load_model
from polyfed.runs.checkpoint import RunDirectory, read_lines
from polyfed.runs.config import read_config
from polyfed.runs.failures import FAILURES_LOG
from polyfed.runs.rounds import Run
from polyfed.runs.setup import set_up
from polyfed.tasks import CLASSIFICATION
from polyfed.testing import result_of

ALL = {"metrics": "all"}
SUITED = learn.metrics_for(["all"], CLASSIFICATION)
NAME = attrgetter("name")
PUBLIC = {"limit": 300, "clients": 4, "public": {"source": "share", "share": 0.2}}


def lines_of(path: Path) -> list[dict[str, Any]]:
    """The history, which must hold numbers and nulls only: no NaN."""
    text = (path / "history.jsonl").read_text().splitlines()
    return [json.loads(line, parse_constant=pytest.fail) for line in text]


def computed(model: nn.Module, rows: Rows, among: int | None = None) -> dict[str, Any]:
    """The metrics of a model, directly; None where one has no value."""
    x, y = rows.tensors()
    found = metrics_of(learn.predict(model, x)[:, :among], y, SUITED)
    confusion = found.pop("confusion")
    return {
        **{name: pytest.approx(found[name]) if name in found else None for name in map(NAME, SUITED)},
        "confusion": confusion,
    }


def without_metrics(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: without_metrics(item) for key, item in value.items() if "metrics" not in key}
    return value


# -- what is measured ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["fedavg", "local"])
def test_metrics_are_those_of_the_clients_models(make_run: MakeRun, method: str) -> None:
    """Of one model that all share, and of models of their own; on the whole test set, and on own test rows."""
    run = make_run(method, evaluate=ALL)
    run.go()
    last = lines_of(run.path)[-1]["clients"]
    assert len(last) == 4
    for index in range(4):
        model = load_model(run.path, f"client-{index}")
        found = last[f"client-{index}"]["metrics"]
        assert found["whole"] == computed(model, whole_test(run.federation))
        assert found["own"] == computed(model, run.federation.holdings.of(index).test)


@pytest.mark.parametrize("method", ["fedavg", "local", {"name": "fedavg", "batch_norm": "local"}])
def test_accuracies_and_models_are_the_same_with_metrics_and_without(make_run: MakeRun, method: Any) -> None:
    runs = [make_run(method, evaluate=evaluate) for evaluate in (ALL, {})]
    for run in runs:
        run.go()
    with_them, without = (result_of(run.path) for run in runs)
    assert with_them["models"] == without["models"]
    assert "metrics" not in json.dumps(without["history"])
    assert [without_metrics(line) for line in with_them["history"]] == without["history"]


class Idle(Method):
    """Clients note the loss of a model that never changes, on a batch of their rows."""

    name = "idle"

    def declare(self) -> Declaration:
        return Declaration()

    @client_step
    def look(self, me: Client) -> Fields:
        me.note_local_loss()
        return {}

    def round(self, t: int, fleet: Fleet, server: Server) -> None:
        fleet.ask(self.look, fleet.sample())


def test_the_local_loss_is_that_of_other_rows_each_time(make_run: MakeRun) -> None:
    data = {"limit": 300, "clients": 1}
    noted = {}
    for batch in (8, 1000):
        run = make_run(Idle, data=data, training={"batch": batch}, rounds=30)
        run.go()
        noted[batch] = np.array([line["noted"]["local-loss"] for line in lines_of(run.path)])
    assert len(set(noted[8])) == 30
    # A batch as large as the client has all of its rows each time. The mean over 30 batches of 8 is near that of all:
    # within 4 standard errors, or it is not drawn from all rows alike.
    assert np.ptp(noted[1000]) < 1e-6
    assert abs(noted[8].mean() - noted[1000][0]) < 4 * noted[8].std() / np.sqrt(30)


def test_logits_are_computed_once_whatever_is_asked_for(
    make_run: MakeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[int] = []
    predict = learn.predict

    def counted(model: nn.Module, x: Tensor) -> Tensor:
        calls.append(len(x))
        return predict(model, x)

    monkeypatch.setattr(learn, "predict", counted)
    counts = []
    for evaluate in ({}, {"metrics": ["auc"]}, ALL):
        calls.clear()
        make_run("local", evaluate=evaluate, rounds=1).go()
        counts.append(sorted(calls))
    assert counts[0] == counts[1] == counts[2]


def test_scikit_learn_is_loaded_before_the_workers_and_only_where_metrics_are_wanted(
    make_run: MakeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded: list[bool] = []
    monkeypatch.setattr(learn, "load_metrics", lambda: loaded.append(True))
    make_run("fedavg").go()
    assert not loaded
    make_run("fedavg", Pool(2), evaluate=ALL)  # not even open
    assert loaded == [True]


@pytest.mark.parametrize(
    "method",
    ["fedavg", {"name": "fedmd", "public_rows": 40}],
    ids=["shared", "own models, a server's, stages"],
)
def test_inline_pool_and_a_resumed_run_agree_to_the_bit(make_run: MakeRun, method: Any) -> None:
    changes = {"evaluate": ALL, "data": PUBLIC, "models": {"server": "mlp-small"}, "rounds": 2}
    whole = make_run(method, Inline(), **changes)
    whole.go()
    pool = make_run(method, Pool(2), **changes)
    pool.go()
    assert result_of(pool.path) == result_of(whole.path)
    part = make_run(method, Inline(), **changes)
    part.go(lambda now: now.stop())
    part.close()
    resumed = Run(set_up(part.config), Pool(2), RunDirectory(part.path, new=False))
    resumed.go()
    resumed.close()
    assert result_of(part.path) == result_of(whole.path)
    assert resumed.summary["last"]["metrics"] == whole.summary["last"]["metrics"]


def table(path: Path, task: str) -> dict[str, Any]:
    """A table of 160 rows whose labels are of a task, and the keys of a run file that name it."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(160, 3))
    columns = {f"x{place}": x[:, place] for place in range(3)}
    if task == "regression":
        columns["y"] = 90 + 10 * x[:, 0] + rng.normal(size=160)
    else:
        columns["y"] = (x[:, 0] + 0.5 * rng.normal(size=160) > 0.4).astype(int)
        columns["z"] = (x[:, 1] + 0.5 * rng.normal(size=160) > 1.2).astype(int)
    labels: str | list[str] = ["y", "z"] if task == "multilabel" else "y"
    wanted = [name for name in columns if name[0] == "x" or name in labels]
    lines = [",".join(wanted), *(",".join(str(columns[name][row]) for name in wanted) for row in range(160))]
    path.write_text("\n".join(lines) + "\n")
    return {"source": str(path), "label": labels, "limit": None, "partition": {"kind": "iid"}}


TASKS: dict[str, tuple[Any, list[Any]]] = {
    "regression": ({"name": "regression", "scale": "pooled"}, ["all", "max_error"]),
    "binary": ({"name": "binary", "threshold": 0.3}, ["all", {"name": "fbeta_score", "beta": 2}]),
    "multilabel": ("multilabel", ["all", "jaccard_score"]),
}


@pytest.mark.parametrize("name", TASKS)
def test_metrics_of_every_task_agree_to_the_bit_inline_in_a_pool_and_resumed(
    make_run: MakeRun, tmp_path: Path, name: str, costs: str
) -> None:
    task, wished = TASKS[name]
    data = table(tmp_path / "table.csv", name)
    changes = {"data": data, "task": task, "evaluate": {"metrics": [*wished, costs]}, "rounds": 2}
    whole = make_run("fedavg", Inline(), **changes)
    whole.go()
    names = [metric.name for metric in whole.federation.metrics]
    assert {costs, *(metric.name for metric in learn.metrics_for(["all"], whole.federation.task))} < set(
        names
    )
    for part in ("own", "whole"):
        found = whole.summary["last"]["metrics"][part]
        assert list(found) == names
        assert all(found[each] is not None for each in names)
    pool = make_run("fedavg", Pool(2), **changes)
    pool.go()
    assert result_of(pool.path) == result_of(whole.path)
    part_done = make_run("fedavg", Inline(), **changes)
    part_done.go(lambda now: now.stop())
    part_done.close()
    config = read_config(part_done.path / "config.yaml")
    assert config == part_done.config  # with all that was left open decided, and read again as it is
    resumed = Run(set_up(config), Pool(2), RunDirectory(part_done.path, new=False))
    resumed.go()
    resumed.close()
    assert result_of(part_done.path) == result_of(whole.path)


@pytest.fixture
def costs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A function of one's own: how far answers are from labels, and worse if there are many."""
    (tmp_path / "own_costs.py").write_text(
        "def cost(answers, labels):\n    return abs(answers - labels).sum()\n\n"
        "cost.smaller_is_better = True\n\n"
        "def broken(labels):\n    return {}['missing']\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    yield "own_costs:cost"
    plug_ins.named_function.cache_clear()
    sys.modules.pop("own_costs", None)


@pytest.mark.parametrize("engine", [Inline, lambda: Pool(2)], ids=["inline", "pool"])
def test_a_shared_model_has_each_clients_own_cost_and_the_largest_is_the_worst(
    make_run: MakeRun, costs: str, engine: Callable[[], Engine]
) -> None:
    run = make_run("fedavg", engine(), evaluate={"metrics": [costs]}, rounds=1)
    run.go()
    last = lines_of(run.path)[-1]
    own = [score["metrics"]["own"][costs] for score in last["clients"].values()]
    for index, found in enumerate(own):
        x, y = run.federation.holdings.of(index).test.tensors()
        answers = learn.predict(load_model(run.path, f"client-{index}"), x).argmax(dim=1)
        assert found == float((answers - y).abs().sum())
    over = last["summary"]["metrics"]["own"][costs]
    assert (over["worst"], over["best"]) == (max(own), min(own)) and max(own) > min(own)
    said = run.config.as_file()["evaluate"]["metrics"]
    assert said == [{"name": costs, "on": "answers", "smaller_is_better": True}]


def test_a_metric_that_fails_is_the_clients_failure_and_says_where(make_run: MakeRun, costs: str) -> None:
    run = make_run("local", evaluate={"metrics": [costs.replace(":cost", ":broken")]})
    with pytest.raises(RunError, match=r"no client could be scored"):
        run.go()
    text = (run.path / FAILURES_LOG).read_text()
    assert "metric own_costs:broken failed at own_costs.py:7: KeyError: 'missing'" in text


def test_a_metric_that_is_not_for_the_task_is_refused_before_the_run(make_run: MakeRun) -> None:
    words = (
        r"^evaluate\.metrics: mae is for regression, not for task=classification: use balanced-accuracy, macro-f1,"
        r" auc, calibration-error, confusion, recall, precision, f1, specificity, pr-auc, mcc, log-loss, brier$"
    )
    with pytest.raises(ConfigError, match=words):
        make_run("fedavg", evaluate={"metrics": ["recall", "mae"]})


def test_the_servers_model_has_metrics_too(make_run: MakeRun) -> None:
    method = {"name": "fedmd", "public_rows": 40}
    run = make_run(method, evaluate=ALL, data=PUBLIC, models={"server": "mlp-small"}, rounds=1)
    run.go()
    model = load_model(run.path, "server")
    expected = computed(model, whole_test(run.federation))
    last = lines_of(run.path)[-1]
    assert last["server_metrics"]["global"] == expected
    assert run.summary["last"]["server_metrics"] == last["server_metrics"]
    confusion = torch.tensor(expected["confusion"])
    assert last["server"]["global"] == pytest.approx(float(confusion.trace() / confusion.sum()))


def test_stages_have_metrics_too(make_run: MakeRun) -> None:
    run = make_run("fedavg", evaluate={"metrics": ["macro-f1"]})
    run.go()
    trained = lines_of(run.path)[-1]["stages"]["trained"]["metrics"]
    assert set(trained) == {"own"}  # it is not measured on the whole test set
    assert set(trained["own"]["macro-f1"]) == {"mean", "worst", "best", "spread"}


# -- what has no value ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["fedavg", "local"])
def test_a_client_with_one_class_has_no_auc_of_its_own(make_run: MakeRun, method: str) -> None:
    data = {"limit": 300, "clients": 10, "partition": {"kind": "pathological", "classes_per_client": 1}}
    run = make_run(method, evaluate=ALL, data=data)
    run.go()
    last = lines_of(run.path)[-1]
    for score in last["clients"].values():
        right, of = score["own"]
        own = score["metrics"]["own"]
        assert own["auc"] is None
        assert own["balanced-accuracy"] == pytest.approx(right / of)  # the recall of its one class
        assert 0 <= score["metrics"]["whole"]["auc"] <= 1
    assert last["summary"]["metrics"]["own"]["auc"] is None
    assert run.summary["last"]["metrics"] == last["summary"]["metrics"]


@pytest.mark.parametrize("method", ["fedavg", "local"])
def test_without_own_test_rows_there_is_the_whole_test_set_alone(make_run: MakeRun, method: str) -> None:
    run = make_run(method, evaluate=ALL, data={"test": 0.0})
    run.go()
    last = lines_of(run.path)[-1]
    assert set(last["summary"]["metrics"]) == {"whole"}
    assert all(set(score["metrics"]) == {"whole"} for score in last["clients"].values())


class Overflowing(Local):
    """Weights that are finite, and answers that are not, on all clients but one."""

    name = "overflowing"

    @client_step
    def train(self, me: Client) -> Fields:
        if me.facts.index:
            for parameter in me.model.parameters():
                parameter.data.fill_(-3e38 if me.round == 2 else 1.0)
        return {}


def test_a_model_that_answers_with_no_finite_number_is_not_scored_and_is_named(make_run: MakeRun) -> None:
    run = make_run(Overflowing, evaluate=ALL, rounds=2)
    run.go()
    last = lines_of(run.path)[-1]
    assert list(last["clients"]) == ["client-0"]
    assert {failure["client"] for failure in last["failures"]} == {"client-1", "client-2", "client-3"}
    assert "answers with no finite number, training diverged: lower" in last["failures"][0]["reason"]


def test_an_answer_that_is_not_a_number_is_not_right() -> None:
    logits = torch.tensor([[torch.nan, 0.0], [0.0, torch.inf], [1.0, 0.0]])
    assert CLASSIFICATION.tally(logits, torch.tensor([0, 1, 0])) == [2, 3]


@pytest.mark.parametrize(("outputs", "classes"), [("all", 30), ("private", 10)])
def test_answers_are_chosen_among_the_outputs_that_count(
    make_run: MakeRun, tmp_path: Path, outputs: str, classes: int
) -> None:
    images = np.random.default_rng(0).integers(256, size=(200, 8, 8), dtype=np.uint8)
    np.savez(tmp_path / "other.npz", x=images, y=np.array([f"thing-{row % 20:02}" for row in range(200)]))
    run = make_run(
        {"name": "fedmd", "public_rows": 20},
        evaluate={**ALL, "outputs": outputs},
        data={"limit": 200, "public": {"source": str(tmp_path / "other.npz")}},
        models={"server": "mlp-small"},
        rounds=1,
    )
    run.go()
    last = lines_of(run.path)[-1]
    expected = computed(load_model(run.path, "client-1"), whole_test(run.federation), classes)
    assert last["clients"]["client-1"]["metrics"]["whole"] == expected
    assert len(last["server_metrics"]["global"]["confusion"]) == classes


# -- rounds without a result ---------------------------------------------------------------------------------


class ShySettings(MethodSettings):
    hidden: tuple[int, ...] = ()


class Shy(Method):
    """Clients train, but in some rounds nobody can be looked at."""

    name = "shy"
    Settings = ShySettings
    settings: ShySettings

    def declare(self) -> Declaration:
        return Declaration(personal=True)

    @client_step
    def train(self, me: Client) -> Fields:
        local_training.train(me)
        return {}

    def round(self, t: int, fleet: Fleet, server: Server) -> None:
        fleet.ask(self.train, fleet.sample())

    def serves(self, server: Server, client: Facts) -> Weights:
        return server.weights(client.architecture)

    def personalise(self, me: Client, model: nn.Module) -> None:
        if me.round in self.settings.hidden:
            raise RuntimeError("not to be looked at")


def test_a_last_round_in_which_nobody_can_be_scored_is_told_and_can_be_done_again(make_run: MakeRun) -> None:
    run = make_run(Shy, settings={"hidden": [3]})
    said = (
        r"round 3: no client could be scored, client-3 in step 'examine': RuntimeError: not to be looked at"
    )
    with pytest.raises(RunError, match=rf"{said}.*`polyfed resume .*` tries the last round again") as caught:
        run.go()
    assert isinstance(caught.value.__cause__, StepFailed)
    assert "not to be looked at" in (run.path / FAILURES_LOG).read_text()
    assert not (run.path / "summary.json").exists()
    run.close()
    mended = set_up(run.config, method=Shy(ShySettings(), run.config.training))
    again = Run(mended, Inline(), RunDirectory(run.path, new=False))
    again.go()
    again.close()
    assert again.summary["rounds"] == 3
    whole = make_run(Shy)
    whole.go()
    assert result_of(run.path) == result_of(whole.path)


def test_an_earlier_round_in_which_nobody_can_be_scored_is_told_and_the_run_goes_on(
    make_run: MakeRun, caplog: pytest.LogCaptureFixture
) -> None:
    run = make_run(Shy, settings={"hidden": [2]})
    with caplog.at_level(logging.WARNING):
        run.go()
    assert "round 2: no client could be scored, client-3 in step 'examine'" in caplog.text
    assert ["summary" in line for line in read_lines(run.path / "history.jsonl")] == [True, False, True]
    assert run.summary["failures"] == 4


def test_a_folder_whose_last_round_has_no_result_is_told_so(
    make_run: MakeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As nobody could have been scored, and nobody was told."""
    run = make_run(Shy, settings={"hidden": [3]})
    monkeypatch.setattr(Run, "_look", lambda self, **_: self.evaluation.look(self.server))
    with pytest.raises(RunError, match="has no result: in its last round no client could be scored"):
        run.go()


class Staged(Method):
    """Two steps, each of which is measured in the middle."""

    name = "staged"
    Settings = MethodSettings

    def declare(self) -> Declaration:
        return Declaration(stages=("early", "late"))

    @client_step
    def begin(self, me: Client) -> Fields:
        local_training.train(me)
        me.measure("early")
        return {}

    @client_step
    def finish(self, me: Client) -> Fields:
        local_training.train(me)
        me.measure("late")
        me.note_local_loss()
        return {}

    def round(self, t: int, fleet: Fleet, server: Server) -> None:
        cohort = fleet.sample()
        fleet.ask(self.begin, cohort)
        fleet.ask(self.finish, cohort)


@pytest.mark.parametrize("engine", ["inline", "pool"])
def test_stages_too_are_measured_by_as_many_clients_as_are_scored(make_run: MakeRun, engine: str) -> None:
    """The cohort may hold none of the clients that are scored afterwards: others measure then."""

    def done(most: int) -> Run:
        run: Run = make_run(
            Staged,
            Inline() if engine == "inline" else Pool(2),
            data={"clients": 6},
            cohort={"count": 3},
            evaluate={"clients": most},
        )
        run.go()
        return run

    few, all_of_them = done(2), done(100)
    for run, expected in ((few, 2), (all_of_them, 3)):
        measured: list[tuple[int, Any]] = [
            (facts.index, report.get("measured", {})) for facts, report in run.fleet.reports
        ]
        who = [
            {client for client, found in measured if stage in found} for stage in run.method.declared.stages
        ]
        assert len(who[0]) == expected
        assert who[0] == who[1]
        assert sum("noted" in report for _, report in run.fleet.reports) == expected
    states = [
        {client: file.read_bytes() for client, file in run.client_files().items()}
        for run in (few, all_of_them)
    ]
    assert states[0] == states[1]
