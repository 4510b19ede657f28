"""Training of clients on their own data: one by one, or several stacked in one tensor."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Mapping, Sequence

from torch import Tensor

from polyfed import learn
from polyfed.errors import MethodError
from polyfed.federation import Client
from polyfed.learn import LocalLoss, Training

logger = logging.getLogger(__name__)


def check_steps(training: Training, method: str) -> None:
    """Refuse settings with which nobody can tell from a client's steps which gradients it followed.

    For methods that divide a client's way by its steps (see `learn.effective_steps`).
    """
    reason = f"{method} divides a client's way by its steps, which can be told for plain SGD alone"
    if training.optimiser != "sgd":
        raise MethodError(f"{reason}: set training.optimiser=sgd, not {training.optimiser}")
    if training.keep_optimiser:
        raise MethodError(f"{reason}, begun anew in every round: set training.keep_optimiser=false")
    check_rate(training, method)


def check_rate(training: Training, method: str) -> None:
    """Refuse settings with which a round has no single learning rate, for methods that divide a client's way by it."""
    if training.within.changes:
        raise MethodError(
            f"{method} divides a client's way by its learning rate, which must be one in each round: set"
            " training.within=constant (training.schedule changes it from round to round)"
        )


def check_single_steps(training: Training, method: str) -> None:
    """Refuse settings that `learn.flat_step` cannot follow; warn of those that say how many steps there are.

    For methods that make single steps along all weights as one vector, `method.batches` of them in a round.
    """
    if not learn.steps_alike(training):
        raise MethodError(
            f"{method} steps along all weights as one vector, and {training.optimiser} goes by the shape of each"
            " tensor: set training.optimiser to another, such as adam"
        )
    if training.within.changes:
        raise MethodError(
            f"{method} makes single steps, by one learning rate in each round: set training.within=constant"
            " (training.schedule changes it from round to round)"
        )
    if training.epochs not in (1, Training().epochs) or training.steps is not None:
        logger.warning("%s makes method.batches steps per round, not training.epochs or .steps", method)


def train(
    me: Client, extra: LocalLoss | None = None, *, correction: Mapping[str, Tensor] | None = None
) -> int:
    """Train a client's model on its own data, as the run's `training` says; returns the steps made.

    extra: added to the task's loss. correction: added to every gradient, by the parameters' names.
    """
    return learn.supervised(
        me.model,
        *me.tensors(me.train),
        me.training,
        me.rng("batches"),
        extra=extra,
        memory=me.memory,
        correction=correction,
        task=me.task,
    )


def train_together(us: Sequence[Client], extras: Sequence[LocalLoss | None] | None = None) -> bool:
    """The same for several clients of one architecture at once; False, and nothing done, if that cannot be.

    A loss that is added can be stacked only if it says how (see `learn.can_stack_loss`), and of training settings those
    that `learn.can_stack` knows.
    """
    added = list(extras or [None] * len(us))
    stackable = learn.can_stack(us[0].training) and not us[0].task.is_weighted
    if not stackable or not all(learn.can_stack_loss(extra) for extra in added):
        return False
    learn.supervised_together(
        [me.model for me in us],
        [me.tensors(me.train) for me in us],
        us[0].training,
        [me.rng("batches") for me in us],
        extras=added,
        task=us[0].task,
    )
    return True


def answers(me: Client, ask: Callable[[Tensor], Tensor]) -> Callable[[Tensor, Tensor], Tensor]:
    """answer(rows, x): what somebody who does not change meanwhile says of a batch of the client's training data.

    All rows are asked about at once with the first batch, and not in every epoch again; unless batches are augmented,
    and so are never the same: then each is asked about when it comes.
    """
    if me.training.augment:
        return lambda _rows, x: ask(x)
    said = functools.cache(lambda: ask(me.inputs(me.train)))
    return lambda rows, _x: said()[rows]
