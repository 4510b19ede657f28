"""AlexNet for small images.

Krizhevsky et al., "ImageNet Classification with Deep CNNs", NeurIPS 2012, in the one-column layout of
64-192-384-256-256 maps. Changed: the first convolution is 5×5 with stride 2 instead of 11×11 with stride 4,
pools are 2×2, the two hidden layers have 1024 units instead of 4096, and there is no local response
normalisation. Native size 32×32, which ends as a 2×2 grid; a pool that would leave less than 2 pixels on a
side is skipped on that side, and the maps of larger images are average-pooled to 2×2. Dropout draws from
PyTorch's global generator while training.

Parameters with 3 channels and 10 outputs: 4,560,714.
"""

from __future__ import annotations

from torch import nn

from polyfed.models.layers import Grid, Norm, Shape, initialise_he
from polyfed.models.network import Network
from polyfed.models.registry import register


def convolution(inputs: int, outputs: int, kernel: int, stride: int = 1) -> list[nn.Module]:
    """A convolution with 'same' padding and ReLU."""
    return [nn.Conv2d(inputs, outputs, kernel, stride, padding=kernel // 2), nn.ReLU(inplace=True)]


class AlexNet(Network):
    """Five convolutions, two hidden linear layers with dropout, a linear head."""

    channels_last = True  # 0.92–0.94 of the time of a contiguous step

    def __init__(self, shape: Shape, outputs: int) -> None:
        channels, height, width = shape
        grid = Grid(height, width)
        grid.stride(2)
        layers = [*convolution(channels, 64, 5, stride=2), grid.halve(least=2)]
        layers += [*convolution(64, 192, 5), grid.halve(least=2)]
        layers += [*convolution(192, 384, 3), *convolution(384, 256, 3), *convolution(256, 256, 3)]
        layers += [grid.halve(least=2), grid.settle(2), nn.Flatten()]
        for _ in range(2):
            layers += [nn.Dropout(0.5), nn.Linear(1024, 1024), nn.ReLU(inplace=True)]
        super().__init__(nn.Sequential(*layers), nn.Linear(1024, outputs))
        initialise_he(self)


@register("alexnet")
def alexnet(shape: Shape, outputs: int, _norm: Norm) -> Network:
    """The only size."""
    return AlexNet(shape, outputs)
