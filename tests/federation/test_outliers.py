"""How large replies are, by hand, and which of a cohort are outliers."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from polyfed import Kind, LikeWeights, Number, OwnWeights, Table
from polyfed.federation.fields import Probabilities, RowNumbers, Surroundings
from polyfed.federation.outliers import Extent, Extents, extents_of, most_suspect, outliers, too_large

SENT = {"layer.weight": torch.tensor([3.0, 4.0]), "bn.running_var": torch.tensor([1.0])}
AROUND = Surroundings({"outputs": 2, "rows": 1}, sent={"weights": SENT})


def extents(declared: Any, value: Any, around: Surroundings = AROUND) -> Extents:
    return extents_of({"field": declared}, {"field": value}, around)


def test_weights_are_measured_by_their_difference_to_what_was_sent() -> None:
    """√((3² + 4²) / 2) of a difference of (3, −4), beside √((3² + 4²) / 2) of what was sent; statistics apart."""
    own = {"layer.weight": torch.tensor([6.0, 0.0]), "bn.running_var": torch.tensor([5.0])}
    found = extents(LikeWeights("weights"), own)
    assert (found["field"].own, found["field"].known) == pytest.approx((math.sqrt(12.5), math.sqrt(12.5)))
    assert found["running statistics of field"] == Extent(4.0, 1.0, 1.0)


def test_gradients_are_measured_as_they_are_and_so_are_weights_that_were_not_sent() -> None:
    own = {"layer.weight": torch.tensor([6.0, 0.0])}
    gradients = LikeWeights("weights", only=lambda name: "layer" in name, kind=Kind.GRADIENTS)
    assert extents(gradients, own)["field"].own == pytest.approx(math.sqrt(18))
    not_sent = extents(OwnWeights(), own)["field"]
    assert (not_sent.own, not_sent.known) == pytest.approx((math.sqrt(18), 0.01))


def test_of_some_rows_the_same_rows_of_what_was_sent_are_taken_away() -> None:
    sent = {"a.weight": torch.tensor([[1.0], [2.0], [30.0]])}
    reply = {"field": {"a.weight": torch.tensor([[1.5], [30.5]])}, "rows": {"a": torch.tensor([0, 2])}}
    around = Surroundings({}, {"weights": sent, "wanted": {"a": 2}}, reply)
    declared = {"field": LikeWeights("weights", rows="rows"), "rows": RowNumbers("wanted")}
    found = extents_of(declared, reply, around)
    assert found.keys() == {"field"}
    assert found["field"].own == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("declared", "value", "own"),
    [
        (Table("rows", "outputs"), torch.tensor([[6.0, 8.0]]), math.sqrt(50)),
        (Table("rows", "outputs"), torch.tensor([[6.0, 8.0]], dtype=torch.float16), math.sqrt(50)),
        (Number(), -7, 7.0),
        (Kind.FEATURES, {"deep": [torch.tensor([6.0, 8.0]), 3]}, math.sqrt(50)),
        (Kind.FEATURES, ["words", None, -9.0], 9.0),
    ],
)
def test_other_fields_are_measured_as_they_are(declared: Any, value: Any, own: float) -> None:
    (found,) = extents(declared, value).values()
    assert found.own == pytest.approx(own)


def test_what_is_in_a_range_has_no_extent() -> None:
    assert extents(Probabilities("rows", "outputs"), torch.tensor([[0.5, 0.5]])) == {}


@pytest.mark.parametrize("absurd", [1e16, 1e20, 3e38])
def test_what_can_hardly_be_squared_is_too_large_whatever_the_others_send(absurd: float) -> None:
    assert too_large(extents(Kind.FEATURES, torch.tensor([absurd, 1.0]))) == "field"
    assert too_large(extents(Kind.FEATURES, absurd)) == "field"
    assert too_large(extents(Kind.FEATURES, torch.tensor([1e14]))) is None


def cohort(*sizes: float, known: float = 0.01, spread: float = 1.0) -> dict[int, Extents]:
    return {client: {"weights": Extent(size, known, spread)} for client, size in enumerate(sizes)}


@pytest.mark.parametrize(
    ("replies", "left_out"),
    [
        (cohort(1, 1, 2, 199), set()),  # the median is 1, of the two in the middle the smaller
        (cohort(1, 1, 2, 201), {3}),
        (cohort(1, 201), {1}),  # one of two
        (cohort(201), set()),  # nobody to compare with, but for what it was sent
        (cohort(1, 1, 2, 201, known=2.5), set()),  # no more than 200 times what it was sent
        (cohort(1, 1, 2, 501, known=2.5), {3}),
        (cohort(0, 0, 0, 1), set()),  # others that hold nothing: 0.01 is never too large
        (cohort(0, 0, 0, 2.1), {3}),
        (cohort(1, 1, 2, 1e6, spread=math.inf), set()),
        (cohort(1e9, 1e9, 1e9), set()),  # all of them
    ],
)
def test_an_outlier_is_many_times_larger_than_the_median_and_than_what_was_sent(
    replies: dict[int, Extents], left_out: set[int]
) -> None:
    found = outliers(replies, 200)
    assert set(found) == left_out
    assert all("times as large as the others'" in reason for reason in found.values())


def test_the_suspect_is_the_client_that_stands_out_most_in_any_step() -> None:
    assert most_suspect([cohort(1, 1, 20), cohort(1, 50, 1)]) == 1
    assert most_suspect([cohort(1, 2, 3)]) is None
    assert most_suspect([]) is None
