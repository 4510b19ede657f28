"""Two gradients that disagree: by hand, and against solvers of the quadratic programme itself."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.optimize import minimize, nnls
from torch import Tensor

from polyfed.learn import project, project_both


def vector(*numbers: float) -> Tensor:
    return torch.tensor(numbers, dtype=torch.float64)


def test_a_gradient_that_disagrees_is_turned_until_it_does_no_harm() -> None:
    # ⟨g, l⟩ = 1 − 3 = −2, ‖l‖² = 2: v = 1, and g + v l = (2, −2, 2), at a right angle to l
    public, local = vector(1, -3, 2), vector(1, 1, 0)
    projected = project(public, local)
    assert projected.tolist() == [2, -2, 2]
    assert projected.dot(local) == 0


def test_only_the_direction_of_the_local_gradient_counts() -> None:
    # of (1, 0) and of (4, 0): v = 2 and v = 8/16, and (−2, 1) becomes (0, 1)
    public = vector(-2, 1)
    for length in (1.0, 4.0, 0.25):
        assert project(public, vector(length, 0)).tolist() == [0, 1]


@pytest.mark.parametrize("local", [(2.0, 5.0), (1.0, 2.0), (0.0, 0.0)], ids=["agrees", "right angle", "zero"])
def test_where_there_is_no_conflict_the_gradient_stays_as_it_is(local: tuple[float, float]) -> None:
    public = vector(-2, 1)
    assert torch.equal(project(public, vector(*local)), public)
    assert torch.equal(project_both(public, vector(*local)), public)


def test_a_zero_gradient_stays_zero() -> None:
    zero, local = vector(0, 0), vector(3, -1)
    assert project(zero, local).tolist() == [0, 0]
    assert project_both(zero, local).tolist() == [0, 0]


def test_the_opposite_of_the_local_gradient_leaves_nothing() -> None:
    assert project(vector(-3, 6), vector(1, -2)).tolist() == [0, 0]


def test_symmetric_pcgrad_by_hand() -> None:
    # g = (−2, 1), l = (1, 0): ⟨g, l⟩ = −2, ‖g‖² = 5
    # g without its part along l: (0, 1);  l without its part along g: (1, 0) + 2/5 (−2, 1) = (0.2, 0.4)
    # PCGrad steps along their sum (0.2, 1.4); the step along l was made already, so (−0.8, 1.4) is left
    public, local = vector(-2, 1), vector(1, 0)
    left = project_both(public, local)
    assert left.tolist() == pytest.approx([-0.8, 1.4])
    assert (left + local).tolist() == pytest.approx(
        (project(public, local) + project(local, public)).tolist()
    )


def drawn(seed: int) -> tuple[Tensor, Tensor]:
    """Two random vectors of 2 to 30 entries, of very different lengths."""
    rng = np.random.default_rng(seed)
    size = int(rng.integers(2, 31))
    public, local = (torch.from_numpy(rng.standard_normal(size) * 10 ** rng.uniform(-2, 2)) for _ in range(2))
    return public, local


SEEDS = range(40)


@pytest.mark.parametrize("seed", SEEDS)
def test_it_is_the_solution_of_the_quadratic_programme(seed: int) -> None:
    """Eq. 8 as it stands, by sequential quadratic programming: the nearest vector with ⟨z, l⟩ ≥ 0."""
    public, local = drawn(seed)
    g, l = public.numpy(), local.numpy()  # noqa: E741
    # In units in which both have length 1, since the solver stops at an absolute accuracy.
    g, l = g / np.linalg.norm(g), l / np.linalg.norm(l)  # noqa: E741
    found = minimize(
        lambda z: 0.5 * ((g - z) ** 2).sum(),
        np.zeros_like(g),
        jac=lambda z: z - g,
        constraints={"type": "ineq", "fun": lambda z: z @ l, "jac": lambda z: l},
        method="SLSQP",
        options={"ftol": 1e-14, "maxiter": 200},
    )
    assert found.success
    assert project(public, local).numpy() / public.norm().item() == pytest.approx(found.x, abs=1e-6)


@pytest.mark.parametrize("seed", SEEDS)
def test_it_is_the_solution_of_the_dual(seed: int) -> None:
    """Eq. 14: ½ v² ‖l‖² + v ⟨g, l⟩ over v ≥ 0 is ½ ‖v l + g‖² but for a constant; then z = v l + g."""
    public, local = drawn(seed)
    v, _ = nnls(local.numpy()[:, None], -public.numpy())
    assert project(public, local).numpy() == pytest.approx(v[0] * local.numpy() + public.numpy(), rel=1e-9)


def test_both_kinds_of_pairs_were_drawn() -> None:
    conflicts = [bool(public.dot(local) < 0) for public, local in map(drawn, SEEDS)]
    assert 10 <= sum(conflicts) <= 30


def test_in_single_precision_what_is_left_of_the_conflict_is_rounding() -> None:
    stream = torch.Generator().manual_seed(0)
    public, local = (torch.randn(100_000, generator=stream) for _ in range(2))
    if public.dot(local) > 0:
        public = -public
    rest = project(public, local).dot(local) / (public.norm() * local.norm())
    assert abs(rest) < 1e-6
