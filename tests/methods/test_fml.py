"""FML against a loop written out by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.methods.by_hand import NO_PUBLIC, Prepare, normed, plain
from tests.methods.mutual_by_hand import MutualByHand, Way

from polyfed.methods.fml import FMLSettings


@pytest.mark.parametrize("weighting", ["uniform", "samples"])
def test_rounds_equal_a_loop_by_hand(federate: Prepare, weighting: str) -> None:
    """α is the client's, β the meme model's; both step from one forward pass; memes are averaged, norms and all."""
    method = {"name": "fml", "alpha": 0.7, "beta": 0.4, "weighting": weighting}
    run = federate([normed, plain], method=method, data=NO_PUBLIC, rounds=2)
    run.go()
    way = Way(False, (0.7, 0.3), (0.4, 0.6), fusion="average", weighting=weighting)
    by_hand = MutualByHand(run, way)
    assert by_hand.agrees(run)
    accuracy = by_hand.accuracy([by_hand.server])
    assert run.summary["last"]["server"]["global"] == pytest.approx(accuracy, abs=1e-9)
    other = "samples" if weighting == "uniform" else "uniform"
    for wrong in (
        replace(way, in_turn=True),
        replace(way, own=way.sent, sent=way.own),
        replace(way, own=(0.3, 0.7)),
        replace(way, weighting=other),
    ):
        assert not MutualByHand(run, wrong).agrees(run)


def test_by_default_labels_count_more_than_the_other_model() -> None:
    settings = FMLSettings()
    assert (settings.alpha, settings.beta, settings.weighting) == (0.8, 0.8, "uniform")
