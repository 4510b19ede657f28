"""Sheets of images: what a client's generator makes (`samples`), and noise (`noise`)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from polyfed.cli.screen import console, read_shape, say
from polyfed.data import noise as known
from polyfed.errors import ConfigError
from polyfed.report import drawing
from polyfed.report.sheet import COLUMNS, noise_sheet, sheet
from polyfed.runs.generated import generated
from polyfed.seeds import Seeds

SHEET_ROWS = 3


def samples(directory: Path, client: str, figure: Path, trust: Sequence[str]) -> None:
    """Draw a sheet of images that a client's generator makes, and say how they are spread over the classes."""
    _check_figure(figure)
    found = generated(directory, client, trust=trust)
    made = len(set(found.classes.tolist()))
    sure = 100 * float(found.confidence.median())
    console.print(
        f"{len(found.images)} images of {client}'s generator: {made} of {len(found.words)} classes,"
        f" the served model is {sure:.0f} % sure of them (median)",
        soft_wrap=True,
        markup=False,
    )
    sheet(found, f"{directory.name}: what {client}'s generator makes", figure)
    console.print(f"wrote {figure}", soft_wrap=True, markup=False)


def noise(shape: str, seed: int, figure: Path) -> None:
    """Draw a sheet of noise of each kind, every row in one go: a row of stylegan is of one network."""
    _check_figure(figure)
    size = read_shape(shape)
    if len(size) != 3 or min(size) < 1:
        raise ConfigError(f"--shape {shape}: noise is drawn as images, write it as 3x32x32")
    sheets: dict[str, torch.Tensor] = {}
    for kind in known.KINDS:
        rows = [
            known.draw(kind, COLUMNS, size, Seeds(seed).torch("noise", kind, row))
            for row in range(SHEET_ROWS)
        ]
        sheets[kind] = known.seen(torch.cat(rows)).permute(0, 2, 3, 1)
    words = "×".join(map(str, size))
    noise_sheet(sheets, f"noise of {words} (gaussian: −2 to 2 are black to white)", figure)
    say(f"wrote {figure}")


def _check_figure(figure: Path) -> None:
    drawing.check_writable(figure)
    if not figure.parent.is_dir():
        raise ConfigError(f"--figure {figure}: there is no folder {figure.parent}")
