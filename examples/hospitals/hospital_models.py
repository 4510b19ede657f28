"""Models that the hospitals bring. A function is given what it asks for by name: `shape` of an input, `outputs`."""

from torch import Tensor, nn


def logistic_regression(shape: tuple[int, ...], outputs: int) -> nn.Module:
    return nn.Linear(shape[0], outputs)


class WithShortcut(nn.Module):
    """Two layers, and a straight way around them."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(inputs, 32), nn.GELU(), nn.Linear(32, outputs))
        self.shortcut = nn.Linear(inputs, outputs)

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x) + self.shortcut(x)


def with_shortcut(shape: tuple[int, ...], outputs: int) -> nn.Module:
    return WithShortcut(shape[0], outputs)
