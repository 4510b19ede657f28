"""Noise in place of data, for learning from a teacher's answers alone: Gaussian, dead leaves, an untrained StyleGAN.

    x = noise.draw("dead-leaves", 128, (3, 32, 32), server.rng("noise"), server.limits)

Gaussian noise is standard normal in the space of normalised inputs (FedORION). The other kinds are images
that look like textures without showing anything (Baradad et al., "Learning to See by Looking at Noise", 2021), with
values from 0 to 1 that are then normalised as the data are. For feature vectors there is Gaussian noise alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal, TypeAlias, get_args

import numpy as np
import torch
from torch import Tensor

from polyfed.data.dataset import Limits
from polyfed.data.dead_leaves import dead_leaves
from polyfed.data.random_stylegan import random_stylegan
from polyfed.errors import DataError

Kind: TypeAlias = Literal["gaussian", "dead-leaves", "stylegan"]
KINDS: tuple[Kind, ...] = get_args(Kind)

USUAL_LIMITS = (
    -2.0,
    2.0,
)  # of normalised pixels, where the data do not tell; those of photographs are about these


def draw(
    kind: Kind,
    count: int,
    shape: tuple[int, ...],
    generator: torch.Generator,
    limits: Limits | None = None,
) -> Tensor:
    """So many rows of noise as a model takes them, float32 on the CPU: all of it from one random stream.

    shape: of one input, (channels, height, width) or (features,).
    limits: what 0 and 1 are after normalisation, for each channel (`DataSet.limits`); None where it is not known.
    """
    check(kind, shape)
    if kind == "gaussian":
        return torch.randn(count, *shape, generator=generator)
    if kind == "dead-leaves":
        seed = int(torch.randint(2**62, (), generator=generator))
        images = torch.from_numpy(dead_leaves(count, shape, np.random.default_rng(seed)))
    else:
        with _one_thread():
            images = random_stylegan(count, shape, generator)
    low, high = (torch.tensor(side).view(-1, 1, 1) for side in limits or _usual(shape[0]))
    return images.mul_(high - low).add_(low)


def check(kind: Kind, shape: tuple[int, ...]) -> None:
    """Raise a `DataError` where there is no noise of this kind for inputs of this shape."""
    if kind != "gaussian" and len(shape) != 3:
        raise DataError(f"'{kind}' noise is images, and here are rows of {shape[0]} numbers: use gaussian")


def seen(x: Tensor, limits: Limits | None = None) -> Tensor:
    """Images from 0 to 1 of what `draw` gave, as they would be seen; what lies outside is cut off."""
    low, high = (torch.tensor(side).view(-1, 1, 1) for side in limits or _usual(x.shape[1]))
    return ((x - low) / (high - low)).clamp(0, 1)


@contextmanager
def _one_thread() -> Iterator[None]:
    """The last bits of a convolution depend on the number of threads, and noise must not depend on the machine."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _usual(channels: int) -> Limits:
    low, high = USUAL_LIMITS
    return (low,) * channels, (high,) * channels
