"""Generators: what makes inputs of noise, for learning without data. They are no classifiers and not registered.

Images by upsampling and convolving, as the generator in FedKF's code (after DAFL, Chen et al. 2019): 8,423,939
parameters for 3×32×32 and 1000 numbers of noise, 1,049,985 for 1×32×32 and 100. Two changes: the first map is a quarter
of the image's sides, rounded up, and the last upsampling goes to the image's own size, so that any size will do; and
BatchNorm has its usual epsilon, where the code has 0.8. Feature vectors come from an MLP.

A generator works in the space of normalised inputs. Where the smallest and largest values are known (images of 8 bits)
a sigmoid is stretched between them; where they are not, outputs are standardised, as the data are: mean 0 and spread 1
over a batch, for each channel or feature. BatchNorm layers keep no running statistics: a generator is always asked for
a batch, and a batch of one is too few for it.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from polyfed.data import Limits
from polyfed.models.layers import Shape
from polyfed.models.registry import seeded

SLOPE = 0.2  # of LeakyReLU below 0


def build_generator(
    shape: Shape,
    noise: int,
    *,
    width: int = 128,
    limits: Limits | None = None,
    generator: torch.Generator | None = None,
) -> nn.Module:
    """A new generator from rows × noise to rows × shape, the same for the same state of the random generator.

    shape: (channels, height, width) of an image, or (features,).
    width: channels of the first maps (the last have half as many), or neurons of a hidden layer.
    limits: of the values of images; None where they are not known.
    """
    seed = 0 if generator is None else int(torch.randint(2**62, (), generator=generator))
    with seeded(seed):
        if len(shape) == 1:
            return VectorGenerator(shape[0], noise, width)
        made = ImageGenerator(shape, noise, width, limits)
    # An eighth faster on a CPU; mypy does not know the overload of `to` that takes only a memory format.
    return made.to(memory_format=torch.channels_last)  # type: ignore[call-overload,no-any-return]


class ImageGenerator(nn.Module):
    """Noise to images: a linear layer, then twice upsampling and convolving."""

    def __init__(self, shape: Shape, noise: int, width: int, limits: Limits | None) -> None:
        super().__init__()
        channels, self.height, self.width = shape
        self.first = (width, -(-self.height // 4), -(-self.width // 4))
        half = max(1, width // 2)
        self.linear = nn.Linear(noise, math.prod(self.first))
        self.norm = _norm2d(width)
        self.widen = nn.Sequential(nn.Conv2d(width, width, 3, padding=1), _norm2d(width), nn.LeakyReLU(SLOPE))
        self.paint = nn.Sequential(
            nn.Conv2d(width, half, 3, padding=1),
            _norm2d(half),
            nn.LeakyReLU(SLOPE),
            nn.Conv2d(half, channels, 3, padding=1),
        )
        for layer in self.modules():
            if isinstance(layer, nn.Conv2d):
                nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
        self.last = _norm2d(channels, affine=False) if limits is None else _Between(limits)

    def forward(self, noise: Tensor) -> Tensor:
        maps = self.norm(self.linear(noise).view(-1, *self.first))
        maps = self.widen(F.interpolate(maps, scale_factor=2.0))
        images: Tensor = self.last(self.paint(F.interpolate(maps, size=(self.height, self.width))))
        return images


class VectorGenerator(nn.Sequential):
    """Noise to feature vectors: an MLP with two hidden layers."""

    def __init__(self, features: int, noise: int, width: int) -> None:
        layers: list[nn.Module] = []
        for inputs in (noise, width):
            layers += [nn.Linear(inputs, width), _norm1d(width), nn.LeakyReLU(SLOPE)]
        super().__init__(*layers, nn.Linear(width, features), _norm1d(features, affine=False))


class FeatureGenerator(nn.Module):
    """Noise and a label to features of that class (FedGen): an MLP with one hidden layer.

    It has running statistics, since a client asks for few features at a time.
    """

    def __init__(self, features: int, classes: int, noise: int, width: int) -> None:
        super().__init__()
        self.noise, self.classes = noise, classes
        self.hidden = nn.Sequential(nn.Linear(noise + classes, width), nn.BatchNorm1d(width), nn.ReLU())
        self.out = nn.Linear(width, features)

    def forward(self, noise: Tensor, labels: Tensor) -> Tensor:
        told = torch.cat([noise, F.one_hot(labels, self.classes).to(noise.dtype)], dim=1)
        features: Tensor = self.out(self.hidden(told))
        return features

    def make(self, labels: Tensor, stream: torch.Generator) -> tuple[Tensor, Tensor]:
        """Noise that is drawn from a stream, and features of these labels that are made of it."""
        noise = torch.randn(len(labels), self.noise, generator=stream).to(labels.device)
        return noise, self(noise, labels)


class _Between(nn.Module):
    """A sigmoid, stretched between the smallest and the largest value of each channel."""

    def __init__(self, limits: Limits) -> None:
        super().__init__()
        low, high = (torch.tensor(side).view(-1, 1, 1) for side in limits)
        self.register_buffer("low", low, persistent=False)
        self.register_buffer("range", high - low, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        return torch.addcmul(self.get_buffer("low"), self.get_buffer("range"), x.sigmoid())


def _norm1d(features: int, *, affine: bool = True) -> nn.Module:
    return nn.BatchNorm1d(features, affine=affine, track_running_stats=False)


def _norm2d(channels: int, *, affine: bool = True) -> nn.Module:
    return nn.BatchNorm2d(channels, affine=affine, track_running_stats=False)
