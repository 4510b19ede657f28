"""Reading a table's numbers out of the histories of runs."""

from __future__ import annotations

import math
from typing import Any

import pytest
from tests.experiments.conftest import Write

from polyfed.experiments import papers
from polyfed.experiments.papers import Paper
from polyfed.experiments.papers.numbers import Bounded, values_of
from polyfed.experiments.papers.paper import PaperTable
from polyfed.experiments.papers.results import (
    Evaluations,
    RunKey,
    count_parameters,
    mean_along,
    mean_curve,
    read_cell,
    read_curves,
    read_printed,
    sent_in,
)
from polyfed.experiments.papers.terms import runs_for
from polyfed.runs.metrics import Criterion, look_up
from polyfed.tasks import Regression


def line(number: int, whole: float, validation: float | None = None, **more: Any) -> dict[str, Any]:
    """A line of a history, as a run writes it."""
    summary = {"own": {"mean": whole / 2}, "whole": {"mean": whole}, "amp": 0.25}
    if validation is not None:
        summary["validation"] = validation
    return {"round": number, "summary": summary, "bytes": {"up": 100 * number, "down": 7}, **more}


START = {"round": 0, "stages": {"initial": {"whole": {"mean": 0.1}}}, "bytes": {"up": 0, "down": 0}}
STAGED: dict[str, Any] = {
    "stages": {"distilled": {"whole": {"mean": 0.75}}},
    "server": {"global": 0.625},
    "server_metrics": {"global": {"auc": 0.875, "fbeta_score(beta=0.5)": 0.25}},
    "clients": {
        "client-3": {"own": [3, 4], "metrics": {"own": {"auc": None, "confusion": [[3, 1], [0, 0]]}}}
    },
}


@pytest.mark.parametrize(
    ("measure", "value"),
    [
        ("whole.mean", 0.5),
        ("own.mean", 0.25),
        ("amp", 0.25),
        ("stages.distilled.whole.mean", 0.75),
        ("server.global", 0.625),
        ("bytes.up", 200.0),
        ("clients.client-3.own", 0.75),
        ("metrics.own.auc.mean", 0.8125),
        ("metrics.own.macro-f1.mean", None),
        ("metrics.own.confusion", None),
        ("server_metrics.global.auc", 0.875),
        ("server_metrics.global.fbeta_score(beta=0.5)", 0.25),
        ("clients.client-3.metrics.own.auc", None),
        ("clients.client-3.metrics.own.confusion", None),
        ("stages.initial.whole.mean", None),
        ("server.local", None),
        ("whole", None),
        ("whole.mean.more", None),
    ],
)
def test_a_measure_is_a_path_into_a_line(measure: str, value: float | None) -> None:
    found = line(2, 0.5, **STAGED)
    found["summary"]["metrics"] = {
        "own": {"auc": {"mean": 0.8125}, "macro-f1": None, "confusion": [[3, 1], [0, 0]]}
    }
    assert look_up(found, measure) == value


def test_a_value_is_that_of_the_last_round_and_of_the_one_chosen_on_validation() -> None:
    run = Evaluations(
        [START, line(1, 0.5, 0.6), line(2, 0.9, 0.8), line(3, 0.7, 0.8), {"round": 4, "failures": []}]
    )
    assert run.value("whole.mean", "last") == 0.7
    assert run.value("whole.mean", "chosen") == 0.9  # the earlier of two equals
    assert run.value("bytes.up", "chosen") == 200


def test_what_is_only_measured_before_the_first_round_is_found_there() -> None:
    run = Evaluations([START, line(1, 0.5, 0.6), line(2, 0.9, 0.5)])
    assert run.value("stages.initial.whole.mean", "last") == 0.1
    assert run.value("stages.initial.whole.mean", "chosen") == 0.1
    assert run.value("stages.other.whole.mean", "last") is None
    assert Evaluations([line(1, 0.5)]).value("stages.initial.whole.mean", "last") is None


def test_without_validation_no_round_is_chosen() -> None:
    run = Evaluations([line(1, 0.5)])
    assert run.value("whole.mean", "last") == 0.5
    assert run.value("whole.mean", "chosen") is None
    assert Evaluations([]).value("whole.mean", "last") is None


def test_each_client_may_have_a_round_of_its_own_chosen() -> None:
    """Client 0 is best on validation in round 1, client 1 in round 2; what is reported is of these."""
    first = {
        "client-0": {"validation": [9, 10], "whole": [5, 10]},
        "client-1": {"validation": [1, 4], "whole": [1, 10]},
    }
    second = {
        "client-0": {"validation": [8, 10], "whole": [9, 10]},
        "client-1": {"validation": [3, 4], "whole": [7, 10]},
    }
    lines = [line(1, 0.3, 0.5, clients=first), line(2, 0.8, 0.7, clients=second)]
    run = Evaluations(lines, chosen="each")
    assert run.value("whole.mean", "chosen") == pytest.approx((0.5 + 0.7) / 2)
    assert run.value("clients.client-0.whole", "chosen") == 0.5
    assert run.value("clients.client-1.whole", "chosen") == 0.7
    assert run.value("clients.client-0.whole", "last") == 0.9
    assert run.value("whole.mean", "last") == 0.8
    assert run.value("bytes.up", "chosen") is None  # no which is everyone's
    assert Evaluations(lines).value("whole.mean", "chosen") == 0.8
    untold = line(1, 0.3, clients={"client-0": {"whole": [3, 10]}})
    assert Evaluations([untold], chosen="each").value("whole.mean", "chosen") is None


def test_what_was_sent_is_of_the_whole_run() -> None:
    # 3 clients sent 600 + 45 + 15 bytes in 4 rounds: 220 each, 55 per round
    sent = sent_in(
        {"bytes": {"up": {"posteriors": 600, "metrics": 45, "framing": 15}}, "clients": 3, "rounds": 4}
    )
    assert sent == {"sent.client": 220.0, "sent.round": 55.0}
    run = Evaluations([line(1, 0.5, 0.5)], sent=sent)
    assert (run.value("sent.round", "last"), run.value("sent.round", "chosen")) == (55.0, None)
    assert Evaluations([line(1, 0.5)]).value("sent.round", "last") is None


def test_curves_have_the_rounds_that_were_evaluated() -> None:
    run = Evaluations([START, line(2, 0.5), line(4, 0.7)])
    assert run.curve("whole.mean") == {2: 0.5, 4: 0.7}
    assert run.curve("stages.initial.whole.mean") == {0: 0.1}


RUNS = {
    RunKey("alone", "even", 0): Evaluations([line(1, 0.5, 0.9), line(2, 0.4, 0.8)]),
    RunKey("alone", "even", 1): Evaluations([line(1, 0.6, 0.9), line(2, 0.2, 0.8)]),
    RunKey("together", "even", 1): Evaluations([line(1, 0.75, 0.7), line(2, 0.9, 0.8)]),
    RunKey("together", "skewed", 0): Evaluations([line(1, 0.1)]),
}


def cell(paper: Paper, table: str, row: str, column: str) -> Any:
    given = paper.tables[table]
    return read_cell(paper, table, given.row(row), given.column(column), RUNS)


def test_a_cell_has_one_value_per_seed_in_its_unit(fake: Paper) -> None:
    alone = cell(fake, "main", "alone", "even")
    assert (alone.last, alone.chosen) == ({0: 40.0, 1: 20.0}, {0: 50.0, 1: 60.0})
    assert cell(fake, "main", "alone", "skewed").last == {}
    assert cell(fake, "cost", "together", "up").last == {1: 200.0}


def test_a_variance_may_be_in_hundredths_or_thousandths(fake: Paper) -> None:
    table = fake.tables["main"]
    for unit, value in (("hundredths", 40.0), ("thousandths", 400.0), ("number", 0.4)):
        column = table.column("even").model_copy(update={"unit": unit})
        found = values_of(read_cell(fake, "main", table.row("alone"), column, RUNS).last)
        assert found[0] == pytest.approx(value)


def test_a_difference_is_taken_seed_by_seed(fake: Paper) -> None:
    gain = cell(fake, "main", "gain", "even")
    assert gain.last == {1: pytest.approx(90 - 20)}
    assert gain.chosen == {1: pytest.approx(90 - 60)}


def test_a_ratio_is_taken_seed_by_seed_and_not_to_zero(fake: Paper) -> None:
    table = fake.tables["traffic"]
    runs = {
        RunKey("together", "even", seed): Evaluations(
            [line(1, 0.5)], sent={"sent.client": client, "sent.round": each}
        )
        for seed, client, each in ((0, 60.0, 20.0), (1, 80.0, 20.0), (2, 0.0, 0.0))
    }
    cell = read_cell(fake, "traffic", table.row("rounds"), table.column("sent"), runs)
    assert (cell.last, cell.chosen) == ({0: 3.0, 1: 4.0}, {})


def test_parameters_are_counted_on_the_models_themselves(fake: Paper) -> None:
    # mlp-small: 64·64 + 64 in its hidden layer, 64·10 + 10 at its head
    one = 64 * 64 + 64 + 64 * 10 + 10
    table: PaperTable = fake.tables["sizes"]
    assert count_parameters(table, {"mlp-small": 1}) == one
    four = cell(fake, "sizes", "four", "parameters")
    assert four.last == four.at("last") == four.at("chosen") == 4 * one


def test_a_difference_may_reach_into_another_table(content: dict[str, Any], written: Write) -> None:
    row = {"key": "more", "name": "More", "difference": ["together", "main.alone"]}
    content["tables"]["again"] = {
        "title": "Again",
        "columns": ["even", "skewed"],
        "rows": [content["tables"]["main"]["rows"][1], row],
    }
    paper = papers.load(written(content))
    more = cell(paper, "again", "more", "even")
    assert (more.last, more.chosen) == ({1: pytest.approx(90 - 20)}, {1: pytest.approx(90 - 60)})
    assert set(runs_for(paper, "again", paper.tables["again"].row("more"), "even")) == {
        ("alone", "even"),
        ("together", "even"),
    }
    printed = read_printed(paper, "again", paper.tables["again"].row("more"), "even")
    assert printed == pytest.approx(80.25 - 70.5)


def test_what_is_not_printed_of_a_difference_follows_from_its_rows(fake: Paper) -> None:
    gain = fake.tables["main"].row("gain")
    assert read_printed(fake, "main", gain, "even") == 9.75  # printed
    assert read_printed(fake, "main", gain, "skewed") == 75 - 60
    assert read_printed(fake, "traffic", fake.tables["traffic"].row("all"), "sent") == {}


def test_an_area_is_the_mean_over_the_run_whatever_a_round_is() -> None:
    # Up from 0 to 60 within 4 rounds, then level for 4: (30 · 4 + 60 · 4) / 8
    curve = {2: 0.0, 6: 60.0, 10: 60.0}
    assert mean_along(curve) == 45.0
    assert mean_along({50 * number: value for number, value in curve.items()}) == 45.0
    assert mean_along({0: 999.0, **curve}) == 45.0  # before the first round nothing was learnt together
    assert mean_along({3: 7.0}) == 7.0
    assert mean_along({}) is None


def test_the_sooner_a_run_is_high_the_larger_its_area() -> None:
    slow = Evaluations([line(1, 0.5, 0.2), line(2, 0.5, 0.4), line(3, 0.5, 0.9)])
    fast = Evaluations([line(1, 0.5, 0.2), line(2, 0.5, 0.8), line(3, 0.5, 0.9)])
    assert slow.value("area.validation", "last") == pytest.approx((0.3 + 0.65) / 2)
    assert fast.value("area.validation", "last") == pytest.approx((0.5 + 0.85) / 2)
    assert fast.value("area.validation", "chosen") is None


def test_falls_tell_a_smooth_curve_from_one_that_fluctuates() -> None:
    # 0.2 → 0.5 → 0.4 → 0.9 → 0.6: falls of 0.1 and 0.3 in four steps
    rough = Evaluations([START, *(line(n, v, v) for n, v in enumerate((0.2, 0.5, 0.4, 0.9, 0.6), start=1))])
    assert rough.value("falls.whole.mean", "last") == pytest.approx((0.1 + 0.3) / 4)
    assert rough.value("falls.whole.mean", "chosen") is None
    smooth = Evaluations([START, line(1, 0.2), line(2, 0.5), line(3, 0.5)])
    assert smooth.value("falls.whole.mean", "last") == 0
    assert Evaluations([line(1, 0.2)]).value("falls.whole.mean", "last") is None


def test_curves_of_a_row_are_by_seed_and_their_mean_is_over_common_rounds(fake: Paper) -> None:
    table = fake.tables["main"]
    curves = read_curves(table, table.row("alone"), table.column("even"), RUNS)
    assert curves == {0: {1: 50.0, 2: 40.0}, 1: {1: 60.0, 2: 20.0}}
    mean, spread = mean_curve(curves.values())[1]
    assert mean == 55.0
    assert spread == pytest.approx(50**0.5)  # √((5² + 5²) / 1)
    assert mean_curve([{1: 2.0, 2: 3.0}, {2: 3.0}]) == {2: (3.0, 0.0)}
    assert mean_curve([]) == {}


def test_rounds_and_bytes_to_a_target_are_of_a_whole_run() -> None:
    lines = [START, line(2, 0.5, 0.6), line(4, 0.7, 0.9), line(6, 0.65, 0.8)]
    run = Evaluations(lines)
    assert run.value("rounds_to.0.6.whole.mean", "last") == 4
    assert run.value("bytes_to.0.6.whole.mean", "last") == 100 * 4 + 7
    assert run.value("rounds_to.0.6.whole.mean", "chosen") is None
    assert run.value("rounds_to.0.6.server.global", "last") is None
    never = run.value("rounds_to.0.8.whole.mean", "last")
    assert isinstance(never, Bounded)
    assert [float(never), never.low, never.high] == [6, 6, math.inf]
    assert isinstance(run.value("bytes_to.1.whole.mean", "last"), Bounded)
    assert not isinstance(run.value("bytes_to.0.70.whole.mean", "last"), Bounded)


def test_of_a_regression_smaller_is_better() -> None:
    def errors(number: int, validation: float, tally: list[float]) -> dict[str, Any]:
        score = {"validation": [validation**2 * 10, 10], "own": tally}
        spread = {"mean": tally[0], "worst": tally[0], "best": tally[0], "spread": 0.0}
        return {
            "round": number,
            "summary": {"validation": validation, "own": spread},
            "clients": {"north": score},
        }

    lines = [errors(1, 5.0, [160.0, 10]), errors(2, 3.0, [90.0, 10]), errors(3, 4.0, [40.0, 10])]
    for chosen in ("round", "each"):
        run = Evaluations(lines, chosen=chosen, by=Criterion(Regression()))
        assert (
            run.value("clients.north.own", "chosen") == 3.0
        )  # √(90 / 10), in the round of the smallest error
        assert run.value("clients.north.own", "last") == 2.0
