"""Tensors are made once, kept within a limit, and are the caller's own."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from polyfed.data.tensor_cache import COPIED_BYTES, TensorCache

SMALL = torch.arange(12.0).reshape(3, 4)
LARGE = torch.arange(COPIED_BYTES // 4 + 16, dtype=torch.float32).reshape(2, 4, -1, 2)


class Counting:
    """Makes a tensor, and counts how often."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor
        self.made = 0

    def __call__(self) -> Tensor:
        self.made += 1
        return self.tensor.clone()


@pytest.mark.parametrize("tensor", [SMALL, LARGE, LARGE.to(memory_format=torch.channels_last), LARGE.long()])
def test_a_tensor_is_made_once_and_given_with_every_bit_and_stride(tensor: Tensor) -> None:
    cache, make = TensorCache(10 * LARGE.nbytes), Counting(tensor)
    for _ in range(3):
        given = cache.get(("a",), make)
        assert torch.equal(given, tensor)
        assert (given.dtype, given.stride()) == (tensor.dtype, tensor.stride())
    assert make.made == 1


CHANGES: list[Callable[[Tensor], object]] = [
    lambda given: given.mul_(0),
    lambda given: given.data.zero_(),
    lambda given: given.detach().numpy().fill(7),
    lambda given: given.view(-1)[3:5].fill_(1),
    lambda given: given.resize_(0),
]


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("tensor", [SMALL, LARGE])
def test_what_one_does_to_its_tensor_nobody_else_sees(
    tensor: Tensor, change: Callable[[Tensor], object]
) -> None:
    cache, make = TensorCache(10 * LARGE.nbytes), Counting(tensor)
    for _ in range(3):  # the one that was made, then two from the cache
        change(cache.get(("a",), make))
        assert torch.equal(cache.get(("a",), make), tensor)
    assert make.made == 1


def test_a_tensor_lasts_longer_than_the_cache() -> None:
    given = TensorCache(10 * LARGE.nbytes)
    first = given.get(("a",), lambda: LARGE)
    second = given.get(("a",), lambda: LARGE)
    del given
    assert torch.equal(first, LARGE)
    assert torch.equal(second, LARGE)


def test_the_cache_keeps_to_its_limit_and_forgets_the_oldest() -> None:
    cache = TensorCache(2 * SMALL.nbytes)
    makers = {name: Counting(SMALL) for name in "abc"}
    for name in "abaca":
        cache.get((name,), makers[name])
        assert cache.size <= 2 * SMALL.nbytes
    assert {name: make.made for name, make in makers.items()} == {"a": 1, "b": 1, "c": 1}
    cache.get(("b",), makers["b"])  # it went when c came
    assert makers["b"].made == 2
    large = Counting(LARGE)
    for _ in range(2):
        cache.get(("large",), large)
    assert large.made == 2  # it does not fit, so it is not kept


def test_without_memory_that_can_be_mapped_all_are_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "memfd_create")
    cache, make = TensorCache(10 * LARGE.nbytes), Counting(LARGE)
    cache.get(("a",), make).zero_()
    cache.get(("a",), make).zero_()
    assert torch.equal(cache.get(("a",), make), LARGE)
    assert make.made == 1
