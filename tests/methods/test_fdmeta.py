"""FD-meta: which public rows are least certain, and rounds against a loop written out by hand."""

from __future__ import annotations

from math import log
from typing import Any

import pytest
import torch
from pydantic import ValidationError
from tests.conftest import MakeRun
from tests.methods.by_hand import ONCE, PUBLIC_ROWS, Prepare, normed, plain, said
from tests.methods.test_dsfl import ByHand as DSFLByHand
from torch import Tensor

from polyfed.errors import MethodError
from polyfed.methods.fdmeta import FDMeta, FDMetaSettings, doubts
from polyfed.runs.rounds import Run

FDMETA: dict[str, Any] = {
    "name": "fdmeta",
    "public_rows": PUBLIC_ROWS,
    "candidates": 1.5,
    "distil": {**ONCE, "epochs": 2},
}


# -- doubt ---------------------------------------------------------------------------------------------------

SAID = torch.tensor(
    [[0.5, 0.25, 0.25], [1.0, 0.0, 0.0], [1 / 3, 1 / 3, 1 / 3], [0.25, 0.5, 0.25], [0.5, 0.5, 0.0]]
)


def test_doubt_as_entropy_by_hand() -> None:
    """½ ln 2 + 2 · ¼ ln 4 = 3/2 ln 2; 0; ln 3; 3/2 ln 2; ln 2."""
    expected = torch.tensor([1.5 * log(2), 0.0, log(3), 1.5 * log(2), log(2)])
    assert torch.allclose(doubts(SAID, "entropy"), expected, atol=1e-6)


def test_doubt_as_margin_by_hand() -> None:
    """The second best less the best: ¼ - ½, 0 - 1, 0, ¼ - ½, 0. The smaller the margin, the larger the doubt."""
    assert torch.allclose(doubts(SAID, "margin"), torch.tensor([-0.25, -1.0, 0.0, -0.25, 0.0]), atol=1e-6)


def test_the_two_rules_differ() -> None:
    """Two classes alike and no third: no margin, but less entropy than three that are somewhat alike."""
    rows = torch.tensor([[0.5, 0.5, 0.0], [0.4, 0.3, 0.3]])
    entropy, margin = doubts(rows, "entropy"), doubts(rows, "margin")
    assert entropy[0] < entropy[1]
    assert margin[0] > margin[1]


# -- which rows ----------------------------------------------------------------------------------------------


def order_of(run: Run, number: int) -> Tensor:
    assert run.federation.holdings.public is not None
    stream = run.federation.seeds.torch("public rows", "server", number)
    return torch.randperm(len(run.federation.holdings.public), generator=stream)


def drawn(run: Run, number: int) -> list[int]:
    assert isinstance(run.method, FDMeta)
    run.server.round = number
    rows = run.method.draw(run.server)
    assert rows.dtype == torch.int32
    return rows.tolist()


def doubted(run: Run, rows: Tensor, sampling: Any) -> Tensor:
    assert run.server.model is not None and run.federation.holdings.public is not None
    return doubts(
        said(run.server.model, run.federation.holdings.public[rows].inputs()).softmax(dim=1), sampling
    )


@pytest.mark.parametrize("sampling", ["entropy", "margin"])
def test_the_rows_are_the_most_uncertain_of_the_candidates(federate: Prepare, sampling: str) -> None:
    method = {**FDMETA, "public_rows": 8, "candidates": 3, "sampling": sampling}
    run = federate([normed, plain], method=method)
    candidates = order_of(run, 2)[:24]
    doubt = doubted(run, candidates, sampling)
    chosen = drawn(run, 2)
    expected = sorted(candidates[doubt.argsort(descending=True)[:8]].tolist())
    assert chosen == expected
    left = [row for row in candidates.tolist() if row not in chosen]
    least = doubted(run, torch.tensor(chosen), sampling).min()
    assert least >= doubted(run, torch.tensor(left), sampling).max()
    assert len(left) == 16


@pytest.mark.parametrize(
    ("sampling", "number"), [("entropy", 1), ("margin", 1), ("random", 1), ("random", 2)]
)
def test_in_the_first_round_or_at_random_any_rows_will_do(
    federate: Prepare, sampling: str, number: int
) -> None:
    run = federate([normed, plain], method={**FDMETA, "public_rows": 8, "sampling": sampling})
    assert drawn(run, number) == sorted(order_of(run, number)[:8].tolist())


def test_with_fewer_public_rows_than_wanted_all_are_taken(federate: Prepare) -> None:
    run = federate([normed, plain], method={**FDMETA, "public_rows": 500})
    assert drawn(run, 2) == list(range(36)) == drawn(run, 1)


# -- rounds --------------------------------------------------------------------------------------------------


class ByHand(DSFLByHand):
    """DS-FL's loop without sharpening, on the rows of which the server's model is least sure."""

    def public(self, number: int) -> Tensor:
        order = order_of(self.run, number)
        assert self.federation.holdings.public is not None
        if number > 1:
            candidates = order[: PUBLIC_ROWS * 3 // 2].sort().values
            p = said(self.server, self.federation.holdings.public[candidates].inputs()).softmax(dim=1)
            order = candidates[(p * p.log()).sum(dim=1).argsort()]  # the least negative entropy comes last
        return self.federation.holdings.public[order[:PUBLIC_ROWS].sort().values].inputs()


def test_rounds_equal_a_loop_by_hand(federate: Prepare) -> None:
    run = federate([normed, plain], method=FDMETA, rounds=3)
    run.go()
    assert ByHand(run, sharpen=None).agrees(run)
    assert not DSFLByHand(run, sharpen=None).agrees(run)


def test_it_always_has_a_server_model(make_run: MakeRun) -> None:
    with pytest.raises(ValidationError):
        FDMetaSettings(**{"global": False})
    with pytest.raises(MethodError, match=r"set models\.server"):
        make_run("fdmeta", data={"public": {"source": "share", "share": 0.2}})
