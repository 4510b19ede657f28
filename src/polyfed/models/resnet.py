"""ResNet-18 and ResNet-34, for small images and as printed.

He et al., "Deep Residual Learning for Image Recognition", CVPR 2016, Table 1: four stages of 64-128-256-512
maps, 1×1 shortcuts (option B). Strides round up: 8×8 images end as 1×1 maps.

`resnet18`, `resnet34`: changed, as is usual on CIFAR: the stem is a 3×3 convolution with stride 1 and there is no max
pool. `resnet18-imagenet`, `resnet34-imagenet`: the stem as printed, a 7×7 convolution and a 3×3 max pool, both with
stride 2, for images of 64×64 and more: a sixteenth of the work.

Parameters with 3 channels: resnet18 11,173,962 · resnet34 21,282,122 (10 outputs); resnet18-imagenet 11,689,512 ·
resnet34-imagenet 21,797,672 (1,000 outputs).
"""

from __future__ import annotations

from torch import nn

from polyfed.models.layers import GlobalAverage, Norm, Shape, initialise_he, normaliser
from polyfed.models.network import Network
from polyfed.models.registry import register
from polyfed.models.residual import stages

WIDTHS = [64, 128, 256, 512]


class ResNet(Network):
    """A stem, four stages of basic blocks, global average pooling, a linear head."""

    channels_last = True  # 0.82 of the time of a contiguous step

    def __init__(
        self, shape: Shape, outputs: int, norm: Norm, blocks: list[int], *, imagenet: bool = False
    ) -> None:
        normal = normaliser(norm)
        kernel, stride = (7, 2) if imagenet else (3, 1)
        first = nn.Conv2d(shape[0], 64, kernel, stride, padding=kernel // 2, bias=False)
        stem = [first, normal(64), nn.ReLU(inplace=True)]
        if imagenet:
            stem.append(nn.MaxPool2d(3, 2, padding=1))
        body = nn.Sequential(*stem, *stages(WIDTHS, blocks, normal, "B"), GlobalAverage())
        super().__init__(body, nn.Linear(WIDTHS[-1], outputs))
        initialise_he(self)


@register("resnet18")
def resnet18(shape: Shape, outputs: int, norm: Norm) -> Network:
    """Two blocks per stage."""
    return ResNet(shape, outputs, norm, [2, 2, 2, 2])


@register("resnet34")
def resnet34(shape: Shape, outputs: int, norm: Norm) -> Network:
    """Three, four, six and three blocks."""
    return ResNet(shape, outputs, norm, [3, 4, 6, 3])


@register("resnet18-imagenet")
def resnet18_imagenet(shape: Shape, outputs: int, norm: Norm) -> Network:
    """As printed, for images of 64×64 and more."""
    return ResNet(shape, outputs, norm, [2, 2, 2, 2], imagenet=True)


@register("resnet34-imagenet")
def resnet34_imagenet(shape: Shape, outputs: int, norm: Norm) -> Network:
    """As printed, for images of 64×64 and more."""
    return ResNet(shape, outputs, norm, [3, 4, 6, 3], imagenet=True)
