"""EfficientNet-B0 for small images.

Tan and Le, "EfficientNet: Rethinking Model Scaling for Convolutional Neural Networks", ICML 2019, Table 1.
Changed: the stem has stride 1, so 32×32 images end as 2×2 maps (and 8×8 as 1×1; strides round up); no
dropout and no stochastic depth.

Parameters with 3 channels and 10 outputs: 4,020,358 (the paper's net with 1000 outputs, 5,288,548, less its
head).
"""

from __future__ import annotations

from torch import Tensor, nn

from polyfed.models.layers import GlobalAverage, Norm, Normaliser, Shape, initialise_he, normaliser
from polyfed.models.network import Network
from polyfed.models.registry import register

# Expansion, kernel, maps, blocks, stride of the first block.
STAGES = [
    (1, 3, 16, 1, 1),
    (6, 3, 24, 2, 2),
    (6, 5, 40, 2, 2),
    (6, 3, 80, 3, 2),
    (6, 5, 112, 3, 1),
    (6, 5, 192, 4, 2),
    (6, 3, 320, 1, 1),
]


class SqueezeExcite(nn.Module):
    """Scale each channel by a number in (0, 1) that depends on the means of all channels."""

    def __init__(self, channels: int, squeezed: int) -> None:
        super().__init__()
        self.scale = nn.Sequential(
            nn.AdaptiveAvgPool2d(1),
            nn.Conv2d(channels, squeezed, 1),
            nn.SiLU(),
            nn.Conv2d(squeezed, channels, 1),
            nn.Sigmoid(),
        )

    def forward(self, x: Tensor) -> Tensor:
        scale: Tensor = self.scale(x)
        return x * scale


class MBConv(nn.Module):
    """Expand, filter each channel, squeeze and excite, project; skip where shapes allow."""

    def __init__(
        self, inputs: int, outputs: int, normal: Normaliser, *, kernel: int, stride: int, expansion: int
    ) -> None:
        super().__init__()
        inner = inputs * expansion
        layers: list[nn.Module] = []
        if expansion > 1:
            layers += [nn.Conv2d(inputs, inner, 1, bias=False), normal(inner), nn.SiLU()]
        layers += [
            nn.Conv2d(inner, inner, kernel, stride, padding=kernel // 2, groups=inner, bias=False),
            normal(inner),
            nn.SiLU(),
            SqueezeExcite(inner, inputs // 4),  # a quarter of the block's input, not of the expanded channels
            nn.Conv2d(inner, outputs, 1, bias=False),
            normal(outputs),
        ]
        self.residual = nn.Sequential(*layers)
        self.skips = stride == 1 and inputs == outputs

    def forward(self, x: Tensor) -> Tensor:
        residual: Tensor = self.residual(x)
        return residual + x if self.skips else residual


class EfficientNet(Network):
    """A 3×3 stem, sixteen MBConv blocks, a 1×1 convolution to 1280 maps, a linear head."""

    channels_last = True  # 0.83–0.99 of the time of a contiguous step

    def __init__(self, shape: Shape, outputs: int, norm: Norm) -> None:
        normal = normaliser(norm)
        layers = [nn.Conv2d(shape[0], 32, 3, padding=1, bias=False), normal(32), nn.SiLU()]
        inputs = 32
        for expansion, kernel, maps, blocks, stride in STAGES:
            for block in range(blocks):
                layers.append(
                    MBConv(
                        inputs,
                        maps,
                        normal,
                        kernel=kernel,
                        stride=stride if block == 0 else 1,
                        expansion=expansion,
                    )
                )
                inputs = maps
        layers += [nn.Conv2d(inputs, 1280, 1, bias=False), normal(1280), nn.SiLU(), GlobalAverage()]
        super().__init__(nn.Sequential(*layers), nn.Linear(1280, outputs))
        initialise_he(self)


@register("efficientnet-b0")
def efficientnet_b0(shape: Shape, outputs: int, norm: Norm) -> Network:
    """Width and depth 1."""
    return EfficientNet(shape, outputs, norm)
