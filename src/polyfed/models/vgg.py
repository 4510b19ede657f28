"""VGG-11 for small images.

Simonyan and Zisserman, "Very Deep Convolutional Networks", ICLR 2015, configuration A: eight 3×3
convolutions without normalisation. Changed: the head is 512-512-512-C with dropout before both hidden
layers, as in FedKEM, or one linear layer (`vgg11-linear`); before it comes global average pooling, which
does nothing at the native 32×32.

A 2×2 max pool skips a side that is down to one pixel. Dropout draws from PyTorch's global generator while
training.

Parameters with 3 channels and 10 outputs: vgg11 9,750,922 · vgg11-linear 9,225,610.
"""

from __future__ import annotations

from torch import nn

from polyfed.models.layers import GlobalAverage, Grid, Norm, Shape, initialise_he
from polyfed.models.network import Network
from polyfed.models.registry import register

STAGES = [[64], [128], [256, 256], [512, 512], [512, 512]]


class VGG(Network):
    """Convolutions with ReLU, five max pools, hidden linear layers, a linear head."""

    channels_last = True  # 0.88–0.97 of the time of a contiguous step

    def __init__(self, shape: Shape, outputs: int, hidden: list[nn.Module]) -> None:
        channels, height, width = shape
        grid = Grid(height, width)
        layers: list[nn.Module] = []
        for stage in STAGES:
            for maps in stage:
                layers += [nn.Conv2d(channels, maps, 3, padding=1), nn.ReLU(inplace=True)]
                channels = maps
            layers.append(grid.halve())
        super().__init__(nn.Sequential(*layers, GlobalAverage(), *hidden), nn.Linear(512, outputs))
        initialise_he(self)


@register("vgg11")
def vgg11(shape: Shape, outputs: int, _norm: Norm) -> Network:
    """FedKEM's: two hidden layers of 512 with dropout 0.5."""
    hidden: list[nn.Module] = []
    for _ in range(2):
        hidden += [nn.Dropout(0.5), nn.Linear(512, 512), nn.ReLU(inplace=True)]
    return VGG(shape, outputs, hidden)


@register("vgg11-linear")
def vgg11_linear(shape: Shape, outputs: int, _norm: Norm) -> Network:
    """One linear layer after the convolutions, no dropout."""
    return VGG(shape, outputs, hidden=[])
