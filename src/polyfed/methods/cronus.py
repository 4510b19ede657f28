"""Cronus (Chang et al., "Robust and Heterogeneous Collaborative Learning with Black-Box Knowledge Transfer", 2019).

    each round:
        client:  p_k ← probabilities of M_k on this round's public rows
        server:  p̂ ← robust mean of p_k, row by row
        client:  M_k ← train on D_k and on the public rows with p̂ for labels, mixed

The robust mean is the spectral filter of Diakonikolas et al. 2017: as long as the answers vary too much along one
direction, the one that lies farthest out along it goes. A poisoned minority cannot move the result by more than the
honest answers themselves differ. There is no author code. Before the first round every client trains on its own data
(`private_training`), so that first answers mean something.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, ClassVar

import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional as F

from polyfed import learn
from polyfed.federation.message import Fields, Kind
from polyfed.federation.method import client_step, register
from polyfed.federation.nodes import Client, Server
from polyfed.learn import Distillation, Training
from polyfed.methods.public_distillation import ThroughPublic, ThroughPublicSettings

if TYPE_CHECKING:
    from polyfed.federation.fleet import Fleet


class CronusSettings(ThroughPublicSettings):
    poisoned: Annotated[float, Field(ge=0, lt=0.5)] = 0.2
    """ε, the share of clients that may be bad; at most 2ε of the answers are left out of a row's mean."""
    variance: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.02
    """Largest variance of honest answers along any direction; a row whose answers vary less is not filtered."""
    private_training: Training | None = Training(epochs=5)
    """What a client does with its own data before the first round."""
    distil: Distillation = Distillation(epochs=5, batch=64, lr=0.1, loss="ce")
    """How the server's model learns, with `global: true`; clients learn as `training` says."""


@register
class Cronus(ThroughPublic):
    """Clients learn from a mean of their probabilities on public data that a poisoned minority cannot move."""

    name = "cronus"
    summary = "a robust mean of the clients' probabilities on public data teaches (Chang et al. 2019)"
    sends: ClassVar = {"posteriors": Kind.POSTERIORS}
    answers = "posteriors"
    final_stage = "updated"
    Settings = CronusSettings
    settings: CronusSettings

    @client_step
    def update(self, me: Client, rows: Tensor, posteriors: Tensor) -> Fields:
        """One training on both: the client's own rows with their labels, the public ones with the answers."""
        own, labels = me.tensors(me.train)
        x = torch.cat([own, me.inputs(me.public[rows])])
        targets = torch.cat([F.one_hot(labels, me.outputs).float(), posteriors.float().to(me.device)])
        settings = Distillation(**self.training.model_dump(), loss="ce")
        learn.distil(
            me.model, x, targets, settings, me.rng("batches"), given="probabilities", memory=me.memory
        )
        me.measure("updated")
        return {}

    def round(self, t: int, fleet: Fleet, server: Server) -> None:
        cohort = fleet.sample()
        rows = self.draw(server)
        replies = fleet.stream(self.answer, cohort, rows=rows)
        answers = torch.stack([answer for _, answer in self.collect(fleet, server, replies, rows)])
        consensus = robust_mean(answers, self.settings.poisoned, self.settings.variance)
        self.distil_server(server, rows, consensus)
        fleet.ask(self.update, cohort, rows=rows, posteriors=self.packed(consensus))


def robust_mean(answers: Tensor, poisoned: float, variance: float) -> Tensor:
    """The mean over clients of every row, without the answers that lie too far out.

    answers: clients × rows × outputs. poisoned: share of clients that may be bad. variance: largest variance along any
    direction at which nothing more is left out.
    """
    points = answers.double().transpose(0, 1)  # rows × clients × outputs
    rows, clients, _ = points.shape
    kept = torch.ones(rows, clients, dtype=torch.bool)
    for _ in range(int(2 * poisoned * clients)):
        weight = (kept / kept.sum(dim=1, keepdim=True, dtype=points.dtype)).unsqueeze(2)
        centred = points - (weight * points).sum(dim=1, keepdim=True)
        values, directions = torch.linalg.eigh((weight * centred).transpose(1, 2) @ centred)
        farthest = (
            (centred @ directions[:, :, -1:]).square().squeeze(2).masked_fill(~kept, -1.0).argmax(dim=1)
        )
        suspect = torch.zeros_like(kept).scatter_(1, farthest.unsqueeze(1), True)
        kept &= ~(suspect & (values[:, -1:] > variance))
    weight = (kept / kept.sum(dim=1, keepdim=True, dtype=points.dtype)).unsqueeze(2)
    return (weight * points).sum(dim=1).float()
