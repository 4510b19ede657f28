"""FedKEM (Nguyen, Yu, Muñoz & Jannesari, "Enhancing Heterogeneous Federated Learning with Knowledge Extraction and
Multi-Model Fusion", 2023).
https://arxiv.org/abs/2208.07978

    server:  θ_g ← initial weights of the knowledge network (`models.server`)
    each round t:
        S_t ← cohort
        extract: each client k in S_t:  θ_g,k ← θ_g;   for each batch b:                                (Algorithm 1)
                     θ_k   ← step down  CE(θ_k; b) + KL(θ_g,k ‖ θ_k)              (Eq. 1-3)             → "mutual"
                     θ_g,k ← step down  CE(θ_g,k; b) + KL(θ_k ‖ θ_g,k)            of the θ_k just made
        answer:  Θ(x) ← element-wise maximum over S_t of θ_g,k(x), on public data  (Eq. 5)
        distil:  θ_g ← minimise KL(softmax(Θ) ‖ softmax(θ_g))                      (Eq. 4)              → "global"

A client keeps θ_k, of any architecture; only knowledge networks travel. Algorithm 2 prints the last two lines after the
loop over rounds; text, figure and code have them in each round. Each network answers once on a round's public rows, on
whichever core is free, and is then let go: in memory are a few networks and one table, whatever the cohort.

`fusion: average` and `scaffold` (§3.3) average the networks instead and need no public data. With `scaffold` gradients
of the networks are corrected by SCAFFOLD's control variates; the clients' own models are not averaged, nor corrected.
`labels: true` is the authors' code in that half of the server's loss is the cross-entropy to the public labels.

BatchNorm: the student normalises by the batches it is taught on, and its running statistics follow these public rows,
the only ones that fit its own weights. Where public rows are far from the clients' (noise), `statistics: clients` keeps
them out, and the network has the mean of the running statistics that the clients' networks have on their own data.
"""

from __future__ import annotations

from typing import Literal

from torch import Tensor

from polyfed.federation import (
    ANY_TASK,
    Assistant,
    Client,
    Declaration,
    FederationFacts,
    Fields,
    Fleet,
    Kind,
    LikeWeights,
    Method,
    Need,
    Server,
    Weights,
    client_step,
    register,
    server_step,
    when,
)
from polyfed.learn import WeightedMean
from polyfed.methods import (
    averaging,
    control_variates,
    ensemble_distillation,
    local_training,
    mutual_training,
)
from polyfed.methods import public_distillation as public


class FedKEMSettings(ensemble_distillation.EnsembleSettings):
    updates: Literal["in-turn", "at-once"] = "in-turn"
    """Whether the knowledge network learns from the client's model as it is after its step, as Algorithm 1 prints it,
    or both losses are of the same two forward passes, which is cheaper."""
    fusion: Literal["ensemble", "average", "scaffold"] = "ensemble"
    """How the server makes one network of many: ensemble distillation, the mean, or the mean with SCAFFOLD's rule."""
    weighting: averaging.Weighting = "samples"
    """Whether a client counts by its samples in means of weights and control variates, or all count the same. All teach
    alike."""


@register
class FedKEM(Method):
    """Clients and small networks that travel teach each other; the server fuses the networks."""

    name = "fedkem"
    summary = (
        "small networks learn from clients' models, travel and are fused by distillation (Nguyen et al. 2023)"
    )
    Settings = FedKEMSettings
    settings: FedKEMSettings

    def declare(self) -> Declaration:
        own = self.settings
        ensemble, scaffold = own.fusion == "ensemble", own.fusion == "scaffold"
        return Declaration(
            sends={
                "weights": LikeWeights("weights"),
                **when(scaffold, {"change": LikeWeights("control", kind=Kind.GRADIENTS)}),
            },
            tells={"architecture": Kind.CONTROL, **when(scaffold, {"control": Kind.GRADIENTS})},
            needs={
                Need.SERVER_MODEL: "",
                **when(ensemble, {Need.PUBLIC: "method.fusion=average"}),
                **when(ensemble and own.labels, {Need.PUBLIC_LABELS: "method.labels=false"}),
            },
            keeps={"model", "memory"} if scaffold else {"model", *self.moments},
            stages=(mutual_training.STAGE,),
            final_stage=mutual_training.STAGE,
            single_replies=own.fusion != "average",
            tasks=own.tasks() if ensemble else ANY_TASK,
        )

    def check(self, federation: FederationFacts) -> None:
        if self.settings.fusion == "scaffold":
            local_training.check_steps(self.training, "fusion=scaffold")

    @client_step(sends=("weights", "change"))
    def extract(
        self, me: Client, weights: Weights, architecture: str, control: Weights | None = None
    ) -> Fields:
        in_turn = self.settings.updates == "in-turn"
        return mutual_training.train(me, weights, architecture, in_turn=in_turn, control=control)

    @server_step
    def answer(self, helper: Assistant, weights: Weights, architecture: str, rows: Tensor) -> Fields:
        return ensemble_distillation.answer(helper, weights, architecture, rows, self.settings)

    def round(self, t: int, fleet: Fleet, server: Server) -> None:
        if self.settings.fusion == "ensemble":
            self.distil(fleet, server)
        elif self.settings.fusion == "average":
            self.average(fleet, server)
        else:
            self.correct(fleet, server)

    # -- three ways to make one network of many ---------------------------------------------------------------

    def distil(self, fleet: Fleet, server: Server) -> None:
        """Eq. 4 and 5: the ensemble of the received networks, distilled into the global one."""
        rows = public.draw_rows(server, self.settings.public_rows)
        share, mean, teacher = self.share(), WeightedMean(), self.settings.merging()
        with server.spread(
            self.answer,
            fold=lambda said: teacher.add(said["answers"], 1.0),
            rows=rows,
            architecture=server.architecture,
        ) as teachers:
            for reply in fleet.stream(self.extract, fleet.sample(), **mutual_training.told(server)):
                mean.add(reply["weights"], share(reply.client))
                teachers.put(weights=reply["weights"])
        ensemble_distillation.distil(server, rows, teacher, mean, self.settings)

    def average(self, fleet: Fleet, server: Server) -> None:
        """The mean of the networks, of which nobody need see a single one."""
        told = mutual_training.told(server)
        mean = fleet.mean(self.extract, fleet.sample(), "weights", share=self.share(), default={}, **told)
        mutual_training.merge(server, mean)

    def correct(self, fleet: Fleet, server: Server) -> None:
        """SCAFFOLD: the mean of the networks, and the control variate c, which stays the mean of all clients' c_i."""
        assert server.model is not None
        control = server.memory.get("control") or control_variates.zeros(server.model)
        told = {"control": control, **mutual_training.told(server)}
        share, mean, change = self.share(), WeightedMean(), WeightedMean()
        for reply in fleet.stream(self.extract, fleet.sample(), **told):
            mean.add(reply["weights"], share(reply.client))
            change.add(reply["change"], share(reply.client))
        if change.total:
            everyone = averaging.everyone(server, self.settings.weighting)
            server.memory["control"] = control_variates.fold(control, change, everyone)
        mutual_training.merge(server, mean.result())

    def share(self) -> averaging.Share:
        return averaging.share(self.settings.weighting)
