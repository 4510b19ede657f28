"""FedGKD (Yao et al., "Local-Global Knowledge Distillation in Heterogeneous Federated Learning with Non-IID Data",
2021).
https://arxiv.org/abs/2107.00051

FedAvg whose clients are held to the global models of the last rounds:

    each round t:
        also sent:  w̄ ← mean of the last M global models, w_t the last of them
        each client k minimises  CE(z, y) + (γ/2) · KL(softmax(z̄) ‖ softmax(z))  over its own data

z̄ are the logits of w̄, in evaluation mode; the divergence is a mean over the rows, at temperature 1. A global model is
what a round has made: the initial weights are none, so nobody teaches in the first round. Then the authors' code
teaches with as many models as there are; that of FedKF waits until there are M: `wait`. With `inactive: cached` the
global models are those that are served. In the authors' code all clients count the same in the mean of the weights;
here they count by their samples unless `weighting: uniform` is set. The M global models count the same in both.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any

from pydantic import Field
from torch import Tensor, nn

from polyfed import learn
from polyfed.federation import Client, Declaration, Kind, Server, Weights, register
from polyfed.methods import last_models, local_training
from polyfed.methods.fedavg import FedAvg, FedAvgSettings


class FedGKDSettings(FedAvgSettings):
    gamma: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 0.2
    """γ, how strongly clients are held to the teacher; typically 0.001 to 1."""
    buffer: Annotated[int, Field(ge=1)] = 5
    """M, how many of the last global models are the teacher."""
    wait: bool = False
    """Whether the teacher waits until there are M models, as in FedKF's code."""


@register
class FedGKD(FedAvg):
    """FedAvg with the mean of the last global models as a teacher."""

    name = "fedgkd"
    summary = "FedAvg whose clients are taught by the mean of the last global models (Yao et al. 2021)"
    Settings = FedGKDSettings
    settings: FedGKDSettings

    def declare(self) -> Declaration:
        return replace(super().declare(), tells={"teacher": Kind.WEIGHTS})

    def local_loss(
        self, me: Client, weights: Weights, teacher: Weights | None = None
    ) -> learn.ExtraLoss | None:
        if teacher is None:
            return None
        model = me.scratch_model(me.facts.architecture)
        learn.load_weights(model, teacher)
        self.personalise(me, model)
        answers = local_training.answers(me, lambda x: me.task.answer(learn.predict(model, x)))

        def taught(_model: nn.Module, rows: Tensor, x: Tensor, logits: Tensor) -> Tensor:
            return self.settings.gamma / 2 * me.task.divergence(logits, answers(rows, x))

        return taught

    def also_sent(self, server: Server, architecture: str) -> dict[str, Any]:
        size = self.settings.buffer
        rounds: dict[str, Any] = server.memory.setdefault("rounds", {})
        made = rounds.get(architecture, 0)  # by so many rounds
        rounds[architecture] = made + 1
        if made:
            server.shelf[f"global/{architecture}/{made % size}"] = {
                "weights": last_models.served(server, architecture)
            }
        if not made or (self.settings.wait and made < size):
            return {}
        mean = learn.WeightedMean()
        for number in range(max(1, made - size + 1), made + 1):
            mean.add(server.shelf[f"global/{architecture}/{number % size}"]["weights"], 1.0)
        return {"teacher": mean.result()}
