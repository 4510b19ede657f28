"""Wide residual networks, any depth 6n + 4 up to 1,000 and any width up to 100.

Zagoruyko and Komodakis, "Wide Residual Networks", BMVC 2016: `wrn-<depth>-<width>`, pre-activation blocks,
three groups of 16-32-64 times the width, convolutions without bias, stride on a block's first convolution,
1×1 shortcuts fed with the activated input, no dropout. Parameters with 3 channels and 10 outputs: wrn-16-1
175,066 · wrn-40-1 563,930 (FedORION's "WRN40") · wrn-40-2 2,243,546.

`wrn-<depth>-<width>-biased` is the variant whose sizes FedMD + LwoF prints (its Table 1): every
convolution has a bias, the stride is on the second convolution, the 1×1 shortcuts take the input as it is,
Xavier initialisation with gain √2. With 30 outputs and width 1: depth 10 79,486 · 16 176,926 · 22 274,366 ·
28 371,806 · 34 469,246 · 40 566,686. The public code that fits these numbers lets the last BatchNorm forget
fast (momentum 0.9); the paper does not say so, and here it has PyTorch's 0.1 like all others.

Strides round up: 8×8 images end as 2×2 maps.
"""

from __future__ import annotations

import math
import re
from functools import partial

from torch import Tensor, nn

from polyfed.errors import ModelError
from polyfed.models.layers import GlobalAverage, Norm, Normaliser, Shape, initialise_he, normaliser
from polyfed.models.network import Network
from polyfed.models.registry import Factory, register, register_family

DEEPEST, WIDEST = 1000, 100  # far above any that is trained; a name in a file may say anything


class WideBlock(nn.Module):
    """Norm, ReLU, convolution, twice, and a path round them."""

    def __init__(self, inputs: int, outputs: int, stride: int, normal: Normaliser, *, biased: bool) -> None:
        super().__init__()
        first, second = (1, stride) if biased else (stride, 1)
        self.activate = nn.Sequential(normal(inputs), nn.ReLU(inplace=True))
        self.residual = nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, first, padding=1, bias=biased),
            normal(outputs),
            nn.ReLU(inplace=True),
            nn.Conv2d(outputs, outputs, 3, second, padding=1, bias=biased),
        )
        self.shortcut: nn.Module | None = None
        if inputs != outputs or stride != 1:
            self.shortcut = nn.Conv2d(inputs, outputs, 1, stride, bias=biased)
        self.shortcut_activated = not biased

    def forward(self, x: Tensor) -> Tensor:
        activated: Tensor = self.activate(x)
        residual: Tensor = self.residual(activated)
        if self.shortcut is None:
            return residual + x
        around: Tensor = self.shortcut(activated if self.shortcut_activated else x)
        return residual + around


class WideResNet(Network):
    """A 3×3 stem, three groups of pre-activation blocks, a last norm, global averages, a linear head."""

    channels_last = True  # 0.80–0.99 of the time of a contiguous step

    def __init__(
        self, shape: Shape, outputs: int, norm: Norm, *, depth: int, width: int, biased: bool = False
    ) -> None:
        normal = normaliser(norm)
        layers: list[nn.Module] = [nn.Conv2d(shape[0], 16, 3, padding=1, bias=biased)]
        inputs = 16
        for group, maps in enumerate((16 * width, 32 * width, 64 * width)):
            for block in range((depth - 4) // 6):
                stride = 2 if group > 0 and block == 0 else 1
                layers.append(WideBlock(inputs, maps, stride, normal, biased=biased))
                inputs = maps
        layers += [normal(inputs), nn.ReLU(inplace=True), GlobalAverage()]
        super().__init__(nn.Sequential(*layers), nn.Linear(inputs, outputs))
        if biased:
            initialise_xavier(self)
        else:
            initialise_he(self)


def initialise_xavier(model: nn.Module) -> None:
    """Xavier's uniform distribution with gain √2 and zero bias for every convolution."""
    for layer in model.modules():
        if isinstance(layer, nn.Conv2d) and layer.bias is not None:
            nn.init.xavier_uniform_(layer.weight, gain=math.sqrt(2))
            nn.init.zeros_(layer.bias)


def parse(match: re.Match[str]) -> Factory:
    """The model of a name such as 'wrn-16-4' or 'wrn-10-1-biased'."""
    depth, width = int(match["depth"]), int(match["width"])
    if depth % 6 != 4 or not 10 <= depth <= DEEPEST or not 1 <= width <= WIDEST:
        raise ModelError(
            f"no wide ResNet '{match[0]}': the depth is 10, 16, 22, 28 … (6n + 4) up to {DEEPEST}, the width 1 to"
            f" {WIDEST}"
        )
    return partial(WideResNet, depth=depth, width=width, biased=match["biased"] is not None)


register_family(r"wrn-(?P<depth>\d{1,9})-(?P<width>\d{1,9})(?P<biased>-biased)?", parse)
for _depth in (10, 16, 22, 28, 34, 40):
    register(f"wrn-{_depth}-1")(partial(WideResNet, depth=_depth, width=1))
    register(f"wrn-{_depth}-1-biased")(partial(WideResNet, depth=_depth, width=1, biased=True))
for _depth, _width in ((16, 2), (40, 2), (16, 4)):
    register(f"wrn-{_depth}-{_width}")(partial(WideResNet, depth=_depth, width=_width))
