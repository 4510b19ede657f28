"""Numbers by seed and numbers that were counted, taken together."""

from __future__ import annotations

import math

import pytest

from polyfed.experiments.papers.numbers import (
    Bounded,
    Number,
    difference,
    is_exact,
    ratio,
    scaled,
    sign_of,
    values_of,
)
from polyfed.experiments.reproduce.formats import format_over_seeds


@pytest.mark.parametrize(
    ("first", "second", "less", "over"),
    [
        ({0: 6.0, 1: 9.0}, {1: 3.0, 0: 2.0}, {0: 4.0, 1: 6.0}, {0: 3.0, 1: 3.0}),
        ({0: 6.0, 2: 9.0}, {2: 3.0, 5: 2.0}, {2: 6.0}, {2: 3.0}),  # the seeds that both have
        ({0: 6.0, 1: 9.0}, 3.0, {0: 3.0, 1: 6.0}, {0: 2.0, 1: 3.0}),  # counted: the same for every seed
        (6.0, {4: 2.0}, {4: 4.0}, {4: 3.0}),
        (6.0, 3.0, 3.0, 2.0),
        (6.0, 0.0, 6.0, {}),  # no ratio to nothing
        ({0: 6.0, 1: 6.0}, {0: 0.0, 1: 3.0}, {0: 6.0, 1: 3.0}, {1: 2.0}),
        ({}, {0: 1.0}, {}, {}),
    ],
)
def test_differences_and_ratios_are_taken_seed_by_seed(
    first: Number, second: Number, less: Number, over: Number
) -> None:
    assert difference(first, second) == less
    assert ratio(first, second) == over


def test_what_was_counted_has_one_value_and_no_seed() -> None:
    assert is_exact(3.0) and not is_exact({0: 3.0}) and not is_exact({})
    assert values_of(3.0) == [3.0]
    assert values_of({1: 4.0, 0: 3.0}) == [3.0, 4.0]
    assert values_of({}) == []


def test_what_is_made_of_a_number_with_an_open_end_has_one_too() -> None:
    more, plain = Bounded(20, low=20), 5.0
    ends = [
        (difference({0: more}, plain), 15, math.inf),  # more than 20 less 5
        (difference(plain, {0: more}), -math.inf, -15),
        (difference({0: more}, {0: more}), -math.inf, math.inf),
        (ratio({0: more}, plain), 4, math.inf),
        (ratio(plain, {0: more}), -math.inf, 0.25),
        (ratio({0: more}, {0: more}), -math.inf, math.inf),
        ({0: scaled(2.0, more)}, 40, math.inf),
    ]
    for number, low, high in ends:
        (value,) = values_of(number)
        assert isinstance(value, Bounded)
        assert (value.low, value.high) == (low, high)
    assert not isinstance(scaled(2.0, plain), Bounded)
    assert [sign_of([plain, each]) for each in (plain, more, Bounded(1, high=1), Bounded(1))] == [
        "", ">", "<", "?",
    ]  # fmt: skip


def test_a_cell_says_that_a_target_was_not_reached() -> None:
    reached = {0: 12.0, 1: 14.0}
    assert format_over_seeds(reached, "count") == "13 ± 1"
    assert format_over_seeds({**reached, 2: Bounded(22, low=22)}, "count") == "> 16 (2 of 3)"
    assert format_over_seeds({0: Bounded(3e6, low=3e6)}, "bytes") == "> 3.0 MB (0 of 1)"
