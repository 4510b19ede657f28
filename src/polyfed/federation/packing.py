"""Tensors in fewer bytes: half precision, 8-bit quantisation, and the largest entries alone.

| name       | what travels of a float32 tensor                                             | bytes per entry |
|------------|------------------------------------------------------------------------------|-----------------|
| `plain`    | all of it                                                                    | 4               |
| `half`     | 16 bits of each entry                                                        | 2               |
| `int8`     | for each entry which of 256 evenly spaced values, from the least to the most | 1               |
| `top-0.05` | the 5 % with the largest magnitude: where they are, and their 32 bits        | 0.4             |

What `top` leaves out is not lost: the sender keeps it as a residual and adds it the next time (error feedback).
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from polyfed.errors import MessageError

SMALL = 64  # entries; below that, names and ranges would cost what is saved
MOST_ENTRIES = 2**31  # of which places in 32 bits can tell
MOST_SIZES = 64  # of a tensor's shape

_INT8 = {"int8", "low", "step"}
_TOP = {"top", "values", "shape"}
_TOP_NAME = re.compile(r"top-(0?\.\d+|1(?:\.0*)?)")


class Packing(Protocol):
    """A way for a float32 tensor to travel."""

    lossy: bool
    """Whether so little is left of a tensor that running statistics and small tensors travel as they are."""
    feeds_back: bool
    """Whether what is left out is kept by the sender, as a residual, and added the next time."""

    def pack(self, tensor: Tensor) -> Any:
        """What travels instead of the tensor."""

    def unpack(self, packed: Any) -> Tensor | None:
        """The tensor that was packed; None if this was not. What cannot be unpacked is a `MessageError`."""


@dataclass(frozen=True)
class Half:
    """16 bits for each entry."""

    lossy = False
    feeds_back = False

    def pack(self, tensor: Tensor) -> Any:
        return tensor.half()

    def unpack(self, packed: Any) -> Tensor | None:
        return packed.float() if isinstance(packed, Tensor) and packed.dtype == torch.float16 else None


@dataclass(frozen=True)
class Int8:
    """8 bits for each entry: low + step · (0 … 255), where low is the least entry and low + 255 step the largest."""

    lossy = True
    feeds_back = False

    def pack(self, tensor: Tensor) -> Any:
        low, most = tensor.min(), tensor.max()
        step = ((most - low) / 255).clamp(min=torch.finfo(torch.float32).tiny)
        levels = ((tensor - low) / step).round().clamp(0, 255)
        return {"int8": levels.to(torch.uint8), "low": low.item(), "step": step.item()}

    def unpack(self, packed: Any) -> Tensor | None:
        if not isinstance(packed, Mapping) or packed.keys() != _INT8:
            return None
        levels, low, step = packed["int8"], packed["low"], packed["step"]
        if not (isinstance(levels, Tensor) and levels.dtype == torch.uint8 and _numbers(low, step)):
            raise MessageError("8-bit values without their range")
        tensor: Tensor = levels.float() * step + low
        return tensor


@dataclass(frozen=True)
class Top:
    """The entries with the largest magnitude, this share of all and at least one."""

    share: float
    lossy = True
    feeds_back = True

    def pack(self, tensor: Tensor) -> Any:
        flat = tensor.reshape(-1)
        places = flat.abs().topk(self._count(flat.numel()), sorted=False).indices.sort().values
        return {"top": places.int(), "values": flat[places], "shape": list(tensor.shape)}

    def unpack(self, packed: Any) -> Tensor | None:
        if not isinstance(packed, Mapping) or packed.keys() != _TOP:
            return None
        places, values, shape = packed["top"], packed["values"], packed["shape"]
        if not (
            isinstance(places, Tensor)
            and isinstance(values, Tensor)
            and (places.dtype, values.dtype) == (torch.int32, torch.float32)
            and places.dim() == 1
            and places.shape == values.shape
            and isinstance(shape, list)
            and len(shape) <= MOST_SIZES
            and all(type(size) is int and size > 0 for size in shape)
        ):
            raise MessageError("entries of a tensor without their places")
        entries = math.prod(shape)
        # So what is made is never larger than the share says, whatever size is claimed.
        if (
            entries > MOST_ENTRIES
            or len(places) != self._count(entries)
            or int(places.min()) < 0
            or int(places.max()) >= entries
        ):
            raise MessageError(f"entries of a tensor that are not {self.share:g} of it")
        flat = torch.zeros(entries, device=values.device)
        flat[places.long()] = values
        return flat.reshape(shape)

    def _count(self, entries: int) -> int:
        return max(1, math.ceil(self.share * entries))


def packing_of(name: str) -> Packing | None:
    """The packing of this name, None for plain; a `ValueError` that says what there is."""
    top = _TOP_NAME.fullmatch(name)
    if top and float(top[1]) > 0:
        return Top(float(top[1]))
    known: dict[str, Packing | None] = {"plain": None, "half": Half(), "int8": Int8()}
    if name not in known:
        raise ValueError(f"'{name:.40}' is not one of plain, half, int8 or a share such as top-0.05")
    return known[name]


def looks_packed(value: Mapping[str, Any]) -> bool:
    """Whether a dictionary could be taken for a packed tensor."""
    return value.keys() in (_INT8, _TOP)


def _numbers(*values: Any) -> bool:
    return all(type(value) is float and math.isfinite(value) for value in values)
