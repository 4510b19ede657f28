"""The screen: where the commands print, and where what is logged goes."""

from __future__ import annotations

import logging

from rich.console import Console
from rich.logging import RichHandler
from rich.text import Text

PLAIN_WIDTH = 150  # of tables where the output is not a terminal

console = Console()
if not console.is_terminal:
    console = Console(width=PLAIN_WIDTH)


def say(line: str) -> None:
    """Print a line as it is: not cut, not coloured."""
    console.print(line, soft_wrap=True, markup=False, highlight=False)


def show(page: Text) -> None:
    """Print a page whose lines were made to fit."""
    console.print(page, soft_wrap=True, highlight=False, end="")


def log_to_screen(*, verbose: bool) -> None:
    """Let what polyfed logs appear on stderr: warnings and what matters, or all of it."""
    level = logging.DEBUG if verbose else logging.WARNING
    handler = RichHandler(console=Console(stderr=True), show_time=False, show_path=False)
    logging.basicConfig(level=level, format="%(message)s", handlers=[handler])
    logging.getLogger("polyfed").setLevel(logging.DEBUG if verbose else logging.INFO)
