"""Whatever a message holds, it is let in or refused; and reading it takes a few times its size in memory."""

from __future__ import annotations

import json
import tracemalloc
from pathlib import Path

import pytest
import torch
from tests.chaos.attack import Chaos
from tests.chaos.letters import Forger, open_letter

from polyfed.errors import MessageError
from polyfed.federation.message import FREE_BYTES, METADATA_KEY, MOST_GROWTH, decode, encode

SIZE = 8_000_000


def with_metadata(skeleton: str) -> bytes:
    header = json.dumps({"__metadata__": {METADATA_KEY: skeleton}}).encode()
    return len(header).to_bytes(8, "little") + header


def with_header(text: str) -> bytes:
    return len(text).to_bytes(8, "little") + text.encode()


HOSTILE = {
    "empty maps": with_metadata('{"a":{"l":[' + ",".join(['{"d":{}}'] * (SIZE // 9)) + "]}}"),
    "empty lists": with_metadata('{"a":{"l":[' + ",".join(['{"l":[]}'] * (SIZE // 9)) + "]}}"),
    "nulls": with_metadata('{"a":{"l":[' + ",".join(["0"] * (SIZE // 2)) + "]}}"),
    "short texts": with_metadata('{"a":{"l":[' + ",".join(['"\\u1234"'] * (SIZE // 12)) + "]}}"),
    "many keys": with_metadata("{" + ",".join(f'"{number:x}":0' for number in range(SIZE // 10)) + "}"),
    "a header of maps": with_header('{"a":[' + ",".join(["{}"] * (SIZE // 3)) + "]}"),
    "a header of lists": with_header('{"a":[' + ",".join(["[]"] * (SIZE // 3)) + "]}"),
    "one long text": with_metadata('{"a":"' + "x" * SIZE + '"}'),
    "long numbers": with_metadata('{"a":{"l":[' + ",".join(["0.12345678901"] * (SIZE // 14)) + "]}}"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_memory_is_bounded_by_a_few_times_the_message(name: str) -> None:
    data = HOSTILE[name]
    tracemalloc.start()
    try:
        try:
            decode(data)
        except MessageError as error:
            assert len(str(error)) < 300
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < MOST_GROWTH * len(data) + FREE_BYTES


def test_honest_messages_of_many_small_tensors_and_long_lists_are_read() -> None:
    many = {"weights": {f"layer{number}.weight": torch.zeros(2) for number in range(20_000)}}
    assert len(decode(encode(many))["weights"]) == 20_000
    numbers = {"history": [number / 7 for number in range(200_000)]}
    assert decode(encode(numbers)) == numbers


def test_what_is_forged_is_let_in_or_refused_all_the_way_from_its_bytes_to_its_fields() -> None:
    chaos = Chaos(Path(), seed=29, seconds=0)
    forger = Forger(chaos.chance, chaos.spoilt)
    assert [open_letter(*letter) for letter in forger.honest[:-1]] == [None] * (len(forger.honest) - 1)
    reasons = [open_letter(*forger.letter()) for _ in range(3000)]
    assert len({reason for reason in reasons if reason is not None}) > 30
    assert None in reasons
