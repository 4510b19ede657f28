"""ResNets for CIFAR: three stages of 16-32-64 maps.

He et al., "Deep Residual Learning for Image Recognition", CVPR 2016, §4.2, depth 6n + 2. `resnet20` and so
on have the paper's shortcut without parameters (option A, also FedKEM's); the suffix `-b` means 1×1
convolutions with normalisation (option B, FedDF's and FedGKD's). Nothing else was changed; with norm="group"
GroupNorm takes the place of BatchNorm.

Parameters with 3 channels and 10 outputs, A / B: resnet8 75,290 / 78,042 · resnet20 269,722 / 272,474 ·
resnet32 464,154 / 466,906 · resnet44 658,586 / 661,338 · resnet56 853,018 / 855,770.

`resnet8-fedkf`: the ResNet-8 of FedKF, widths 64-128-256, option B, and always GroupNorm with as many groups
as channels, whatever `norm` says. 1,227,594 parameters.

Strides round up, so maps never vanish: 8×8 images end as 2×2 maps.
"""

from __future__ import annotations

from functools import partial

from torch import nn

from polyfed.models.layers import GlobalAverage, Norm, Normaliser, Shape, initialise_he, normaliser
from polyfed.models.network import Network
from polyfed.models.registry import register
from polyfed.models.residual import Shortcut, stages


class CifarResNet(Network):
    """A 3×3 stem, three stages of basic blocks, global average pooling, a linear head."""

    channels_last = True  # 0.70–0.96 of the time of a contiguous step; resnet8 with GroupNorm 1.02

    def __init__(
        self,
        shape: Shape,
        outputs: int,
        normal: Normaliser,
        *,
        widths: list[int],
        blocks: int,
        kind: Shortcut,
    ) -> None:
        stem = [
            nn.Conv2d(shape[0], widths[0], 3, padding=1, bias=False),
            normal(widths[0]),
            nn.ReLU(inplace=True),
        ]
        body = nn.Sequential(*stem, *stages(widths, [blocks] * 3, normal, kind), GlobalAverage())
        super().__init__(body, nn.Linear(widths[-1], outputs))
        initialise_he(self)


def resnet(shape: Shape, outputs: int, norm: Norm, *, depth: int, kind: Shortcut) -> Network:
    """ResNet of depth 6n + 2."""
    normal, blocks = normaliser(norm), (depth - 2) // 6
    return CifarResNet(shape, outputs, normal, widths=[16, 32, 64], blocks=blocks, kind=kind)


for _depth in (8, 20, 32, 44, 56):
    register(f"resnet{_depth}")(partial(resnet, depth=_depth, kind="A"))
    register(f"resnet{_depth}-b")(partial(resnet, depth=_depth, kind="B"))


@register("resnet8-fedkf")
def resnet8_fedkf(shape: Shape, outputs: int, _norm: Norm) -> Network:
    """FedKF's wide ResNet-8, each channel normalised by itself."""

    def normal(channels: int) -> nn.Module:
        return nn.GroupNorm(channels, channels)

    model = CifarResNet(shape, outputs, normal, widths=[64, 128, 256], blocks=1, kind="B")
    model.channels_last = False  # with this GroupNorm 1.11 of the time of a contiguous step
    return model
