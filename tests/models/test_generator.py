"""Generators: of any size, within the limits of the data, the same for the same stream."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from polyfed import models

LIMITS = ((-0.5, -1.0, -2.0), (2.0, 1.0, 0.5))


def count(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def test_sizes_are_those_of_the_authors_generators() -> None:
    assert count(models.build_generator((3, 32, 32), 1000)) == 8_423_939
    assert count(models.build_generator((1, 32, 32), 100)) == 1_049_985


@pytest.mark.parametrize(
    "shape", [(1, 28, 28), (3, 10, 14), (2, 8, 8), (1, 5, 7), (3, 1, 1), (9,), (1,)], ids=str
)
def test_inputs_of_any_shape_are_made(shape: tuple[int, ...]) -> None:
    model = models.build_generator(shape, 7, width=4)
    assert model(torch.randn(6, 7)).shape == (6, *shape)


def test_images_lie_between_their_limits_by_hand() -> None:
    """Sigmoid of 0 is a half: the middle of each channel's limits, (0.75, 0, -0.75)."""
    model = models.build_generator((3, 9, 6), 5, width=4, limits=LIMITS)
    images = model(100 * torch.randn(50, 5))
    for channel, low, high in zip(range(3), *LIMITS, strict=True):
        values = images[:, channel]
        assert low <= values.min() < values.max() <= high
    for parameter in model.get_submodule("paint.3").parameters():
        nn.init.zeros_(parameter)
    assert torch.allclose(model(torch.randn(4, 5)).mean((0, 2, 3)), torch.tensor([0.75, 0.0, -0.75]))


@pytest.mark.parametrize("shape", [(6,), (3, 9, 6)], ids=str)
def test_without_limits_each_channel_or_feature_is_standardised(shape: tuple[int, ...]) -> None:
    made = models.build_generator(shape, 5, width=8)(torch.randn(64, 5)).transpose(0, 1).flatten(1)
    assert torch.allclose(made.mean(dim=1), torch.zeros(shape[0]), atol=1e-4)
    assert torch.allclose(made.std(dim=1, correction=0), torch.ones(shape[0]), atol=1e-2)


def test_a_generator_depends_on_its_stream_alone() -> None:
    def weights(seed: int) -> torch.Tensor:
        torch.rand(3)
        stream = torch.Generator().manual_seed(seed)
        return nn.utils.parameters_to_vector(models.build_generator((4,), 3, generator=stream).parameters())

    assert torch.equal(weights(1), weights(1))
    assert not torch.equal(weights(1), weights(2))


def test_generators_are_no_models_to_choose() -> None:
    assert not [name for name in models.names() if "generator" in name]
