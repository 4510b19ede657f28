"""How a model is trained: the settings, and the batches that are cut."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Annotated, Literal, Self, TypeVar

import torch
from pydantic import BaseModel, BeforeValidator, Field, model_validator
from torch import Tensor, nn

from polyfed.errors import ConfigError
from polyfed.learn import optimiser_choice
from polyfed.learn.augmentation import Augmentation
from polyfed.learn.optimiser_choice import OptimiserChoice
from polyfed.learn.sampling import random_order
from polyfed.learn.schedule import FALLING, AnySchedule, Schedule
from polyfed.schema import SECTION

BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)


class Training(BaseModel):
    """Supervised training on one client's data."""

    model_config = SECTION

    epochs: Annotated[int, Field(ge=1)] = 5
    """Passes over the client's training data in each round; typically 1 to 10."""
    steps: Annotated[int, Field(ge=1)] | None = None
    """Exactly so many batches instead of whole epochs, the same for every client (as in FedKF's code)."""
    batch: Annotated[int, Field(ge=1, le=10**6)] = 32
    """Samples per batch; a client with fewer trains on one batch of what it has."""
    sampling: Literal["all", "balanced"] = "all"
    """all: every row once an epoch. balanced: as many rows, drawn with replacement so that each class that the client
    has is drawn alike often; with several labels a row, it is drawn as its rarest label asks."""
    optimiser: Annotated[
        Literal["sgd", "adam", "amsgrad", "adamw"] | str | OptimiserChoice,
        BeforeValidator(optimiser_choice.read_choice),
    ] = "sgd"
    """How a step is taken: by one of these four; any class of torch.optim by its name, such as RMSprop; or either with
    settings of its class, such as {name: RMSprop, alpha: 0.9}."""
    lr: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 0.05
    """Learning rate; typically 0.01 to 0.1 for sgd, 1e-4 to 1e-3 for adam and its like."""
    decay: Annotated[float, Field(gt=0, le=1)] = 1.0
    """The learning rate is multiplied by this after every round; typically 0.99 to 1."""
    schedule: AnySchedule = Schedule(kind="constant")
    """How the learning rate changes over the rounds: a kind such as cosine, or {kind: cosine, warm_up: 3}."""
    within: AnySchedule = Schedule(kind="constant")
    """How it changes over the steps of each round, in the same way."""
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Of sgd, and of classes of torch.optim that have it; typically 0 or 0.9. adam and its like make no use of it."""
    weight_decay: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    """Pull of all weights towards zero; typically 0 to 5e-4."""
    clip: Annotated[float, Field(gt=0)] | None = None
    """Largest norm of the whole gradient, or no limit."""
    clip_value: Annotated[float, Field(gt=0)] | None = None
    """Largest entry of the gradient, up or down, or no limit; the norm is limited after that."""
    augment: Augmentation = False
    """Flip and pad-crop each batch (images only). Or a function of a module of yours, such as my_module:shift: it takes
    by name what it wants of `batch` and `generator`, from which alone it draws, and gives the batch anew."""
    keep_optimiser: bool = False
    """Carry the optimiser's moments over to the client's next round (needs a method whose clients keep memory)."""

    @model_validator(mode="after")
    def _check_optimiser(self) -> Self:
        optimiser_choice.check(self.optimiser, self.shared)
        return self

    def idle(self, rounds: int) -> Iterator[tuple[str, str]]:
        """The settings that do nothing in a run of so many rounds, each with the reason."""
        if self.momentum > 0 and self.optimiser in optimiser_choice.FUSED[1:]:
            yield "momentum", f"is {self.momentum:g}, of which {self.optimiser} makes no use"
        if self.keep_optimiser and self.optimiser == "sgd" and not self.momentum:
            yield "keep_optimiser", "keeps nothing of sgd without momentum: it does nothing"
        falls = self.schedule.warm_up + (self.schedule.every or 0)
        if self.schedule.kind == "step" and falls >= rounds:
            yield "schedule", f"falls for the first time after {falls} rounds, and the run has {rounds}"
        if self.schedule.kind not in FALLING and self.schedule.warm_up >= rounds:
            yield "schedule", f"warms up for {self.schedule.warm_up} rounds, and the run has {rounds}"
        over_rounds = self.keep_optimiser and (self.schedule.changes or self.decay != 1.0)
        if optimiser_choice.class_of(self.optimiser) == "Rprop" and (self.within.changes or over_rounds):
            yield "lr", "is only the size of Rprop's first step: a schedule does nothing to the others"

    @property
    def shared(self) -> dict[str, float]:
        """What every optimiser is told that takes it."""
        return {"lr": self.lr, "momentum": self.momentum, "weight_decay": self.weight_decay}

    def in_round(self, number: int) -> Self:
        """These settings as they are in a round (from 1): with the learning rate that is left by then."""
        past = max(number - 1, 0)
        if (self.decay == 1.0 or not past) and not self.schedule.changes:
            return self
        lr = self.lr * self.decay**past
        return self.model_copy(update={"lr": lr * self.schedule.share(past) if self.schedule.changes else lr})

    def over(self, rounds: int, called: str = "training") -> Self:
        """These settings in a run of so many rounds: a schedule that must end, and does not say where, ends with it."""
        schedule = self.schedule
        if schedule.kind not in FALLING or schedule.length is not None:
            return self
        if schedule.warm_up >= rounds:
            raise ConfigError(
                f"{called}.schedule: a warm-up of {schedule.warm_up} rounds leaves nothing of {rounds}"
            )
        return self.model_copy(update={"schedule": schedule.model_copy(update={"length": rounds})})

    @property
    def clips(self) -> bool:
        """Whether gradients are limited in any way."""
        return self.clip is not None or self.clip_value is not None

    @property
    def within_round(self) -> Schedule | None:
        """How the learning rate changes over the steps of a round, if it does."""
        return self.within if self.within.changes else None

    def batches(self, samples: int, *, merge_single: bool = False) -> int:
        """How many batches a client with so many samples trains on (see `shuffled_batches`)."""
        if samples == 0:
            return 0
        per_epoch = -(-samples // self.batch)
        if merge_single and per_epoch > 1 and samples - (per_epoch - 1) * self.batch == 1:
            per_epoch -= 1
        return self.steps if self.steps is not None else self.epochs * per_epoch


Section = TypeVar("Section", bound=BaseModel)


def trainings_in(section: BaseModel) -> dict[str, Training]:
    """The training settings in a section, by their keys."""
    return {name: value for name, value in section if isinstance(value, Training)}


def over_rounds(section: Section, rounds: int, prefix: str = "") -> Section:
    """A section in a run of so many rounds: see `Training.over`, for all training settings in it."""
    given = trainings_in(section)
    found = {name: each.over(rounds, f"{prefix}{name}") for name, each in given.items()}
    changed = {name: each for name, each in found.items() if each is not given[name]}
    return section.model_copy(update=changed) if changed else section


def clip_gradient(parameters: Iterable[nn.Parameter], training: Training) -> None:
    """Limit the gradient as settings say, in place: each entry, then its norm over all parameters."""
    parameters = list(parameters)
    if training.clip_value is not None:
        nn.utils.clip_grad_value_(parameters, training.clip_value)
    if training.clip is not None:
        nn.utils.clip_grad_norm_(parameters, training.clip)


def has_batch_norm(model: nn.Module) -> bool:
    return any(isinstance(module, BATCH_NORMS) for module in model.modules())


def freeze_norms(model: nn.Module) -> None:
    """A batch of one has no statistics: let BatchNorm layers use their running ones."""
    for module in model.modules():
        if isinstance(module, BATCH_NORMS):
            module.eval()


def logits_of(model: nn.Module, x: Tensor) -> Tensor:
    """A model's logits of a batch in training, which may be a single row."""
    if len(x) == 1:
        freeze_norms(model)
    logits: Tensor = model(x)
    return logits


def take(x: Tensor, rows: Tensor) -> Tensor:
    """Rows (a vector of row numbers) of a batch, laid out as the batch is.

    Plain indexing would turn channels-last into the default, and take six times as long.
    """
    rows = rows.to(x.device)
    if x.dim() == 4 and not x.is_contiguous():
        return x.permute(0, 2, 3, 1).index_select(0, rows).permute(0, 3, 1, 2)
    return x.index_select(0, rows)


def shuffled_batches(
    samples: int,
    training: Training,
    generator: torch.Generator,
    *,
    merge_single: bool,
    weights: Tensor | None = None,
) -> Iterator[Tensor]:
    """Row numbers of each batch: a new permutation every epoch, nothing dropped; or as many rows drawn by weights.

    With `merge_single` a last batch of one sample joins the batch before it: BatchNorm has no variance of one.
    """
    wanted = training.steps
    given = 0
    epoch = 0
    while wanted is not None or epoch < training.epochs:
        order = random_order(samples, generator, weights)
        cuts = list(order.split(training.batch))
        if merge_single and len(cuts) > 1 and len(cuts[-1]) == 1:
            cuts[-2:] = [torch.cat(cuts[-2:])]
        for rows in cuts:
            if given == wanted:
                return
            yield rows
            given += 1
        epoch += 1
