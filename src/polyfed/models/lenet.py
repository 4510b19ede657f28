"""LeNets.

`lenet5`: LeCun et al., "Gradient-based learning applied to document recognition", 1998. Convolutions of 6
and 16 maps, 5×5, then 120-84-C. Changed as is usual today: full connections between the maps, ReLU and max
pooling, a linear output. Native size 32×32 (28×28 is padded by 2). 61,706 parameters with 1 channel and 10
outputs.

`lenet5-fedkf`: the same layers as FedKF divides them: the 120 units are a third 5×5 convolution and the
*features*; the head is 120-84-C. 63,066 parameters with 1 channel and 26 outputs.

`lenet-caffe`: the LeNet of the Caffe tutorial, probably the one of FedH2L: convolutions of 20 and 50 maps
without activation, 500 units with ReLU. Native size 28×28. 431,080 parameters with 1 channel and 10 outputs.

Smaller images are padded with zeros to the native size; the maps of larger ones are average-pooled to the
native grid (5×5 or 4×4) before the linear layers. So the parameters do not depend on the size of the image.
No normalisation; PyTorch's own initialisation.
"""

from __future__ import annotations

from torch import nn

from polyfed.models.layers import Grid, Norm, Shape
from polyfed.models.network import Network
from polyfed.models.registry import register


def trunk(shape: Shape, maps: tuple[int, int], native: int, *, rectify: bool) -> nn.Sequential:
    """Two 5×5 convolutions, each with a 2×2 max pool, padded to the native size; then the native grid."""
    channels, height, width = shape
    padding = (max(0, -(-(native - height) // 2)), max(0, -(-(native - width) // 2)))
    grid = Grid(height + 2 * padding[0], width + 2 * padding[1])
    layers: list[nn.Module] = []
    for count, pad in zip(maps, (padding, (0, 0)), strict=True):
        layers.append(nn.Conv2d(channels, count, 5, padding=pad))
        grid.height, grid.width = grid.height - 4, grid.width - 4
        # Pooling first gives the same values (ReLU is monotonic) on a quarter of the numbers.
        layers.append(grid.halve())
        if rectify:
            layers.append(nn.ReLU(inplace=True))
        channels = count
    side = ((native - 4) // 2 - 4) // 2
    return nn.Sequential(*layers, grid.settle(side))


class LeNet(Network):
    """A trunk of two convolutions with linear layers after it."""

    channels_last = True  # 0.60–0.82 of the time of a contiguous step


@register("lenet5")
def lenet5(shape: Shape, outputs: int, _norm: Norm) -> Network:
    """The classic: the features are the 84 units before the output."""
    body = nn.Sequential(
        trunk(shape, (6, 16), native=32, rectify=True),
        nn.Flatten(),
        nn.Linear(400, 120),
        nn.ReLU(inplace=True),
        nn.Linear(120, 84),
        nn.ReLU(inplace=True),
    )
    return LeNet(body, nn.Linear(84, outputs))


@register("lenet5-fedkf")
def lenet5_fedkf(shape: Shape, outputs: int, _norm: Norm) -> Network:
    """FedKF's: the features are the 120 maps of the third convolution, and the head has two layers."""
    body = nn.Sequential(
        trunk(shape, (6, 16), native=32, rectify=True),
        nn.Conv2d(16, 120, 5),
        nn.ReLU(inplace=True),
        nn.Flatten(),
    )
    return LeNet(body, nn.Sequential(nn.Linear(120, 84), nn.ReLU(inplace=True), nn.Linear(84, outputs)))


@register("lenet-caffe")
def lenet_caffe(shape: Shape, outputs: int, _norm: Norm) -> Network:
    """Caffe's: the features are the 500 units before the output."""
    body = nn.Sequential(
        trunk(shape, (20, 50), native=28, rectify=False),
        nn.Flatten(),
        nn.Linear(800, 500),
        nn.ReLU(inplace=True),
    )
    return LeNet(body, nn.Linear(500, outputs))
