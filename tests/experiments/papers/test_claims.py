"""Claims, judged on numbers that can be followed by hand."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from polyfed.experiments.papers import Paper
from polyfed.experiments.papers.claims import BySeed, Comparison, judge, judge_all
from polyfed.experiments.papers.paper import Claim
from polyfed.experiments.papers.terms import columns_judged

Numbers = Mapping[str, Mapping[int, float]]


def verdict(numbers: Numbers, **claim: Any) -> Any:
    """A claim judged in a column `c` of a table `t`, on numbers by row (or `row@column`, or `table.row`)."""

    def find(table: str, row: str, column: str) -> BySeed:
        name = row if table == "t" else f"{table}.{row}"
        return numbers.get(f"{name}@{column}") or numbers.get(name) or {}

    return judge(Claim(text="x", **claim), "t", "c", find)


def test_an_order_is_shown_if_the_mean_difference_is_larger_than_its_spread() -> None:
    # a − b: 2, 4, 6; mean 4, sample deviation √((4 + 0 + 4) / 2) = 2; 4 > 2
    found = verdict({"a": {0: 12, 1: 24, 2: 36}, "b": {0: 10, 1: 20, 2: 30}}, order=["a", "b"])
    assert found.mark == "shown"
    assert found.weakest == Comparison("a − b", mean=4.0, spread=2.0, held=3, seeds=3, slack=2.0)


def test_an_order_is_not_shown_if_the_spread_is_as_large() -> None:
    # a − b: 0, 2, 4; mean 2, deviation 2: not more than its spread, though it holds in two seeds of three
    found = verdict({"a": {0: 10, 1: 22, 2: 34}, "b": {0: 10, 1: 20, 2: 30}}, order=["a", "b"])
    assert (found.mark, found.weakest.held) == ("not shown", 2)


def test_seeds_are_paired() -> None:
    """Each run differs by 40 between seeds, but the difference is always 1: spread 0, shown."""
    found = verdict({"a": {0: 11, 1: 51}, "b": {1: 50, 0: 10}}, order=["a", "b"])
    assert (found.mark, found.weakest.mean, found.weakest.spread) == ("shown", 1.0, 0.0)


def test_only_seeds_that_both_have_count() -> None:
    found = verdict({"a": {0: 11, 1: 51, 2: 0}, "b": {1: 50, 0: 10, 3: 99}}, order=["a", "b"])
    assert (found.mark, found.weakest.seeds) == ("shown", 2)


@pytest.mark.parametrize(("a", "mark"), [(10.1, "shown"), (10.0, "not shown"), (9.9, "not shown")])
def test_with_one_seed_a_difference_is_enough(a: float, mark: str) -> None:
    found = verdict({"a": {0: a}, "b": {0: 10}}, order=["a", "b"])
    assert (found.mark, found.weakest.spread) == (mark, None)


def test_a_margin_has_to_be_exceeded() -> None:
    numbers = {"a": {0: 12, 1: 24, 2: 36}, "b": {0: 10, 1: 20, 2: 30}}  # 4 ± 2
    assert verdict(numbers, order=["a", "b"], margin=1.9).mark == "shown"
    found = verdict(numbers, order=["a", "b"], margin=2.0)
    assert (found.mark, found.weakest.held) == ("not shown", 2)


def test_a_margin_below_zero_allows_to_fall_short_by_that_much() -> None:
    numbers: Numbers = {"a": {0: 9.4, 1: 19.6}, "b": {0: 10, 1: 20}}  # −0.6 and −0.4: −0.5 ± 0.14
    assert verdict(numbers, order=["a", "b"], margin=-1).mark == "shown"
    assert verdict(numbers, order=["a", "b"], margin=-0.6).mark == "not shown"


def test_in_a_chain_the_weakest_comparison_decides() -> None:
    # a − b: 10 ± 0; b − c: 1, 3, mean 2, deviation √2 ≈ 1.41, slack 0.59; c − d: 5 ± 0
    numbers: dict[str, dict[int, float]] = {
        "a": {0: 20, 1: 20},
        "b": {0: 10, 1: 10},
        "c": {0: 9, 1: 7},
        "d": {0: 4, 1: 2},
    }
    found = verdict(numbers, order=["a", "b", "c", "d"])
    assert (found.mark, found.weakest.what) == ("shown", "b − c")
    assert found.weakest.slack == pytest.approx(2 - 2**0.5)
    numbers["d"] = {0: 8, 1: 8}  # c − d: 1, −1
    found = verdict(numbers, order=["a", "b", "c", "d"])
    assert (found.mark, found.weakest.what) == ("not shown", "c − d")
    assert [comparison.what for comparison in found.comparisons] == ["a − b", "b − c", "c − d"]


def test_a_ratio_is_judged_seed_by_seed() -> None:
    # a / b: 2, 3; mean 2.5, deviation √0.5 ≈ 0.71
    numbers = {"a": {0: 20, 1: 60}, "b": {0: 10, 1: 20}}
    assert verdict(numbers, ratio=["a", "b"], at_least=1.7).mark == "shown"
    assert verdict(numbers, ratio=["a", "b"], at_least=1.8).mark == "not shown"
    assert verdict(numbers, ratio=["a", "b"], at_most=3.3).mark == "shown"
    found = verdict(numbers, ratio=["a", "b"], at_most=2.9)
    assert (found.mark, found.weakest.held, found.weakest.what) == ("not shown", 1, "a / b")


def test_a_ratio_to_nothing_is_not_measured() -> None:
    assert verdict({"a": {0: 20}, "b": {0: 0}}, ratio=["a", "b"], at_least=2).mark == "not measured"


def test_near_is_within_either_way() -> None:
    # a − b: −1, 1; mean 0, deviation √2
    numbers = {"a": {0: 9, 1: 11}, "b": {0: 10, 1: 10}}
    assert verdict(numbers, near=["a", "b"], within=1.5).mark == "shown"
    assert verdict(numbers, near=["a", "b"], within=1.4).mark == "not shown"
    assert verdict({"a": {0: 5}, "b": {0: 10}}, near=["a", "b"], within=4).mark == "not shown"


def test_what_was_left_out_is_not_measured() -> None:
    found = verdict({"a": {0: 12}, "b": {0: 10}}, order=["a", "b", "c"])
    assert (found.mark, found.weakest) == ("not measured", None)


def test_terms_name_other_columns_and_other_tables() -> None:
    numbers = {"gap@x": {0: 9}, "gap@y": {0: 2}, "gap@c": {0: 5}, "u.gap@c": {0: 7}, "u.gap@y": {0: 1}}
    assert verdict(numbers, order=["gap@x", "u.gap", "gap", "gap@y", "u.gap@y"]).mark == "shown"
    assert verdict(numbers, order=["gap@x", "u.gap"]).weakest.what == "gap@x − u.gap"


def test_a_claim_is_judged_in_every_column_unless_it_names_them(fake: Paper) -> None:
    everywhere, named = fake.tables["main"].claims
    assert columns_judged(everywhere, "main", fake) == ("even", "skewed")
    assert columns_judged(everywhere.model_copy(update={"only": ("skewed",)}), "main", fake) == ("skewed",)
    assert columns_judged(named, "main", fake) == (None,)


def test_all_claims_of_a_table_are_judged_on_the_last_and_the_chosen_round(fake: Paper) -> None:
    last = {"together": {0: 80.0}, "alone": {0: 70.0}, "gain": {0: 10.0}}
    chosen = {"together": {0: 60.0}, "alone": {0: 70.0}, "gain": {0: -10.0}}
    judged = judge_all(
        fake,
        "main",
        last=lambda _table, row, _column: last[row],
        chosen=lambda _table, row, _column: chosen[row],
        printed=lambda _table, row, _column: {},
    )
    assert [(each.column, each.last.mark, each.chosen.mark, each.paper.mark) for each in judged] == [
        ("even", "shown", "not shown", "not measured"),
        ("skewed", "shown", "not shown", "not measured"),
        (None, "not shown", "not shown", "not measured"),
    ]
