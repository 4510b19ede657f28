"""Claims, judged on numbers that can be followed by hand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from scipy import stats

from polyfed.experiments.papers import Paper
from polyfed.experiments.papers.chance import Accuracies
from polyfed.experiments.papers.claims import (
    Comparison,
    FindNumber,
    PaperCheck,
    Verdict,
    check_printed,
    judge,
    judge_all,
    tally,
    what_of,
)
from polyfed.experiments.papers.numbers import Bounded, Number
from polyfed.experiments.papers.paper import Claim
from polyfed.experiments.papers.terms import columns_judged

Numbers = Mapping[str, Number]


def found_in(numbers: Numbers) -> FindNumber:
    """Numbers by row, or `row@column`, or `table.row`."""

    def find(table: str, row: str, column: str) -> Number:
        name = row if table == "t" else f"{table}.{row}"
        return numbers.get(f"{name}@{column}", numbers.get(name, {}))

    return find


def verdict(numbers: Numbers, **claim: Any) -> Verdict:
    """A claim judged in a column `c` of a table `t`."""
    return judge(Claim(text="x", **claim), "t", "c", found_in(numbers))


def seeds(*values: float) -> dict[int, float]:
    return dict(enumerate(values))


def zero(number: int) -> dict[int, float]:
    return seeds(*[0.0] * number)


def test_an_order_is_shown_by_a_one_sided_paired_t_test() -> None:
    # a − b: 2, 4, 6; mean 4, deviation 2, t = 4 / (2 / √3) = 3.46, p = 0.037
    found = verdict({"a": seeds(12, 24, 36), "b": seeds(10, 20, 30)}, order=["a", "b"])
    p = stats.ttest_rel([12, 24, 36], [10, 20, 30], alternative="greater").pvalue
    assert p < 0.05
    assert found.mark == "shown"
    comparison = found.comparison
    assert comparison is not None
    assert (comparison.mean, comparison.spread, comparison.held, comparison.seeds) == (4.0, 2.0, 3, 3)
    assert comparison.p == pytest.approx(p)
    assert comparison.p_opposite == pytest.approx(1 - p)


def test_a_mean_beyond_its_spread_is_not_enough() -> None:
    # a − b: 1, 4, 7; mean 4, deviation 3, t = 2.31, p = 0.074, though it holds in every seed
    found = verdict({"a": seeds(1, 4, 7), "b": zero(3)}, order=["a", "b"])
    assert found.mark == "not shown"
    assert found.comparison is not None and found.comparison.held == 3


def test_more_seeds_show_an_effect_smaller_than_its_spread() -> None:
    """0.5 ± 1.0 over 40 seeds."""
    values = seeds(*(0.5 + (1 if seed % 2 else -1) for seed in range(40)))
    assert verdict({"a": values, "b": zero(40)}, order=["a", "b"]).mark == "shown"
    assert (
        verdict({"a": seeds(*list(values.values())[:6]), "b": zero(6)}, order=["a", "b"]).mark == "not shown"
    )


def test_the_opposite_contradicts_a_claim() -> None:
    found = verdict({"a": seeds(10, 20, 30), "b": seeds(12, 24, 36)}, order=["a", "b"])
    assert found.mark == "contradicted"
    assert found.comparison is not None and found.comparison.p_opposite == pytest.approx(0.0370, abs=1e-4)


@pytest.mark.parametrize("number", [1, 2])
def test_with_fewer_than_three_seeds_nothing_is_judged_but_the_numbers_are_there(number: int) -> None:
    found = verdict({"a": seeds(*[50.0, 60.0][:number]), "b": zero(number)}, order=["a", "b"])
    assert found.mark == "not judged"
    assert found.comparison is not None
    assert (found.comparison.seeds, found.comparison.held, found.comparison.p) == (number, number, None)


def test_seeds_are_paired() -> None:
    """Each run differs by 40 between seeds, but the difference is always 1: p = 0."""
    numbers: Numbers = {"a": seeds(11, 51, 91), "b": {2: 90, 1: 50, 0: 10}}
    found = verdict(numbers, order=["a", "b"])
    assert found == Verdict("shown", Comparison(1.0, 0.0, 3, 3, 0.0, 1.0, half_width=0.0))


def test_only_seeds_that_both_have_count() -> None:
    numbers: Numbers = {"a": seeds(11, 51, 91, 0), "b": {1: 50, 0: 10, 2: 90, 7: 99}}
    found = verdict(numbers, order=["a", "b"])
    assert found.comparison is not None and found.comparison.seeds == 3
    assert verdict({**numbers, "b": {0: 10, 1: 50}}, order=["a", "b"]).mark == "not judged"


@pytest.mark.parametrize(
    ("difference", "mark"),
    [(1.1, "shown"), (1.0, "not shown"), (0.9, "contradicted"), (-5.0, "contradicted")],
)
def test_without_variance_the_margin_decides_and_on_it_nothing_is_shown(difference: float, mark: str) -> None:
    numbers = {"a": seeds(*[10 + difference] * 3), "b": seeds(10, 10, 10)}
    assert verdict(numbers, order=["a", "b"], margin=1).mark == mark


def test_a_margin_has_to_be_exceeded_significantly() -> None:
    numbers = {
        "a": seeds(9, 10, 11),
        "b": zero(3),
    }  # 10 ± 1: t = (10 − m) / 0.577, and 2.92 is the critical value
    assert verdict(numbers, order=["a", "b"], margin=8.3).mark == "shown"
    assert verdict(numbers, order=["a", "b"], margin=8.4).mark == "not shown"
    assert verdict(numbers, order=["a", "b"], margin=11.6).mark == "not shown"
    assert verdict(numbers, order=["a", "b"], margin=11.7).mark == "contradicted"


def test_a_margin_below_zero_allows_to_fall_short_by_that_much() -> None:
    numbers = {"a": seeds(9.4, 19.5, 29.6), "b": seeds(10, 20, 30)}  # −0.5 ± 0.1
    assert verdict(numbers, order=["a", "b"], margin=-1).mark == "shown"
    assert verdict(numbers, order=["a", "b"], margin=-0.6).mark == "not shown"


def test_a_ratio_is_judged_seed_by_seed() -> None:
    # a / b: 2, 3, 4; mean 3, deviation 1: 3 ± 2.92 · 0.577 = 1.31 … 4.69
    numbers = {"a": seeds(20, 60, 40), "b": seeds(10, 20, 10)}
    assert verdict(numbers, ratio=["a", "b"], at_least=1.3).mark == "shown"
    assert verdict(numbers, ratio=["a", "b"], at_least=1.4).mark == "not shown"
    assert verdict(numbers, ratio=["a", "b"], at_least=4.7).mark == "contradicted"
    assert verdict(numbers, ratio=["a", "b"], at_most=4.7).mark == "shown"
    assert verdict(numbers, ratio=["a", "b"], at_most=4.6).mark == "not shown"
    assert verdict(numbers, ratio=["a", "b"], at_most=1.3).mark == "contradicted"


@pytest.mark.parametrize(("at_least", "mark"), [(57, "shown"), (58, "not shown"), (1000, "contradicted")])
def test_bytes_that_do_not_vary_decide_a_ratio(at_least: float, mark: str) -> None:
    numbers = {"a": seeds(*[5800.0] * 3), "b": seeds(*[100.0] * 3)}
    assert verdict(numbers, ratio=["a", "b"], at_least=at_least).mark == mark


def test_a_ratio_to_nothing_is_not_measured() -> None:
    assert (
        verdict({"a": seeds(20, 20, 20), "b": zero(3)}, ratio=["a", "b"], at_least=2).mark == "not measured"
    )
    assert verdict({"a": 20.0, "b": 0.0}, ratio=["a", "b"], at_least=2).mark == "not measured"


def test_near_is_shown_by_two_one_sided_tests() -> None:
    # a − b: −1, 0, 1; 0 ± 2.92 · 0.577 = ± 1.686
    numbers = {"a": seeds(9, 10, 11), "b": seeds(10, 10, 10)}
    assert verdict(numbers, near=["a", "b"], within=1.7).mark == "shown"
    assert verdict(numbers, near=["a", "b"], within=1.6).mark == "not shown"


def test_equivalence_needs_power_and_what_lacks_it_is_told_apart_from_a_difference() -> None:
    """t(0.95, 2) = 2.92, so three seeds resolve 2.92 / √3 = 1.686 deviations."""
    # a − b: −17, 0, 17; mean 0, deviation 17, half width 1.686 · 17 = 28.66: ± 3 could not be shown, ± 29 is.
    wide = {"a": seeds(33, 50, 67), "b": seeds(50, 50, 50)}
    for claim in ({"near": ["a", "b"], "within": 3}, {"order": ["a", "b"], "margin": -3}):
        found = verdict(wide, **claim)
        assert (found.mark, found.powerless) == ("not shown", True)
        assert found.comparison is not None and found.comparison.half_width == pytest.approx(28.66, abs=0.01)
    assert verdict(wide, near=["a", "b"], within=29).mark == "shown"
    assert verdict(wide, order=["a", "b"], margin=-29).mark == "shown"
    # An order without a margin looks for a difference: there is nothing that it allows, so no power to lack.
    assert not verdict(wide, order=["a", "b"]).powerless
    # a − b: 2, 3, 4; half width 1.686 is below 3: there is power, and the mean on the end decides nothing.
    on_the_end = verdict({"a": seeds(52, 53, 54), "b": seeds(50, 50, 50)}, near=["a", "b"], within=3)
    assert (on_the_end.mark, on_the_end.powerless) == ("not shown", False)
    # a − b: 5, 6, 7; (6 − 3) / (1 / √3) = 5.2 > 2.92: a real difference, larger than the margin.
    apart = verdict({"a": seeds(55, 56, 57), "b": seeds(50, 50, 50)}, near=["a", "b"], within=3)
    assert (apart.mark, apart.powerless) == ("contradicted", False)
    # Rounds that are only known to be above something have no interval.
    ends = verdict({"a": more_than(20, 20, 20), "b": seeds(5, 7, 9)}, order=["a", "b"]).comparison
    assert ends is not None and ends.half_width is None


def at(chance: float, *values: float, rows: int | None = None) -> list[Accuracies | None]:
    """The accuracies of the models behind a cell."""
    return [Accuracies(values, chance, rows)]


def test_models_that_are_all_within_noise_of_chance_are_not_judged() -> None:
    good, poor = at(0.1, 0.5, 0.6, 0.7), at(0.1, 0.09, 0.11, 0.12)
    numbers = {"a": seeds(11, 12, 13), "b": seeds(9, 9, 9), "gain": seeds(2, 3, 4)}

    def judged(models: Mapping[str, Sequence[Accuracies | None]], **claim: Any) -> Verdict:
        return judge(
            Claim(text="x", **claim), "t", "c", found_in(numbers), lambda _table, row, _column: models[row]
        )

    for claim in (
        {"order": ["a", "b"]},
        {"near": ["a", "b"], "within": 30},
        {"ratio": ["a", "b"], "at_least": 9},
    ):
        found = judged({"a": poor, "b": poor}, **claim)
        assert (found.mark, found.why) == ("not judged", "both within noise of chance (10 %)")
        assert found.comparison is not None and not found.is_tested  # the numbers are there
        for other in (good, [None]):
            assert judged({"a": poor, "b": other}, **claim).mark in ("shown", "contradicted")
            assert judged({"a": other, "b": poor}, **claim).mark in ("shown", "contradicted")
    # What a difference is made of counts. A bound on one accuracy compares no models, and is judged.
    assert judged({"gain": [*poor, *at(0.05, 0.04, 0.05, 0.06)]}, value="gain", at_most=9).why == (
        "both within noise of chance (5 % and 10 %)"
    )
    assert judged({"gain": [*poor, *good]}, value="gain", at_most=9).mark == "shown"
    assert judged({"a": poor}, value="a", at_least=70).mark == "contradicted"
    assert judged({"gain": [*poor] * 4}, value="gain", at_most=9).why == "all within noise of chance (10 %)"
    two = {"a": seeds(1, 2), "b": seeds(0, 0)}
    assert verdict(two, order=["a", "b"]).why == "2 of at least 3 seeds"


def test_near_is_contradicted_only_beyond_its_band_on_either_side() -> None:
    # 5 ± 1 and −5 ± 1: beyond 3.31 by the test
    for sign in (1, -1):
        numbers = {"a": seeds(4 * sign, 5 * sign, 6 * sign), "b": zero(3)}
        assert verdict(numbers, near=["a", "b"], within=3.3).mark == "contradicted"
        assert verdict(numbers, near=["a", "b"], within=3.4).mark == "not shown"
        assert verdict(numbers, near=["a", "b"], within=6.6).mark == "not shown"
        assert verdict(numbers, near=["a", "b"], within=6.7).mark == "shown"


def test_near_with_a_margin_is_about_that_far_above() -> None:
    numbers = {"a": seeds(1.9, 2.0, 2.1), "b": zero(3)}
    assert verdict(numbers, near=["a", "b"], margin=2, within=1).mark == "shown"
    assert verdict(numbers, near=["b", "a"], margin=2, within=1).mark == "contradicted"


def test_a_number_by_itself_may_have_a_bound() -> None:
    numbers = {"gap": seeds(1.0, 1.1, 1.2)}
    assert verdict(numbers, value="gap", at_most=3.15).mark == "shown"
    assert verdict(numbers, value="gap", at_least=3.15).mark == "contradicted"


def test_what_was_left_out_is_not_measured() -> None:
    assert verdict({"a": seeds(1, 2, 3)}, order=["a", "b"]) == Verdict("not measured")


@pytest.mark.parametrize(("four", "mark"), [(19.0, "shown"), (20.0, "not shown"), (21.0, "contradicted")])
def test_what_was_counted_is_compared_exactly(four: float, mark: str) -> None:
    found = verdict({"four": four, "one": 5.0}, ratio=["four", "one"], at_most=4)
    assert found == Verdict(mark, Comparison(four / 5, None, held=0, seeds=0))  # type: ignore[arg-type]
    assert not found.is_tested


def test_what_was_counted_beside_what_was_measured_is_the_same_for_every_seed() -> None:
    found = verdict({"a": seeds(11, 12, 13), "b": 1.0}, order=["a", "b"])
    assert found.comparison is not None and (found.comparison.mean, found.comparison.seeds) == (11.0, 3)


def test_terms_name_other_columns_and_other_tables() -> None:
    numbers = {"gap@x": 9.0, "gap@y": 2.0, "gap@c": 5.0, "u.gap@c": 7.0, "u.gap@y": 1.0}
    for order, difference in ((["gap@x", "u.gap"], 2), (["u.gap", "gap"], 2), (["gap@y", "u.gap@y"], 1)):
        found = verdict(numbers, order=order)
        assert found.comparison is not None and found.comparison.mean == difference
    assert what_of(Claim(text="x", order=("gap@x", "u.gap")), "t") == "gap@x − u.gap"
    assert what_of(Claim(text="x", ratio=("a", "b"), at_most=1), "t") == "a / b"
    assert what_of(Claim(text="x", value="u.gap", at_most=1), "t") == "u.gap"


@pytest.mark.parametrize(
    ("claim", "expected"),
    [
        ({"order": ["a", "b"]}, PaperCheck(True, 7.28)),
        ({"order": ["b", "a"]}, PaperCheck(False, -7.28)),
        (
            {"order": ["a", "b"], "margin": 7.28},
            PaperCheck(True, 7.28),
        ),  # the margin is that of these numbers
        ({"order": ["a", "b"], "margin": 7.29}, PaperCheck(False, 7.28)),
        ({"order": ["a", "a"]}, PaperCheck(False, 0.0)),
        ({"value": "a", "at_most": 59.76}, PaperCheck(True, 59.76)),
        ({"near": ["a", "b"], "within": 7}, PaperCheck(False, 7.28)),
        ({"order": ["a", "c"]}, PaperCheck(None, None)),
    ],
)
def test_a_claim_holds_in_the_printed_numbers_or_does_not(
    claim: dict[str, Any], expected: PaperCheck
) -> None:
    checked = check_printed(Claim(text="x", **claim), "t", "c", found_in({"a": 59.76, "b": 52.48}))
    assert checked.holds is expected.holds
    assert checked.number == (None if expected.number is None else pytest.approx(expected.number))


def test_a_claim_is_judged_in_every_column_unless_it_names_them(fake: Paper) -> None:
    everywhere, named = fake.tables["main"].claims
    assert columns_judged(everywhere, "main", fake) == ("even", "skewed")
    assert columns_judged(everywhere.model_copy(update={"only": ("skewed",)}), "main", fake) == ("skewed",)
    assert columns_judged(named, "main", fake) == (None,)


def test_all_claims_of_a_table_are_judged_on_the_last_and_the_chosen_round(fake: Paper) -> None:
    last = {"together": seeds(80, 80, 80), "alone": seeds(70, 70, 70), "gain": seeds(10, 10, 10)}
    chosen = {"together": seeds(60, 60, 60), "alone": seeds(70, 70, 70), "gain": seeds(-10, -10)}
    judged = judge_all(
        fake,
        "main",
        last=lambda _table, row, _column: last[row],
        chosen=lambda _table, row, _column: chosen[row],
        printed=lambda _table, row, _column: {},
    )
    assert [(each.column, each.last.mark, each.chosen.mark, each.paper.holds) for each in judged] == [
        ("even", "shown", "contradicted", None),
        ("skewed", "shown", "contradicted", None),
        (None, "not shown", "not judged", None),
    ]
    assert tally(each.last for each in judged) == {"shown": 2, "not shown": 1}


def more_than(*values: float) -> dict[int, float]:
    """Runs that did not reach a target in so many rounds."""
    return {seed: Bounded(value, low=value) for seed, value in enumerate(values)}


def test_that_one_takes_fewer_rounds_is_shown_against_runs_that_never_get_there() -> None:
    # slow − fast is above 20 − 5, 20 − 7, 20 − 9: these ends are tested as numbers would be.
    found = verdict({"slow": more_than(20, 20, 20), "fast": seeds(5, 7, 9)}, order=["slow", "fast"])
    ends = verdict({"slow": seeds(20, 20, 20), "fast": seeds(5, 7, 9)}, order=["slow", "fast"])
    assert found.comparison is not None
    assert ends.comparison is not None
    assert (found.mark, found.comparison.p, found.comparison.bound) == ("shown", ends.comparison.p, ">")
    assert found.comparison.p_opposite == 1.0  # however much more it is
    assert found.comparison.held == 3
    ratio = verdict(
        {"slow": more_than(20, 20, 20), "fast": seeds(5, 5, 5)}, ratio=["slow", "fast"], at_least=3
    )
    assert ratio.mark == "shown"


def test_a_run_that_never_gets_there_is_never_shown_to_take_fewer() -> None:
    numbers = {"first": more_than(20, 20, 20), "second": seeds(25, 26, 24)}
    # second − first is below 5, 6, 4, and may be anything below.
    found = verdict(numbers, order=["second", "first"])
    assert found.comparison is not None
    assert (found.mark, found.comparison.held, found.comparison.bound) == ("not shown", 0, "<")
    # Even as a single number: more than 20 is not below 30, and not contradicted either.
    assert verdict({"first": more_than(20, 20, 20)}, value="first", at_most=30).mark == "not shown"
    assert verdict({"first": more_than(20, 20, 20)}, value="first", at_most=10).mark == "contradicted"
    at_most = verdict(numbers, ratio=["first", "second"], at_most=2.0)
    assert at_most.mark == "not shown"


def test_it_is_contradicted_where_the_other_got_there_earlier_than_it_gave_up() -> None:
    found = verdict({"first": more_than(20, 20, 20), "second": seeds(5, 6, 4)}, order=["second", "first"])
    assert found.mark == "contradicted"


def test_of_two_that_never_get_there_nothing_is_known() -> None:
    numbers = {"a": more_than(20, 20, 20), "b": more_than(9, 9, 9)}
    for order in (["a", "b"], ["b", "a"]):
        found = verdict(numbers, order=order)
        assert found.comparison is not None
        assert (found.mark, found.comparison.bound) == ("not shown", "?")
    assert verdict(numbers, near=["a", "b"], within=100).mark == "not shown"


def test_one_seed_that_never_gets_there_counts_with_what_it_had() -> None:
    slow = {**seeds(20, 21), **{2: Bounded(25, low=25)}}
    found = verdict({"slow": slow, "fast": seeds(5, 5, 5)}, order=["slow", "fast"])
    assert found.comparison is not None
    assert found.mark == "shown"
    assert found.comparison.mean == pytest.approx((15 + 16 + 20) / 3)
