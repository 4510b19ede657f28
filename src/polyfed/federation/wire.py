"""What becomes of fields between a step and the wire: by kind and direction, tensors may be packed into fewer bytes.

    wire:
      up: {logits: half}         # what clients send
      down: {logits: half}       # what they are sent

Both sides know the settings, so a packed message carries nothing but fewer bytes. The ledger counts what travels.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

import torch
from pydantic import BaseModel
from torch import Tensor

from polyfed.federation.message import Direction, Fields, Kind
from polyfed.schema import SECTION

Packing: TypeAlias = Literal["plain", "half"]


class WireSettings(BaseModel):
    """How tensors travel, by kind: `plain` as they are; `half` in 16 bits, half the bytes of float32."""

    model_config = SECTION

    up: dict[Kind, Packing] = {}
    """What clients send, to the server or to each other."""
    down: dict[Kind, Packing] = {}
    """What the server sends to clients."""


@dataclass(frozen=True)
class Wire:
    """Packs what is sent and unpacks what arrives."""

    settings: WireSettings = field(default_factory=WireSettings)

    def pack(self, fields: Fields, kinds: Mapping[str, Kind], direction: Direction) -> Fields:
        """The fields as they travel."""
        return self._changed(fields, kinds, direction, _halve)

    def unpack(
        self, fields: dict[str, Any], kinds: Mapping[str, Kind], direction: Direction
    ) -> dict[str, Any]:
        """What was packed, in 32 bits again."""
        return dict(self._changed(fields, kinds, direction, _restore))

    def _changed(
        self,
        fields: Fields,
        kinds: Mapping[str, Kind],
        direction: Direction,
        change: Callable[[Tensor], Tensor],
    ) -> Fields:
        chosen: dict[Kind, Packing] = getattr(self.settings, direction)
        packed = {kind for kind, packing in chosen.items() if packing == "half"}
        if not packed:
            return fields
        return {
            name: _in_every_tensor(value, change) if kinds.get(name, Kind.CONTROL) in packed else value
            for name, value in fields.items()
        }


def _halve(tensor: Tensor) -> Tensor:
    return tensor.half() if tensor.dtype == torch.float32 else tensor


def _restore(tensor: Tensor) -> Tensor:
    return tensor.float() if tensor.dtype == torch.float16 else tensor


def _in_every_tensor(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, Mapping):
        return {name: _in_every_tensor(item, change) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_in_every_tensor(item, change) for item in value]
    return value
