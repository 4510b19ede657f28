"""Short trials of a user's own model before a run: is stacking faster for it, is channels-last?

Built-in models declare both, as measured. A model that polyfed has never seen is measured here, on one thread and on
random data, with the functions that will train it. What is found changes the last bits of a run's arithmetic, so it
belongs in the run's resolved config; and clocks are never quite the same twice, so a faster way must be clearly
faster. A trial leaves no trace: not in the model, not in random states, not in the number of threads.
"""

from __future__ import annotations

import copy
import functools
import logging
import statistics
import time
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from polyfed.learn.evaluate import predict
from polyfed.learn.stacked import can_stack, supervised_together
from polyfed.learn.supervision import supervised
from polyfed.learn.training import Training
from polyfed.models import has_half, random_inputs, structure
from polyfed.tasks import CLASSIFICATION, Task

logger = logging.getLogger(__name__)

# What another way must stay below, as a share of the usual way's time: a margin keeps the answer from being another
# one each time.
FASTER_LAYOUT = 0.97
FASTER_STACK = 0.93

SECONDS = 0.2  # of CPU time, after which a trial measures no more; each way has been measured once by then
REPEATS = 7
FEW_ROWS = 4  # with which a model is tried first: it may be a large one

# A batch is cut until a step takes no longer than this, but not to fewer rows than say something about a whole batch:
# setting up convolutions takes too much of a small step.
LONGEST_STEP = 0.02
LEAST_ROWS = 16

# A step that takes longer has hardly any overhead, and overhead is all that stacking saves.
LONGEST_STACKED_STEP = 0.002
MOST_STACKED = 5  # in a trial: what there is to gain is there with a few
STACKED_STEPS = 12  # in one measurement, with about as much setting up as in a client's turn in a run

AGREEMENT = 1e-5  # of the largest gradient: how far stacked ones may be from those of one model alone

_decisions: dict[Hashable, bool] = {}
"""Of this process, so that a run which is repeated in it is repeated to the bit, and is not tried again."""


def prefers_channels_last(
    model: nn.Module, shape: tuple[int, ...], outputs: int, batch: int, task: Task = CLASSIFICATION
) -> bool:
    """Whether channels-last is clearly faster than the default layout for a training step of this model on a CPU.

    shape: (channels, height, width) of one input. batch: the rows of a training batch. False for a model that does
    not work in channels-last, or gives other logits in it.
    """
    if len(shape) != 3 or not any(parameter.dim() == 4 for parameter in model.parameters()):
        return False
    key = ("layout", structure(model), shape, outputs, batch, task.name)
    return _decision(key, lambda: _channels_last_is_faster(model, shape, outputs, batch, task))


def worth_stacking(
    model: nn.Module,
    shape: tuple[int, ...],
    outputs: int,
    training: Training,
    clients: int,
    task: Task = CLASSIFICATION,
) -> bool:
    """Whether training `clients` models of this architecture in one stack is right, and clearly faster on a CPU.

    Right: no buffers, no weights of 16 bits, no randomness, and the gradients are those of one model alone, also where
    a batch is short.
    A model that is to be trained in channels-last is given in channels-last: stacking must beat that.
    """
    if clients < 2 or not can_stack(training) or any(True for _ in model.buffers()) or has_half(model):
        return False
    key = ("stack", structure(model), _layout(model), shape, outputs, training.batch, clients, task.name)
    return _decision(key, lambda: _stack_is_faster(model, shape, outputs, training.batch, clients, task))


def _decision(key: Hashable, trial: Callable[[], bool]) -> bool:
    if key not in _decisions:
        with _no_trace():
            try:
                _decisions[key] = trial()
            except Exception as error:
                # `view` on a map in channels-last, random layers in a stack, …: the usual way is always there, and
                # a model that does not work at all says so when it is trained.
                logger.debug("a trial failed: %s", error)
                _decisions[key] = False
    return _decisions[key]


def _channels_last_is_faster(
    model: nn.Module, shape: tuple[int, ...], outputs: int, batch: int, task: Task
) -> bool:
    x, y = _examples(model, batch, shape, outputs, task, seed=0)
    rows = _affordable_rows(model, x, y, task)
    x, y = x[:rows], y[:rows]
    usual = copy.deepcopy(model)
    other = copy.deepcopy(model).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    other_x = x.contiguous(memory_format=torch.channels_last)
    if not torch.allclose(predict(other, other_x), predict(usual, x), rtol=1e-3, atol=1e-4):
        return False
    return _ratio(_steps(other, other_x, y, task), _steps(usual, x, y, task)) < FASTER_LAYOUT


def _stack_is_faster(
    model: nn.Module, shape: tuple[int, ...], outputs: int, batch: int, clients: int, task: Task
) -> bool:
    x, y = _examples(model, batch, shape, outputs, task, seed=0)
    if x.dim() == 4:
        x = x.contiguous(memory_format=_layout(model))
    for rows in (FEW_ROWS, batch):
        if _step_seconds(model, x[:rows], y[:rows], task) > LONGEST_STACKED_STEP:
            return False
    stack = [copy.deepcopy(model) for _ in range(min(clients, MOST_STACKED))]
    if not _gradients_agree(stack, shape, outputs, batch, task):
        return False
    together = functools.partial(
        supervised_together,
        stack,
        [(x, y)] * len(stack),
        _tiny_steps(len(x), STACKED_STEPS),
        [torch.Generator() for _ in stack],
        task=task,
    )
    alone = _steps(copy.deepcopy(model), x, y, task, STACKED_STEPS)
    return _ratio(together, alone) / len(stack) < FASTER_STACK


def _layout(model: nn.Module) -> torch.memory_format:
    """Of a model's maps: that of its weights."""
    weights = [parameter for parameter in model.parameters() if parameter.dim() == 4]
    usual = all(weight.is_contiguous() for weight in weights)
    return torch.contiguous_format if usual else torch.channels_last


def _gradients_agree(
    stack: Sequence[nn.Module], shape: tuple[int, ...], outputs: int, rows: int, task: Task
) -> bool:
    """Compare one step of plain SGD with rate 1, whose change of the weights is the gradient.

    The second model has a short batch, which the stack pads: a layer that looks at a whole batch gives itself away.
    """
    counts = [rows if place != 1 else max(1, rows // 2) for place in range(len(stack))]
    examples = [
        _examples(stack[0], count, shape, outputs, task, seed=place) for place, count in enumerate(counts)
    ]
    settings = Training(batch=rows, steps=1, lr=1.0)
    with torch.no_grad():
        for place, model in enumerate(stack):
            for parameter in model.parameters():
                parameter.mul_(1 + 0.05 * place)  # or a model could be given another's gradient unnoticed
    together = [copy.deepcopy(model) for model in stack]
    streams = [torch.Generator().manual_seed(0) for _ in stack]
    supervised_together(together, examples, settings, streams, task=task)
    for place in (0, 1):
        before = _flat(stack[place])
        alone = copy.deepcopy(stack[place])
        supervised(alone, *examples[place], settings, torch.Generator().manual_seed(0), task=task)
        gradient = before - _flat(alone)
        difference = (before - _flat(together[place]) - gradient).abs().max()
        if not difference <= AGREEMENT * gradient.abs().max().clamp(min=1e-3):  # also where one is NaN
            return False
    return True


def _flat(model: nn.Module) -> Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()]).double()


def _steps(model: nn.Module, x: Tensor, y: Tensor, task: Task, count: int = 1) -> Callable[[], object]:
    """Training steps on all rows at once."""
    return lambda: supervised(model, x, y, _tiny_steps(len(x), count), torch.Generator(), task=task)


def _tiny_steps(rows: int, count: int) -> Training:
    """Too small to change a model so that it would be slower: weights that underflow, say."""
    return Training(batch=rows, steps=count, lr=1e-6)


def _step_seconds(model: nn.Module, x: Tensor, y: Tensor, task: Task) -> float:
    """How long a training step takes that is not the first."""
    step = _steps(copy.deepcopy(model), x, y, task)
    first = _seconds(step)
    return first if first > 10 * LONGEST_STEP else min(_seconds(step) for _ in range(3))


def _affordable_rows(model: nn.Module, x: Tensor, y: Tensor, task: Task) -> int:
    """As many of the rows as a step of acceptable length can take."""
    few = min(len(x), FEW_ROWS)
    seconds = _step_seconds(model, x[:few], y[:few], task)
    return min(len(x), max(LEAST_ROWS, int(few * LONGEST_STEP / seconds)))


def _ratio(way: Callable[[], object], usual: Callable[[], object]) -> float:
    """The time of one way over that of the usual one, taken in turn: the median of several, as neighbours in time are
    slowed down alike by whatever else the machine does."""
    started = time.process_time()
    way(), usual()  # the first ones set up what later ones find
    found = []
    for _ in range(REPEATS):
        found.append(_seconds(way) / _seconds(usual))
        if time.process_time() - started > SECONDS:
            break
    return statistics.median(found)


def _seconds(work: Callable[[], object]) -> float:
    """Of CPU time: waiting for a core that others use does not count."""
    started = time.process_time()
    work()
    return time.process_time() - started


def _examples(
    model: nn.Module, rows: int, shape: tuple[int, ...], outputs: int, task: Task, seed: int
) -> tuple[Tensor, Tensor]:
    stream = torch.Generator().manual_seed(seed)
    x = random_inputs(model, shape, rows, stream)
    return x, task.examples(rows, outputs, stream)


@contextmanager
def _no_trace() -> Iterator[None]:
    """One thread; afterwards the global generator and the number of threads are as they were."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with torch.random.fork_rng(devices=[]):
            yield
    finally:
        torch.set_num_threads(threads)
