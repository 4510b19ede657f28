"""MOON (Li, He and Song, "Model-Contrastive Federated Learning", CVPR 2021).
https://arxiv.org/abs/2103.16257

FedAvg whose clients' features are drawn to the global model's, and away from those of their own last model:

    each client k minimises  CE(z, y) + µ · ℓ  over its own data
        ℓ = −log( exp(cos(f, f_glob)/τ) / (exp(cos(f, f_glob)/τ) + exp(cos(f, f_prev)/τ)) )

f, f_glob and f_prev are the features of a row in the model that is trained, in the global model that it began with, and
in the client's own model as it was when it last took part; mean over the rows. The latter two stay as they are, in
evaluation mode. A client that takes part for the first time has no last model, and ℓ is 0. In the authors' code that is
so in the first round alone: whoever takes part for the first time later is drawn away from the features of a network
with random weights. Theirs has a projection head of 256 under the classifier: `models.features: 256` gives built-in
models one.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from polyfed import learn
from polyfed.federation import Client, Declaration, FederationFacts, Weights, register
from polyfed.methods import local_training
from polyfed.methods.fedavg import FedAvg, FedAvgSettings


class MOONSettings(FedAvgSettings):
    mu: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1.0
    """µ, the weight of the contrastive loss; typically 0.1 to 10."""
    temperature: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 0.5
    """τ of the contrastive loss; typically 0.1 to 1."""


@register
class MOON(FedAvg):
    """FedAvg with features drawn to the global model's."""

    name = "moon"
    summary = "FedAvg with features drawn to the global model's, away from the client's last (Li et al. 2021)"
    Settings = MOONSettings
    settings: MOONSettings

    def declare(self) -> Declaration:
        return replace(super().declare(), keeps={"memory"})

    def check(self, federation: FederationFacts) -> None:
        for architecture in federation.roster.architectures:
            federation.feature_count(architecture)  # tells what has none

    def local_loss(self, me: Client, weights: Weights) -> learn.FeatureLoss | None:
        if "previous" not in me.memory:
            return None
        model = me.scratch_model(me.facts.architecture)
        learn.load_weights(model, learn.named_tensors(me.model))  # the global model, as this client has it
        last = me.scratch_model(me.facts.architecture, 1)
        learn.load_weights(last, me.memory["previous"])
        towards = local_training.answers(me, lambda x: learn.features_of(model, x))
        away = local_training.answers(me, lambda x: learn.features_of(last, x))

        def contrast(_model: nn.Module, rows: Tensor, x: Tensor, _logits: Tensor, features: Tensor) -> Tensor:
            loss = contrastive(features, towards(rows, x), away(rows, x), self.settings.temperature)
            return self.settings.mu * loss

        return learn.FeatureLoss(contrast)

    def remember(self, me: Client) -> None:
        me.memory["previous"] = learn.weights_of(me.model)


def contrastive(features: Tensor, towards: Tensor, away: Tensor, temperature: float) -> Tensor:
    """ℓ, a mean over rows: the cross-entropy of the two cosines, of which the first is the right one."""
    cosines = [F.cosine_similarity(features, others) for others in (towards, away)]
    nearness = torch.stack(cosines, dim=1) / temperature  # rows × 2
    return F.cross_entropy(nearness, nearness.new_zeros(len(nearness), dtype=torch.long))
