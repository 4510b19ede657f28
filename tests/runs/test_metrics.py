from __future__ import annotations

from typing import Any

import pytest

from polyfed.federation.nodes import Measurement
from polyfed.learn import METRICS
from polyfed.runs.metrics import (
    added,
    amp,
    chosen_for_each,
    chosen_round,
    fm,
    mean_and_spread,
    sent_per_client,
    spread_of,
    summarise,
    with_nulls,
    with_others,
    wlp,
)
from polyfed.tasks import CLASSIFICATION, Binary

# FedKF's Table 2: three models on three clients. Its cells are only partly legible (an accuracy of 0.7, an AMP
# of 0.65, FM 0.00667, 0.005 and 0.00667); these accuracies agree with them and with what the text says of them:
# AMP of w1 and w2 equal, FM of w1 and w3 equal, WLP of w1 the smallest.
TABLE_2 = {
    "w1": ((0.5, 0.6, 0.7), 0.6, 0.00667, 0.5),
    "w2": ((0.55, 0.55, 0.7), 0.6, 0.005, 0.55),
    "w3": ((0.55, 0.65, 0.75), 0.65, 0.00667, 0.55),
}


def of_hundred(accuracies: tuple[float, ...]) -> list[list[int]]:
    return [[round(100 * share), 100] for share in accuracies]


@pytest.mark.parametrize("model", TABLE_2)
def test_amp_fm_and_wlp_are_those_of_paper_001(model: str) -> None:
    accuracies, expected_amp, expected_fm, expected_wlp = TABLE_2[model]
    scores = of_hundred(accuracies)
    assert amp(scores) == pytest.approx(expected_amp)
    assert fm(scores) == pytest.approx(expected_fm, abs=5e-6)
    assert wlp(scores) == pytest.approx(expected_wlp)


def test_amp_weighs_a_client_by_its_rows_and_fm_does_not() -> None:
    scores = [[1, 2], [9, 10]]
    assert amp(scores) == pytest.approx(10 / 12)
    # mean 0.7: ((0.5 - 0.7)² + (0.9 - 0.7)²) / 2
    assert fm(scores) == pytest.approx(0.04)
    assert wlp(scores) == 0.5


def test_spread_over_seeds_is_the_sample_standard_deviation() -> None:
    # mean 0.6; sqrt((0.1² + 0² + 0.1²) / (3 - 1)) = 0.1
    assert mean_and_spread([0.5, 0.6, 0.7]) == pytest.approx((0.6, 0.1))
    assert mean_and_spread([0.5]) == (0.5, None)


def test_one_client_has_no_spread() -> None:
    assert spread_of([0.25]) == {"mean": 0.25, "worst": 0.25, "best": 0.25, "spread": 0.0}
    assert fm([[1, 4]]) == 0


def test_spread_is_the_population_standard_deviation() -> None:
    # mean 0.5, deviations -0.3, 0.1, 0.2: √(0.14 / 3)
    found = spread_of([0.2, 0.6, 0.7])
    assert found["mean"] == pytest.approx(0.5)
    assert found["worst"] == 0.2
    assert found["best"] == 0.7
    assert found["spread"] == pytest.approx((0.14 / 3) ** 0.5)


def test_accuracy_is_right_of_all() -> None:
    assert CLASSIFICATION.value([3, 4]) == 0.75


def test_a_summary_reports_every_part_that_was_measured() -> None:
    scores: dict[int, Measurement] = {
        0: {"own": [1, 2], "whole": [30, 100], "validation": [1, 1]},
        1: {"own": [9, 10], "whole": [50, 100], "validation": [1, 4]},
        2: {"whole": [70, 100]},
    }
    summary = summarise(scores, lambda index: "mlp" if index == 0 else "cnn")
    assert summary["own"] == pytest.approx({"mean": 0.7, "worst": 0.5, "best": 0.9, "spread": 0.2})
    assert summary["whole"]["mean"] == pytest.approx(0.5)
    assert summary["amp"] == pytest.approx(10 / 12)
    assert summary["fm"] == pytest.approx(0.04)
    assert summary["wlp"] == 0.5
    assert summary["validation"] == pytest.approx(2 / 5)
    assert summary["architectures"] == {
        "mlp": {"own": 0.5, "whole": 0.3},
        "cnn": {"own": 0.9, "whole": pytest.approx(0.6)},
    }


def test_what_was_not_measured_is_not_in_the_summary() -> None:
    assert summarise({3: {"whole": [1, 2]}}, lambda _: "mlp") == {
        "whole": {"mean": 0.5, "worst": 0.5, "best": 0.5, "spread": 0.0},
        "architectures": {"mlp": {"whole": 0.5}},
    }


def evaluated(number: int, validation: float | None, test: float) -> dict[str, Any]:
    summary: dict[str, Any] = {"own": {"mean": test}, "whole": {"mean": test}, "amp": test}
    return {"round": number, "summary": summary | ({} if validation is None else {"validation": validation})}


def test_the_chosen_round_is_the_best_on_validation_whatever_the_test_says() -> None:
    lines = [evaluated(1, 0.5, 0.9), evaluated(2, 0.7, 0.1), evaluated(3, 0.6, 1.0)]
    assert chosen_round(lines) == 2


def test_of_equal_rounds_the_earliest_is_chosen() -> None:
    lines = [evaluated(12, 0.7, 0.9), evaluated(3, 0.7, 0.1), evaluated(2, 0.6, 1.0), evaluated(5, 0.7, 1.0)]
    assert chosen_round(lines) == 3


def test_without_validation_no_round_is_chosen() -> None:
    assert chosen_round([evaluated(1, None, 0.9)]) is None
    assert chosen_round([]) is None
    assert chosen_round([evaluated(1, None, 0.9), evaluated(2, 0.0, 0.1)]) == 2


def test_the_others_are_the_whole_without_the_own() -> None:
    # 9 of 10 right at home, 30 of 40 in all: 21 of 30 elsewhere
    score: Measurement = {"own": [9, 10], "whole": [30, 40], "validation": [1, 2]}
    assert with_others(score) == {**score, "others": [21, 30]}
    assert with_others({"own": [9, 10]}) == {"own": [9, 10]}
    assert with_others({"whole": [9, 10]}) == {"whole": [9, 10]}
    alone: Measurement = {"own": [9, 10], "whole": [9, 10]}
    assert with_others(alone) == alone  # there are no others


def test_the_others_are_summed_up_as_the_own_and_the_whole_are() -> None:
    scores = {
        0: with_others({"own": [9, 10], "whole": [30, 40]}),  # others 21/30 = 0.7
        1: with_others({"own": [8, 10], "whole": [17, 40]}),  # others 9/30 = 0.3
    }
    summary = summarise(scores, lambda _: "mlp")
    assert summary["others"] == pytest.approx({"mean": 0.5, "worst": 0.3, "best": 0.7, "spread": 0.2})
    assert summary["architectures"]["mlp"]["others"] == pytest.approx(0.5)


def at(number: int, **validation: list[int]) -> dict[str, Any]:
    """A line of a history: each client's score on validation; on test it has as many right as the round's number."""
    return {
        "round": number,
        "clients": {name: {"validation": score, "whole": [number, 10]} for name, score in validation.items()},
    }


def test_each_client_has_its_own_best_round() -> None:
    lines = [at(1, a=[5, 10], b=[9, 10]), at(2, a=[8, 10], b=[7, 10]), at(3, a=[6, 10], b=[9, 10])]
    best = chosen_for_each(lines)
    assert best == {
        "a": {"validation": [8, 10], "whole": [2, 10]},
        "b": {"validation": [9, 10], "whole": [1, 10]},  # the earlier of two equals
    }


def test_a_client_that_was_not_evaluated_in_a_round_is_not_chosen_there() -> None:
    lines = [at(1, a=[5, 10]), at(2, b=[1, 10]), {"round": 3, "clients": {"a": {"whole": [9, 10]}}}]
    assert {name: score["whole"] for name, score in chosen_for_each(lines).items()} == {
        "a": [1, 10],
        "b": [2, 10],
    }
    assert chosen_for_each([]) == {}


def test_what_a_client_sends_is_the_mean_over_clients_of_every_byte() -> None:
    sizes = {"weights": 90, "metrics": 10, "control": 1000, "framing": 100}
    assert sent_per_client({"bytes": {"up": sizes, "down": {}}, "clients": 4}) == 300.0


def test_empty_messages_are_nothing() -> None:
    assert sent_per_client({"bytes": {"up": {"framing": 100}, "down": {}}, "clients": 4}) == 0.0


# -- metrics beside accuracy ---------------------------------------------------------------------------------


def test_metrics_are_summed_up_over_the_clients_where_they_have_a_value() -> None:
    scores: dict[int, Measurement] = {
        0: {
            "own": [1, 2],
            "metrics": {"own": {"auc": 0.9, "calibration-error": 0.1, "confusion": [[1, 0], [1, 0]]}},
        },
        1: {
            "own": [3, 3],
            "metrics": {"own": {"auc": None, "calibration-error": 0.3, "confusion": [[3, 0], [0, 0]]}},
        },
        2: {
            "own": [1, 1],
            "metrics": {"own": {"auc": 0.5, "calibration-error": 0.2, "confusion": [[0, 0], [0, 1]]}},
        },
        3: {"whole": [1, 1]},
    }
    own = summarise(scores, lambda _: "mlp")["metrics"]["own"]
    assert own["auc"] == pytest.approx({"mean": 0.7, "worst": 0.5, "best": 0.9, "spread": 0.2})
    # of an error, the largest is the worst; (0.1² + 0 + 0.1²) / 3 is the square of the spread
    assert own["calibration-error"] == pytest.approx(
        {"mean": 0.2, "worst": 0.3, "best": 0.1, "spread": (0.02 / 3) ** 0.5}
    )
    assert own["confusion"] == [[4, 0], [1, 1]]


def test_sums_are_added_only_where_every_client_has_them() -> None:
    """Recall of the second class: 1 of 2 here and 0 of 1 there are 1 of 3; the mean over clients would be 1/4."""
    task = Binary().for_classes(["no", "yes"])
    asked = [METRICS["recall"], METRICS["auc"], METRICS["brier"]]
    here: Any = {"own": [2, 3], "metrics": {"own": {"auc": 0.5}},
                 "sums": {"own": {"confusion": [[1, 0], [1, 1]], "brier": [0.6, 3]}}}  # fmt: skip
    there: Any = {
        "own": [1, 2],
        "metrics": {"own": {"auc": None}},
        "sums": {"own": {"confusion": [[1, 0], [1, 0]]}},
    }
    assert added([here, there], asked, task) == {
        "own": [3, 5],
        "metrics": {"own": {"recall": pytest.approx(1 / 3), "auc": 0.5, "brier": None}},
    }


def test_no_sums_are_left_in_what_is_written() -> None:
    score: Any = {"own": [1, 2], "sums": {"own": {"confusion": [[1, 1], [0, 0]]}}}
    assert with_nulls(score, [METRICS["recall"]]) == {"own": [1, 2]}


def test_a_metric_that_nobody_has_is_none() -> None:
    scores: dict[int, Measurement] = {0: {"own": [1, 1], "metrics": {"own": {"auc": None}}}}
    assert summarise(scores, lambda _: "mlp")["metrics"] == {"own": {"auc": None}}


def test_without_metrics_there_is_no_word_of_them() -> None:
    assert "metrics" not in summarise({0: {"own": [1, 1]}}, lambda _: "mlp")
    assert with_nulls({"own": [1, 1]}, [METRICS["auc"]]) == {"own": [1, 1]}


def test_what_a_report_leaves_out_has_no_value() -> None:
    score: Measurement = {"own": [1, 1], "metrics": {"own": {"macro-f1": 1.0}}}
    assert with_nulls(score, [METRICS["macro-f1"], METRICS["auc"]]) == {
        "own": [1, 1],
        "metrics": {"own": {"macro-f1": 1.0, "auc": None}},
    }


def test_metrics_are_kept_beside_the_others_and_at_each_clients_best_round() -> None:
    metrics: dict[Any, Any] = {"own": {"auc": 0.5}}
    score: Measurement = {"own": [9, 10], "whole": [30, 40], "validation": [1, 2], "metrics": metrics}
    assert with_others(score)["metrics"] == metrics
    assert chosen_for_each([{"clients": {"north": score}}])["north"]["metrics"] == metrics
