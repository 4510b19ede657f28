"""ShuffleNetV2 for small images.

Ma et al., "ShuffleNet V2: Practical Guidelines for Efficient CNN Architecture Design", ECCV 2018, Table 5,
width 1×. Changed, as is usual on CIFAR: the stem has stride 1 and there is no max pool, so 32×32 images end
as 4×4 maps (and 8×8 as 1×1; strides round up).

Parameters with 3 channels and 10 outputs: 1,263,854 (the paper's net with 1000 outputs, 2,278,604, less its
head).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from polyfed.models.layers import GlobalAverage, Norm, Normaliser, Shape, initialise_he, normaliser
from polyfed.models.network import Network
from polyfed.models.registry import register

STAGES = [(116, 4), (232, 8), (464, 4)]  # maps, blocks; the first block of each halves the maps


def shuffle(x: Tensor) -> Tensor:
    """Interleave the two halves of the channels, so that the next block's branches see both."""
    rows, channels, height, width = x.shape
    return (
        x.view(rows, 2, channels // 2, height, width).transpose(1, 2).reshape(rows, channels, height, width)
    )


def pointwise(inputs: int, outputs: int, normal: Normaliser) -> list[nn.Module]:
    """A 1×1 convolution with normalisation and ReLU."""
    return [nn.Conv2d(inputs, outputs, 1, bias=False), normal(outputs), nn.ReLU(inplace=True)]


def depthwise(channels: int, stride: int, normal: Normaliser) -> list[nn.Module]:
    """A 3×3 convolution of each channel by itself, with normalisation."""
    return [
        nn.Conv2d(channels, channels, 3, stride, padding=1, groups=channels, bias=False),
        normal(channels),
    ]


class ShuffleBlock(nn.Module):
    """Two branches of half the output channels; with stride 1 the first is half of the input, untouched."""

    def __init__(self, inputs: int, outputs: int, stride: int, normal: Normaliser) -> None:
        super().__init__()
        half = outputs // 2
        self.splits = stride == 1
        self.first: nn.Module = nn.Identity()
        if not self.splits:
            self.first = nn.Sequential(*depthwise(inputs, stride, normal), *pointwise(inputs, half, normal))
        self.second = nn.Sequential(
            *pointwise(half if self.splits else inputs, half, normal),
            *depthwise(half, stride, normal),
            *pointwise(half, half, normal),
        )

    def forward(self, x: Tensor) -> Tensor:
        left, right = x.chunk(2, dim=1) if self.splits else (x, x)
        return shuffle(torch.cat([self.first(left), self.second(right)], dim=1))


class ShuffleNetV2(Network):
    """A 3×3 stem, three stages of shuffle blocks, a 1×1 convolution to 1024 maps, a linear head."""

    channels_last = False  # 0.96–1.00 of the time of a contiguous step with BatchNorm, 1.18 with GroupNorm

    def __init__(self, shape: Shape, outputs: int, norm: Norm) -> None:
        normal = normaliser(norm)
        layers = [nn.Conv2d(shape[0], 24, 3, padding=1, bias=False), normal(24), nn.ReLU(inplace=True)]
        inputs = 24
        for maps, blocks in STAGES:
            for block in range(blocks):
                layers.append(ShuffleBlock(inputs, maps, 2 if block == 0 else 1, normal))
                inputs = maps
        layers += [*pointwise(inputs, 1024, normal), GlobalAverage()]
        super().__init__(nn.Sequential(*layers), nn.Linear(1024, outputs))
        initialise_he(self)


@register("shufflenetv2")
def shufflenetv2(shape: Shape, outputs: int, norm: Norm) -> Network:
    """Width 1×."""
    return ShuffleNetV2(shape, outputs, norm)
