"""Numbers by seed and numbers that were counted, taken together."""

from __future__ import annotations

import pytest

from polyfed.experiments.papers.numbers import Number, difference, is_exact, ratio, values_of


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
