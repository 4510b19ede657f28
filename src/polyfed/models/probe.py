"""Forward passes that leave no trace: not in a model's modes and buffers, not in random states."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from polyfed.errors import ModelError
from polyfed.models.layers import Shape

_GIVEN_NAME = "_polyfed_name"
_LARGEST_ID = "_polyfed_largest_id"


def give_name(model: nn.Module, name: str) -> None:
    """Let messages call a user's module what the user called it, whatever attributes it has."""
    vars(model)[_GIVEN_NAME] = name


def display_name(model: nn.Module) -> str:
    """What to call a model in a message: the name that it was given, else its own, else its class."""
    name = vars(model).get(_GIVEN_NAME) or getattr(model, "name", "")
    return name if isinstance(name, str) and name else type(model).__name__


def expect_tokens(model: nn.Module, largest_id: int | None) -> None:
    """Note at a module that its inputs are token ids up to this one, so that it is tried with such; None: numbers."""
    vars(model).pop(_LARGEST_ID, None)
    if largest_id is not None:
        vars(model)[_LARGEST_ID] = largest_id


def largest_id(model: nn.Module) -> int | None:
    """The largest token id that a module's inputs may have; None of one that takes numbers."""
    found: int | None = vars(model).get(_LARGEST_ID)
    return found


def plain_inputs(model: nn.Module, shape: Shape, rows: int, dtype: torch.dtype | None = None) -> Tensor:
    """Inputs to try a model with: zeros, float32 by default; or token ids down from the largest, if it takes such."""
    device = next(model.parameters(), torch.empty(0)).device
    largest = largest_id(model)
    if largest is None:
        return torch.zeros(rows, *shape, dtype=dtype or torch.float32, device=device)
    ids = largest - torch.arange(math.prod(shape), device=device) % (largest + 1)
    return ids.view(1, *shape).expand(rows, *shape).contiguous()


def random_inputs(model: nn.Module, shape: Shape, rows: int, stream: torch.Generator) -> Tensor:
    """Noise to try a model with: random ids, if it takes token ids."""
    largest = largest_id(model)
    if largest is None:
        return torch.randn(rows, *shape, generator=stream)
    return torch.randint(largest + 1, (rows, *shape), generator=stream)


@contextmanager
def in_mode(model: nn.Module, *, training: bool) -> Iterator[None]:
    """Training or evaluation mode for a while; afterwards every part has its own mode back."""
    # Evaluation does this for every client: flags alone take a fraction of the time of `train()` and `eval()`.
    changed = [part for part in model.modules() if part.training is not training]
    for part in changed:
        part.training = training
    try:
        yield
    finally:
        for part in changed:
            part.training = not training


def materialise(model: nn.Module, shape: Shape) -> None:
    """Give lazy layers (`nn.LazyLinear`) their sizes by a forward pass of zeros; PyTorch's generator fills them."""
    if not _lazy(model):
        return
    like = next(model.parameters(), torch.empty(0))
    with in_mode(model, training=False), torch.no_grad(), explained(model, shape):
        model(plain_inputs(model, shape, 1, like.dtype))
    left = _lazy(model)
    if left:
        raise ModelError(
            f"model '{display_name(model)}' has a lazy layer that its forward never uses: '{left[0]}'; remove it"
        )


def _lazy(model: nn.Module) -> list[str]:
    """The names of parameters and buffers that have no size yet."""
    tensors = [*model.named_parameters(), *model.named_buffers()]
    return [name for name, tensor in tensors if is_lazy(tensor)]


@contextmanager
def explained(model: nn.Module, shape: Shape) -> Iterator[None]:
    """What PyTorch says about a model and its inputs becomes a `ModelError` of one line."""
    try:
        yield
    except (RuntimeError, ValueError, TypeError, IndexError) as error:
        reason = str(error).partition("\n")[0]
        largest = largest_id(model)
        if largest is not None and isinstance(error, IndexError):
            raise ModelError(
                f"model '{display_name(model)}' cannot look up the token id {largest}, the largest in the data"
                f" ({reason}): give its embedding {largest + 1} rows or more"
            ) from error
        kind = "inputs" if largest is None else "token ids"
        hint = _hint(model, error, kind)
        raise ModelError(
            f"model '{display_name(model)}' cannot take {kind} of shape {tuple(shape)}: {reason}{hint}"
        ) from error


def _hint(model: nn.Module, error: Exception, kind: str) -> str:
    if isinstance(error, TypeError) and ("positional argument" in str(error) or "NoneType" in str(error)):
        return f"; if it takes its input by name, set models.adapt: {{{display_name(model)}: {{input: …}}}}"
    if kind == "inputs" and "indices" in str(error):
        return "; if these are token ids, set data.inputs=tokens"
    return "; it takes numbers, give one with an embedding" if "Long" in str(error) else ""


def probe(
    model: nn.Module,
    shape: Shape,
    *,
    rows: int = 1,
    training: bool = False,
    buffers: dict[str, Tensor] | None = None,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """The outputs for zeros, with copies in place of the buffers; ModelError if the shape does not fit.

    dtype: of the zeros; by default what the model takes.
    """
    out = unchecked_probe(
        model, shape, rows, dtype or input_type(model, shape), training=training, buffers=buffers
    )
    if not isinstance(out, Tensor) or not out.is_floating_point():
        given = f"a tensor of {out.dtype}" if isinstance(out, Tensor) else type(out).__name__
        raise ModelError(f"model '{display_name(model)}' returns {given} and not a tensor of logits")
    return out


def unchecked_probe(
    model: nn.Module,
    shape: Shape,
    rows: int,
    dtype: torch.dtype,
    *,
    training: bool = False,
    buffers: dict[str, Tensor] | None = None,
) -> Any:
    """As `probe`, whatever the model answers."""
    x = plain_inputs(model, shape, rows, dtype)
    if buffers is None:
        buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
    devices = [x.device] if x.device.type == "cuda" else []
    with (
        in_mode(model, training=training),
        torch.random.fork_rng(devices=devices),
        explained(model, shape),
    ):
        return torch.func.functional_call(model, buffers, (x,))


def floating_type(model: nn.Module) -> torch.dtype:
    """The type of a model's first weights that are no whole numbers."""
    return next((p.dtype for p in model.parameters() if p.is_floating_point()), torch.float32)


def input_type(model: nn.Module, shape: Shape) -> torch.dtype:
    """float32, which all numbers come in, if a model takes that; else the type of its weights. Ids stay int64."""
    own = floating_type(model)
    if largest_id(model) is not None:
        return torch.int64
    if own is not torch.float32:
        try:
            with torch.no_grad():
                unchecked_probe(model, shape, 1, torch.float32)
        except ModelError:
            return own
    return torch.float32


def output_shape(model: nn.Module, shape: Shape) -> tuple[int, ...]:
    """The shape of the outputs for one input of this shape, found by a forward pass of zeros in evaluation mode."""
    with torch.no_grad():
        return tuple(probe(model, shape).shape[1:])


def output_count(model: nn.Module, shape: Shape) -> int:
    """The number of outputs for inputs of this shape, found by a forward pass of zeros in evaluation mode."""
    with torch.no_grad():
        out = probe(model, shape)
    if out.dim() != 2:
        raise ModelError(
            f"model '{display_name(model)}' gives {tuple(out.shape)} for one input of shape {tuple(shape)}; "
            "logits must be rows × outputs"
        )
    return out.shape[1]
