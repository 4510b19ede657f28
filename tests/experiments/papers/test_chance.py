"""Whether models are better than chance, by hand; and which accuracy and rows tell it of a measure."""

from __future__ import annotations

from typing import Any

import pytest

from polyfed.experiments import papers
from polyfed.experiments.papers.chance import Accuracies, accuracy_behind, rows_behind
from polyfed.experiments.papers.results import Evaluations, RunKey, read_accuracies


@pytest.mark.parametrize(
    ("values", "rows", "above"),
    [
        # mean 0.12, deviation 0.01: t = 0.02 / (0.01 / √3) = 3.46 > 2.92, so the seeds say "above"
        ([0.11, 0.12, 0.13], None, True),
        # mean 0.12, deviation 0.02: t = 0.02 / (0.02 / √3) = 1.73 < 2.92
        ([0.10, 0.12, 0.14], None, False),
        # of 360 rows guessing has 0.1 ± √(0.1 · 0.9 / 360) = 0.0158; 1.645 of these are 0.026 > 0.02
        ([0.11, 0.12, 0.13], 360, False),
        # of 1000 rows ± 0.0095, and 0.0156 < 0.02
        ([0.11, 0.12, 0.13], 1000, True),
        # below chance nothing was learned either; and no spread at all is not a reason to be above
        ([0.01, 0.02, 0.01], 1000, False),
        ([0.1, 0.1, 0.1], None, False),
        ([0.11, 0.11, 0.11], 100, False),
        # 40 ± 17 %: t = 0.3 / (0.17 / √3) = 3.06
        ([0.23, 0.40, 0.57], 100, True),
    ],
)
def test_above_chance_means_beyond_the_spread_of_seeds_and_the_noise_of_the_rows(
    values: list[float], rows: int | None, above: bool
) -> None:
    assert Accuracies(values, 0.1, rows).above_chance is above


@pytest.mark.parametrize(
    ("measure", "accuracy"),
    [
        ("whole.mean", "whole.mean"),
        ("own.worst", "own.mean"),
        ("stages.trained.others.spread", "stages.trained.others.mean"),
        ("fm", "amp"),
        ("wlp", "amp"),
        ("stages.trained.fm", "stages.trained.amp"),
        ("area.fm", "area.amp"),
        ("falls.wlp", "amp"),
        ("falls.noted.local-loss", None),
        ("area.server.global", "area.server.global"),
        ("clients.client-0.own", "clients.client-0.own"),
        ("validation", "validation"),
        ("rounds_to.0.6.whole.mean", None),
        ("bytes_to.0.6.whole.mean", None),
        ("bytes.up", None),
        ("sent.round", None),
        ("noted.local-loss", None),
        ("area.noted.local-loss", None),
    ],
)
def test_a_measure_is_traced_to_the_accuracy_of_its_models(measure: str, accuracy: str | None) -> None:
    assert accuracy_behind(measure) == accuracy


def test_every_measure_of_every_paper_has_an_accuracy_or_is_counted() -> None:
    for name in papers.known():
        for table in papers.load(name).tables.values():
            for row in table.rows:
                for column in table.columns:
                    measure = row.measure or column.measure or ""
                    if row.run:
                        counted = table.unit_of(row, column) in ("count", "bytes")
                        assert (accuracy_behind(measure) is None) is counted, measure


def line(accuracy: float) -> dict[str, Any]:
    scores = {"own": [3, 20], "whole": [30, 300], "validation": [1, 5], "others": [27, 280]}
    summary = {"amp": accuracy, "fm": 0.5, "wlp": 0.0, "whole": {"mean": accuracy}}
    return {"round": 1, "summary": summary, "clients": {"a": scores, "b": scores}, "server": {"global": 0.1}}


def test_rows_are_those_that_an_accuracy_is_over() -> None:
    found = {
        measure: rows_behind(line(0.1), measure)
        for measure in ("amp", "whole.mean", "others.mean", "validation", "server.global", "clients.a.own")
    }
    assert list(found.values()) == [40, 300, 280, 10, 300, 20]
    assert rows_behind({"round": 0, "stages": {}}, "stages.initial.whole.mean") is None


def test_a_cell_knows_the_accuracies_chance_and_rows_of_the_runs_behind_it() -> None:
    paper = papers.load("fedkf")
    table = paper.tables["table3"]
    row = next(row for row in table.rows if row.run)
    column = next(column for column in table.columns if column.measure == "fm")
    runs = {
        RunKey(row.run or "", column.setting or "", seed): Evaluations([line(accuracy)], classes=10)
        for seed, accuracy in enumerate((0.1, 0.12, 0.09))
    }
    assert read_accuracies(paper, "table3", row, column, runs, "last") == [
        Accuracies([0.1, 0.12, 0.09], 0.1, 40)
    ]
    untold = {
        key: Evaluations(run.lines) for key, run in runs.items()
    }  # a run that does not name its classes
    assert read_accuracies(paper, "table3", row, column, untold, "last") == [None]
    assert read_accuracies(paper, "table3", row, column, {}, "last") == [None]
