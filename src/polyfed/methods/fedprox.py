"""FedProx (Li et al., "Federated Optimization in Heterogeneous Networks", 2020).
https://arxiv.org/abs/1812.06127

FedAvg whose clients minimise  F_k(w) + (µ/2) ‖w − w_t‖²  over the trained parameters.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from polyfed import learn
from polyfed.federation import Client, Declaration, Weights, register
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

    def declare(self) -> Declaration:
        return super().declare()

    def local_loss(self, me: Client, weights: Weights) -> learn.ExtraLoss:
        return learn.Proximal(self.settings.mu, weights)
