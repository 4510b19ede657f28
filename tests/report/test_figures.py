"""The bubble chart of who holds what."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from polyfed.report.figures import _round_number, _ticks, bubble_chart


@pytest.mark.parametrize(("clients", "classes"), [(1, 2), (8, 10), (100, 10), (250, 62)])
def test_a_figure_is_drawn_for_few_and_for_many_clients(tmp_path: Path, clients: int, classes: int) -> None:
    counts = np.random.default_rng(0).integers(0, 50, (clients, classes))
    path = bubble_chart(counts, [f"class {n}" for n in range(classes)], tmp_path / "b.png", "Dirichlet 0.1")
    with Image.open(path) as image:
        pixels = np.asarray(image.convert("L"))
    assert pixels.shape[1] <= 2200
    assert pixels.min() < 100 < pixels.max() == 255


def test_a_client_count_of_zero_draws_no_bubble(tmp_path: Path) -> None:
    path = bubble_chart(np.zeros((3, 2), dtype=int), ["a", "b"], tmp_path / "b.svg")
    assert "<svg" in path.read_text()


def test_bubbles_have_areas_in_proportion_to_samples(tmp_path: Path) -> None:
    def blue(count: int) -> int:
        path = bubble_chart(np.array([[100, count], [0, 0]]), ["a", "b"], tmp_path / f"{count}.png")
        with Image.open(path) as image:
            pixels = np.asarray(image.convert("RGB")).astype(int)
        return int(
            (pixels[..., 2] - pixels[..., 0] > 60)[:, :-150].sum()
        )  # the key at the right edge is left out

    nothing = blue(0)
    assert (blue(100) - nothing) / (blue(25) - nothing) == pytest.approx(4, rel=0.1)


def test_counts_must_fit_the_class_names(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="3 classes"):
        bubble_chart(np.ones((2, 2)), ["a", "b", "c"], tmp_path / "b.png")


def test_ticks_are_at_round_numbers() -> None:
    assert _ticks(8, 25) == list(range(8))
    assert _ticks(100, 25) == list(range(0, 100, 5))
    assert [_round_number(value) for value in (0.2, 7.9, 43, 437, 1999)] == [1, 7, 40, 400, 1000]


def test_pyplot_is_not_needed() -> None:
    assert "pyplot" not in Path(sys.modules["polyfed.report.figures"].__file__ or "").read_text().replace(
        "uses pyplot", ""
    )
