from __future__ import annotations

import json
import tracemalloc
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import pytest
import safetensors.torch
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from polyfed.errors import MessageError
from polyfed.federation import message
from polyfed.federation.message import (
    EMPTY,
    MOST_BITS,
    MOST_DEPTH,
    Fields,
    Kind,
    bytes_by_kind,
    decode,
    encode,
    first_not_finite,
    plain,
    sizes_of,
)

DTYPES = (
    torch.bool,
    torch.uint8,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
)
FAST = settings(deadline=None, max_examples=60)


def bits(tensor: Tensor) -> bytes:
    return bytes(tensor.detach().contiguous().reshape(-1).view(torch.uint8).tolist())


def same(one: Any, other: Any) -> bool:
    """Whether two values hold the same, tensors to the bit (so that NaN equals itself)."""
    if isinstance(one, Tensor):
        return (
            isinstance(other, Tensor)
            and (one.dtype, one.shape) == (other.dtype, other.shape)
            and bits(one) == bits(other)
        )
    if isinstance(one, Mapping):
        return (
            isinstance(other, dict)
            and list(one) == list(other)
            and all(same(one[key], other[key]) for key in one)
        )
    if isinstance(one, (list, tuple)):
        return (
            isinstance(other, list)
            and len(one) == len(other)
            and all(same(a, b) for a, b in zip(one, other, strict=True))
        )
    return type(one) is type(other) and one == other


@st.composite
def tensors(draw: st.DrawFn) -> Tensor:
    """A tensor of any dtype whose bits are drawn: NaNs with payloads, denormals and minus zero included."""
    dtype = draw(st.sampled_from(DTYPES))
    shape = draw(st.lists(st.integers(0, 3), max_size=3))
    count = torch.Size(shape).numel()
    if dtype == torch.bool:
        return torch.tensor(
            draw(st.lists(st.booleans(), min_size=count, max_size=count)), dtype=dtype
        ).reshape(shape)
    raw = draw(st.binary(min_size=count * dtype.itemsize, max_size=count * dtype.itemsize))
    if not raw:
        return torch.empty(shape, dtype=dtype)
    return torch.frombuffer(bytearray(raw), dtype=dtype).reshape(shape)


scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8)
values = st.recursive(
    scalars | tensors(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
messages = st.dictionaries(st.text(max_size=8), values, max_size=4)


def sealed(skeleton: Any, named: dict[str, Tensor] | None = None) -> bytes:
    """A safetensors blob with any skeleton."""
    return safetensors.torch.save(named or {}, {"polyfed": json.dumps(skeleton)})


def with_header(header: Any, body: bytes = b"", *, length: int | None = None) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return (len(text) if length is None else length).to_bytes(8, "little") + text + body


# -- what is sent arrives ------------------------------------------------------------------------------------


@FAST
@given(messages)
def test_every_message_arrives_as_it_was_sent(fields: dict[str, Any]) -> None:
    assert same(fields, decode(encode(fields)))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(), (0,), (0, 3), (2, 3), (1, 1, 1)], ids=str)
def test_every_dtype_and_shape_arrives_to_the_bit(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    sent = torch.arange(torch.Size(shape).numel()).reshape(shape).to(dtype)
    assert same(sent, decode(encode({"x": sent}))["x"])


def test_bits_that_are_no_number_arrive_too() -> None:
    sent = torch.tensor([0x7FC00001, -0x00400000, 0x00000001, -0x80000000], dtype=torch.int32)
    arrived = decode(encode({"x": sent.view(torch.float32)}))["x"]
    assert arrived.view(torch.int32).tolist() == sent.tolist()


@pytest.mark.parametrize(
    "view",
    [
        torch.arange(12.0).reshape(3, 4).T,
        torch.arange(12.0)[::3],
        torch.arange(12.0)[5:7],
        torch.ones(1).expand(4),
        torch.arange(24.0).reshape(1, 2, 3, 4).to(memory_format=torch.channels_last),
        torch.arange(4.0, requires_grad=True),
        nn.Parameter(torch.arange(3.0)),
    ],
    ids=["transposed", "strided", "slice", "expanded", "channels last", "with gradient", "parameter"],
)
def test_a_tensor_of_any_layout_arrives_with_its_values(view: Tensor) -> None:
    arrived = decode(encode({"x": view}))["x"]
    assert arrived.tolist() == view.tolist()
    assert arrived.is_contiguous()
    assert not arrived.requires_grad


def test_tied_tensors_arrive_as_two_that_do_not_share_memory() -> None:
    tied = torch.ones(3)
    arrived = decode(encode({"weights": {"head": tied, "tail": tied, "part": tied[1:]}}))["weights"]
    arrived["head"].zero_()
    assert arrived["tail"].tolist() == [1, 1, 1]
    assert arrived["part"].tolist() == [1, 1]


def test_what_arrives_does_not_share_memory_with_what_was_sent() -> None:
    sent = torch.zeros(2)
    message = encode({"x": sent})
    sent.fill_(7)
    arrived = decode(message)["x"]
    arrived += 1
    assert decode(message)["x"].tolist() == [0, 0]


def test_tuples_and_mappings_arrive_as_lists_and_dictionaries() -> None:
    assert decode(encode({"x": (1, (2,)), "y": MappingProxyType({"a": None})})) == {
        "x": [1, [2]],
        "y": {"a": None},
    }


def test_numbers_that_are_not_finite_arrive() -> None:
    arrived = decode(encode({"x": [float("inf"), float("-inf"), float("nan")]}))["x"]
    assert arrived[:2] == [float("inf"), float("-inf")]
    assert arrived[2] != arrived[2]


def test_equal_messages_are_equal_bytes() -> None:
    fields = {"weights": {f"layer{place}": torch.full((2,), float(place)) for place in range(20)}}
    assert len({encode(fields) for _ in range(5)}) == 1


def test_no_fields_are_the_empty_message() -> None:
    assert encode({}) == EMPTY
    assert decode(EMPTY) == {}


@pytest.mark.parametrize(
    "value",
    [
        object(),
        b"bytes",
        {1, 2},
        1j,
        {1: 2},
        [{"x": [object()]}],
        torch.eye(2).to_sparse(),
        torch.empty(1, device="meta"),
        nn.Linear(1, 1),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_cannot_travel_is_a_type_error(value: Any) -> None:
    with pytest.raises(TypeError):
        encode({"x": value})


def test_the_name_of_a_field_must_be_a_text() -> None:
    with pytest.raises(TypeError, match="texts"):
        encode({3: 1})  # type: ignore[dict-item]


# -- hostile bytes -------------------------------------------------------------------------------------------

VALID = encode({"weights": {"a": torch.arange(6.0), "b": torch.ones(2, dtype=torch.bool)}, "note": [1, "x"]})


def decodes_or_refuses(data: bytes) -> None:
    """Anything but `MessageError` fails the test."""
    try:
        fields = decode(data)
    except MessageError as error:
        assert len(str(error)) < 400
    else:
        assert isinstance(fields, dict)


@FAST
@given(st.binary(max_size=200))
def test_random_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(MessageError):
        decode(data)


@FAST
@given(st.binary(max_size=60), st.binary(max_size=60))
def test_a_random_header_is_refused(header: bytes, body: bytes) -> None:
    with pytest.raises(MessageError):
        decode(with_header(header, body))


def test_a_message_truncated_anywhere_is_refused() -> None:
    for length in range(len(VALID)):
        with pytest.raises(MessageError):
            decode(VALID[:length])


@settings(deadline=None, max_examples=300)
@given(st.integers(0, len(VALID) * 8 - 1))
def test_a_flipped_bit_never_raises_anything_else(place: int) -> None:
    data = bytearray(VALID)
    data[place // 8] ^= 1 << place % 8
    decodes_or_refuses(bytes(data))


@FAST
@given(st.lists(st.tuples(st.integers(0, len(VALID) - 1), st.integers(0, 255)), max_size=6))
def test_changed_bytes_never_raise_anything_else(changes: list[tuple[int, int]]) -> None:
    data = bytearray(VALID)
    for place, value in changes:
        data[place] = value
    decodes_or_refuses(bytes(data))


json_values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("tdlx01"), inner)
)


@FAST
@given(json_values)
def test_any_skeleton_is_decoded_or_refused(skeleton: Any) -> None:
    decodes_or_refuses(sealed(skeleton, {"0": torch.ones(1), "1": torch.ones(2)}))


@FAST
@given(st.dictionaries(st.sampled_from(["0", "__metadata__", "x"]), json_values), st.binary(max_size=8))
def test_any_header_of_json_is_decoded_or_refused(header: dict[str, Any], body: bytes) -> None:
    decodes_or_refuses(with_header(header, body))


def deep(opening: str, closing: str, depth: int = 100_000) -> str:
    return opening * depth + "0" + closing * depth


def metadata(skeleton: str) -> bytes:
    return safetensors.torch.save({}, {"polyfed": skeleton})


def one_tensor(dtype: str, shape: list[int], offsets: list[int], body: bytes) -> bytes:
    facts = {"dtype": dtype, "shape": shape, "data_offsets": offsets}
    return with_header({"__metadata__": {"polyfed": '{"x": {"t": "0"}}'}, "0": facts}, body)


two_at_once = {
    "__metadata__": {"polyfed": '{"x": {"t": "0"}, "y": {"t": "1"}}'},
    "0": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]},
    "1": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]},
}

HOSTILE: dict[str, bytes] = {
    "nothing": b"",
    "a length of 2⁶⁴ - 1": b"\xff" * 8 + b"{}",
    "a length past the end": with_header({}, length=3),
    "no header": with_header(b""),
    "header is a list": with_header([]),
    "header is not UTF-8": with_header(b'{"\xff": 1}'),
    "header nested deeply": with_header(deep('{"a":', "}").encode()),
    "no metadata": safetensors.torch.save({"0": torch.ones(1)}),
    "another's metadata": safetensors.torch.save({}, {"format": "pt"}),
    "metadata is a text": with_header({"__metadata__": "polyfed"}),
    "metadata is not JSON": metadata("{"),
    "skeleton is a list": metadata("[]"),
    "skeleton is null": metadata("null"),
    "skeleton nested deeply in lists": metadata(deep("[", "]")),
    "skeleton nested deeply in tags": metadata('{"x": ' + deep('{"l": [', "]}") + "}"),
    "a number of 5000 digits": metadata('{"x": ' + "9" * 5000 + "}"),
    "a bare list": sealed({"x": [1]}),
    "a list inside a list": sealed({"x": {"l": [[1]]}}),
    "no tag": sealed({"x": {}}),
    "two tags": sealed({"x": {"l": [], "d": {}}}),
    "an unknown tag": sealed({"x": {"z": 1}}),
    "a list of a text": sealed({"x": {"l": "abc"}}),
    "a list of a dictionary": sealed({"x": {"l": {"a": 1}}}),
    "a dictionary of a list": sealed({"x": {"d": [1]}}),
    "an unknown tensor": sealed({"x": {"t": "0"}}),
    "a tensor named by a list": sealed({"x": {"t": ["0"]}}, {"0": torch.ones(1)}),
    "a tensor named twice": sealed({"x": {"t": "0"}, "y": {"t": "0"}}, {"0": torch.ones(1)}),
    "a tensor named 1000 times": sealed({"x": {"l": [{"t": "0"}] * 1000}}, {"0": torch.ones(1000)}),
    "a tensor of no field": sealed({"x": 1}, {"0": torch.ones(1)}),
    "overlapping tensors": with_header(two_at_once, bytes(4)),
    "bytes past the tensors": one_tensor("F32", [1], [0, 4], bytes(8)),
    "offsets past the end": one_tensor("F32", [4], [0, 16], bytes(4)),
    "offsets backwards": one_tensor("F32", [1], [4, 0], bytes(4)),
    "negative offsets": one_tensor("F32", [1], [-4, 0], bytes(4)),
    "a shape of 2⁶⁰ rows": one_tensor("F32", [2**60], [0, 4], bytes(4)),
    "a shape whose product overflows": one_tensor("F32", [2**32, 2**32, 4], [0, 0], b""),
    "a negative shape": one_tensor("F32", [-1], [0, 4], bytes(4)),
    "an unknown dtype": one_tensor("F33", [1], [0, 4], bytes(4)),
    "a dtype that does not fit": one_tensor("F64", [1], [0, 4], bytes(4)),
    "a pickle": b"\x80\x04\x95\x05\x00\x00\x00\x00\x00\x00\x00K\x01.",
}


@pytest.mark.parametrize("data", HOSTILE.values(), ids=HOSTILE.keys())
def test_hostile_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(MessageError) as caught:
        decode(data)
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize(
    "data",
    [
        b"\xff" * 8 + b"{}",
        with_header({}, length=2**40),
        one_tensor("F32", [2**28], [0, 4], bytes(4)),
        one_tensor("F32", [2**60, 0], [0, 0], b""),
        one_tensor("F32", [0, 2**62], [0, 0], b""),
        HOSTILE["a tensor named 1000 times"],
        HOSTILE["skeleton nested deeply in lists"],
    ],
)
def test_a_small_message_allocates_little(data: bytes) -> None:
    decodes_or_refuses(data)  # once before: what the first call imports is not the message's
    tracemalloc.start()
    try:
        decodes_or_refuses(data)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 200_000 + 20 * len(data)


def test_tensors_that_arrive_hold_no_more_than_the_message() -> None:
    try:
        arrived = decode(one_tensor("F32", [2**30, 0], [0, 0], b""))["x"]
    except MessageError:
        return
    assert arrived.untyped_storage().nbytes() == 0


# -- what each field costs -----------------------------------------------------------------------------------


def test_bytes_are_counted_by_kind_and_sum_to_the_message() -> None:
    fields: Fields = {"weights": {"a": torch.zeros(5), "b": torch.zeros(3, dtype=torch.int64)}, "seen": 12345}
    total = len(encode(fields))
    counts = bytes_by_kind(fields, total, {"weights": Kind.WEIGHTS, "seen": Kind.METRICS})
    # weights: 5 × 4 + 3 × 8 bytes; seen: five digits; the rest is framing
    assert counts == {Kind.FRAMING: total - 44 - 5, Kind.WEIGHTS: 44, Kind.METRICS: 5}


def test_a_field_without_a_kind_is_control() -> None:
    fields = {"secret": torch.zeros(100)}
    total = len(encode(fields))
    counts = bytes_by_kind(fields, total, {"weights": Kind.WEIGHTS})
    assert counts == {Kind.CONTROL: 400, Kind.FRAMING: total - 400}


def test_two_fields_of_one_kind_are_counted_together() -> None:
    fields = {"mean": torch.zeros(2), "var": torch.zeros(4, dtype=torch.float16)}
    counts = bytes_by_kind(fields, len(encode(fields)), dict.fromkeys(fields, Kind.STATISTICS))
    assert counts[Kind.STATISTICS] == 8 + 8


def test_tied_and_expanded_tensors_are_counted_as_they_travel() -> None:
    tied = torch.zeros(10)
    fields: Fields = {"weights": [tied, tied], "logits": torch.zeros(1).expand(8)}
    assert sizes_of(fields) == {"weights": 80, "logits": 32}
    assert len(encode(fields)) > 80 + 32


@FAST
@given(messages)
def test_bytes_by_kind_always_sum_to_the_message(fields: dict[str, Any]) -> None:
    total = len(encode(fields))
    kinds = dict.fromkeys(fields, Kind.LOGITS)
    for seen in (fields, decode(encode(fields))):
        counts = bytes_by_kind(seen, total, kinds)
        assert sum(counts.values()) == total
        assert all(count > 0 for count in counts.values())


# -- numbers -------------------------------------------------------------------------------------------------

NAN = float("nan")


@pytest.mark.parametrize(
    "spoilt",
    [
        NAN,
        float("-inf"),
        torch.tensor(NAN),
        torch.tensor([1.0, float("inf")], dtype=torch.float16),
        torch.tensor([NAN], dtype=torch.bfloat16),
        torch.tensor([NAN]).to(torch.float8_e4m3fn),
        torch.tensor([complex(0, NAN)]),
        [1, {"deep": (0.0, torch.tensor([NAN], dtype=torch.float64))}],
    ],
    ids=repr,
)
def test_the_first_field_that_is_not_finite_is_named(spoilt: Any) -> None:
    assert first_not_finite({"good": torch.ones(2), "bad": spoilt, "worse": NAN}) == "bad"


def test_finite_fields_pass() -> None:
    fields = {str(dtype): torch.ones(2).to(dtype) for dtype in (*DTYPES, torch.float8_e5m2, torch.complex64)}
    assert first_not_finite({**fields, "empty": torch.empty(0), "text": "nan", "none": None, "n": 1}) is None


@pytest.mark.parametrize(
    "value",
    [[[]] * 3000, {str(number): 1 for number in range(3000)}, [torch.zeros(0)] * 3000],
    ids=["lists", "numbers", "tensors"],
)
def test_what_would_be_refused_for_its_many_values_is_neither_kept_nor_encoded(
    monkeypatch: pytest.MonkeyPatch, value: Any
) -> None:
    monkeypatch.setattr(message, "FREE_BYTES", 0)
    monkeypatch.setattr(message, "FEW_VALUES", 0)
    for prepare in (plain, lambda wanted: encode({"value": wanted})):
        with pytest.raises(TypeError, match="make them a tensor"):
            prepare(value)


def test_what_can_be_encoded_can_be_decoded_at_the_very_bounds() -> None:
    deep: Any = 2**MOST_BITS - 1
    for _ in range(MOST_DEPTH - 1):
        deep = [deep]
    assert decode(encode({"x": deep})) == {"x": deep}
    for beyond in ([deep], 2**MOST_BITS):
        with pytest.raises(TypeError, match="cannot travel"):
            encode({"x": beyond})


def test_a_tensor_that_is_stored_as_its_opposite_arrives_as_it_is() -> None:
    conjugated = torch.tensor([1 + 2j]).conj()
    arrived = decode(encode({"number": conjugated, "imaginary": conjugated.imag}))
    assert arrived["number"].tolist() == [1 - 2j]
    assert arrived["imaginary"].tolist() == [-2.0]
