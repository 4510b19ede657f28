"""The screen: where the commands print, and where what is logged goes."""

from __future__ import annotations

import logging

from rich.console import Console
from rich.logging import RichHandler
from rich.table import Table

PLAIN_WIDTH = 150  # of tables where the output is not a terminal

console = Console()
if not console.is_terminal:
    console = Console(width=PLAIN_WIDTH)


def print_any(table: Table | None) -> None:
    """Print a table where there is one."""
    if table is not None:
        console.print(table)


def say(line: str) -> None:
    """Print a line as it is: no markup in names from outside, and not cut into pieces."""
    console.print(line, soft_wrap=True, markup=False, highlight=False)


def log_to_screen(*, verbose: bool) -> None:
    """Let what polyfed logs appear on stderr: warnings and what matters, or all of it."""
    level = logging.DEBUG if verbose else logging.WARNING
    handler = RichHandler(console=Console(stderr=True), show_time=False, show_path=False)
    logging.basicConfig(level=level, format="%(message)s", handlers=[handler])
    logging.getLogger("polyfed").setLevel(logging.DEBUG if verbose else logging.INFO)
