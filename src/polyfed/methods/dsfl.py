"""DS-FL (Itahara et al., "Distillation-Based Semi-Supervised Federated Learning …", 2020).

    each round:
        client:  M_k ← train on D_k                                                          → "personalised"
                 p_k ← probabilities of M_k on this round's public rows
        server:  p ← mean of p_k;   p̂ ← softmax(p / T)          entropy-reduction aggregation (ERA)
                 M_g ← minimise the loss to p̂                                                 → "global"
        client:  M_k ← minimise the loss to p̂                                                 → "distilled"

What is sharpened are probabilities, not logits: with T = 0.1 a flat peak of 0.3 becomes 0.5, one of 0.5 becomes 0.9.
Settings follow a public re-implementation, as the authors published no code.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from polyfed import learn
from polyfed.federation.method import register
from polyfed.federation.nodes import Server
from polyfed.learn import Distillation
from polyfed.methods.public_distillation import DistilsLast, ThroughPublicSettings, mean

if TYPE_CHECKING:
    from polyfed.federation.fleet import Fleet


class DSFLSettings(ThroughPublicSettings):
    public_rows: Annotated[int, Field(ge=1)] = 1000
    """Public rows a round, drawn anew each time; all of them if there are fewer."""
    sharpen: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = 0.1
    """T of the entropy reduction; null averages and leaves it at that (the paper's SA)."""
    distil: Distillation = Distillation(epochs=5, batch=50, lr=0.1, loss="kl")


@register
class DSFL(DistilsLast):
    """Clients and server learn from the sharpened mean of the clients' probabilities on public data."""

    name = "dsfl"
    summary = "the sharpened mean of the clients' probabilities on public data teaches (Itahara et al. 2020)"
    Settings = DSFLSettings
    settings: DSFLSettings

    def round(self, t: int, fleet: Fleet, server: Server) -> None:
        cohort = fleet.sample()
        rows = self.draw(server)
        replies = fleet.stream(self.update, cohort, rows=rows)
        average = mean(self.collect(fleet, server, replies, rows))
        sharpen = self.settings.sharpen
        consensus = average if sharpen is None else learn.soften(average, sharpen)
        self.distil_server(server, rows, consensus)
        fleet.ask(self.study, cohort, rows=rows, posteriors=self.packed(consensus))
