"""The screen: where the commands print, and where what is logged goes.

Names of classes, clients, columns, files and runs, and reasons of failures, come from anybody. Here is the one place
that all of it passes: markup of rich is text like any other, and what would steer a terminal is written out.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterable
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.logging import RichHandler
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from polyfed.errors import ConfigError, visible

PLAIN_WIDTH = 150  # of tables where the output is not a terminal, and COLUMNS does not say another
_BLANKS = re.compile(r" +(?=\n)")
_ESCAPED = re.compile(r"(\\+)(\[[a-zA-Z#/@][^[]*?\])")


class Screen(Console):
    """A console for text from anybody: it knows no markup and no emoji codes, and shows control characters."""

    def render_str(self, text: str, **options: Any) -> Text:
        """A text as it is. What was escaped for consoles that know markup is shown as it was before."""
        plain = _ESCAPED.sub(lambda found: found[1][: len(found[1]) // 2] + found[2], text)
        return super().render_str(visible(plain), **{**options, "markup": False, "emoji": False})

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """What is printed, in pieces; whatever made them, none that is text steers the terminal."""
        for piece in super().render(renderable, options):
            yield piece if piece.control else Segment(visible(piece.text), piece.style)

    def _render_buffer(self, buffer: Iterable[Segment]) -> str:
        """What is written; in a file lines end with their text, not with the blanks that fill up a table."""
        text = super()._render_buffer(buffer)
        return text if self.is_terminal else _BLANKS.sub("", text)


def make_screen() -> Screen:
    """A screen of standard output: as wide as its terminal; elsewhere as COLUMNS says."""
    screen = Screen()
    said = os.environ.get("COLUMNS", "")
    if screen.is_terminal:
        return screen
    return Screen(width=int(said) if said.isascii() and said.isdigit() and int(said) > 0 else PLAIN_WIDTH)


console = make_screen()


class _Formatter(logging.Formatter):
    """Lines of the log, which may tell of anything, as they can be printed."""

    def format(self, record: logging.LogRecord) -> str:
        return visible(super().format(record))


def print_any(table: Table | None) -> None:
    """Print a table where there is one."""
    if table is not None:
        console.print(table)


def show(page: Text) -> None:
    """Print a page whose lines were made to fit."""
    console.print(page, soft_wrap=True, highlight=False, end="")


def say(line: str) -> None:
    """Print a line as it is: not cut, not coloured."""
    console.print(line, soft_wrap=True, markup=False, highlight=False)


def tell(sentence: str) -> None:
    """Print prose: wrapped at words in a terminal, a line elsewhere. Paths and commands are for `say`."""
    console.print(Text(sentence), soft_wrap=not console.is_terminal, highlight=False)


def read_shape(text: str) -> tuple[int, ...]:
    """A shape that was typed, such as 3x32x32."""
    try:
        return tuple(int(part) for part in text.lower().replace("×", "x").split("x"))
    except ValueError:
        raise ConfigError(f"--shape {text}: write it as 3x32x32") from None


def log_to_screen(*, verbose: bool) -> None:
    """Let what polyfed logs appear on stderr: warnings, and data that take long to come; or all of it."""
    logging.getLogger("polyfed").setLevel(logging.DEBUG if verbose else logging.WARNING)
    # Downloading and decoding may take minutes before anything else is seen.
    logging.getLogger("polyfed.data").setLevel(logging.DEBUG if verbose else logging.INFO)
    errors = Screen(stderr=True)
    handler: logging.Handler
    if errors.is_terminal:
        handler = RichHandler(console=errors, show_time=verbose, show_path=False, log_time_format="%X")
        form = "%(message)s"
    else:  # lines that can be searched, not wrapped
        handler = logging.StreamHandler()
        form = "%(asctime)s %(levelname)s %(message)s" if verbose else "%(levelname)s %(message)s"
    handler.setFormatter(_Formatter(form))
    logging.basicConfig(level=logging.WARNING, handlers=[handler])
