from __future__ import annotations

import hashlib
import itertools

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from polyfed.seeds import Seeds

names = st.lists(st.integers() | st.text(st.characters(categories=["L", "N", "P"])), max_size=4)


def test_a_number_is_the_digest_of_root_and_name() -> None:
    digest = hashlib.blake2b(b"7\x1fstr:batches\x1fstr:client-3\x1fint:12", digest_size=8).digest()
    assert Seeds(7).number("batches", "client-3", 12) == int.from_bytes(digest, "little") // 2


@settings(deadline=None)
@given(st.integers(0, 2**64), names)
def test_a_number_has_63_bits(root: int, name: list[str | int]) -> None:
    assert 0 <= Seeds(root).number(*name) < 2**63


@settings(deadline=None)
@given(st.lists(names, min_size=2, max_size=6, unique_by=repr))
def test_other_names_give_other_numbers(others: list[list[str | int]]) -> None:
    assert len({Seeds(0).number(*name) for name in others}) == len(others)


def test_every_part_of_the_name_and_the_root_count() -> None:
    either: list[str | int] = ["1", 1]
    parts = itertools.product((1, 2), ("a", "b"), either, (12, 21))
    assert len({Seeds(root).number(a, b, c) for root, a, b, c in parts}) == 16
    assert Seeds(0).number("ab", "c") != Seeds(0).number("a", "bc")
    assert Seeds(1).number("2") != Seeds(12).number()


def test_the_same_name_gives_the_same_stream_whatever_was_drawn_before() -> None:
    first = torch.rand(5, generator=Seeds(3).torch("batches", 1))
    torch.rand(100)
    torch.manual_seed(5)
    assert torch.equal(torch.rand(5, generator=Seeds(3).torch("batches", 1)), first)
    assert np.array_equal(Seeds(3).numpy("x").random(5), Seeds(3).numpy("x").random(5))


def test_global_random_state_is_not_touched() -> None:
    before = torch.get_rng_state(), np.random.get_state()[1].tolist()  # type: ignore[index]
    torch.rand(3, generator=Seeds(0).torch("a"))
    Seeds(0).numpy("a").random(3)
    assert torch.equal(torch.get_rng_state(), before[0])
    assert np.random.get_state()[1].tolist() == before[1]  # type: ignore[index]


def test_streams_of_neighbouring_clients_are_unrelated() -> None:
    draws = torch.stack([torch.randn(2000, generator=Seeds(0).torch("x", client)) for client in range(8)])
    correlation = torch.corrcoef(draws) - torch.eye(8)
    assert correlation.abs().max() < 0.1  # standard deviation 1/√2000 = 0.022
