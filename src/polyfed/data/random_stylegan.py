"""Images of an untrained StyleGAN: textures with the structure that its architecture alone brings about.

After Baradad et al. 2021, who draw them from StyleGAN2 (Karras et al. 2020) with random weights, and much smaller: 32
channels. From a constant map of about 4×4 on, every level doubles the size and convolves twice; each convolution is
modulated by a style w of its own, one for each image (no mapping network), and per-pixel noise is added. Every level
paints colours over those of the level below. In the end each channel is given a random mean and spread near those of
photographs. A network is drawn anew for every 400 images.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional as F

CHANNELS = 32
STYLE = 32  # numbers of a style w
FIRST = 4  # pixels of the longer side of the first map, at most
NOISE = 0.3
BIAS = 0.2
SLOPE = 0.2  # of LeakyReLU below 0
IMAGES_OF_A_NETWORK = 400
PIXELS_AT_ONCE = 50 * 32 * 32  # so that little memory is taken, whatever the size of an image
MEAN, MEAN_SPREAD = (0.48, 0.46, 0.40), 0.12
SPREAD, SPREAD_SPREAD = (0.22, 0.21, 0.21), 0.06


def random_stylegan(count: int, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """So many images, count × channels × height × width, from 0 to 1."""
    images = torch.empty(count, *shape)
    at_once = max(1, PIXELS_AT_ONCE // (shape[1] * shape[2]))
    for start in range(0, count, IMAGES_OF_A_NETWORK):
        network = Network(shape, generator)
        for part in images[start : start + IMAGES_OF_A_NETWORK].split(at_once):
            part.copy_(_coloured(network.paint(len(part)), generator))
    return images


class Network:
    """Random weights of one generator; all that it draws comes from one stream."""

    def __init__(self, shape: tuple[int, ...], stream: torch.Generator) -> None:
        self.stream = stream
        self.colours, height, width = shape
        levels = max(0, math.ceil(math.log2(max(height, width) / FIRST)))
        self.sizes = [(-(-height // 2**level), -(-width // 2**level)) for level in range(levels, -1, -1)]
        self.first = self._normal(1, CHANNELS, *self.sizes[0])
        self.layers = [[Layer(self, CHANNELS, 3) for _ in range(2)] for _ in self.sizes]
        self.painters = [Layer(self, self.colours, 1) for _ in self.sizes]

    def _normal(self, *size: int) -> Tensor:
        return torch.randn(*size, generator=self.stream)

    def paint(self, count: int) -> Tensor:
        """Images before their colours are set."""
        maps = self.first.expand(count, -1, -1, -1)
        image = torch.zeros(count, self.colours, *self.sizes[0])
        for size, layers, painter in zip(self.sizes, self.layers, self.painters, strict=True):
            maps, image = (F.interpolate(x, size, mode="bilinear") for x in (maps, image))
            for layer in layers:
                maps = layer.convolve(maps)
                maps = maps + NOISE * self._normal(count, 1, *size) + layer.bias
                maps = math.sqrt(2) * F.leaky_relu(maps, SLOPE)
            image = image + painter.convolve(maps)
        return image


class Layer:
    """A convolution that each image's own style modulates."""

    def __init__(self, network: Network, outputs: int, size: int) -> None:
        self.stream = network.stream
        self.weight = torch.randn(outputs, CHANNELS, size, size, generator=self.stream)
        self.to_scale = torch.randn(STYLE, CHANNELS, generator=self.stream) / math.sqrt(STYLE)
        self.bias = BIAS * (2 * torch.rand(outputs, 1, 1, generator=self.stream) - 1)

    def convolve(self, maps: Tensor) -> Tensor:
        """A convolution under a new random style for each image."""
        style = F.leaky_relu(torch.randn(len(maps), STYLE, generator=self.stream), SLOPE)
        return self.modulated(maps, 1 + style @ self.to_scale)

    def modulated(self, maps: Tensor, scale: Tensor) -> Tensor:
        """Inputs scaled by the style (images × inputs), and outputs scaled back to unit spread.

        That is StyleGAN2's convolution with weights s·w / |s·w| for each image, at the cost of one for all.
        """
        power = self.weight.square().sum((2, 3))  # outputs × inputs
        spread = (scale.square() @ power.T + 1e-8).sqrt()  # images × outputs
        padding = self.weight.shape[-1] // 2
        made = F.conv2d(maps * scale[:, :, None, None], self.weight, padding=padding)
        return made / spread[:, :, None, None]


def _coloured(image: Tensor, stream: torch.Generator) -> Tensor:
    """Each channel of each image standardised, then with a mean and a spread of its own, between 0 and 1."""
    count, channels = image.shape[:2]
    spread, mean = torch.std_mean(image, dim=(2, 3), keepdim=True, correction=0)
    places = torch.arange(channels) % len(MEAN)
    wanted = []
    for middle, around in ((torch.tensor(SPREAD), SPREAD_SPREAD), (torch.tensor(MEAN), MEAN_SPREAD)):
        drawn = middle[places] + around * torch.randn(count, channels, generator=stream)
        wanted.append(drawn.clamp(min=0.05)[:, :, None, None])
    return ((image - mean) / (spread + 1e-8) * wanted[0] + wanted[1]).clamp(0, 1)
