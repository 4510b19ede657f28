"""MobileNetV2 for small images.

Sandler et al., "MobileNetV2: Inverted Residuals and Linear Bottlenecks", CVPR 2018, Table 2, width 1.
Changed, as is usual on CIFAR: the stem and the second stage have stride 1, so 32×32 images end as 4×4 maps
(and 8×8 as 1×1; strides round up). No dropout before the head.

Parameters with 3 channels and 10 outputs: 2,236,682 (the paper's net with 1000 outputs, 3,504,872, less its
head).
"""

from __future__ import annotations

from torch import Tensor, nn

from polyfed.models.layers import GlobalAverage, Norm, Normaliser, Shape, initialise_he, normaliser
from polyfed.models.network import Network
from polyfed.models.registry import register

# Expansion, maps, blocks, stride of the first block: the paper's table except the stride of its second row.
STAGES = [
    (1, 16, 1, 1),
    (6, 24, 2, 1),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
]


class InvertedResidual(nn.Module):
    """Expand by a 1×1 convolution, filter each channel, project linearly; skip where shapes allow."""

    def __init__(self, inputs: int, outputs: int, stride: int, expansion: int, normal: Normaliser) -> None:
        super().__init__()
        inner = inputs * expansion
        layers: list[nn.Module] = []
        if expansion > 1:
            layers += [nn.Conv2d(inputs, inner, 1, bias=False), normal(inner), nn.ReLU6(inplace=True)]
        layers += [
            nn.Conv2d(inner, inner, 3, stride, padding=1, groups=inner, bias=False),
            normal(inner),
            nn.ReLU6(inplace=True),
            nn.Conv2d(inner, outputs, 1, bias=False),
            normal(outputs),
        ]
        self.residual = nn.Sequential(*layers)
        self.skips = stride == 1 and inputs == outputs

    def forward(self, x: Tensor) -> Tensor:
        residual: Tensor = self.residual(x)
        return residual + x if self.skips else residual


class MobileNetV2(Network):
    """A 3×3 stem, seventeen inverted residuals, a 1×1 convolution to 1280 maps, a linear head."""

    channels_last = True  # 0.69–0.95 of the time of a contiguous step

    def __init__(self, shape: Shape, outputs: int, norm: Norm) -> None:
        normal = normaliser(norm)
        layers = [nn.Conv2d(shape[0], 32, 3, padding=1, bias=False), normal(32), nn.ReLU6(inplace=True)]
        inputs = 32
        for expansion, maps, blocks, stride in STAGES:
            for block in range(blocks):
                layers.append(InvertedResidual(inputs, maps, stride if block == 0 else 1, expansion, normal))
                inputs = maps
        layers += [
            nn.Conv2d(inputs, 1280, 1, bias=False),
            normal(1280),
            nn.ReLU6(inplace=True),
            GlobalAverage(),
        ]
        super().__init__(nn.Sequential(*layers), nn.Linear(1280, outputs))
        initialise_he(self)


@register("mobilenetv2")
def mobilenetv2(shape: Shape, outputs: int, norm: Norm) -> Network:
    """Width 1."""
    return MobileNetV2(shape, outputs, norm)
