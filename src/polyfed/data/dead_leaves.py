"""Dead leaves: images covered with opaque shapes of all sizes, as leaves cover the ground (Lee, Mumford & Huang 2001).

Sizes have density r^-3, as in natural images, from 3 % of the image's side to all of it. A leaf is a circle, a square
along the axes or turned, a rectangle, a triangle or a quadrilateral, of one colour, and its centre is anywhere: the
"mixed" images of Baradad et al. 2021. They drop leaves on top of each other until no ground is seen. Here each new leaf
is pushed below all others, which stops as soon as the ground is covered and gives images of the pile as it would look
after for ever, where their stopping prefers piles on which a large leaf was the last (Kendall & Thönnes 1999).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

Floats: TypeAlias = npt.NDArray[np.float32]
Ints: TypeAlias = npt.NDArray[np.int64]

SMALLEST = 0.03  # radius, in sides of the image
SIZES = 200  # different radii
POWER = 3.0
SHAPES = 6
PIXELS_AT_ONCE, LEAVES_AT_ONCE = 64 * 32 * 32, 16  # a few MB are worked on, whatever the size of an image


def dead_leaves(count: int, shape: tuple[int, ...], rng: np.random.Generator) -> Floats:
    """So many images, count × channels × height × width, from 0 to 1."""
    images = np.empty((count, *shape), np.float32)
    at_once = max(1, PIXELS_AT_ONCE // (shape[1] * shape[2]))
    for start in range(0, count, at_once):
        part = images[start : start + at_once]
        part[:] = _pile(len(part), shape, rng)
    return images


def _pile(count: int, shape: tuple[int, ...], rng: np.random.Generator) -> Floats:
    channels, height, width = shape
    pixels = np.empty((count * height * width, channels), np.float32)
    bare = np.arange(len(pixels))  # pixels where the ground is still seen
    while len(bare):
        leaves = Leaves.draw((count, LEAVES_AT_ONCE), shape, rng)
        image, place = np.divmod(bare, height * width)
        hits = leaves.cover(image, place % width, place // width)
        hit = hits.any(axis=1)
        pixels[bare[hit]] = leaves.colour[image[hit], hits[hit].argmax(axis=1)]  # the uppermost
        bare = bare[~hit]
    return pixels.reshape(count, height, width, channels).transpose(0, 3, 1, 2)


@dataclass(frozen=True)
class Leaves:
    """Some leaves of each image, upper ones first: all arrays begin with images × leaves.

    x, y, radius: of the circle that a leaf lies in, in pixels.
    side_x, side_y, reach: of the four sides of the polygon that is inscribed in it, the direction in which a side
        lies, and how far from the centre. A triangle's fourth side is a point of the circle.
    """

    x: Floats
    y: Floats
    radius: Floats
    round: npt.NDArray[np.bool_]
    side_x: Floats
    side_y: Floats
    reach: Floats
    colour: Floats

    @classmethod
    def draw(cls, many: tuple[int, int], shape: tuple[int, ...], rng: np.random.Generator) -> Leaves:
        channels, height, width = shape
        radius = np.maximum(_radii(many, rng) * max(height, width), 1.0)
        corners = _corners(many, rng)
        half = np.diff(corners, axis=-1, append=corners[..., :1] + 2 * np.pi) / 2
        return cls(
            x=rng.random(many, np.float32) * width - 0.5,
            y=rng.random(many, np.float32) * height - 0.5,
            radius=radius.astype(np.float32),
            round=rng.integers(SHAPES, size=many) == 0,
            side_x=np.cos(corners + half).astype(np.float32),
            side_y=np.sin(corners + half).astype(np.float32),
            reach=(radius[..., None] * np.cos(half)).astype(np.float32),
            colour=rng.random((*many, channels), np.float32),
        )

    def cover(self, image: Ints, x: Ints, y: Ints) -> npt.NDArray[np.bool_]:
        """Which of these pixels lie under which leaf of their image: pixels × leaves."""
        right = x.astype(np.float32)[:, None] - self.x[image]
        down = y.astype(np.float32)[:, None] - self.y[image]
        hits = right * right + down * down <= np.square(self.radius)[image]
        pixel, leaf = np.nonzero(hits)  # few, as most leaves are small; the rest is for these alone
        owner = image[pixel], leaf
        out = right[pixel, leaf, None] * self.side_x[owner] + down[pixel, leaf, None] * self.side_y[owner]
        hits[pixel, leaf] = self.round[owner] | (out <= self.reach[owner]).all(axis=1)
        return hits


def _radii(many: tuple[int, int], rng: np.random.Generator) -> npt.NDArray[Any]:
    """Radii in sides of the image, of density r^-3, shifted so that it ends at 0."""
    radii = np.linspace(SMALLEST, 1.0, SIZES)
    density = radii**-POWER - 1.0
    return rng.choice(radii, size=many, p=density / density.sum())


def _corners(many: tuple[int, int], rng: np.random.Generator) -> npt.NDArray[Any]:
    """The angles at which a polygon's four corners lie on its circle, rising; a triangle's last two are one."""
    turn = 2 * np.pi * rng.random((*many, 1))
    quarter = np.pi / 2 * np.arange(4)
    upright = np.broadcast_to(quarter + np.pi / 4, (*many, 4))
    lean = np.pi / 2 * rng.random((*many, 1))  # of a rectangle's diagonals
    rectangle = np.concatenate([0 * lean, lean, 0 * lean + np.pi, lean + np.pi], axis=-1) + turn
    free = np.sort(2 * np.pi * rng.random((*many, 4)), axis=-1)
    triangle = np.concatenate([free[..., :3], free[..., 2:3]], axis=-1)
    kinds = np.stack([upright, quarter + turn, rectangle, triangle, free])
    kind = rng.integers(len(kinds), size=many)
    chosen: npt.NDArray[Any] = np.take_along_axis(kinds, kind[None, ..., None], axis=0)[0]
    return chosen
