"""One pre-trained body under a new head; what of it is trained differs. What is frozen is not sent."""

from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor, nn


def backbone(inputs: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(inputs, 128), nn.ReLU(), nn.Linear(128, 64), nn.ReLU())


class LowRank(nn.Module):
    """A frozen layer, and a change of it that has few numbers (LoRA)."""

    def __init__(self, layer: nn.Linear, rank: int = 4) -> None:
        super().__init__()
        self.layer = layer
        self.down = nn.Linear(layer.in_features, rank, bias=False)
        self.up = nn.Parameter(torch.zeros(layer.out_features, rank))

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) + self.down(x) @ self.up.T


def whole(shape: tuple[int, ...], outputs: int) -> nn.Sequential:
    body = backbone(shape[0])
    body.load_state_dict(load_file(Path(__file__).with_name("backbone.safetensors")))
    return nn.Sequential(body, nn.Linear(64, outputs))


def head(shape: tuple[int, ...], outputs: int) -> nn.Sequential:
    body, last = whole(shape, outputs)
    return nn.Sequential(body.requires_grad_(False), last)


def low_rank(shape: tuple[int, ...], outputs: int) -> nn.Sequential:
    body, last = head(shape, outputs)
    return nn.Sequential(LowRank(body[0]), nn.ReLU(), LowRank(body[2]), nn.ReLU(), last)
