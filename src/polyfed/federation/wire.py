"""What becomes of fields between a step and the wire: by kind and direction, tensors are packed into fewer bytes.

    wire:
      up: {weights: top-0.05, logits: half}     # what clients send
      down: {weights: int8, logits: half}       # what they are sent

Both sides know the settings, so a packed message carries nothing but fewer bytes. The ledger counts what travels.

*Differences.* Where a client was sent a field of the same name, its tensors travel as differences to the ones that it
was sent (as they arrived): these are small, so little is lost. Gradients are differences already. Peers do not know
what another was sent, so what they say to each other is not a difference.

*Residuals.* What `top` leaves out is kept in the client's state, so it is rolled back, saved and moved like the rest,
and is added to what the client sends the next time. Gradients are thinned out only where their field is declared to be
like something that was sent (`LikeWeights`), all of it: elsewhere an entry may be another one the next time.

*Exact.* Running statistics and tensors of less than 64 entries are never quantised or thinned out: a variance that is
below zero by rounding is of no use. What only serves to look at models comes back exact.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, MutableMapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, TypeAlias

import torch
from pydantic import AfterValidator, BaseModel, model_validator
from torch import Tensor

from polyfed import learn
from polyfed.errors import MessageError, describe
from polyfed.federation.message import Direction, Fields, Kind
from polyfed.federation.packing import SMALL, Packing, looks_packed, packing_of
from polyfed.schema import SECTION
from polyfed.tasks import CLASSIFICATION, Task

Residuals: TypeAlias = MutableMapping[str, Tensor]

ADDS_UP = {Kind.WEIGHTS, Kind.GRADIENTS}
"""The kinds of which a client's messages add up over the rounds, so that what is left out can be sent later."""


def _checked_name(name: str) -> str:
    packing_of(name)
    return name


PackingName: TypeAlias = Annotated[str, AfterValidator(_checked_name)]


class WireSettings(BaseModel):
    """How tensors travel, by kind: `plain` as they are; `half` in 16 bits, `int8` in 8 bits instead of 32; `top-0.05`
    the largest 5 % of the changes, the others later (up, weights and gradients)."""

    model_config = SECTION

    up: dict[Kind, PackingName] = {}
    """What clients send, to the server or to each other."""
    down: dict[Kind, PackingName] = {}
    """What the server sends to clients."""

    @model_validator(mode="after")
    def _check_top(self) -> WireSettings:
        for kind, name in self.down.items():
            packing = packing_of(name)
            if packing is not None and packing.feeds_back:
                raise ValueError(
                    f"{name} is for what clients send: one that was not in the last round has nothing to add a few"
                    f" changes to; use down: {{{kind}: int8}}"
                )
        for kind, name in self.up.items():
            packing = packing_of(name)
            if packing is not None and packing.feeds_back and kind not in ADDS_UP:
                raise ValueError(
                    f"{name} is for weights and gradients, where what is left out can be sent later; use {kind}: int8"
                )
        return self


@dataclass(frozen=True)
class Wire:
    """Packs what is sent and unpacks what arrives. Rounded answers become answers of the task again."""

    settings: WireSettings = field(default_factory=WireSettings)
    task: Task = CLASSIFICATION

    def pack(
        self,
        fields: Fields,
        kinds: Mapping[str, Kind],
        direction: Direction,
        *,
        sent: Fields | None = None,
        residuals: Residuals | None = None,
        lasting: Collection[str] = (),
    ) -> Fields:
        """The fields as they travel.

        sent: what the sender was sent, to which its fields are differences. residuals: what it has left out so far;
            changed to what it has left out now. lasting: the fields whose entries stand for the same each time.
        """
        return self._each(fields, kinds, direction, _packed, sent, residuals, lasting)

    def unpack(
        self,
        fields: Fields,
        kinds: Mapping[str, Kind],
        direction: Direction,
        *,
        sent: Fields | None = None,
    ) -> dict[str, Any]:
        """What was packed, in 32 bits again; a `MessageError` if it cannot be unpacked."""
        try:
            return dict(self._each(fields, kinds, direction, _unpacked, sent))
        except MessageError:
            raise
        except Exception as error:  # whatever a hostile message may bring about
            raise MessageError(f"cannot be unpacked: {describe(error)}") from error

    def packs(self, direction: Direction) -> bool:
        """Whether anything is packed on this way."""
        return bool(self._packings(direction))

    def leaves_residuals(self, kinds: Mapping[str, Kind]) -> bool:
        """Whether one who sends these fields up keeps something of them for the next time."""
        packings = self._packings("up")
        return any(kind in packings and packings[kind].feeds_back for kind in kinds.values())

    def _packings(self, direction: Direction) -> dict[Kind, Packing]:
        chosen: dict[Kind, str] = getattr(self.settings, direction)
        found = {kind: packing_of(name) for kind, name in chosen.items()}
        return {kind: packing for kind, packing in found.items() if packing is not None}

    def _each(
        self,
        fields: Fields,
        kinds: Mapping[str, Kind],
        direction: Direction,
        change: Callable[[Any, _Way], Any],
        sent: Fields | None,
        residuals: Residuals | None = None,
        lasting: Collection[str] = (),
    ) -> Fields:
        packings = self._packings(direction)
        if not packings:
            return fields
        changed = dict(fields)
        for name, value in fields.items():
            kind = kinds.get(name, Kind.CONTROL)
            if kind in packings:
                reference = (sent or {}).get(name) if kind != Kind.GRADIENTS else None
                way = _Way(kind, packings[kind], name, name, reference, residuals, name in lasting, self.task)
                changed[name] = change(value, way)
        return changed


@dataclass(frozen=True)
class _Way:
    """Where in a message a value is, and how it travels."""

    kind: Kind
    packing: Packing
    path: str
    name: str
    """The last part of the path: in weights, the name of an entry of the model."""
    reference: Any
    """What was sent at the same place."""
    residuals: Residuals | None
    lasts: bool
    """Whether the entries of the field stand for the same each time, so that what is left out can be added later."""
    task: Task

    def into(self, key: str) -> _Way:
        known = self.reference
        inner = known.get(key) if isinstance(known, Mapping) else None
        return replace(self, path=f"{self.path}/{key}", name=key, reference=inner)

    def difference_to(self, shape: torch.Size) -> Tensor | None:
        """What a tensor of this shape travels as a difference to, if to anything."""
        known = self.reference
        like = isinstance(known, Tensor) and known.dtype == torch.float32 and known.shape == shape
        return known if like and not learn.is_statistic(self.name) else None

    def is_packed(self, tensor: Tensor) -> bool:
        if tensor.dtype != torch.float32:
            return False
        if self.packing.lossy and (tensor.numel() < SMALL or learn.is_statistic(self.name)):
            return False
        if not self.packing.feeds_back:
            return True
        # A few entries of weights mean something only as changes of others; of gradients, if the rest comes later.
        return self.lasts if self.kind == Kind.GRADIENTS else self.difference_to(tensor.shape) is not None


def _packed(value: Any, way: _Way) -> Any:
    if isinstance(value, Tensor):
        return _packed_tensor(value, way) if way.is_packed(value) else value
    if isinstance(value, Mapping):
        if looks_packed(value):
            raise TypeError(f"a dictionary with the keys {', '.join(value)} cannot be packed: rename one")
        return {key: _packed(item, way.into(str(key))) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_packed(item, way.into(str(place))) for place, item in enumerate(value)]
    return value


def _packed_tensor(tensor: Tensor, way: _Way) -> Any:
    base = way.difference_to(tensor.shape)
    tensor = tensor.detach()
    change = tensor if base is None else tensor - base.to(tensor.device)
    if not way.packing.feeds_back:
        return way.packing.pack(change)
    left = None if way.residuals is None else way.residuals.get(way.path)
    if left is not None and left.shape == change.shape:
        change = change + left.to(change.device)
    packed = way.packing.pack(change)
    if way.residuals is not None:
        arrived = way.packing.unpack(packed)
        assert arrived is not None
        way.residuals[way.path] = change - arrived
    return packed


def _unpacked(value: Any, way: _Way) -> Any:
    tensor = way.packing.unpack(value)
    if tensor is not None:
        base = way.difference_to(tensor.shape)
        tensor = tensor if base is None else base.to(tensor.device) + tensor
        return way.task.mended(tensor) if way.kind == Kind.POSTERIORS and way.packing.lossy else tensor
    if isinstance(value, Mapping):
        return {key: _unpacked(item, way.into(str(key))) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_unpacked(item, way.into(str(place))) for place, item in enumerate(value)]
    return value
