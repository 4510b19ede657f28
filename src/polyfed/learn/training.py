"""How a model is trained: the settings, the optimiser they name, and the batches they cut."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, MutableMapping
from typing import Annotated, Any, Literal

import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor, nn

BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)


class Training(BaseModel):
    """Supervised training on one client's data."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    epochs: Annotated[int, Field(ge=1)] = 1
    """Passes over the client's training data in each round; typically 1 to 10."""
    steps: Annotated[int, Field(ge=1)] | None = None
    """Exactly so many batches instead of whole epochs, the same for every client (as in FedKF's code)."""
    batch: Annotated[int, Field(ge=1)] = 32
    """Samples a batch; a client with fewer trains on one batch of what it has."""
    optimiser: Literal["sgd", "adam", "amsgrad", "adamw"] = "sgd"
    lr: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 0.05
    """Learning rate; typically 0.01 to 0.1 for sgd, 1e-4 to 1e-3 for the others."""
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.0
    weight_decay: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    clip: Annotated[float, Field(gt=0)] | None = None
    """Largest norm of the whole gradient, or no limit."""
    augment: bool = False
    """Flip and pad-crop each batch (images only)."""
    keep_optimiser: bool = False
    """Carry the optimiser's moments over to the client's next round (needs a method whose clients keep memory)."""

    def batches(self, samples: int, *, merge_single: bool = False) -> int:
        """How many batches a client with so many samples trains on (see `shuffled_batches`)."""
        if samples == 0:
            return 0
        per_epoch = -(-samples // self.batch)
        if merge_single and per_epoch > 1 and samples - (per_epoch - 1) * self.batch == 1:
            per_epoch -= 1
        return self.steps if self.steps is not None else self.epochs * per_epoch


def make_optimiser(parameters: Iterable[nn.Parameter], training: Training) -> torch.optim.Optimizer:
    """The optimiser that the settings name. Fused kernels: they measured fastest on every device."""
    trained = [parameter for parameter in parameters if parameter.requires_grad]
    common: dict[str, Any] = {"lr": training.lr, "weight_decay": training.weight_decay, "fused": True}
    if training.optimiser == "sgd":
        return torch.optim.SGD(trained, momentum=training.momentum, **common)
    if training.optimiser == "adamw":
        return torch.optim.AdamW(trained, **common)
    return torch.optim.Adam(trained, amsgrad=training.optimiser == "amsgrad", **common)


def recall(optimiser: torch.optim.Optimizer, memory: MutableMapping[str, Any] | None) -> None:
    """Give an optimiser back the moments that `remember` kept."""
    kept = (memory or {}).get("optimiser")
    if kept:
        groups = optimiser.state_dict()["param_groups"]
        parameters = [parameter for group in optimiser.param_groups for parameter in group["params"]]
        state = {
            int(index): {name: _laid_out_as(value, parameters[int(index)]) for name, value in moments.items()}
            for index, moments in kept.items()
        }
        optimiser.load_state_dict({"state": state, "param_groups": groups})


def _laid_out_as(moment: Any, parameter: Tensor) -> Any:
    """Fused kernels walk through memory: a moment must be laid out as its parameter is (channels-last, say)."""
    if isinstance(moment, Tensor) and moment.shape == parameter.shape:
        return torch.empty_like(parameter, dtype=moment.dtype).copy_(moment)
    return moment


def remember(optimiser: torch.optim.Optimizer, memory: MutableMapping[str, Any] | None) -> None:
    """Keep an optimiser's moments in a client's memory."""
    if memory is not None:
        state = optimiser.state_dict()["state"]
        memory["optimiser"] = {
            str(index): {name: value for name, value in moments.items() if value is not None}
            for index, moments in state.items()
        }


def has_batch_norm(model: nn.Module) -> bool:
    return any(isinstance(module, BATCH_NORMS) for module in model.modules())


def freeze_norms(model: nn.Module) -> None:
    """A batch of one has no statistics: let BatchNorm layers use their running ones."""
    for module in model.modules():
        if isinstance(module, BATCH_NORMS):
            module.eval()


def take(x: Tensor, rows: Tensor) -> Tensor:
    """Rows (a vector of row numbers) of a batch, laid out as the batch is.

    Plain indexing would turn channels-last into the default, and take six times as long.
    """
    rows = rows.to(x.device)
    if x.dim() == 4 and not x.is_contiguous():
        return x.permute(0, 2, 3, 1).index_select(0, rows).permute(0, 3, 1, 2)
    return x.index_select(0, rows)


def shuffled_batches(
    samples: int, training: Training, generator: torch.Generator, *, merge_single: bool
) -> Iterator[Tensor]:
    """Row numbers of each batch: a new permutation every epoch, nothing dropped.

    With `merge_single` a last batch of one sample joins the batch before it: BatchNorm has no variance of one.
    """
    wanted = training.steps
    given = 0
    epoch = 0
    while wanted is not None or epoch < training.epochs:
        order = torch.randperm(samples, generator=generator)
        cuts = list(order.split(training.batch))
        if merge_single and len(cuts) > 1 and len(cuts[-1]) == 1:
            cuts[-2:] = [torch.cat(cuts[-2:])]
        for rows in cuts:
            if given == wanted:
                return
            yield rows
            given += 1
        epoch += 1
