"""SCAFFOLD's control variates (Karimireddy et al. 2020, option II): for methods that correct their clients' gradients.

Every client has a control variate c_i, the mean of the gradients that it last followed, kept in `me.memory["control"]`;
the server has c, the mean of all of them. All are zero at first, so a client that takes part for the first time has 0.

    correction:  a client steps along  g + c − c_i
    update:      c_i⁺ ← c_i − c + (w − w_i) / (a η),   and  c_i⁺ − c_i  goes to the server
    fold:        c ← c + |S|/N · mean over S of  c_i⁺ − c_i

The paper has K, the number of steps, for a. With momentum the steps go further than K gradients: a is how far they go
down a gradient that does not change (`learn.effective_steps`, FedNova's a_i; K without momentum). With K at momentum
0.9 the variates come out up to ten times too large, and training collapses (on digits: 44 % where it should be 91).

Parameters only: the running statistics of BatchNorm layers have no gradient.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from polyfed import learn
from polyfed.federation import Client, Weights
from polyfed.learn import WeightedMean


def zeros(model: nn.Module) -> Weights:
    """The control variate that everybody begins with: zero for every parameter that is not frozen."""
    travelling = learn.named_tensors(model)
    return {
        name: torch.zeros(parameter.shape, dtype=parameter.dtype)
        for name, parameter in model.named_parameters(remove_duplicate=False)  # a shared one has two names
        if name in travelling
    }


def correction(me: Client, control: Mapping[str, Tensor]) -> Weights:
    """c − c_i: what is added to every gradient of the client, by the parameters' names.

    control: c, the server's.
    """
    own = _own(me, control)
    return {name: tensor - own[name] for name, tensor in control.items()}


def update(
    me: Client,
    control: Mapping[str, Tensor],
    before: Mapping[str, Tensor],
    after: Mapping[str, Tensor],
    steps: int,
    *,
    only: Mapping[str, Tensor] | None = None,
) -> Weights:
    """Make the client's control variate anew after its training, and give back by how much it changed.

    control: c, as the client was sent it; its names are those of what is corrected.
    before, after: w and w_i, the weights that the client began with and those it has trained.
    steps: how many it made, of plain SGD with the run's momentum. After none nothing changes.
    only: of some layers the rows that change (see `learn.take_rows`); the server is told of no others, so they stay.
    """
    own = _own(me, control)
    if not steps:
        return {name: torch.zeros_like(tensor) for name, tensor in own.items()}
    way = me.training.lr * learn.effective_steps(steps, me.training.momentum)
    change = {
        name: (before[name].cpu() - after[name].cpu()) / way - tensor for name, tensor in control.items()
    }
    if only:
        change = learn.spread_rows(learn.take_rows(change, only), only, change)
    me.memory["control"] = {name: own[name] + change[name] for name in own}
    return change


def fold(control: Mapping[str, Tensor], change: WeightedMean, everyone: float) -> Weights:
    """The server's next c, by the changes of those who took part.

    change: their c_i⁺ − c_i, each with the share by which the client counts; in sum that is |S|.
    everyone: what all clients would count together, N: c stays the mean of everybody's c_i.
    """
    part, mean = change.total / everyone, change.result()
    return {name: tensor + part * mean[name] for name, tensor in control.items()}


def _own(me: Client, control: Mapping[str, Tensor]) -> Weights:
    own: Weights | None = me.memory.get("control")
    return {name: torch.zeros_like(tensor) for name, tensor in control.items()} if own is None else own
