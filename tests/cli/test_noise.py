"""`polyfed noise`: a sheet of each kind to look at."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from tests.conftest import Command


def test_a_sheet_of_each_kind_is_drawn_and_another_for_another_seed(command: Command, tmp_path: Path) -> None:
    sheets = []
    for name, seed in (("a.png", 0), ("b.png", 1)):
        said = command("noise", "--shape", "3x8x12", "--seed", seed, "-o", name)
        assert (said.code, said.out) == (0, f"wrote {name}\n"), said
        with Image.open(tmp_path / name) as picture:
            sheets.append(np.asarray(picture.convert("RGB")))
    assert sheets[0].shape == sheets[1].shape and min(sheets[0].shape[:2]) > 900
    assert not np.array_equal(sheets[0], sheets[1])


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (("--shape", "20"), "write it as 3x32x32"),
        (("--shape", "3x0x4"), "write it as 3x32x32"),
        (("--shape", "big"), "write it as 3x32x32"),
        (("-o", "x.txt"), "a figure's name ends in"),
        (("-o", "no/x.png"), "there is no folder no"),
    ],
)
def test_a_mistake_is_one_line(command: Command, words: tuple[str, ...], hint: str) -> None:
    said = command("noise", *words)
    assert said.code == 2 and said.err.count("\n") == 1 and hint in said.err
