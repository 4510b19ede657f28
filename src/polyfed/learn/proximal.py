"""A pull towards given weights, as an extra loss of local training."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor, nn


class Proximal:
    """FedProx's extra loss: (µ/2) ‖w − w_t‖² over the trained parameters.

    Clients with this loss can be trained in one stack, if µ is the same for all: `supervised_together` knows its
    gradient, µ (w − w_t).
    """

    def __init__(self, mu: float, weights: Mapping[str, Tensor]) -> None:
        """mu: µ, the strength of the pull. weights: w_t, by the names of the model's parameters; those
        without one (FedBN keeps its own BatchNorm layers) are not pulled."""
        self.mu = mu
        self.weights = weights

    def __call__(self, model: nn.Module, _rows: Tensor, _x: Tensor, _logits: Tensor) -> Tensor:
        distances = [
            (parameter - self.weights[name].to(parameter.device)).square().sum()
            for name, parameter in model.named_parameters()
            if name in self.weights
        ]
        return 0.5 * self.mu * sum(distances[1:], start=distances[0])
