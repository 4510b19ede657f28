"""Two gradients that disagree: what to do with the second so that it does not undo the first."""

from __future__ import annotations

import torch
from torch import Tensor


def project(gradient: Tensor, onto_side_of: Tensor) -> Tensor:
    """The vector nearest to `gradient` whose inner product with the other is not negative (FedH2L, Eq. 7–14).

    The dual of that quadratic programme has one unknown, hence a closed form: v = max(0, −⟨g, l⟩ / ‖l‖²), and the
    answer is g + v l. Where the two agree, or the other is zero, it is the gradient itself.
    """
    return gradient + _excess(gradient, onto_side_of) * onto_side_of


def project_both(gradient: Tensor, made: Tensor) -> Tensor:
    """Symmetric PCGrad (Yu et al. 2020), for a step `made` already: what is left to do of the two projected ones.

    PCGrad would step along project(g, l) + project(l, g); as the step along l was made, project(l, g) − l makes up
    for it.
    """
    return project(gradient, made) + _excess(made, gradient) * gradient


def _excess(gradient: Tensor, other: Tensor) -> Tensor:
    length = other.dot(other)
    overlap = gradient.dot(other)
    return torch.where((overlap < 0) & (length > 0), -overlap / length, torch.zeros_like(overlap))
