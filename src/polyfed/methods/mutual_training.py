"""A client's own model and a knowledge network that it was sent, trained together by deep mutual learning.

The network is a scratch model: it comes with a message and leaves with one, and nothing of it stays on the client but
the moments of its optimiser, where a run keeps moments, and its control variate, where gradients are corrected.
"""

from __future__ import annotations

from typing import Any

from polyfed import learn
from polyfed.federation import Client, Fields, Server, Weights
from polyfed.methods import control_variates

STAGE = "mutual"


def told(server: Server) -> dict[str, Any]:
    """What goes down to every client: the server's network, and of which architecture it is."""
    assert server.model is not None
    return {"weights": learn.weights_of(server.model), "architecture": server.architecture}


def merge(server: Server, weights: Weights) -> None:
    """Make these the weights of the server's network; it stays as it is where nobody sent any."""
    assert server.model is not None
    learn.load_weights(server.model, weights, partly=True)
    server.measure("global")


def train(
    me: Client,
    weights: Weights,
    architecture: str,
    *,
    own: tuple[float, float] = (1.0, 1.0),
    sent: tuple[float, float] = (1.0, 1.0),
    in_turn: bool = False,
    control: Weights | None = None,
) -> Fields:
    """Train both on the client's data, as the run's `training` says; gives the network's weights, to be sent back.

    own, sent: weights of the labels and of the other's answers, for the client's own model and for the network.
    in_turn: whether the network learns from the client's model as it is after its step (see `learn.mutual`).
    control: the server's control variate, if the network's gradients are to be corrected (see `control_variates`); by
        how much the client's own has changed is then sent back as well.
    """
    network = me.scratch_model(architecture)
    learn.load_weights(network, weights)
    kept = me.memory.setdefault("network", {}) if me.training.keep_optimiser else None
    correction = None if control is None else control_variates.correction(me, control)
    steps = learn.mutual(
        learn.Peer(me.model, *own, memory=me.memory),
        learn.Peer(network, *sent, memory=kept, correction=correction),
        *me.tensors(me.train),
        me.training,
        me.rng("batches"),
        in_turn=in_turn,
        task=me.task,
    )
    me.measure(STAGE)
    me.note_local_loss()
    trained = learn.weights_of(network)
    if control is None:
        return {"weights": trained}
    return {"weights": trained, "change": control_variates.update(me, control, weights, trained, steps)}
