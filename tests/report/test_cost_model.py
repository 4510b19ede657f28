"""The cost model of FedORION's appendix B, worked out by hand, and what `polyfed cost` says of it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from tests.conftest import Command

from polyfed import models
from polyfed.experiments import measured_cost
from polyfed.report.cost_model import CostModel

PAPER = CostModel(
    clients=30, prototypes=5, ratio=22, skipping=0.2, backward=3, local=10, server=5
)  # B.1 to B.3


def test_the_work_of_a_round_by_hand() -> None:
    """N 30, P 5, M 22, α 0.2, K 3, I_c 10, I_s 5: a = 0.2 + 0.8 · 22 = 17.8, teachers 0.25 · 30 · 17.8 = 133.5.

    FedORION: clients 30 · (1 + 0.8 · 22) · 10 = 5580, server (1 + 133.5) · 5 = 672.5.
    FedDF: clients 30 · 17.8 · 10 = 5340, server (5 · 133.5 + 5 · 22 − 21) · 5 = 3782.5.
    """
    assert PAPER.fedorion() == pytest.approx((5580, 672.5), abs=1e-6)
    assert PAPER.feddf() == pytest.approx((5340, 3782.5), abs=1e-6)
    assert PAPER.speed_up() == pytest.approx((5340 + 3782.5) / (5580 + 672.5), abs=1e-6)
    assert CostModel() == PAPER


def test_a_client_costs_what_it_trains() -> None:
    """Two clients, one of which skips mutual learning, one local step, nothing on the server, M 3.

    FedDF: 1 + 3 = 4. FedORION: 1 for the one that skips, 3 + 1 for the other: 5.
    """
    two = CostModel(clients=2, prototypes=2, ratio=3, skipping=0.5, local=1, server=0)
    assert two.feddf() == (4, 0)
    assert two.fedorion() == (5, 0)


def test_a_server_step_is_a_student_and_the_teachers_forward_passes() -> None:
    """K 1: a forward pass is half a step. Teachers of 1 and 3: 2 steps. FedORION: 1 + 2; FedDF, whose two students cost
    1 and 3 and ask the teachers each: 4 + 2 · 2."""
    two = CostModel(clients=2, prototypes=2, ratio=3, skipping=0.5, backward=1, local=0, server=1)
    assert two.fedorion() == (0, 3)
    assert two.feddf() == (0, 8)
    assert two.feddf(asked_once=True) == (0, 6)  # 4 + 2
    assert two.speed_up(asked_once=True) == 2


def test_the_papers_number_for_20_clients_is_not_what_its_formula_gives() -> None:
    """α = 1: FedDF 20 · 10 + (5 · 5 + 89) · 5 = 770, FedORION 20 · 10 + (1 + 5) · 5 = 230. The text says 3.25."""
    twenty = replace(PAPER, clients=20, skipping=1)
    assert twenty.speed_up() == pytest.approx(770 / 230, abs=1e-6)
    curve = [replace(twenty, skipping=step / 100).speed_up() for step in range(101)]
    assert curve == sorted(curve)  # "increases as the clients performing selective DML increase"


def test_the_command_prints_and_draws_the_prediction(command: Command) -> None:
    said = command("cost", "-N", 20, "--alpha", 1, "-o", "c.png")
    assert (said.code, said.err) == (0, "")
    assert "predicted speed-up for N = 20, P = 5, M = 22, α = 1: 3.35" in said.out
    assert "nothing was measured" in said.out
    assert Path("c.png").read_bytes().startswith(b"\x89PNG")
    assert command("cost", "--no-figure").code == 0 and not Path("cost.png").exists()


def test_both_methods_are_timed_beside_the_prediction(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three clients, one with mlp-small, of 8×8 images. K 3: a = 1/3 + 2/3 M, teachers 3 a / 4 = (1 + 2 M) / 4.

    FedORION: 3 (1 + 2/3 M) · 10 + (1 + teachers) · 5; FedDF: 3 a · 10 + (2 teachers + 1 + M) · 5.
    """
    tiny = {
        "SMALL": "mlp-small",
        "LARGE": "mlp",
        "CLIENTS": 3,
        "SKIPPING": 1,
        "SIDE": 8,
        "ROUNDS": 1,
        "REPEATS": 2,
    }
    for name, value in tiny.items():
        monkeypatch.setattr(measured_cost, name, value)
    # mlp-small: 192 · 64 + 64 + 64 · 10 + 10 = 13,002
    m = models.size("mlp", (3, 8, 8), 10).parameters / 13_002
    orion = 3 * (1 + 2 / 3 * m) * 10 + (1 + (1 + 2 * m) / 4) * 5
    feddf = 3 * (1 / 3 + 2 / 3 * m) * 10 + (2 * (1 + 2 * m) / 4 + 1 + m) * 5
    said = command("cost", "--measure", "--no-figure")
    assert (said.code, said.err) == (0, "")
    told = " ".join(said.out.split())
    assert "nothing was measured" not in told
    assert "measured speed-up on this machine, for N = 3, P = 2" in told
    assert f"Predicted for this federation: {feddf / orion:.2f}" in told
    found = measured_cost.Measured(measured_cost.federation(3.0), (3.0, 2.0, 4.0), (1.0, 2.0, 2.0))
    assert found.speed_ups == [1.0, 2.0, 3.0]
    assert "2.00 (1.00 to 3.00); a round takes FedDF 3.00 s and FedORION 2.00 s" in found.in_words()


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (("-o", "c.txt"), "a figure's name ends in"),
        (("-o", "no/c.png"), "there is no folder no"),
        (("--local", "0", "--server", "0"), "nothing is computed"),
        (("--alpha", "1.5"), "--alpha"),
        (("--ratio", "inf"), "infinite"),
    ],
)
def test_a_mistake_is_said(command: Command, words: tuple[str, ...], hint: str) -> None:
    said = command("cost", *words)
    assert said.code == 2 and hint in said.err
