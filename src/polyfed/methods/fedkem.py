"""FedKEM (Nguyen, Yu, Muñoz & Jannesari, "… Knowledge Extraction and Multi-Model Fusion", 2023; paper 003).

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

from collections.abc import Iterable, Iterator
from typing import Literal

from torch import Tensor

from polyfed import learn
from polyfed.federation import (
    ANY_TASK,
    CLASSES,
    Assistant,
    Client,
    Declaration,
    Facts,
    FederationFacts,
    Fields,
    Fleet,
    Kind,
    LikeWeights,
    Method,
    Need,
    Reply,
    Server,
    Weights,
    client_step,
    register,
    server_step,
    when,
)
from polyfed.learn import WeightedMean
from polyfed.methods import control_variates, ensemble_distillation, local_training, mutual_training
from polyfed.methods import public_distillation as public


class FedKEMSettings(ensemble_distillation.EnsembleSettings):
    updates: Literal["in-turn", "at-once"] = "in-turn"
    """Whether the knowledge network learns from the client's model as it is after its step, as Algorithm 1 prints it,
    or both losses are of the same two forward passes, which is cheaper."""
    fusion: Literal["ensemble", "average", "scaffold"] = "ensemble"
    """How the server makes one network of many: ensemble distillation, the mean, or the mean with SCAFFOLD's rule."""
    weighting: Literal["samples", "uniform"] = "samples"
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
            tasks=CLASSES if ensemble and own.ensemble == "vote" else ANY_TASK,
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

    # -- on the server: three ways to make one network of many ------------------------------------------------

    def round(self, t: int, fleet: Fleet, server: Server) -> None:
        assert server.model is not None
        cohort = fleet.sample()
        told = mutual_training.told(server)
        if self.settings.fusion == "ensemble":
            self.distil(server, fleet.stream(self.extract, cohort, **told))
            return
        if self.settings.fusion == "average":
            mean = fleet.mean(self.extract, cohort, "weights", share=self.share, default={}, **told)
            learn.load_weights(server.model, mean, partly=True)
        else:
            control = server.memory.get("control") or control_variates.zeros(server.model)
            self.correct(server, control, fleet.stream(self.extract, cohort, control=control, **told))
        server.measure("global")

    def share(self, client: Facts) -> float:
        return client.samples if self.settings.weighting == "samples" else 1.0

    def correct(self, server: Server, control: Weights, replies: Iterable[Reply]) -> None:
        """SCAFFOLD: the mean of the networks, and the control variate c, which stays the mean of all clients' c_i."""
        assert server.model is not None
        mean, change = WeightedMean(), WeightedMean()
        for reply in replies:
            mean.add(reply["weights"], self.share(reply.client))
            change.add(reply["change"], self.share(reply.client))
        if change.total:
            learn.load_weights(server.model, mean.result())
            everyone = (
                server.roster.total_samples if self.settings.weighting == "samples" else len(server.roster)
            )
            part = change.total / everyone
            server.memory["control"] = control_variates.fold(control, change.result(), part)

    def distil(self, server: Server, replies: Iterable[Reply]) -> None:
        """Eq. 4 and 5: the ensemble of the received networks, distilled into the global one."""
        rows = public.draw_rows(server, self.settings.public_rows)
        mean, teacher = WeightedMean(), self.settings.merging()
        received = self.received(replies, mean)
        for said in server.spread(self.answer, received, rows=rows, architecture=server.architecture):
            teacher.add(said["answers"], 1.0)
        ensemble_distillation.distil(server, rows, teacher, mean, self.settings)

    def received(self, replies: Iterable[Reply], mean: WeightedMean) -> Iterator[Fields]:
        """The clients' networks, each added to the mean on its way to teaching."""
        for reply in replies:
            mean.add(reply["weights"], self.share(reply.client))
            yield {"weights": reply["weights"]}
