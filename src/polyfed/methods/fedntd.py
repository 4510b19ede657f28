"""FedNTD (Lee et al., "Preservation of the Global Knowledge by Not-True Distillation in Federated Learning", 2022).
https://arxiv.org/abs/2106.03097

FedAvg whose clients keep what the global model says of the classes that a row is not of:

    each client k minimises  CE(z, y) + β τ² · KL(softmax(z̃_g / τ) ‖ softmax(z̃ / τ))  over its own data

z are the client's logits and z_g those of the global model that it began with, in evaluation mode; a tilde leaves out
the row's true class, so the softmax is over C − 1 classes; the divergence is a mean over the rows. τ and β are 1, as in
the authors' settings. With two classes one is left, and nothing is distilled.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor, nn

from polyfed import learn
from polyfed.federation import CLASSES, Client, Declaration, Weights, register
from polyfed.methods import local_training
from polyfed.methods.fedavg import FedAvg, FedAvgSettings
from polyfed.tasks import Trait


class FedNTDSettings(FedAvgSettings):
    beta: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1.0
    """β, how strongly clients are held to the global model; typically 0.1 to 3."""
    temperature: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1.0
    """τ, which softens both answers; typically 1 to 3."""


@register
class FedNTD(FedAvg):
    """FedAvg that distils the global model's answers on classes that are not the true one."""

    name = "fedntd"
    summary = "FedAvg that keeps the global model's answers on all but the true class (Lee et al. 2022)"
    Settings = FedNTDSettings
    settings: FedNTDSettings

    def declare(self) -> Declaration:
        # With two classes one logit is left, and its softmax is 1.
        return replace(super().declare(), tasks={**CLASSES, Trait.MANY_CLASSES: ""})

    def local_loss(self, me: Client, weights: Weights) -> learn.ExtraLoss:
        model = me.scratch_model(me.facts.architecture)
        learn.load_weights(model, learn.named_tensors(me.model))  # the global model, as this client has it
        answers = local_training.answers(me, lambda x: learn.predict(model, x))
        labels = me.tensors(me.train)[1]

        def held(_model: nn.Module, rows: Tensor, x: Tensor, logits: Tensor) -> Tensor:
            tau = self.settings.temperature
            teacher = learn.soften(not_true(answers(rows, x), labels[rows]), tau)
            return self.settings.beta * tau**2 * learn.kl(not_true(logits, labels[rows]), teacher, tau)

        return held


def not_true(logits: Tensor, labels: Tensor) -> Tensor:
    """The logits without that of each row's true class: rows × (outputs − 1)."""
    others = torch.ones_like(logits, dtype=torch.bool).scatter_(1, labels.unsqueeze(1), False)
    return logits[others].view(len(logits), -1)
