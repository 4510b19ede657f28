"""KT-pFL: the coefficients' step in numbers, and rounds against a loop written out by hand."""

from __future__ import annotations

from math import ceil, exp, log
from typing import Any

import pytest
import torch
from tests.conftest import MakeRun
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

from polyfed.federation.fields import Probabilities
from polyfed.federation.message import decode, encode
from polyfed.federation.roster import Facts
from polyfed.learn import Training
from polyfed.methods.ktpfl import KTpFL, KTpFLSettings, _step_size, places_of, stepped
from polyfed.runs.rounds import Run

TEMPERATURE = 10.0
KTPFL: dict[str, Any] = {
    "name": "ktpfl",
    "public_rows": PUBLIC_ROWS,
    "distil": {**ONCE, "lr": 0.1, "optimiser": "sgd"},
}


def sigmoid(x: float) -> float:
    return 1 / (1 + exp(-x))


def answers_of(*clients: list[float]) -> Tensor:
    """One public row: what each client says of it."""
    return torch.tensor(clients).unsqueeze(1)


# -- the step ------------------------------------------------------------------------------------------------


def test_the_step_from_equal_coefficients_by_hand() -> None:
    """Two clients say (1, 0) and (0, 1) of one row; c = ½ everywhere.

    Client 0: Σ c p - p_0 = (-½, ½). The mean over two outputs has the slope 2/2 · (-½, ½) · p_l = -½ and ½;
    the coefficients are at 1/N, so ρ adds nothing. Mean |slope| ½: of the powers of 5, 5⁻² brings it into [0.01, 0.05)
    (½ / 25 = 0.02). Row (½ + 0.02, ½ - 0.02), and softmax(5 · row) = σ(5 · 0.04) and the rest.
    """
    found = stepped(torch.full((2, 2), 0.5), answers_of([1.0, 0.0], [0.0, 1.0]), rho=0.7)
    mine = sigmoid(0.2)
    assert torch.allclose(found, torch.tensor([[mine, 1 - mine], [1 - mine, mine]]), atol=1e-6)


def test_the_step_from_unequal_coefficients_by_hand() -> None:
    """The same two clients; both rows of c are (0.8, 0.2), and ρ = 0.8 pulls with 2 · 0.8 / 2 · (0.3, -0.3).

    Client 0: error (0.8, 0.2) - (1, 0) = (-0.2, 0.2); slope (-0.2, 0.2) + (0.24, -0.24) = (0.04, -0.04);
        step 5⁰: (0.76, 0.24).
    Client 1: error (0.8, 0.2) - (0, 1) = (0.8, -0.8); slope (1.04, -1.04); step 5⁻² (0.0416, not 0.0083 as with 5⁻³):
        (0.8 - 0.0416, 0.2 + 0.0416).
    """
    coefficients = torch.tensor([[0.8, 0.2], [0.8, 0.2]])
    found = stepped(coefficients, answers_of([1.0, 0.0], [0.0, 1.0]), rho=0.8)
    first, second = sigmoid(5 * (0.76 - 0.24)), sigmoid(5 * (0.7584 - 0.2416))
    assert torch.allclose(found, torch.tensor([[first, 1 - first], [second, 1 - second]]), atol=1e-6)


def slopes(coefficients: Tensor, answers: Tensor, rho: float) -> Tensor:
    """By autograd: MSE(p_k, Σ c_kl p_l) + ρ MSE(c_k, 1/N), a mean over rows and outputs, and over clients."""
    c = coefficients.clone().requires_grad_()
    mixtures = torch.einsum("kl,lro->kro", c, answers)
    total = torch.zeros(())
    for mixture, answer, row in zip(mixtures, answers, c, strict=True):
        total = total + (mixture - answer).square().mean() + rho * (row - 1 / len(c)).square().mean()
    total.backward()
    assert c.grad is not None
    return c.grad


def some(clients: int, *, rows: int = 4, outputs: int = 3, seed: int = 0) -> tuple[Tensor, Tensor]:
    stream = torch.Generator().manual_seed(seed)
    coefficients = torch.rand(clients, clients, generator=stream).softmax(dim=1)
    return coefficients, torch.randn(clients, rows, outputs, generator=stream).softmax(dim=2)


def step_sizes(before: Tensor, after: Tensor, slope: Tensor) -> Tensor:
    """How far each row went along its slope, read back through the softmax."""
    moved = after.log() / 5 - before
    moved = moved - moved.mean(dim=1, keepdim=True)  # a softmax does not tell a shift of the whole row
    along = slope - slope.mean(dim=1, keepdim=True)
    return -(moved * along).sum(dim=1) / along.square().sum(dim=1)


@pytest.mark.parametrize("rho", [0.0, 0.7, 3.0])
@pytest.mark.parametrize("clients", [2, 3, 5])
def test_the_step_follows_the_slope_that_autograd_finds(clients: int, rho: float) -> None:
    coefficients, answers = some(clients)
    slope = slopes(coefficients, answers, rho)
    found = stepped(coefficients, answers, rho)
    sizes = 5.0 ** torch.tensor([ceil(log(0.01 / row.abs().mean().item(), 5)) for row in slope]).clamp(-5, 5)
    expected = (5 * (coefficients - sizes.unsqueeze(1) * slope)).softmax(dim=1)
    assert torch.allclose(found, expected, atol=1e-6)
    assert torch.allclose(found.sum(dim=1), torch.ones(clients), atol=1e-6)


@pytest.mark.parametrize("spread", [1.0, 0.3, 0.1, 0.03])
def test_the_step_size_is_the_power_of_five_that_brings_the_mean_step_to_a_hundredth(spread: float) -> None:
    coefficients, answers = some(4)
    answers = answers.mean(dim=0) + spread * (answers - answers.mean(dim=0))  # clients that differ less
    slope = slopes(coefficients, answers, 0.1)
    sizes = step_sizes(coefficients, stepped(coefficients, answers, 0.1), slope)
    powers = sizes.log() / log(5)
    assert torch.allclose(powers, powers.round(), atol=1e-2)
    means = sizes * slope.abs().mean(dim=1)
    assert (means >= 0.01 - 1e-4).all()
    assert (means < 0.05 + 1e-4).all()


@pytest.mark.parametrize(
    ("mean", "power"),
    [(0.0099, 1), (0.01, 0), (0.0499, 0), (0.05, -1), (0.0021, 1), (0.0019, 2), (0.3, -2), (0.0, 0)],
)
def test_the_step_size_by_hand(mean: float, power: int) -> None:
    """Each time a fifth too small, five times more; each time five times too large, a fifth."""
    assert _step_size(torch.full((4,), mean, dtype=torch.float64)) == pytest.approx(5.0**power)


@pytest.mark.parametrize(("scale", "limit"), [(1e-3, 5.0**5), (1e3, 5.0**-5)])
def test_the_step_size_has_its_limits(scale: float, limit: float) -> None:
    """However flat the slope or steep, no more than five powers."""
    coefficients, answers = (part.double() for part in some(3))
    slope = slopes(coefficients, scale * answers, 0.0)
    sizes = step_sizes(coefficients, stepped(coefficients, scale * answers, 0.0), slope)
    assert torch.allclose(sizes, torch.full((3,), limit, dtype=torch.float64), rtol=1e-4)


@pytest.mark.parametrize("clients", [1, 2, 7])
def test_identical_clients_keep_equal_shares(clients: int) -> None:
    _, answers = some(1)
    same = answers.expand(clients, -1, -1)
    found = torch.full((clients, clients), 1 / clients)
    for _ in range(5):
        found = stepped(found, same, 0.7)
    assert torch.allclose(found, torch.full((clients, clients), 1 / clients), atol=1e-6)


def test_who_answers_alike_helps_each_other_more() -> None:
    answers = answers_of([0.9, 0.1, 0.0], [0.8, 0.2, 0.0], [0.0, 0.1, 0.9], [0.0, 0.0, 1.0])
    found = stepped(torch.full((4, 4), 0.25), answers, 0.1)
    assert found[:2, :2].min() > 0.25 > found[:2, 2:].max()
    assert found[2:, 2:].min() > 0.25 > found[2:, :2].max()


# -- the matrix ----------------------------------------------------------------------------------------------


def seen(*indices: int) -> list[Facts]:
    return [Facts(index, f"client-{index}", 10, "mlp") for index in indices]


def test_the_matrix_grows_with_the_clients_seen_and_not_with_the_population() -> None:
    memory: dict[str, Any] = {}
    assert places_of(memory, seen(7, 400), 1_000_000).tolist() == [0, 1]
    assert memory["coefficients"].shape == (2, 2)
    assert torch.equal(memory["coefficients"], torch.full((2, 2), 1e-6))
    memory["coefficients"][:] = torch.tensor([[0.9, 0.1], [0.3, 0.7]])
    assert places_of(memory, seen(3, 400), 1_000_000).tolist() == [2, 1]
    assert memory["seen"] == [7, 400, 3]
    new = 1e-6
    expected = torch.tensor([[0.9, 0.1, new], [0.3, 0.7, new], [new, new, new]])
    assert torch.equal(memory["coefficients"], expected)
    table = memory["coefficients"]
    assert places_of(memory, seen(3, 7), 1_000_000).tolist() == [2, 0]
    assert memory["coefficients"] is table


def test_it_survives_a_checkpoint() -> None:
    memory: dict[str, Any] = {}
    places_of(memory, seen(5, 2), 10)
    again = decode(encode(memory))
    assert places_of(again, seen(2, 9), 10).tolist() == [1, 2]


def test_those_absent_keep_their_coefficients(make_run: MakeRun) -> None:
    """Rows and columns of clients that are not in a round's cohort stay, bit for bit."""
    tables: list[tuple[dict[tuple[int, int], float], set[int]]] = []

    def note(run: Run) -> None:
        order = run.server.memory["seen"]
        table = run.server.memory["coefficients"]
        assert table.shape == (len(order), len(order))
        entries = {(k, m): table[i, j].item() for i, k in enumerate(order) for j, m in enumerate(order)}
        tables.append((entries, {facts.index for facts in run.fleet.sample()}))

    run = make_run(
        {"name": "ktpfl", "distil": {"steps": 1}},
        data={"clients": 10, "partition": {"kind": "iid"}, "public": {"source": "share", "share": 0.2}},
        cohort={"count": 3},
        rounds=4,
        evaluate={"every": 4},
    )
    run.go(note)
    population: set[int] = set()
    changed = 0
    for (before, _), (after, present) in zip([({}, set()), *tables], tables, strict=False):
        population |= present
        assert {k for k, _ in after} == population
        for (k, m), value in after.items():
            if k in present and m in present:
                changed += value != before.get((k, m), 0.1)
            else:
                assert value == before.get((k, m), pytest.approx(0.1))
    assert changed > 4 * 6
    assert len(population) < 10


# -- rounds --------------------------------------------------------------------------------------------------


class ByHand(Bench):
    """Training, answers at temperature 10, one step on everyone's coefficients, everyone's own target."""

    def __init__(self, run: Run, rho: float = 0.7, wrongly: str = "") -> None:
        super().__init__(run)
        self.table = torch.full((3, 3), 1 / 3)
        for number in range(1, run.config.rounds + 1):
            cohort, x = self.cohort(number), self.public(number)
            for k in cohort:
                self.train(k, number, 1)
            answers = torch.stack([(said(self.clients[k], x) / TEMPERATURE).softmax(dim=1) for k in cohort])
            held = self.table[cohort][:, cohort]
            shares = held.sum(dim=1, keepdim=True)
            mixtures = stepped(held / shares, answers, rho)
            self.table[torch.tensor(cohort).unsqueeze(1), torch.tensor(cohort)] = mixtures * shares
            if wrongly == "one target for all":
                mixtures = torch.full_like(mixtures, 1 / len(cohort))
            loss = soft(answers.mean(dim=0), TEMPERATURE)
            descend(self.server, x, loss, self.server_stream("distil", number))
            for place, k in enumerate(cohort):
                target = sum(
                    (mixtures[place, other] * answers[other] for other in range(len(cohort))), torch.zeros(())
                )
                stream = self.stream("distil", k, number, 2)
                descend(self.clients[k], x, soft(target, TEMPERATURE), stream)

    def agrees(self, run: Run) -> bool:
        same = all(close(state_of(run, index), model) for index, model in enumerate(self.clients))
        return same and close(server_state_of(run), self.server)


@pytest.mark.parametrize("cohort", [3, 2])
def test_rounds_equal_a_loop_by_hand(federate: Prepare, cohort: int) -> None:
    """Every client gets its own mixture; a server model, if there is one, the plain mean."""
    method = {**KTPFL, "global": True, "rho": 0.1}
    run = federate([normed, plain], method=method, rounds=3, cohort={"count": cohort})
    run.go()
    expected = ByHand(run, rho=0.1)
    assert expected.agrees(run)
    order = torch.tensor(run.server.memory["seen"])
    assert torch.allclose(run.server.memory["coefficients"], expected.table[order][:, order], atol=1e-6)
    assert not ByHand(run, rho=0.1, wrongly="one target for all").agrees(run)


def test_it_is_the_authors_unless_told() -> None:
    settings = KTpFLSettings()
    assert settings.rho == 0.7
    assert settings.distil.temperature == TEMPERATURE
    assert KTpFL(KTpFLSettings(), Training()).declared.sends["posteriors"] == Probabilities("rows", "outputs")
