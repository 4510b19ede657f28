"""Training of clients on their own data: one by one, or several stacked in one tensor."""

from __future__ import annotations

from collections.abc import Sequence

from polyfed import learn
from polyfed.federation import Client
from polyfed.learn import LocalLoss


def train(me: Client, extra: LocalLoss | None = None) -> None:
    """Train a client's model on its own data, as the run's `training` says; `extra` is added to the cross-entropy."""
    learn.supervised(
        me.model, *me.tensors(me.train), me.training, me.rng("batches"), extra=extra, memory=me.memory
    )


def train_together(us: Sequence[Client], extras: Sequence[LocalLoss | None] | None = None) -> bool:
    """The same for several clients of one architecture at once; False, and nothing done, if that cannot be.

    A loss that is added can be stacked only if it says how (see `learn.can_stack_loss`).
    """
    added = list(extras or [None] * len(us))
    if not all(learn.can_stack_loss(extra) for extra in added):
        return False
    learn.supervised_together(
        [me.model for me in us],
        [me.tensors(me.train) for me in us],
        us[0].training,
        [me.rng("batches") for me in us],
        extras=added,
    )
    return True
