"""The robust mean: the filter by hand, and what it promises for answers placed in every way we could think of."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from polyfed.learn import robust_mean
from polyfed.learn.robust import SAME, TAIL, _in_order, _outside
from polyfed.tasks import CLASSIFICATION


def line(*firsts: float) -> Tensor:
    """One row of two outputs: every client says (a, 1 - a)."""
    return torch.tensor([[[first, 1 - first]] for first in firsts])


def first(answers: Tensor, poisoned: float, spread: float | None = None) -> float:
    return robust_mean(answers, poisoned, spread)[0, 0].item()


# -- by hand -------------------------------------------------------------------------------------------------


def test_what_stands_apart_from_answers_that_agree_is_left_out() -> None:
    """Eight say (0.52, 0.48), two (0.28, 0.72): the plain mean, (0.472, 0.528), names the other class."""
    answers = line(*[0.52] * 8, 0.28, 0.28)
    assert first(answers, 0.0) == pytest.approx(0.472, abs=1e-7)
    assert first(answers, 0.2) == pytest.approx(0.52, abs=1e-7)


def test_the_cut_lies_where_the_tail_says_by_hand() -> None:
    """Ten points on a line with R = 1 given: four at -1, four at 1, so that m = 1 if the other two lie above.

    The two are a fifth of the points. They go if they lie beyond m + T + 1 and 0.2 > 2 exp(-T²/2): T > √(2 ln 10) =
    2.146. Their variance is far above 1 by then.
    """
    cut = 1 + math.sqrt(2 * math.log(TAIL / 0.2)) + 1
    honest = [-1.0] * 4 + [1.0] * 4
    for place, expected in ((cut - 0.001, 2 * (cut - 0.001) / 10), (cut + 0.001, 0.0)):
        points = torch.tensor([*honest, place, place], dtype=torch.float64).reshape(10, 1, 1)
        assert first(points, 0.2, 1.0) == pytest.approx(expected, abs=1e-12)


def test_a_variance_that_honest_answers_could_have_stops_the_filter_by_hand() -> None:
    """Nine of twenty at 0, ten at 0.1, one at x, R = 1: the one is beyond the tail from x - m - 1 > √(2 ln 40) = 2.716.

    At x = 4 its share of the variance alone is 0.05 · 0.95 · 16 = 0.76 (0.74 with the others): below 1, it stays. At
    x = 5 it is 1.16: it goes.
    """
    for place, expected in ((4.0, (10 * 0.1 + 4) / 20), (5.0, 10 * 0.1 / 19)):
        points = torch.tensor([0.0] * 9 + [0.1] * 10 + [place], dtype=torch.float64).reshape(20, 1, 1)
        assert first(points, 0.05, 1.0) == pytest.approx(expected, abs=1e-12)


def test_the_radius_is_that_of_the_smallest_ball_that_holds_all_but_the_poisoned_share() -> None:
    """Eight at -1, -0.5 … 2.5 and two at x, far out: the ball around 0.5 (or 1) that holds the eight has R = 2.

    m is the middle of 1 and 1.5, so the two go beyond 1.25 + 2 + 2 √(2 ln 10) = 7.542.
    """
    honest = [-1.0, -0.5, 0.0, 0.5, 1.0, 1.5, 2.0, 2.5]
    for place, left_out in ((7.5, False), (7.6, True)):
        points = torch.tensor([*honest, place, place], dtype=torch.float64).reshape(10, 1, 1)
        expected = 0.75 if left_out else (6 + 2 * place) / 10
        assert first(points, 0.2) == pytest.approx(expected, abs=1e-12)


def test_points_far_out_in_two_directions_go_in_two_passes() -> None:
    """Twelve at the origin, (±9, 0) and (0, 5): along the first direction, x, the third lies at 0 and is not seen."""
    points = torch.zeros(15, 1, 2, dtype=torch.float64)
    points[3, 0, 0], points[7, 0, 0], points[11, 0, 1] = 9.0, -9.0, 5.0
    assert robust_mean(points, 0.2, 0.1).tolist() == [[0.0, 0.0]]
    assert robust_mean(points, 0.14, 0.1).tolist() == [[0.0, pytest.approx(5 / 13)]]  # two may go, not three
    assert robust_mean(points, 0.1, 0.1).tolist() == [
        [0.0, pytest.approx(5 / 15)]
    ]  # one: but which of the two?


def test_the_share_that_may_go_is_not_cut_by_rounding() -> None:
    points = torch.tensor([0.0] * 71 + [1.0] * 29).reshape(100, 1, 1)
    assert 0.29 * 100 < 29  # in floating point
    assert first(points, 0.29) == 0


@pytest.mark.parametrize("spread", [None, 0.0])
def test_what_32_bits_cannot_tell_apart_is_no_outlier(spread: float | None) -> None:
    points = torch.tensor([0.0] * 9 + [1e-7], dtype=torch.float64).reshape(10, 1, 1)
    assert first(points, 0.2, spread) == pytest.approx(1e-8, rel=1e-6)


def test_rows_are_filtered_each_by_itself() -> None:
    """Client 4 strays in the first row, client 0 in the second, none in the third."""
    rows = [line(0.5, 0.5, 0.5, 0.5, 1.0), line(1.0, 0.25, 0.25, 0.25, 0.25), line(0.3, 0.4, 0.5, 0.4, 0.4)]
    found = robust_mean(torch.cat(rows, dim=1), 0.2)
    assert torch.allclose(found[:, 0], torch.tensor([0.5, 0.25, 0.4]), atol=1e-7)
    many = torch.cat(rows * 400, dim=1)  # more rows than are looked at together
    assert torch.equal(robust_mean(many, 0.2), found.repeat(400, 1))


def test_where_honest_answers_differ_widely_poison_can_still_turn_a_close_call() -> None:
    """What is not promised: (0.9, 0.1) five times and (0.06, 0.94) three times lean to the first by 0.585.

    Two more of the second kind look like the three: nothing tells them apart, and the mean is 0.48.
    """
    answers = line(*[0.9] * 5, *[0.06] * 3)
    assert first(answers, 0.2) == pytest.approx(0.585, abs=1e-6)
    assert first(torch.cat([answers, line(0.06, 0.06)]), 0.2) == pytest.approx(0.48, abs=1e-6)


@pytest.mark.parametrize("clients", [1, 2])
def test_one_or_two_answers_are_averaged(clients: int) -> None:
    answers = line(0.9, 0.1)[:clients]
    assert torch.allclose(robust_mean(answers, 0.49), answers.mean(dim=0), atol=1e-7)


def test_many_outputs_give_what_few_do() -> None:
    """More outputs than clients: the direction comes from the smaller matrix, and is the same."""
    few = line(0.5, 0.52, 0.48, 0.51, 0.9, 0.5, 0.5, 0.49, 0.51, 0.5)
    many = torch.cat([few, torch.zeros(10, 1, 20)], dim=2)
    assert torch.allclose(robust_mean(many, 0.2)[:, :2], robust_mean(few, 0.2), atol=1e-7)
    assert first(few, 0.2) < 0.51


def test_equal_answers_are_kept_or_left_out_together() -> None:
    """200 rows of 12 answers, each one of four: which of them go must not hang on the last bits of their distances."""
    stream = torch.Generator().manual_seed(0)
    for outputs in (3, 20):  # fewer than clients, and more
        kinds = torch.randn(200, 4, outputs, generator=stream).softmax(dim=2)
        which = torch.randint(4, (200, 12), generator=stream)
        points = _in_order(kinds.gather(1, which.unsqueeze(2).expand(-1, -1, outputs)).double())
        kept = torch.ones(200, 12, dtype=torch.bool)
        outside = _outside(points, kept, torch.full((200, 1), 1e-3, dtype=torch.float64), 3)
        equal = (points.unsqueeze(1) == points.unsqueeze(2)).all(dim=3)
        assert not (equal & (outside.unsqueeze(1) != outside.unsqueeze(2))).any()
        assert outside.any()


def test_of_two_answers_as_far_out_neither_goes_if_one_may() -> None:
    """Eight at c, one at c + x v, one at c - x v, in any direction v: nothing says which of the two is bad."""
    stream = torch.Generator().manual_seed(0)
    for outputs in (2, 11):
        middle = torch.rand(100, 1, outputs, generator=stream, dtype=torch.float64)
        way = torch.randn(100, 1, outputs, generator=stream, dtype=torch.float64)
        points = torch.cat([middle.repeat(1, 8, 1), middle + way, middle - way], dim=1).transpose(0, 1)
        found = robust_mean(points, 0.1, 1e-3)
        torch.testing.assert_close(found, middle.squeeze(1), rtol=0, atol=1e-12)


# -- promises ------------------------------------------------------------------------------------------------

Points = npt.NDArray[np.float64]
PLACES = np.concatenate([np.linspace(0, 8, 60), [20.0, 1000.0]])  # where bad points go, in units of R
quick = settings(deadline=None, max_examples=60)


def furthest(bad: int, clients: int, measured: bool) -> float:
    """The bound of the module's header, in units of R: √7.94 = 2.82."""
    odds = bad / (clients - 2 * bad)
    return (2 if measured else 1) * 2.82 * math.sqrt(odds) + odds


def honest_points(rng: np.random.Generator, count: int, outputs: int, form: str) -> Points:
    """Points around 0 whose mean is 0 and of which the farthest is at 1, or all at 0."""
    points = rng.normal(size=(count, outputs))
    if form == "sphere":
        points /= np.linalg.norm(points, axis=1, keepdims=True)
    elif form == "two camps":
        points = np.where(rng.random((count, 1)) < 0.5, points[0], points[-1])
    elif form == "one apart":
        points[1:] = points[-1]
    points -= points.mean(axis=0)
    radius = float(np.linalg.norm(points, axis=1).max())
    return points / radius if radius > 1e-9 else np.zeros_like(points)


def bad_points(rng: np.random.Generator, count: int, honest: Points, form: str) -> Points:
    """count × places × outputs: all in one place, each in its own, beside an honest one, or along what honest vary."""
    directions = rng.normal(size=(count, honest.shape[1]))
    if form == "together":
        directions[:] = directions[:1]
    elif form == "behind an honest one":
        directions[:] = honest[rng.integers(len(honest))] + 1e-9
    elif form == "opposite":
        directions[:] = directions[:1] * rng.choice([-1, 1], size=(count, 1))
    directions /= np.linalg.norm(directions, axis=1, keepdims=True)
    placed: Points = directions[:, None, :] * PLACES[None, :, None]
    return placed


@quick
@given(
    seed=st.integers(0, 2**32 - 1),
    clients=st.integers(3, 24),
    poisoned=st.sampled_from([0.1, 0.2, 0.25, 0.34, 0.45]),
    outputs=st.sampled_from([1, 2, 3, 10, 30]),
    honest_form=st.sampled_from(["cloud", "sphere", "two camps", "one apart"]),
    bad_form=st.sampled_from(["together", "apart", "behind an honest one", "opposite"]),
    spread=st.sampled_from([None, 1.0]),
)
def test_bad_answers_pull_the_mean_no_farther_than_stated(
    seed: int,
    clients: int,
    poisoned: float,
    outputs: int,
    honest_form: str,
    bad_form: str,
    spread: float | None,
) -> None:
    rng = np.random.default_rng(seed)
    bad = int(poisoned * clients + 1e-9)
    honest = honest_points(rng, clients - bad, outputs, honest_form)
    placed = bad_points(rng, bad, honest, bad_form)
    everyone = np.concatenate([placed, np.repeat(honest[:, None, :], len(PLACES), axis=1)])
    off = robust_mean(torch.from_numpy(everyone), poisoned, spread).norm(dim=1)
    assert off.max().item() <= furthest(bad, clients, spread is None) + 10 * SAME


@quick
@given(
    seed=st.integers(0, 2**32 - 1),
    honest=st.integers(6, 20),
    share=st.floats(0.05, 0.3),
    leading=st.floats(0.0, 1.0),
    bad_says=st.lists(st.floats(0.0, 1.0), min_size=8, max_size=8),
)
def test_bad_answers_do_not_turn_what_honest_clients_agree_on(
    seed: int, honest: int, share: float, leading: float, bad_says: list[float]
) -> None:
    """Honest answers that differ by float's last digits only: whatever the others say, the answer is theirs."""
    bad = int(share * honest)
    noise = 1e-7 * np.random.default_rng(seed).random(honest)
    answers = (
        torch.cat([line(*bad_says[:bad]), line(*(leading + noise))]) if bad else line(*(leading + noise))
    )
    assert first(answers, (bad + 0.5) / (honest + bad)) == pytest.approx(leading, abs=5e-6)


@quick
@given(
    seed=st.integers(0, 2**32 - 1),
    clients=st.integers(1, 20),
    poisoned=st.floats(0, 0.49),
    sharpness=st.floats(0.01, 30),
    spread=st.sampled_from([None, 0.0, 0.05]),
)
def test_the_order_of_the_clients_changes_no_bit_and_probabilities_stay_probabilities(
    seed: int, clients: int, poisoned: float, sharpness: float, spread: float | None
) -> None:
    stream = torch.Generator().manual_seed(seed)
    answers = (sharpness * torch.randn(clients, 9, 4, generator=stream)).softmax(dim=2)
    answers[: clients // 3] = answers[0]  # equal answers, too
    found = robust_mean(answers, poisoned, spread)
    shuffled = answers[torch.randperm(clients, generator=stream)]
    assert torch.equal(robust_mean(shuffled, poisoned, spread), found)
    assert CLASSIFICATION.is_answer(found)


@quick
@given(
    seed=st.integers(0, 2**32 - 1),
    clients=st.integers(1, 24),
    poisoned=st.floats(0, 0.45),
    form=st.sampled_from(["cloud", "sphere", "two camps", "one apart"]),
)
def test_without_poison_the_result_is_near_the_plain_mean(
    seed: int, clients: int, poisoned: float, form: str
) -> None:
    """At most ε n of n points are left out, none farther than R from the mean: it moves by R ε / (1 - ε) at most.

    With a spread that holds them all, nothing is left out.
    """
    honest = honest_points(np.random.default_rng(seed), clients, 3, form)
    points = torch.from_numpy(honest[:, None, :])
    share = int(poisoned * clients + 1e-9) / clients
    assert robust_mean(points, poisoned).norm().item() <= share / (1 - share) + 10 * SAME
    assert robust_mean(points, poisoned, 1.0).norm().item() <= 1e-12
    assert robust_mean(points, 0.0).norm().item() <= 1e-12


@pytest.mark.parametrize("poisoned", [0.0, 0.2, 0.4])
@pytest.mark.parametrize("clients", [1, 2, 3, 10, 40])
def test_identical_answers_are_the_result(clients: int, poisoned: float) -> None:
    stream = torch.Generator().manual_seed(0)
    one = torch.randn(1, 30, 10, generator=stream).softmax(dim=2)
    assert torch.allclose(robust_mean(one.repeat(clients, 1, 1), poisoned), one[0], atol=1e-7)
