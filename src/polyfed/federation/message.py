"""What may travel between nodes, and how: named fields in safetensors bytes, never pickle.

A message is a set of named fields. A field is a tensor, a number, a text, nothing, or a list or dictionary of
these. On the wire it is one safetensors blob: the tensors are its tensors, and a JSON skeleton in its metadata
says where each belongs. `decode` accepts hostile bytes: it raises `MessageError` and nothing else.
"""

from __future__ import annotations

import functools
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum
from typing import Any, Literal, TypeAlias

import safetensors.torch
import torch
from torch import Tensor

from polyfed.errors import MessageError

Value: TypeAlias = "Tensor | str | int | float | bool | Sequence[Value] | Mapping[str, Value] | None"
Fields: TypeAlias = Mapping[str, Value]
Weights: TypeAlias = Mapping[str, Tensor]
Direction: TypeAlias = Literal["up", "down"]

METADATA_KEY = "polyfed"

# What reading a header may take: about so much for each of its values, at most so many times the message's size.
VALUE_BYTES = 64
MOST_GROWTH = 8
FREE_BYTES = 16 * 2**20
LARGEST = sys.float_info.max  # a whole number beyond cannot be reckoned with

# More than this is neither sent nor kept: so what was encoded can be decoded, wherever that is done.
MOST_DEPTH = 64
MOST_VALUES = 2**20
FEW_VALUES = 2**14  # that never take too much of a header
MOST_BITS = 10_000  # of a whole number: as text it is written and read by every Python


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
    skeleton = _fold(_Plain().of(fields, MOST_DEPTH), tensors)["d"]
    _separate(tensors)
    data = safetensors.torch.save(tensors, {METADATA_KEY: json.dumps(skeleton)})
    if _grows_too_much(data, _header_text(data)):
        raise TypeError("so many numbers, texts or lists cannot travel one by one: make them a tensor")
    return data


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
        fields = {name: _unfold(folded, tensors, MOST_DEPTH) for name, folded in skeleton.items()}
        if tensors:
            raise MessageError("not a message: a tensor belongs to no field")
    except MessageError:
        raise
    except Exception as error:  # whatever hostile bytes may bring about
        raise MessageError(f"not a message: {type(error).__name__}: {error!s:.200}") from error
    return fields


def plain(value: Any) -> Any:
    """A value as it travels and as it is kept: plain dictionaries, lists, numbers, texts and dense tensors.

    Whatever class it is of, what comes back has no code of its own any more. A `TypeError` says what cannot travel.
    Tensors are not copied.
    """
    walk = _Plain()
    found = walk.of(value, MOST_DEPTH)
    if MOST_VALUES - walk.left > FEW_VALUES:
        encode({"value": found})  # so many that they might be refused for it
    return found


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


class _Plain:
    """One walk through a value. A value that contains itself is too deep; one list in many places is too many."""

    def __init__(self) -> None:
        self.left = MOST_VALUES

    def of(self, value: Any, levels: int) -> Any:
        # Types are asked for, never `isinstance`: an object may say that it is of another class.
        kind = type(value)
        self.left -= 1
        if self.left < 0:
            raise TypeError(f"over {MOST_VALUES:,} values cannot travel one by one: make them tensors")
        if kind is str or kind is float or value is None:
            return value
        if issubclass(kind, Tensor):
            return _plain_tensor(value)
        if not issubclass(kind, (list, tuple, Mapping)):
            return _plain_scalar(value)
        if levels == 0:
            raise TypeError(
                f"what is more than {MOST_DEPTH} levels deep cannot travel: use fewer lists in lists"
            )
        if issubclass(kind, Mapping):
            items = dict.items(value) if issubclass(kind, dict) else value.items()
            return {_plain_key(key): self.of(item, levels - 1) for key, item in items}
        items = list.__iter__(value) if issubclass(kind, list) else tuple.__iter__(value)
        return [self.of(item, levels - 1) for item in items]


def _plain_key(key: Any) -> str:
    if not issubclass(type(key), str):
        raise TypeError("the keys of a dictionary that travels must be texts")
    return str.__str__(key)


def _plain_scalar(value: Any) -> str | float | bool:
    kind = type(value)
    if issubclass(kind, int):
        number = value if kind in (int, bool) else int.__int__(value)
        if number.bit_length() > MOST_BITS:
            raise TypeError(f"a whole number of more than {MOST_BITS:,} bits cannot travel")
        return number
    if issubclass(kind, (str, float)):
        return str.__str__(value) if issubclass(kind, str) else float.__float__(value)
    raise TypeError(f"{kind.__name__:.100} cannot travel: use tensors, numbers, texts, lists or dictionaries")


def _plain_tensor(tensor: Tensor) -> Tensor:
    kind = type(tensor)
    if kind is not Tensor:
        if kind.__torch_dispatch__ != Tensor.__torch_dispatch__:
            raise TypeError(f"{kind.__name__:.100} cannot travel: make it a plain tensor")
        with torch._C.DisableTorchFunctionSubclass():
            tensor = Tensor.as_subclass(Tensor.detach(tensor), Tensor)
    if tensor.layout is not torch.strided or tensor.is_meta or tensor.is_quantized or tensor.is_nested:
        raise TypeError("a sparse, nested, quantised or meta tensor cannot travel: make it a dense one")
    if torch._C._functorch.is_functorch_wrapped_tensor(tensor) or not has_memory(tensor):
        raise TypeError("a tensor without memory of its own cannot travel: make it a dense one")
    if not _travels(tensor.dtype):
        raise TypeError(f"a tensor of {tensor.dtype} cannot travel: make it one of float32")
    if tensor.is_conj() or tensor.is_neg():  # the bytes in memory are not its numbers
        tensor = tensor.resolve_conj().resolve_neg()
    return tensor.detach() if tensor.requires_grad else tensor


def has_memory(tensor: Tensor) -> bool:
    """Whether the numbers of a dense tensor are there: reading one whose storage was cut ends the process."""
    if not tensor.numel():
        return True
    last = tensor.storage_offset() + tensor.numel() - 1
    if not tensor.is_contiguous():
        steps = zip(tensor.shape, tensor.stride(), strict=True)
        last = tensor.storage_offset() + sum((size - 1) * step for size, step in steps)
    return (last + 1) * tensor.itemsize <= tensor.untyped_storage().nbytes()


@functools.cache
def _travels(dtype: torch.dtype) -> bool:
    """Whether the bytes of a message can hold numbers of this type, and give them back."""
    try:
        data = safetensors.torch.save({"0": torch.empty(1, dtype=dtype)})
        return safetensors.torch.load(data)["0"].dtype == dtype
    except Exception:  # it depends on the versions which error it is
        return False


def _fold(value: Any, tensors: dict[str, Tensor]) -> Any:
    """JSON for a plain value: a tensor becomes {"t": name}, a dictionary {"d": …}, a list {"l": …}."""
    kind = type(value)
    if kind is Tensor:
        name = str(len(tensors))
        tensors[name] = value.cpu().contiguous()
        return {"t": name}
    if kind is dict:
        return {"d": {key: _fold(item, tensors) for key, item in value.items()}}
    if kind is list:
        return {"l": [_fold(item, tensors) for item in value]}
    return value


def _separate(tensors: dict[str, Tensor]) -> None:
    """Copy those that share memory (tied weights, two slices of one batch): safetensors refuses them."""
    seen = set()
    for name, tensor in tensors.items():
        storage = tensor.untyped_storage().data_ptr()
        if storage in seen:
            tensors[name] = tensor.clone()
        seen.add(storage)


def _unfold(folded: Any, tensors: dict[str, Tensor], levels: int) -> Any:
    if type(folded) is int and folded.bit_length() > MOST_BITS:
        raise MessageError("not a message: a number that is too long")
    if not isinstance(folded, dict):
        if isinstance(folded, list):
            raise MessageError("not a message: a bare list in the skeleton")
        return folded
    ((tag, content),) = folded.items()
    if tag == "t":
        return tensors.pop(content)  # each belongs to one place
    if levels == 0:
        raise MessageError(f"not a message: more than {MOST_DEPTH} levels deep")
    if tag == "d":
        return {key: _unfold(item, tensors, levels - 1) for key, item in content.items()}
    if tag == "l" and isinstance(content, list):
        return [_unfold(item, tensors, levels - 1) for item in content]
    raise MessageError(f"not a message: tag {tag!r:.20} in the skeleton")


def header_of(data: bytes) -> dict[str, Any]:
    """The header of safetensors bytes, or `MessageError`."""
    text = _header_text(data)
    if _grows_too_much(data, text):
        raise MessageError("not a message: its header would take many times its size in memory")
    header = json.loads(text)
    if not isinstance(header, dict):
        raise MessageError("not a message: no header")
    return header


def _header_text(data: bytes) -> bytes:
    length = int.from_bytes(data[:8], "little")
    if len(data) < 8 or length > len(data) - 8:
        raise MessageError("not a message: truncated")
    return data[8 : 8 + length]


def _grows_too_much(data: bytes, header: bytes) -> bool:
    return VALUE_BYTES * sum(map(header.count, b"{[,:")) > MOST_GROWTH * len(data) + FREE_BYTES


EMPTY = safetensors.torch.save({}, {METADATA_KEY: "{}"})
