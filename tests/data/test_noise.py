"""Noise in place of data: what each kind is, in numbers; all of it from one stream and of any shape."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from polyfed.data import noise
from polyfed.data.dead_leaves import SIZES, Leaves, _corners, _radii, dead_leaves
from polyfed.data.random_stylegan import CHANNELS, Layer, Network
from polyfed.errors import DataError

PHOTO = (3, 32, 32)
IMAGES: list[noise.Kind] = ["dead-leaves", "stylegan"]


def stream(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def likeness(x: Tensor) -> float:
    """How much a pixel tells of its right neighbour: the correlation of the two."""
    pairs = torch.stack([x[..., :-1].flatten(), x[..., 1:].flatten()])
    return float(torch.corrcoef(pairs)[0, 1])


@pytest.mark.parametrize("kind", noise.KINDS)
def test_all_noise_comes_from_one_stream(kind: noise.Kind) -> None:
    torch.manual_seed(3)
    before = torch.get_rng_state()
    rng = stream()
    once, next_ = noise.draw(kind, 5, PHOTO, rng), noise.draw(kind, 5, PHOTO, rng)
    assert torch.equal(once, noise.draw(kind, 5, PHOTO, stream()))
    assert not torch.equal(once, next_)
    assert not torch.equal(once, noise.draw(kind, 5, PHOTO, stream(1)))
    assert len({image.numpy().tobytes() for image in once}) == 5
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize("kind", noise.KINDS)
@pytest.mark.parametrize("shape", [(1, 28, 28), (4, 3, 5), (3, 40, 17), (1, 1, 1)])
def test_noise_has_any_shape(kind: noise.Kind, shape: tuple[int, ...]) -> None:
    x = noise.draw(kind, 3, shape, stream())
    assert (x.shape, x.dtype) == ((3, *shape), torch.float32)
    assert bool(x.isfinite().all())


def test_gaussian_noise_is_standard_normal_in_the_normalised_space_whatever_the_limits() -> None:
    x = noise.draw("gaussian", 4, (7,), stream())
    assert torch.equal(x, torch.randn(4, 7, generator=stream()))
    limits = ((0.0,), (0.5,))
    assert torch.equal(noise.draw("gaussian", 4, (1, 2, 2), stream(), limits).view(-1)[:3], x.view(-1)[:3])


@pytest.mark.parametrize("kind", IMAGES)
def test_images_are_normalised_as_the_data_are(kind: noise.Kind) -> None:
    """Mean 0.2 and spread 0.4: 0 becomes −0.5 and 1 becomes 2. Where nothing is known, −2 and 2."""
    limits = ((-0.5, -2.0), (2.0, 2.0))
    x = noise.draw(kind, 20, (2, 16, 16), stream(), limits)
    pixels = noise.seen(noise.draw(kind, 20, (2, 16, 16), stream()))
    assert torch.allclose(x[:, 0], 2.5 * pixels[:, 0] - 0.5, atol=1e-6)
    assert torch.allclose(x[:, 1], 4 * pixels[:, 1] - 2, atol=1e-6)
    assert torch.allclose(noise.seen(x, limits), pixels, atol=1e-6)
    assert 0 <= pixels.min() < 0.05 and 0.95 < pixels.max() <= 1


@pytest.mark.parametrize("kind", IMAGES)
def test_feature_vectors_are_gaussian_or_refused(kind: noise.Kind) -> None:
    with pytest.raises(
        DataError, match=f"'{kind}' noise is images, and here are rows of 7 numbers: use gaussian"
    ):
        noise.draw(kind, 2, (7,), stream())


# -- dead leaves -------------------------------------------------------------------------------------------------


def test_leaves_have_sizes_of_density_r_to_the_minus_3() -> None:
    """r^−3 − 1 over 200 radii from 0.03 to 1: how often the first two occur, and that the last never does."""
    radii = np.linspace(0.03, 1, SIZES)
    shares = (radii**-3 - 1) / (radii**-3 - 1).sum()
    drawn = _radii((500, 400), np.random.default_rng(0))
    found = Counter(drawn.round(6).ravel().tolist())
    for place in (0, 1, 20):
        assert found[round(float(radii[place]), 6)] / drawn.size == pytest.approx(shares[place], rel=0.05)
    assert drawn.min() == 0.03 and drawn.max() < 1


def test_corners_go_around_a_circle_and_some_polygons_are_triangles() -> None:
    corners = _corners((50, 40), np.random.default_rng(0))
    sides = np.diff(corners, axis=-1, append=corners[..., :1] + 2 * np.pi)
    assert (sides > -1e-9).all() and np.allclose(sides.sum(axis=-1), 2 * np.pi)
    assert (sides[..., 2] == 0).mean() == pytest.approx(1 / 5, abs=0.03)
    squares = np.isclose(sides, np.pi / 2).all(axis=-1)
    assert squares.mean() == pytest.approx(2 / 5, abs=0.03)


def leaves(*corners: list[float], radius: float = 2.0, is_round: bool = False) -> Leaves:
    """Leaves of one image around (4, 4), whose corners lie at these angles in degrees."""
    angles = np.radians(np.array([corners], dtype=np.float64))
    half = np.diff(angles, axis=-1, append=angles[..., :1] + 2 * np.pi) / 2
    many = angles.shape[:2]
    here = np.full(many, 4.0, np.float32)
    return Leaves(
        here,
        here,
        np.full(many, radius, np.float32),
        np.full(many, is_round),
        np.cos(angles + half).astype(np.float32),
        np.sin(angles + half).astype(np.float32),
        (radius * np.cos(half)).astype(np.float32),
        np.zeros((*many, 1), np.float32),
    )


def test_pixels_lie_under_a_leaf_by_hand() -> None:
    """Radius 2 around (4, 4). An upright square has half a side of √2: (5, 5) is in, (6, 4) is not. On its corner it
    has its corners at (6, 4) …: |x − 4| + |y − 4| ≤ 2. A triangle with corners to the right and left and below has
    nothing above its centre; in the circle is all within 2."""
    x, y = np.array([5, 6, 4, 4, 7]), np.array([5, 4, 3, 5, 4])
    image = np.zeros(5, np.int64)
    upright, turned, triangle = [45.0, 135, 225, 315], [0.0, 90, 180, 270], [0.0, 90, 180, 180]
    # a hair larger, so that corners that lie on the edge are in whatever the last bit
    hits = leaves(upright, turned, triangle, radius=2.001).cover(image, x, y)
    assert hits.T.tolist() == [
        [True, False, True, True, False],
        [True, True, True, True, False],
        [True, True, False, True, False],
    ]
    circle = leaves(upright, is_round=True).cover(image, x, y)
    assert circle[:, 0].tolist() == [True, True, True, True, False]


def test_dead_leaves_cover_the_ground_with_areas_of_one_colour() -> None:
    """Every pixel's colour is uniform: mean 1/2, variance 1/12. Neighbours often lie on one leaf."""
    pixels = noise.seen(noise.draw("dead-leaves", 100, PHOTO, stream()))
    assert float(pixels.mean()) == pytest.approx(0.5, abs=0.02)
    assert float(pixels.var()) == pytest.approx(1 / 12, abs=0.005)
    same = (pixels[..., :-1] == pixels[..., 1:]).all(dim=1).float()
    assert 0.3 < float(same.mean()) < 0.9
    assert bool((same.mean(dim=(1, 2)) > 0.1).all())


def test_a_new_leaf_lies_below_those_that_are_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """A small white leaf, then a black one that covers all: within 1.1 of (4, 4), white is seen."""
    both = [45.0, 135, 225, 315]
    pile = leaves(both, both, is_round=True)
    pile.radius[0] = [1.1, 50]
    pile.colour[0] = [[1], [0]]
    monkeypatch.setattr(Leaves, "draw", lambda *_: pile)
    image = dead_leaves(1, (1, 9, 9), np.random.default_rng(0))[0, 0]
    assert np.argwhere(image == 1).tolist() == [[3, 4], [4, 3], [4, 4], [4, 5], [5, 4]]
    assert (image.sum(), image.min()) == (5, 0)


# -- stylegan ----------------------------------------------------------------------------------------------------


def test_a_modulated_convolution_is_one_with_weights_of_unit_norm_for_each_image() -> None:
    layer = Layer(Network((3, 8, 8), stream()), 5, 3)
    maps, scale = torch.randn(2, CHANNELS, 6, 7), torch.randn(2, CHANNELS)
    made = layer.modulated(maps, scale)
    for image in range(2):
        weight = layer.weight * scale[image, None, :, None, None]
        weight = weight / weight.flatten(1).norm(dim=1).view(-1, 1, 1, 1)
        assert torch.allclose(
            made[image : image + 1], F.conv2d(maps[image : image + 1], weight, padding=1), atol=1e-5
        )


def test_stylegan_images_are_smooth_textures_with_colours_near_those_of_photographs() -> None:
    pixels = noise.seen(noise.draw("stylegan", 200, PHOTO, stream()))
    assert pixels.mean(dim=(0, 2, 3)).tolist() == pytest.approx([0.48, 0.46, 0.40], abs=0.03)
    assert pixels.std(dim=(2, 3)).mean().item() == pytest.approx(0.21, abs=0.03)
    alike = {kind: likeness(noise.draw(kind, 50, PHOTO, stream())) for kind in noise.KINDS}
    assert abs(alike["gaussian"]) < 0.02
    assert alike["dead-leaves"] > 0.4 and alike["stylegan"] > 0.6


def test_stylegan_noise_does_not_depend_on_the_number_of_threads() -> None:
    threads = torch.get_num_threads()
    once = noise.draw("stylegan", 60, PHOTO, stream())
    torch.set_num_threads(2)
    try:
        assert torch.equal(noise.draw("stylegan", 60, PHOTO, stream()), once)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(threads)
