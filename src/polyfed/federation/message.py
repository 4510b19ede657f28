"""What may travel between nodes, and how: named fields in safetensors bytes, never pickle.

A message is a set of named fields. A field is a tensor, a number, a text, nothing, or a list or dictionary of
these. On the wire it is one safetensors blob: the tensors are its tensors, and a JSON skeleton in its metadata
says where each belongs. `decode` accepts hostile bytes: it raises `MessageError` and nothing else.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum
from typing import Any, Literal, TypeAlias

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor

from polyfed.errors import MessageError

Value: TypeAlias = "Tensor | str | int | float | bool | Sequence[Value] | Mapping[str, Value] | None"
Fields: TypeAlias = Mapping[str, Value]
Weights: TypeAlias = dict[str, Tensor]
Direction: TypeAlias = Literal["up", "down"]

METADATA_KEY = "polyfed"

# What reading a header may take: about so much for each of its values, at most so many times the message's size.
VALUE_BYTES = 64
MOST_GROWTH = 8
FREE_BYTES = 16 * 2**20
LARGEST = sys.float_info.max  # a whole number beyond cannot be reckoned with


class Kind(StrEnum):
    """What a field tells about a client. The ledger counts by kind; a node's policy allows by kind."""

    WEIGHTS = "weights"
    GRADIENTS = "gradients"
    LOGITS = "logits"
    POSTERIORS = "posteriors"
    FEATURES = "features"
    PROTOTYPES = "prototypes"
    STATISTICS = "statistics"
    INDICES = "indices"
    METRICS = "metrics"
    CONTROL = "control"
    """What steers a step: the name of an architecture, a number of steps."""
    FRAMING = "framing"
    """What belongs to no field: names, shapes, the skeleton of a message; and messages without fields."""


def bytes_by_kind(fields: Fields, total: int, kinds: Mapping[str, Kind]) -> dict[Kind, int]:
    """A message's bytes by kind; those of names, shapes and the skeleton are framing. Sums to `total`.

    A field without a kind, which a client may send and nobody reads, counts as control.
    """
    sizes = sizes_of(fields)
    counts = {Kind.FRAMING: total - sum(sizes.values())}
    for name, size in sizes.items():
        kind = kinds.get(name, Kind.CONTROL)
        counts[kind] = counts.get(kind, 0) + size
    return {kind: count for kind, count in counts.items() if count}


def encode(fields: Fields) -> bytes:
    """The bytes of a message. Tensors are stored as they are: dtype, shape and every bit."""
    if not fields:
        return EMPTY
    tensors: dict[str, Tensor] = {}
    skeleton = _fold(fields, tensors)["d"]
    _separate(tensors)
    return safetensors.torch.save(tensors, {METADATA_KEY: json.dumps(skeleton)})


def decode(data: bytes) -> dict[str, Any]:
    """The fields in these bytes, or `MessageError`. Never allocates more than the bytes justify."""
    if data == EMPTY:
        return {}
    try:
        header = header_of(data)
        skeleton = json.loads(header["__metadata__"][METADATA_KEY])
        if not isinstance(skeleton, dict):
            raise MessageError("a message must be a set of named fields")
        tensors = safetensors.torch.load(data)
        fields = {name: _unfold(folded, tensors) for name, folded in skeleton.items()}
        if tensors:
            raise MessageError("not a message: a tensor belongs to no field")
    except MessageError:
        raise
    except (SafetensorError, ArithmeticError, LookupError, RecursionError, RuntimeError) as error:
        raise MessageError(f"not a message: {type(error).__name__}: {error!s:.200}") from error
    except (AttributeError, TypeError, ValueError) as error:
        raise MessageError(f"not a message: {type(error).__name__}: {error!s:.200}") from error
    return fields


def sizes_of(fields: Fields) -> dict[str, int]:
    """How many bytes of a message each field takes: its tensors' bytes, or its JSON where it has none."""
    return {
        name: sum(tensor.nbytes for tensor in tensors_in(value))
        or len(json.dumps(value, default=lambda _: 0))
        for name, value in fields.items()
    }


def tensors_in(value: Value) -> Iterator[Tensor]:
    """Every tensor in a value, however deep."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from tensors_in(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from tensors_in(item)


def numbers_in(value: Value) -> Iterator[int | float]:
    """Every number in a value that is not in a tensor, however deep."""
    if isinstance(value, Mapping):
        for item in value.values():
            yield from numbers_in(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from numbers_in(item)
    elif isinstance(value, int | float):
        yield value


def first_not_finite(fields: Fields) -> str | None:
    """The name of a field that holds NaN or infinity, if there is one."""
    for name, value in fields.items():
        if not _finite(value):
            return name
    return None


def _finite(value: Value) -> bool:
    if isinstance(value, Tensor):
        if value.is_floating_point() and value.itemsize == 1:
            value = value.float()  # `isfinite` knows no 8-bit floats
        if not (value.is_floating_point() or value.is_complex()):
            return True
        # One pass instead of three: NaN and infinity show in the sum. A sum can also overflow by itself.
        return bool(torch.isfinite(value.sum())) or bool(torch.isfinite(value).all())
    if isinstance(value, int | float):
        return abs(value) <= LARGEST
    if isinstance(value, Mapping):
        return all(_finite(item) for item in value.values())
    if isinstance(value, (list, tuple)):
        return all(_finite(item) for item in value)
    return True


def _fold(value: Value, tensors: dict[str, Tensor]) -> Any:
    """JSON for a value: a tensor becomes {"t": name}, a dictionary {"d": …}, a list {"l": …}."""
    if isinstance(value, Tensor):
        if value.layout is not torch.strided or value.is_meta or value.is_quantized:
            raise TypeError("a sparse, quantised or meta tensor cannot travel: make it a dense one")
        name = str(len(tensors))
        tensors[name] = value.detach().cpu().contiguous()
        return {"t": name}
    if isinstance(value, Mapping):
        if not all(isinstance(key, str) for key in value):
            raise TypeError("the keys of a dictionary that travels must be texts")
        return {"d": {key: _fold(item, tensors) for key, item in value.items()}}
    if isinstance(value, (list, tuple)):
        return {"l": [_fold(item, tensors) for item in value]}
    if value is None or isinstance(value, (str, int, float, bool)):
        return value
    raise TypeError(
        f"{type(value).__name__} cannot travel: use tensors, numbers, texts, lists or dictionaries"
    )


def _separate(tensors: dict[str, Tensor]) -> None:
    """Copy those that share memory (tied weights, two slices of one batch): safetensors refuses them."""
    seen = set()
    for name, tensor in tensors.items():
        storage = tensor.untyped_storage().data_ptr()
        if storage in seen:
            tensors[name] = tensor.clone()
        seen.add(storage)


def _unfold(folded: Any, tensors: dict[str, Tensor]) -> Any:
    if not isinstance(folded, dict):
        if isinstance(folded, list):
            raise MessageError("not a message: a bare list in the skeleton")
        return folded
    ((tag, content),) = folded.items()
    if tag == "t":
        return tensors.pop(content)  # each belongs to one place
    if tag == "d":
        return {key: _unfold(item, tensors) for key, item in content.items()}
    if tag == "l" and isinstance(content, list):
        return [_unfold(item, tensors) for item in content]
    raise MessageError(f"not a message: tag {tag!r:.20} in the skeleton")


def header_of(data: bytes) -> dict[str, Any]:
    """The header of safetensors bytes, or `MessageError`."""
    length = int.from_bytes(data[:8], "little")
    if len(data) < 8 or length > len(data) - 8:
        raise MessageError("not a message: truncated")
    text = data[8 : 8 + length]
    if VALUE_BYTES * sum(map(text.count, b"{[,:")) > MOST_GROWTH * len(data) + FREE_BYTES:
        raise MessageError("not a message: its header would take many times its size in memory")
    header = json.loads(text)
    if not isinstance(header, dict):
        raise MessageError("not a message: no header")
    return header


EMPTY = safetensors.torch.save({}, {METADATA_KEY: "{}"})
