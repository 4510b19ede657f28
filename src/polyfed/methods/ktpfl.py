"""KT-pFL (Zhang et al., "Parameterized Knowledge Transfer for Personalized Federated Learning", 2021).
https://arxiv.org/abs/2111.02862

    initialise:  every client k:  M_k ← train on D_k, if `private_training` says so          → "initial"
    server:      c ← 1/N for every pair of clients          the knowledge-coefficient matrix
    each round:
        update:  every client k:  M_k ← train on D_k                                → "personalised"
                 p_k ← softmax(z_k / 10) on this round's public rows
        server:  every row c_k ← one gradient step on  MSE(p_k, Σ_l c_kl p_l) + ρ MSE(c_k, 1/N),
                         then softmax(5 c_k)
                 target of client k ← Σ_l c_kl p_l
        distil:  every client k:  M_k ← minimise KL(target ‖ softmax(z / 10))       → "distilled"

The cycle is that of the authors' code, which trains before the first round and last in each: a round ends here where a
client has learnt from the others, while they score after private training, and let local epochs grow from round to
round. The step size is, as there, the power of 5 that brings the mean step into [0.01, 0.05). Their
distillation is `distil: {optimiser: sgd, lr: 0.02, reduce: mean, batch: 256}`: at temperature 10 and with the mean over
outputs its gradient is so small that our models hardly moved; Adam does not mind its size. With a cohort that is a
part of all, each row shares out among those present what it held for them before.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import torch
from pydantic import Field
from torch import Tensor

from polyfed.federation import (
    LABELS,
    Client,
    Declaration,
    Facts,
    Fields,
    Fleet,
    Kind,
    Method,
    Probabilities,
    Server,
    client_step,
    register,
)
from polyfed.learn import Distillation
from polyfed.methods import local_training
from polyfed.methods import public_distillation as public
from polyfed.schema import Printed

MEAN_STEP = 0.01
SHARPNESS = 5.0


class KTpFLSettings(public.PublicDistillationSettings):
    rho: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.7
    """How strongly coefficients are held near 1/N; 0.1 to 3 in the paper."""
    distil: Annotated[
        Distillation,
        Printed(
            Distillation(epochs=1, batch=256, lr=0.02, reduce="mean", temperature=10.0), "the authors' code"
        ),
    ] = Distillation(epochs=1, batch=64, optimiser="adam", lr=1e-4, loss="kl", temperature=10.0)
    """How clients and server learn from the answers. At 1e-3 a client forgets more of its own data than it gains."""


@register
class KTpFL(Method):
    """Every client learns from its own mixture of all clients' answers; who helps whom is learnt too."""

    name = "ktpfl"
    summary = "every client has its own learnt mixture of all answers on public data (Zhang et al. 2021)"
    Settings = KTpFLSettings
    settings: KTpFLSettings

    def declare(self) -> Declaration:
        return Declaration(
            sends={"posteriors": Probabilities("rows", "outputs")},
            tells={"rows": Kind.INDICES},
            needs=self.settings.needs(),
            stages=("initial", "personalised", "distilled"),
            final_stage="distilled",
            tasks=LABELS,
        )

    @client_step
    def initialise(self, me: Client) -> Fields:
        public.train_first(me, self.settings.private_training)
        me.measure("initial")
        return {}

    @client_step(sends=("posteriors",))
    def update(self, me: Client, rows: Tensor) -> Fields:
        local_training.train(me)
        me.measure("personalised")
        me.note_local_loss()
        return {"posteriors": public.answers_on(me, rows, self.settings.distil.temperature)}

    @client_step
    def distil(self, me: Client, rows: Tensor, posteriors: Tensor) -> Fields:
        public.distil_client(me, rows, posteriors, self.settings.distil)
        me.measure("distilled")
        return {}

    def prepare(self, fleet: Fleet, server: Server) -> None:
        if self.settings.private_training is not None:
            fleet.ask(self.initialise, fleet.everyone())

    def round(self, t: int, fleet: Fleet, server: Server) -> None:
        rows = public.draw_rows(server, self.settings.public_rows)
        # clients × rows × outputs
        present, answers = public.gather(fleet.stream(self.update, fleet.sample(), rows=rows), "posteriors")
        places = places_of(server.memory, present, len(server.roster))
        table = server.memory["coefficients"]
        held = table[places][:, places]
        share = held.sum(dim=1, keepdim=True)
        mixtures = stepped(held / share, answers, self.settings.rho)
        table[places.unsqueeze(1), places] = mixtures * share
        targets = torch.tensordot(mixtures, answers, dims=1)
        if self.settings.global_:
            public.distil_server(server, rows, answers.mean(dim=0), self.settings.distil)
        own = {client.index: target for client, target in zip(present, targets, strict=True)}
        fleet.ask(self.distil, present, each=lambda client: {"posteriors": own[client.index]}, rows=rows)


def stepped(coefficients: Tensor, answers: Tensor, rho: float) -> Tensor:
    """One gradient step on every row of the coefficients (clients × clients), and the softmax that follows."""
    clients = len(answers)
    flat = answers.flatten(1)  # clients × (rows × outputs)
    error = coefficients @ flat - flat
    gradient = 2 / flat.shape[1] * error @ flat.T + 2 * rho / clients * (coefficients - 1 / clients)
    rows = [
        row - _step_size(slope) * slope
        for row, slope in zip(coefficients.unbind(), gradient.unbind(), strict=True)
    ]
    return torch.softmax(SHARPNESS * torch.stack(rows), dim=1)


def _step_size(gradient: Tensor) -> float:
    """The authors' loop: five times larger or smaller, at most five times, until the mean step is in [0.01, 0.05)."""
    size, step = float(gradient.abs().mean()), 1.0
    for _ in range(5 if size > 0.0 else 0):
        if size * step < MEAN_STEP:
            step *= 5
        elif size * step >= 5 * MEAN_STEP:
            step /= 5
    return step


def places_of(memory: dict[str, Any], present: Sequence[Facts], population: int) -> Tensor:
    """Where these clients stand in the matrix, which grows as clients are seen for the first time."""
    seen: list[int] = memory.setdefault("seen", [])
    new = [client.index for client in present if client.index not in seen]
    if new:
        seen += new
        table = torch.full((len(seen), len(seen)), 1 / population, dtype=torch.float32)
        known = memory.get("coefficients", table[:0, :0])
        table[: len(known), : len(known)] = known
        memory["coefficients"] = table
    return torch.tensor([seen.index(client.index) for client in present])
