"""FedProto (Tan et al., "FedProto: Federated Prototype Learning across Heterogeneous Clients", AAAI 2022).
https://arxiv.org/abs/2105.00243

A prototype is the mean of the features that inputs of one class have. Models differ; their features are of one size.

    each round t:
        S_t ← cohort;   C̄_j: the global prototypes so far, none in the first round
        update:  each client k in S_t:   w_k ← SGD on  CE(z, y) + λ · MSE(f, C̄_y)  over D_k           → "updated"
                 C_k,j ← mean of the features f of its rows of class j, for every class j that it holds   (Eq. 3)
        server:  C̄_j ← mean of C_k,j over the clients of S_t that hold class j                            (Eq. 6)

f are the features of a row, z its logits. A row whose class has no global prototype yet adds nothing to the second
term; MSE is a mean over rows and features. The final answer is the model's own head's; the paper also answers with the
class of the nearest global prototype, which `nearest: true` measures at a stage of its own.

The loss is that of the authors' code; the paper writes the distance between local and global prototypes. Their code
collects a client's features while it trains, in training mode, in its last local epoch; here, as in Eq. 3, they are
those of the model it has learnt. Their code takes the plain mean over clients, the paper's Eq. 6 weights by the numbers
of samples: `weighting`. A class that nobody in a cohort holds keeps its last prototype; their clients all take part.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from polyfed import learn
from polyfed.federation import (
    Client,
    Counts,
    Declaration,
    Fields,
    Fleet,
    Indices,
    Kind,
    Method,
    MethodSettings,
    Need,
    Reply,
    Server,
    Table,
    client_step,
    register,
    when,
)
from polyfed.methods import local_training
from polyfed.models import features_and_logits
from polyfed.schema import Printed


class FedProtoSettings(MethodSettings):
    strength: Annotated[float, Field(gt=0, allow_inf_nan=False), Printed(1.0)] = 0.1
    """λ, how strongly features are drawn to the global prototype of their class; typically 0.1 to 4."""
    weighting: Literal["clients", "samples"] = "clients"
    """Whether all clients that hold a class count the same (the authors' code), or by their samples of it (the paper's
    Eq. 6): then these numbers leave a client too."""
    nearest: bool = False
    """Also measure how well the nearest global prototype answers (stage `nearest`): a second look at all test rows."""


@register
class FedProto(Method):
    """Clients agree on the mean features of each class, whatever their models."""

    name = "fedproto"
    summary = "features are drawn to their class's mean features over all clients (Tan et al. 2022)"
    Settings = FedProtoSettings
    settings: FedProtoSettings

    def declare(self) -> Declaration:
        by_samples = self.settings.weighting == "samples"
        return Declaration(
            sends={
                "held": Indices("classes", distinct=True),
                "prototypes": Table("held", "features", kind=Kind.PROTOTYPES),
                **when(by_samples, {"counts": Counts("held")}),
            },
            tells={"known": Kind.INDICES},
            needs={Need.COMMON_FEATURES: ""},
            stages=("updated", "nearest"),
            final_stage="updated",
        )

    @client_step(sends=("held", "prototypes", "counts"))
    def update(self, me: Client, known: Tensor, prototypes: Tensor) -> Fields:
        known, prototypes = known.to(me.device), prototypes.to(me.device)
        x, y = me.tensors(me.train)

        def pull(_model: nn.Module, rows: Tensor, _x: Tensor, _logits: Tensor, features: Tensor) -> Tensor:
            return self.settings.strength * distance(features, y[rows], known, prototypes)

        local_training.train(me, learn.FeatureLoss(pull) if len(known) else None)
        me.measure("updated")
        me.note_local_loss()
        if self.settings.nearest and len(known):
            me.measure("nearest", model=NearestPrototype(me.model, known, prototypes))
        held, counts = y.unique(return_counts=True)
        features = learn.features_of(me.model, x)
        means = torch.stack([features[y == label].mean(dim=0) for label in held])
        told = {"counts": counts} if self.settings.weighting == "samples" else {}
        return {"held": held, "prototypes": means, **told}

    def round(self, t: int, fleet: Fleet, server: Server) -> None:
        kept: dict[str, Tensor] = server.memory.setdefault("prototypes", {})
        labels = sorted(map(int, kept))
        known = torch.tensor(labels, dtype=torch.int64)
        prototypes = torch.stack([kept[str(label)] for label in labels]) if kept else torch.empty(0, 0)
        replies = fleet.ask(self.update, fleet.sample(), known=known, prototypes=prototypes)
        kept |= {str(label): mean for label, mean in mean_prototypes(replies).items()}


def distance(features: Tensor, labels: Tensor, known: Tensor, prototypes: Tensor) -> Tensor:
    """The mean, over rows and features, of the squared distance to the prototype of a row's class; 0 where it has none.

    features: rows × features. labels: of the rows. known: the classes that have a prototype. prototypes: theirs.
    """
    target = features.detach().clone()
    rows, places = (labels.unsqueeze(1) == known).nonzero(as_tuple=True)
    target[rows] = prototypes[places]
    return F.mse_loss(features, target)


def mean_prototypes(replies: Iterable[Reply]) -> dict[int, Tensor]:
    """The mean of each class over the clients that hold it; by their samples of it, if they say how many."""
    means: defaultdict[int, learn.TableMean] = defaultdict(learn.TableMean)
    for reply in replies:
        counts = reply.fields.get("counts", torch.ones(len(reply["held"])))
        for label, prototype, share in zip(reply["held"], reply["prototypes"], counts, strict=True):
            means[int(label)].add(prototype.float(), float(share))  # they may have come in another precision
    return {label: mean.result() for label, mean in means.items()}


class NearestPrototype(nn.Module):
    """A model that answers with the class whose prototype is nearest to its features."""

    def __init__(self, model: nn.Module, known: Tensor, prototypes: Tensor) -> None:
        super().__init__()
        self.model, self.known, self.prototypes = model, known, prototypes
        self.channels_last = getattr(model, "channels_last", False)

    def forward(self, x: Tensor) -> Tensor:
        features, logits = features_and_logits(self.model, x)
        nearness = torch.full_like(logits, -torch.inf)
        nearness[:, self.known] = -torch.cdist(features, self.prototypes)
        return nearness
