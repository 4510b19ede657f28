"""Every client's last model on the server, and their mean: active–inactive aggregation (T1 of FedKF).

    w̄_k ← w_0 for every client k, or nothing        (`unseen`)
    each round, with the replies w_k of the cohort S_t:
        w̄_k ← w_k for k in S_t                                                                      (step s5)
        ACA ← Σ_{k in S_t} n_k w_k / Σ n_k,   OCA ← Σ_{all k} n_k w̄_k / Σ n_k                       (step s6)

Clients go on from the ACA model, the mean of the active ones; the OCA model is what is used. A slot of the shelf holds
each w̄_k. The sum Σ n_k w̄_k is kept in double precision, and only what changes in a slot is added to it: a round costs
what its cohort costs, whatever the number of clients.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, TypeAlias

import torch

from polyfed.federation import Facts, Fleet, Server, Weights
from polyfed.federation.method import Step
from polyfed.learn import WeightedMean
from polyfed.methods.averaging import Share

Unseen: TypeAlias = Literal["initial", "left-out"]

NOTHING_RECOMPUTED = (
    "inactive=cached cannot go with batch_norm=recompute, since clients that are absent recompute nothing:"
    " use batch_norm=average or batch_norm=local"
)


class Caching:
    """A fleet's `mean` that also keeps every reply, and with it the mean over the clients that are absent.

    unseen: what counts for a client that never took part: the `initial` weights, or nothing (`left-out`).
    """

    def __init__(self, fleet: Fleet, server: Server, unseen: Unseen) -> None:
        self.fleet = fleet
        self.server = server
        self.unseen = unseen

    def mean(
        self,
        step: Step,
        to: Sequence[Facts],
        field: str,
        *,
        share: Share,
        default: Any,
        weights: Weights,
        **payload: Any,
    ) -> Any:
        """The mean over these clients, all of one architecture, as `fleet.mean` gives it: the ACA model.

        weights: what they begin with; before anybody has taken part, these are the initial ones.
        """
        architecture = to[0].architecture
        kept = self._begun(architecture, weights, share)
        active = WeightedMean()
        for reply in self.fleet.stream(step, to, weights=weights, **payload):
            counts = share(reply.client)
            active.add(reply[field], counts)
            self._put(kept, reply.client, reply[field], counts)
        if kept["total"]:
            kept["mean"] = _mean(kept["sums"], kept["total"], weights)
        return active.result() if active.total else default

    def _begun(self, architecture: str, initial: Weights, share: Share) -> dict[str, Any]:
        """The sum over an architecture's clients so far."""
        overall: dict[str, Any] = self.server.memory.setdefault("overall", {})
        if architecture not in overall:
            total = 0.0
            if self.unseen == "initial":
                everyone = (facts for facts in self.server.roster if facts.architecture == architecture)
                total = float(sum(map(share, everyone)))
                self.server.shelf[_initial(architecture)] = {"weights": initial}
            begun = {
                name: tensor.double() * total if tensor.is_floating_point() else tensor.clone()
                for name, tensor in initial.items()
            }
            overall[architecture] = {"sums": begun, "total": total, "mean": {}}
        kept: dict[str, Any] = overall[architecture]
        return kept

    def _put(self, kept: dict[str, Any], client: Facts, weights: Weights, counts: float) -> None:
        """Replace what a client's slot holds, in the slot and in the sum."""
        shelf = self.server.shelf
        slot = client.name if client.name in shelf else _initial(client.architecture)
        before: Weights = shelf[slot]["weights"] if slot in shelf else {}
        if not before:
            kept["total"] += counts
        for name, tensor in weights.items():
            entry = kept["sums"][name]
            if tensor.is_floating_point():
                change = tensor.double() - before[name] if before else tensor
                entry.add_(change, alpha=counts)
            else:  # BatchNorm's batch counter only grows: the largest so far is the largest of all
                torch.maximum(entry, tensor, out=entry)
        shelf[client.name] = {"weights": weights}


def served(server: Server, architecture: str) -> Weights:
    """The OCA model, as the last round made it; where no models are kept, the shared weights."""
    overall: Weights = server.memory.get("overall", {}).get(architecture, {}).get("mean", {})
    return {**server.weights(architecture), **overall}


def _initial(architecture: str) -> str:
    return f"initial/{architecture}"  # no client's name has a slash


def _mean(sums: Weights, total: float, like: Weights) -> Weights:
    return {
        name: (entry / total if entry.is_floating_point() else entry).to(like[name].dtype)
        for name, entry in sums.items()
    }
