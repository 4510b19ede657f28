"""The basic residual block of both ResNet files (He et al., CVPR 2016, Fig. 5 left)."""

from __future__ import annotations

from typing import Literal

import torch.nn.functional as F
from torch import Tensor, nn

from polyfed.models.layers import Normaliser

Shortcut = Literal["A", "B"]


class PaddedShortcut(nn.Module):
    """Option A: drop every second pixel and pad with zero channels on both sides; no parameters."""

    def __init__(self, extra: int, stride: int) -> None:
        super().__init__()
        self.stride = stride
        self.before = extra // 2
        self.after = extra - self.before

    def forward(self, x: Tensor) -> Tensor:
        return F.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, self.before, self.after))


def shortcut(kind: Shortcut, inputs: int, outputs: int, stride: int, normal: Normaliser) -> nn.Module:
    """The path round a block: the identity wherever the shapes allow it."""
    if inputs == outputs and stride == 1:
        return nn.Identity()
    if kind == "A":
        return PaddedShortcut(outputs - inputs, stride)
    return nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), normal(outputs))


class BasicBlock(nn.Module):
    """Two 3×3 convolutions, each normalised, and a path round them."""

    def __init__(self, inputs: int, outputs: int, stride: int, normal: Normaliser, kind: Shortcut) -> None:
        super().__init__()
        self.residual = nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False),
            normal(outputs),
            nn.ReLU(inplace=True),
            nn.Conv2d(outputs, outputs, 3, padding=1, bias=False),
            normal(outputs),
        )
        self.shortcut = shortcut(kind, inputs, outputs, stride, normal)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.residual(x) + self.shortcut(x), inplace=True)


def stages(widths: list[int], blocks: list[int], normal: Normaliser, kind: Shortcut) -> list[nn.Module]:
    """The blocks of all stages; the first has stride 1, each later one halves the maps (rounding up)."""
    layers: list[nn.Module] = []
    inputs = widths[0]
    for stage, (width, count) in enumerate(zip(widths, blocks, strict=True)):
        for block in range(count):
            stride = 2 if stage > 0 and block == 0 else 1
            layers.append(BasicBlock(inputs, width, stride, normal, kind))
            inputs = width
    return layers
