"""What a client's generator makes: `samples`."""

from __future__ import annotations

from pathlib import Path

from polyfed.cli.screen import console
from polyfed.errors import ConfigError
from polyfed.report import drawing
from polyfed.report.sheet import sheet
from polyfed.runs.generated import generated


def samples(directory: Path, client: str, figure: Path) -> None:
    """Draw a sheet of images that a client's generator makes, and say how they are spread over the classes."""
    drawing.check_writable(figure)
    if not figure.parent.is_dir():
        raise ConfigError(f"--figure {figure}: there is no folder {figure.parent}")
    found = generated(directory, client)
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
