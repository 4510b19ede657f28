from __future__ import annotations

from typing import Any

import pytest

from polyfed.metrics import accuracy, amp, chosen_round, fm, mean_and_spread, spread_of, summarise, wlp

# Paper 001, Table 2: three models on three clients. Its cells are only partly legible (an accuracy of 0.7, an AMP
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
    assert accuracy([3, 4]) == 0.75


def test_a_summary_reports_every_part_that_was_measured() -> None:
    scores = {
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
