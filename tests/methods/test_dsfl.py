"""DS-FL: entropy reduction in numbers, and rounds against a loop written out by hand."""

from __future__ import annotations

from math import e, exp
from typing import Any

import pytest
import torch
from tests.methods.by_hand import (
    ONCE,
    PUBLIC_ROWS,
    Bench,
    Prepare,
    close,
    descend,
    normed,
    plain,
    said,
    server_state_of,
    soft,
    state_of,
)
from torch import Tensor

from polyfed import learn
from polyfed.runs.rounds import Run

DSFL: dict[str, Any] = {"name": "dsfl", "public_rows": PUBLIC_ROWS, "distil": {**ONCE, "epochs": 2}}


class ByHand(Bench):
    """Train, answer, average, sharpen, learn."""

    def __init__(
        self, run: Run, sharpen: float | None = 0.1, temperature: float = 1.0, wrongly: str = ""
    ) -> None:
        super().__init__(run)
        self.temperature = temperature
        self.accuracies: dict[tuple[int, str], float] = {}
        for number in range(1, run.config.rounds + 1):
            cohort, x = self.cohort(number), self.public(number)
            for index in cohort:
                self.train(index, number, 1)
            self.accuracies[number, "personalised"] = self.accuracy([self.clients[index] for index in cohort])
            logits = torch.stack([said(self.clients[index], x) / temperature for index in cohort])
            average = (
                logits.mean(dim=0) if wrongly == "logits are averaged" else logits.softmax(dim=2).mean(dim=0)
            )
            consensus = average if sharpen is None else (average / sharpen).softmax(dim=1)
            self.learn(number, cohort, x, consensus)

    def learn(self, number: int, cohort: list[int], x: Tensor, consensus: Tensor) -> None:
        loss = soft(consensus, self.temperature)
        descend(self.server, x, loss, self.server_stream("distil", number), epochs=2)
        for index in cohort:
            descend(self.clients[index], x, loss, self.stream("distil", index, number, 2), epochs=2)
        self.accuracies[number, "distilled"] = self.accuracy([self.clients[index] for index in cohort])
        self.accuracies[number, "global"] = self.accuracy([self.server])

    def agrees(self, run: Run) -> bool:
        same = all(close(state_of(run, index), model) for index, model in enumerate(self.clients))
        return same and (run.server.model is None or close(server_state_of(run), self.server))


# -- entropy reduction ---------------------------------------------------------------------------------------


def test_entropy_reduction_of_two_answers_by_hand() -> None:
    """The mean of (0.7, 0.2, 0.1) and (0.5, 0.4, 0.1) is (0.6, 0.3, 0.1); at T = 0.1 its softmax is e⁶ : e³ : e¹."""
    average = (torch.tensor([[0.7, 0.2, 0.1]]) + torch.tensor([[0.5, 0.4, 0.1]])) / 2
    total = exp(6) + exp(3) + e
    expected = torch.tensor([[exp(6) / total, exp(3) / total, e / total]])
    assert torch.allclose(learn.soften(average, 0.1), expected, atol=1e-6)


@pytest.mark.parametrize(("peak", "sharpened"), [(1.0, 0.9996), (0.5, 0.90), (0.3, 0.51)])
def test_a_peak_among_ten_classes_becomes_so_sharp(peak: float, sharpened: float) -> None:
    """The rest shared evenly: e^(peak / 0.1) against nine times e^((1 - peak) / 9 / 0.1)."""
    average = torch.full((1, 10), (1 - peak) / 9)
    average[0, 3] = peak
    found = learn.soften(average, 0.1)[0, 3].item()
    by_hand = exp(peak / 0.1) / (exp(peak / 0.1) + 9 * exp((1 - peak) / 9 / 0.1))
    assert found == pytest.approx(by_hand, abs=1e-6)
    assert found == pytest.approx(sharpened, abs=0.005)


# -- rounds --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sharpen", [0.1, 0.5, None])
def test_rounds_equal_a_loop_by_hand(federate: Prepare, sharpen: float | None) -> None:
    """Probabilities are averaged and sharpened, with null the plain mean is taught."""
    run = federate([normed, plain], method={**DSFL, "global": True, "sharpen": sharpen}, rounds=2)
    run.go()
    assert ByHand(run, sharpen).agrees(run)
    assert not ByHand(run, 0.3).agrees(run)
    assert not ByHand(run, sharpen, wrongly="logits are averaged").agrees(run)


def test_it_sharpens_by_a_tenth_unless_told(federate: Prepare) -> None:
    run = federate([normed, plain], method=DSFL, server=False)
    run.go()
    assert run.server.model is None
    assert ByHand(run, 0.1).agrees(run)


def test_a_temperature_softens_answers_and_students_alike(federate: Prepare) -> None:
    method = {**DSFL, "distil": {**ONCE, "epochs": 2, "temperature": 2.0}}
    run = federate([normed, plain], method=method, server=False)
    run.go()
    assert ByHand(run, temperature=2.0).agrees(run)


def test_stages_are_those_of_the_cohorts_models(federate: Prepare) -> None:
    run = federate([normed, plain], method={**DSFL, "global": True}, rounds=2, cohort={"count": 2})
    run.go()
    expected = ByHand(run)
    last = run.summary["last"]
    assert set(last["stages"]) == {"personalised", "distilled"}
    for stage in ("personalised", "distilled"):
        assert last["stages"][stage]["whole"]["mean"] == pytest.approx(
            expected.accuracies[2, stage], abs=1e-9
        )
    assert last["server"]["global"] == pytest.approx(expected.accuracies[2, "global"], abs=1e-9)
    assert last["whole"]["mean"] == pytest.approx(expected.accuracy(expected.clients), abs=1e-9)
