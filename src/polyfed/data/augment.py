"""Standard augmentation of whole batches of images: mirrored and shifted, with no loop over samples."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from polyfed.errors import DataError


def standard(x: torch.Tensor, generator: torch.Generator, padding: int = 4) -> torch.Tensor:
    """What CIFAR papers do: mirror half of the images, then shift each by up to `padding` pixels.

    x: a normalised batch N×C×H×W in any memory format, which the result keeps.
    generator: on the CPU, so that every device sees the same draws.
    """
    return pad_crop(flip(x, generator), generator, padding)


def flip(x: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Mirror each image left to right with probability one half."""
    _need_images(x)
    mirrored = torch.rand(len(x), generator=generator) < 0.5
    return torch.where(mirrored.to(x.device).view(-1, 1, 1, 1), x.flip(3), x)


def pad_crop(x: torch.Tensor, generator: torch.Generator, padding: int = 4) -> torch.Tensor:
    """Pad each image by zeros (the mean colour, once normalised) and cut out a random window of its size."""
    _need_images(x)
    if padding == 0:
        return x
    shift = torch.randint(2 * padding + 1, (2, len(x)), generator=generator).to(x.device)
    sample = torch.arange(len(x), device=x.device)
    padded = F.pad(x, (padding,) * 4)
    # All windows of all images as one view, of which one for each image is taken.
    if x.is_contiguous(memory_format=torch.channels_last) and not x.is_contiguous():
        rows_first = padded.permute(0, 2, 3, 1).contiguous()  # N×H×W×C
        windows = rows_first.unfold(1, x.shape[2], 1).unfold(2, x.shape[3], 1)  # N×dy×dx×C×H×W
        return windows.permute(0, 1, 2, 4, 5, 3)[sample, shift[0], shift[1]].permute(0, 3, 1, 2)
    windows = padded.unfold(2, x.shape[2], 1).unfold(3, x.shape[3], 1)  # N×C×dy×dx×H×W
    return windows.permute(0, 2, 3, 1, 4, 5)[sample, shift[0], shift[1]]


def _need_images(x: torch.Tensor) -> None:
    if x.ndim != 4:
        raise DataError(f"only images (N×C×H×W) can be augmented, not inputs of {x.ndim} dimensions")
