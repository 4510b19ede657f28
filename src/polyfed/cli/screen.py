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
    """Let what polyfed logs appear on stderr: warnings, and data that take long to come; or all of it."""
    logging.getLogger("polyfed").setLevel(logging.DEBUG if verbose else logging.WARNING)
    # Downloading and decoding may take minutes before anything else is seen.
    logging.getLogger("polyfed.data").setLevel(logging.DEBUG if verbose else logging.INFO)
    errors = Console(stderr=True)
    handler: logging.Handler
    if errors.is_terminal:
        handler = RichHandler(console=errors, show_time=verbose, show_path=False, log_time_format="%X")
        form = "%(message)s"
    else:  # lines that can be searched, not wrapped
        handler = logging.StreamHandler()
        form = "%(asctime)s %(levelname)s %(message)s" if verbose else "%(levelname)s %(message)s"
    logging.basicConfig(level=logging.WARNING, format=form, handlers=[handler])
