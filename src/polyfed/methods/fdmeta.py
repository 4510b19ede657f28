"""Federated distillation with active sampling of the public data ("FD-meta", Liu et al., ICC 2022): our reading.

Only the abstract was to be had: a loop of federated distillation in which informative public samples are selected.
Selection rule, losses and order are ours:

    each round:
        server:  draws candidates among the public rows; keeps those of which its model is least sure
                 (in the first round, when it knows nothing, any)
        client:  M_k ← train on D_k;   p_k ← probabilities of M_k on the rows kept          → "personalised"
        server:  p̂ ← mean of p_k;   M_g ← minimise the loss to p̂                            → "global"
        client:  M_k ← minimise the loss to p̂                                               → "distilled"

The server's model has learnt the ensemble's answers, so its doubt stands for the ensemble's, without anything sent.
"""

from __future__ import annotations

from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor

from polyfed import learn
from polyfed.federation.method import register
from polyfed.federation.nodes import Server
from polyfed.learn import Distillation
from polyfed.methods.dsfl import DSFL, DSFLSettings


class FDMetaSettings(DSFLSettings):
    global_: Annotated[Literal[True], Field(alias="global")] = True
    """There is always a server model (`models.server`): it says which rows are informative."""
    sharpen: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    candidates: Annotated[float, Field(ge=1, allow_inf_nan=False)] = 4.0
    """So many times `public_rows` are looked at each round."""
    sampling: Literal["entropy", "margin", "random"] = "entropy"
    """The rows with the largest entropy; with the smallest margin between the two best classes; or any."""
    distil: Distillation = Distillation(epochs=5, batch=50, lr=0.1, loss="kl")


@register
class FDMeta(DSFL):
    """DS-FL's loop on the public rows of which the server's model is least sure (our reading of FD-meta)."""

    name = "fdmeta"
    summary = "answers on the public rows that are least certain teach (our reading of Liu et al. 2022)"
    Settings = FDMetaSettings
    settings: FDMetaSettings

    def draw(self, server: Server) -> Tensor:
        assert server.model is not None and server.public is not None
        order = torch.randperm(len(server.public), generator=server.rng("public rows"))
        wanted = self.settings.public_rows
        if self.settings.sampling == "random" or server.round == 1:
            return order[:wanted].sort().values.int()
        candidates = order[: int(wanted * self.settings.candidates)].sort().values
        logits = learn.predict(server.model, server.inputs(server.public[candidates], server.model))
        doubt = doubts(learn.soften(logits), self.settings.sampling)
        most = doubt.argsort(descending=True, stable=True)[:wanted]
        return candidates[most.cpu()].sort().values.int()


def doubts(probabilities: Tensor, rule: Literal["entropy", "margin"]) -> Tensor:
    """How unsure each row's answer is; larger is less sure."""
    if rule == "entropy":
        return learn.entropy(probabilities)
    best = probabilities.topk(2, dim=1).values
    return best[:, 1] - best[:, 0]
