"""AMP, FM and WLP of a run: on each client's own test rows, at every evaluated round."""

from __future__ import annotations

import statistics

import pytest
from tests.conftest import MakeRun

import polyfed
from polyfed import learn
from polyfed.report.tables import result_table
from polyfed.runs.checkpoint import read_lines
from polyfed.runs.history import RunRecord


@pytest.mark.parametrize("method", ["local", "fedavg", "qffl"])
@pytest.mark.parametrize(("every", "evaluated"), [(1, [1, 2, 3]), (2, [2, 3])])
def test_they_are_in_the_history_of_every_evaluated_round(
    make_run: MakeRun, method: str, every: int, evaluated: list[int]
) -> None:
    run = make_run(method, evaluate={"every": every}, cohort={"count": 2})
    run.go()
    lines = [line for line in read_lines(run.path / "history.jsonl") if "summary" in line]
    assert [line["round"] for line in lines] == evaluated
    for line in lines:
        scores = [score["own"] for score in line["clients"].values()]
        assert len(scores) == 4  # whoever was in the cohort
        accuracies = [right / total for right, total in scores]
        right, total = (sum(counts) for counts in zip(*scores, strict=True))
        assert line["summary"]["amp"] == pytest.approx(right / total)
        assert line["summary"]["fm"] == pytest.approx(statistics.pvariance(accuracies))
        assert line["summary"]["wlp"] == min(accuracies)


def test_they_are_of_each_clients_own_fifth_which_it_does_not_train_on(make_run: MakeRun) -> None:
    run = make_run({"name": "fedavg", "inactive": "cached"}, data={"test": 0.2, "validation": 0.0})
    run.go()
    assert run.last is not None
    model = polyfed.load_model(run.path, "mlp-small")
    for client in range(4):
        held = run.federation.holdings.of(client)
        rows = len(held.train) + len(held.test)
        assert len(held.test) == pytest.approx(rows / 5, abs=1)
        assert run.last["clients"][f"client-{client}"]["own"] == learn.score(model, *held.test.tensors())
        train, test = ({row.numpy().tobytes() for row in part.inputs()} for part in (held.train, held.test))
        assert not train & test


def test_they_are_in_the_table_of_a_run(make_run: MakeRun) -> None:
    run = make_run("fedavg")
    run.go()
    run.close()
    rows = list(result_table(RunRecord(run.path), None).columns[0].cells)
    assert {str(cell)[:3] for cell in rows} >= {"AMP", "FM ", "WLP"}
