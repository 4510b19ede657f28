"""Augmentation by functions of the user's own."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import ValidationError
from torch import nn

from polyfed import plug_ins
from polyfed.errors import ConfigError
from polyfed.learn import Training, batches, draw_batch, load_augmentation, supervised

OWN = """
import torch

def shift(batch, generator):
    return batch + torch.rand(len(batch), 1, generator=generator)

def twice(batch):
    return (2 * batch).double()

def in_place(batch, strength=3.0):
    return batch.mul_(strength)

def narrower(batch):
    return batch[:, 1:]

def whole_numbers(batch):
    return batch.long()

def nothing(batch):
    pass

def wants(batch, more):
    return batch

NUMBER = 7
"""


@pytest.fixture(autouse=True)
def _module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    (tmp_path / "own_augment.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    yield
    plug_ins.named_function.cache_clear()
    sys.modules.pop("own_augment", None)


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def augmented(function: str, x: torch.Tensor) -> list[torch.Tensor]:
    training = Training(epochs=1, batch=2, augment=f"own_augment:{function}")
    return [batch for _, batch in batches(x, training, generator())]


def test_every_batch_goes_through_the_function_whatever_its_shape() -> None:
    for shape in ((5, 1), (5, 2, 3), (5, 1, 4, 4)):
        x = torch.rand(shape)
        plain = [batch for _, batch in batches(x, Training(epochs=1, batch=2), generator())]
        made = augmented("twice", x)
        assert all(
            each.dtype == torch.float32 and torch.allclose(each, 2 * one)
            for each, one in zip(made, plain, strict=True)
        )


def test_it_draws_from_the_stream_of_the_batches() -> None:
    """A permutation first, and after it one number a row for each batch: always the same from one seed."""
    x, training = torch.zeros(4, 1), Training(epochs=1, batch=2, augment="own_augment:shift")
    stream = generator()
    torch.randperm(4, generator=stream)
    for _, batch in batches(x, training, generator()):
        assert torch.equal(batch, torch.rand(2, 1, generator=stream))
    _, batch = draw_batch(x, torch.zeros(4), training, generator(), generator(7))
    assert torch.equal(batch, torch.rand(2, 1, generator=generator(7)))


def test_what_it_changes_in_place_are_not_the_data() -> None:
    x = torch.ones(4, 1)
    assert torch.equal(torch.cat(augmented("in_place", x)), torch.full((4, 1), 3.0))
    assert torch.equal(x, torch.ones(4, 1))


def test_a_model_learns_from_what_it_gives() -> None:
    """x = 1 becomes 2: the slope of (w x)² is twice 2² w, so w = 1 − 0.05 · 8."""
    model = nn.Linear(1, 1, bias=False)
    nn.init.ones_(model.weight)

    def square(_model: Any, _rows: Any, _x: Any, logits: torch.Tensor) -> torch.Tensor:
        return logits.square().mean()

    training = Training(epochs=1, lr=0.05, augment="own_augment:twice")
    supervised(
        model, torch.ones(2, 1), torch.zeros(2, dtype=torch.int64), training, generator(), extra=square
    )
    assert model.weight.item() == pytest.approx(0.6)


@pytest.mark.parametrize(
    ("function", "said"),
    [
        ("narrower", r"'own_augment:narrower' made 2 × 1 float32 of 2 × 2 float32: give a batch of the same"),
        ("whole_numbers", "made 2 × 2 int64 of 2 × 2 float32"),
        ("nothing", "gave a NoneType: give a batch of the same shape"),
    ],
)
def test_a_batch_of_another_kind_is_refused(function: str, said: str) -> None:
    with pytest.raises((TypeError, ValueError), match=said):
        augmented(function, torch.rand(4, 2))


@pytest.mark.parametrize(
    ("name", "said"),
    [
        (
            "own_augment:wants",
            "wants 'more': its arguments may be called batch and generator, others need a default",
        ),
        ("own_augment:NUMBER", "is a int: name a function"),
        ("own_augment:absent", "cannot be loaded: AttributeError"),
        ("no_such_module:shift", r"start polyfed where no_such_module\.py is"),
    ],
)
def test_a_function_that_cannot_be_used_is_told(name: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        load_augmentation(name)


def test_what_is_neither_yes_nor_no_nor_a_function_is_refused() -> None:
    with pytest.raises(ValidationError, match="must be true, false, or a function such as my_module:shift"):
        Training(augment="flip")
    with pytest.raises(ValidationError, match="a function must be in a module of its own"):
        Training(augment=lambda batch: batch)
    assert Training(augment="True").augment is True and Training(augment="false").augment is False


def test_from_python_a_function_may_be_given_itself() -> None:
    import own_augment  # type: ignore[import-not-found]

    assert Training(augment=own_augment.shift).augment == "own_augment:shift"
