"""One-sided t-tests, against scipy's own and by hand."""

from __future__ import annotations

import math

import pytest
from scipy import stats

from polyfed.experiments.papers.significance import p_inside, p_outside, place_of

ABOVE = (1.0, math.inf)
BELOW = (-math.inf, 1.0)
BAND = (-1.0, 1.0)


@pytest.mark.parametrize("numbers", [[2.0, 4.0, 6.0], [0.5, 1.5, 0.0, 3.0], [-3.0, -2.5, 1.0, 0.0, 2.0]])
def test_a_single_end_is_a_one_sided_t_test(numbers: list[float]) -> None:
    greater = stats.ttest_1samp(numbers, 1.0, alternative="greater").pvalue
    less = stats.ttest_1samp(numbers, 1.0, alternative="less").pvalue
    assert p_inside(numbers, ABOVE) == pytest.approx(greater)
    assert p_outside(numbers, ABOVE) == pytest.approx(less)
    assert p_inside(numbers, BELOW) == pytest.approx(less)
    assert p_outside(numbers, BELOW) == pytest.approx(greater)


def test_by_hand() -> None:
    # 2, 4, 6: mean 4, deviation 2, t = (4 − 1) / (2 / √3) = 2.598; with 2 degrees p = 1/2 − t / (2 √(2 + t²))
    t = 3 / (2 / math.sqrt(3))
    assert p_inside([2.0, 4.0, 6.0], ABOVE) == pytest.approx(0.5 - t / (2 * math.sqrt(2 + t * t)))


def test_a_band_is_two_tests_of_which_the_weaker_counts() -> None:
    numbers = [0.5, 0.6, 0.9, 0.4]
    above = stats.ttest_1samp(numbers, -1.0, alternative="greater").pvalue
    below = stats.ttest_1samp(numbers, 1.0, alternative="less").pvalue
    assert p_inside(numbers, BAND) == pytest.approx(max(above, below))
    assert p_outside(numbers, BAND) == pytest.approx(1 - max(above, below))


@pytest.mark.parametrize(("number", "inside", "outside"), [(1.5, 0.0, 1.0), (1.0, 1.0, 1.0), (0.5, 1.0, 0.0)])
def test_numbers_without_any_variance_decide(number: float, inside: float, outside: float) -> None:
    assert (p_inside([number] * 3, ABOVE), p_outside([number] * 3, ABOVE)) == (inside, outside)


def test_what_floating_point_leaves_of_equal_numbers_is_no_variance() -> None:
    differences = [59.76 - 52.48, 69.76 - 62.48, 7.28]
    assert len(set(differences)) > 1
    assert p_inside(differences, (7.28, math.inf)) == p_outside(differences, (7.28, math.inf)) == 1.0
    assert p_inside(differences, (7.27, math.inf)) == 0.0


def test_a_true_effect_however_small_is_found_with_enough_seeds() -> None:
    """Mean 0.1, deviation about 1: no rule about the spread alone would ever see it."""
    few = [0.1 + (1 if seed % 2 else -1) for seed in range(4)]
    many = [0.1 + (1 if seed % 2 else -1) for seed in range(400)]
    assert p_inside(few, (0.0, math.inf)) > 0.05 > p_inside(many, (0.0, math.inf))


def test_the_place_of_a_number_is_its_distance_to_the_nearer_end() -> None:
    assert place_of(3.0, ABOVE) == 2.0
    assert place_of(0.75, BAND) == 0.25
    assert place_of(-3.0, BAND) == -2.0
    assert place_of(0.1 + 0.2, (0.3, math.inf)) == 0.0
