"""Parts that several families share: normalisation, pooling that leaves at least a pixel, He initialisation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from torch import Tensor, nn

Norm = Literal["batch", "group"]
Shape = tuple[int, ...]
Normaliser = Callable[[int], nn.Module]


def group_count(channels: int) -> int:
    """The number of groups for GroupNorm: groups of 8 channels or a little more, at most 32 groups."""
    most = max(1, min(32, channels // 8))
    return next(groups for groups in range(most, 0, -1) if channels % groups == 0)


def normaliser(norm: Norm) -> Normaliser:
    """A function that makes the normalisation layer for a number of channels."""
    if norm == "batch":
        return nn.BatchNorm2d
    return lambda channels: nn.GroupNorm(group_count(channels), channels)


class GlobalAverage(nn.Module):
    """The mean over height and width: rows × channels, whatever the size of the image."""

    def forward(self, x: Tensor) -> Tensor:
        return x.mean((2, 3))


class Grid:
    """Keeps track of the height and width of the feature maps while a model is built.

    >>> grid = Grid(8, 3)
    >>> grid.halve(least=2), (grid.height, grid.width)
    (MaxPool2d(kernel_size=(2, 1), stride=(2, 1), padding=0, dilation=1, ceil_mode=False), (4, 3))
    """

    def __init__(self, height: int, width: int) -> None:
        self.height = height
        self.width = width

    def stride(self, step: int) -> None:
        """Note a convolution with this stride and 'same' padding: sizes are divided and rounded up."""
        self.height = -(-self.height // step)
        self.width = -(-self.width // step)

    def halve(self, least: int = 1) -> nn.Module:
        """A 2×2 max pool that leaves alone each side that it would make smaller than `least`."""
        kernel = tuple(2 if side // 2 >= least else 1 for side in (self.height, self.width))
        self.height //= kernel[0]
        self.width //= kernel[1]
        return nn.Identity() if kernel == (1, 1) else nn.MaxPool2d(kernel)

    def settle(self, side: int) -> nn.Module:
        """Average pooling to side × side, or nothing if the maps have that size already."""
        if (self.height, self.width) == (side, side):
            return nn.Identity()
        return nn.AdaptiveAvgPool2d(side)


def initialise_he(model: nn.Module) -> None:
    """Draw every convolution from He's normal distribution (fan-in), with zero bias.

    Fan-in, because PyTorch counts the fan-out of a depthwise convolution over all channels: far too much.
    Linear layers keep PyTorch's own initialisation.
    """
    for layer in model.modules():
        if isinstance(layer, nn.Conv2d) and not layer.weight.is_meta:  # `sizes` needs no values
            nn.init.kaiming_normal_(layer.weight, mode="fan_in", nonlinearity="relu")
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)
