"""FedProx (Li et al., "Federated Optimization in Heterogeneous Networks", 2020).

FedAvg whose clients minimise  F_k(w) + (µ/2) ‖w − w_t‖²  over the trained parameters.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field
from torch import Tensor, nn

from polyfed import learn
from polyfed.federation.message import Weights
from polyfed.federation.method import MethodSettings, register
from polyfed.learn import Training
from polyfed.methods.fedavg import FedAvg, FedAvgSettings


class FedProxSettings(FedAvgSettings):
    mu: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 0.01
    """Strength of the pull towards the global model; typically 0.001 to 1."""


@register
class FedProx(FedAvg):
    """FedAvg with a pull towards the global model."""

    name = "fedprox"
    summary = "FedAvg with a pull towards the global model (Li et al. 2020)"
    Settings = FedProxSettings
    settings: FedProxSettings

    def __init__(self, settings: MethodSettings, training: Training) -> None:
        super().__init__(settings, training)
        self.proximal = self.settings.mu

    def penalty(self, weights: Weights) -> learn.ExtraLoss:
        def pull(model: nn.Module, _rows: Tensor, _x: Tensor, _logits: Tensor) -> Tensor:
            distances = [
                (parameter - weights[name].to(parameter.device)).square().sum()
                for name, parameter in model.named_parameters()
            ]
            return 0.5 * self.settings.mu * sum(distances[1:], start=distances[0])

        return pull
