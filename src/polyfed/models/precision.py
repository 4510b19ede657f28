"""Models in other types than float32: which of them can be trained, and how they meet data and losses in float32.

Inputs come in float32, and logits and features leave a model in float32, whatever it computes in between: so losses,
answers of different clients and all that is made of them are of one type. A model that takes float32 as it comes (one
that converts its inputs itself, one that looks up tokens) gets it; any other gets inputs of its own type.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from polyfed.errors import ModelError
from polyfed.models.layers import Shape
from polyfed.models.network import Network
from polyfed.models.probe import explained, floating_type, input_type, probe

HALF = (torch.bfloat16, torch.float16)
TRAINED = (torch.float32, torch.float64, torch.bfloat16)
KEPT = (
    *TRAINED,
    torch.float16,
    *(torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64),
)
"""Types that can travel, be averaged and be saved."""


def check_types(model: nn.Module, name: str) -> None:
    """Refuse, with a `ModelError` that says what to do, tensors that cannot be trained, averaged or saved."""
    trained = {key for key, parameter in model.named_parameters() if parameter.requires_grad}
    for key, tensor in model.state_dict(keep_vars=True).items():
        if not isinstance(tensor, Tensor):
            continue
        if tensor.layout is not torch.strided or tensor.is_meta or tensor.is_quantized:
            raise ModelError(
                f"model '{name}' has a sparse, quantised or meta tensor, '{key}': make it a dense one"
            )
        if key in trained and tensor.dtype is torch.float16:
            raise ModelError(
                f"model '{name}' has weights of type float16 ('{key}'), whose small gradients vanish without loss"
                " scaling: convert it with .bfloat16() or .float()"
            )
        if tensor.dtype not in (TRAINED if key in trained else KEPT):
            raise ModelError(
                f"model '{name}' has '{key}' of type {_told([tensor.dtype])}: it cannot be trained or averaged;"
                " make it float32, float64 or bfloat16, or a buffer with persistent=False"
            )


def has_half(model: nn.Module) -> bool:
    """Whether a model trains weights of 16 bits."""
    return any(parameter.dtype in HALF for parameter in model.parameters() if parameter.requires_grad)


def fit_types(model: nn.Module, shape: Shape, converted: bool | None = None) -> bool | None:
    """Let a model take float32 and give float32; one that does so already stays as it is.

    converted: whether inputs are converted to the model's own type, where that is known of its architecture; by default
        it is found out by passes of zeros, with a `ModelError` if the model can be neither used nor trained.
    Returns what it found or was told; None is a model that needs nothing.
    """
    if converted is not None:
        _fit_head(model)
        _fit(model, converted)
        return converted
    kinds = {tensor.dtype for tensor in (*model.parameters(), *model.buffers()) if tensor.is_floating_point()}
    with torch.no_grad():
        if kinds <= {torch.float32} and probe(model, shape).dtype is torch.float32:
            return None
    _fit_head(model)
    converted = input_type(model, shape) not in (torch.float32, torch.int64)
    _fit(model, converted)
    try:
        _try_training(model, shape)
    except ModelError as error:
        whole = "convert the whole of it with .float(), or inputs of each part in its forward"
        raise ModelError(f"{error}; it has weights of {_told(kinds)}: {whole}") from error
    return converted


def _fit_head(model: nn.Module) -> None:
    """A head is also asked about features that are not its body's (FedGen's): it takes and gives float32 by itself."""
    if isinstance(model, Network):
        _hook(model.head, converts=True)


def _fit(model: nn.Module, converted: bool) -> None:
    _hook(model, converts=converted)
    if isinstance(model, Network) and converted:
        _hook(model.body, converts=True, answers=False)


def _hook(part: nn.Module, *, converts: bool, answers: bool = True) -> None:
    # A maker may give one object again and again.
    if converts and _in_own_type not in part._forward_pre_hooks.values():
        part.register_forward_pre_hook(_in_own_type, with_kwargs=True)
    if answers and _in_float32 not in part._forward_hooks.values():
        part.register_forward_hook(_in_float32)


# Not closures: a trained model is copied, pickled and converted by whoever loads it.
def _in_own_type(
    part: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    own = floating_type(part)

    def converted(arg: Any) -> Any:
        return arg.to(own) if isinstance(arg, Tensor) and arg.is_floating_point() else arg

    return tuple(map(converted, args)), {name: converted(arg) for name, arg in kwargs.items()}


def _in_float32(_part: nn.Module, _args: tuple[Any, ...], out: Any) -> Any:
    return out.float() if isinstance(out, Tensor) else out


def _try_training(model: nn.Module, shape: Shape) -> None:
    """One gradient, of zeros: some layers have no backward pass in other types than float32."""
    logits = probe(model, shape, rows=2, training=True)
    weights = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if weights:
        with explained(model, shape):
            torch.autograd.grad(logits.sum(), weights, allow_unused=True)


def _told(kinds: Iterable[torch.dtype]) -> str:
    return ", ".join(sorted(str(kind).removeprefix("torch.") for kind in kinds))
