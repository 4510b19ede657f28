from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

import pytest
import torch
import torch.nn.functional as F

from polyfed.data.augment import flip, pad_crop, standard

Refuses = Callable[[str], AbstractContextManager[None]]
LAYOUTS = [torch.contiguous_format, torch.channels_last]


def seeded(number: int = 5) -> torch.Generator:
    return torch.Generator().manual_seed(number)


def batch(layout: torch.memory_format, channels: int = 3) -> torch.Tensor:
    return torch.randn(20, channels, 8, 6, generator=seeded(1)).to(memory_format=layout)


def flip_one_by_one(x: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    draws = torch.rand(len(x), generator=generator)
    return torch.stack([image.flip(2) if draw < 0.5 else image for image, draw in zip(x, draws, strict=True)])


def crop_one_by_one(x: torch.Tensor, generator: torch.Generator, padding: int) -> torch.Tensor:
    downs, rights = torch.randint(2 * padding + 1, (2, len(x)), generator=generator).tolist()
    height, width = x.shape[2:]
    return torch.stack(
        [
            F.pad(image, (padding,) * 4)[:, down : down + height, right : right + width]
            for image, down, right in zip(x, downs, rights, strict=True)
        ]
    )


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("padding", [0, 1, 4])
def test_a_batch_is_what_one_image_after_the_other_would_be(
    layout: torch.memory_format, channels: int, padding: int
) -> None:
    x = batch(layout, channels)
    mirrored = flip_one_by_one(x, seeded())
    assert torch.equal(flip(x, seeded()), mirrored)
    if padding:
        assert torch.equal(pad_crop(x, seeded(), padding), crop_one_by_one(x, seeded(), padding))
    generator = seeded()
    both = flip_one_by_one(x, generator)
    both = crop_one_by_one(both, generator, padding) if padding else both
    assert torch.equal(standard(x, seeded(), padding), both)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_memory_format_is_kept_and_the_batch_is_not_touched(layout: torch.memory_format) -> None:
    x = batch(layout)
    before = x.clone()
    for augmented in (flip(x, seeded()), pad_crop(x, seeded()), standard(x, seeded())):
        assert augmented.is_contiguous(memory_format=layout)
        assert augmented.shape == x.shape
    assert torch.equal(x, before)


def test_only_images_are_augmented(refuses: Refuses) -> None:
    with refuses("only images"):
        standard(torch.zeros(3, 4), seeded())
