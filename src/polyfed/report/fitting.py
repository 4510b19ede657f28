"""Tables that stay readable in a narrow terminal: columns for which there is no room go into a second table below."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich import box
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.jupyter import JupyterMixin
from rich.table import Table
from rich.text import Text

LEAST_NAME = 18  # columns for the name of a row, if it needs as many
GAP = 2  # between two columns


@dataclass(frozen=True)
class Row:
    """A row: what it is called, and its numbers."""

    names: Sequence[str]
    cells: Sequence[str]


@dataclass(frozen=True)
class FittedTable(JupyterMixin):
    """A table of numbers, the most important columns first. No number and no heading is ever cut.

    Where there is no room for all columns, the last ones go into a second table below, and so on; each begins with the
    rows' names. Long names are shortened in the middle, or folded if they could no longer be told apart.
    """

    title: str
    names: Sequence[str]
    """The headings of the columns that say what a row is."""
    headings: Sequence[str]
    rows: Sequence[Row]
    caption: str = ""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield Text(self.title, style="table.title")
        for table in self.tables(options.max_width):
            yield table
            yield Text()
        if self.caption:
            yield Text(self.caption, style="table.caption")

    def tables(self, width: int) -> list[Table]:
        """The table, or what it is divided into, for a terminal of so many columns."""
        width += GAP  # there is none after the last column
        wide = [_width(column) for column in self._columns()]
        names, heads = [row.names for row in self.rows], self.names
        taken = _taken(self._name_widths(heads, names))
        if len(heads) > 1 and taken + _taken(wide) > width and taken > width // 2:
            lines = ["\n".join(map("=".join, zip(heads, row, strict=True))) for row in names]
            names, heads = [[text] for text in lines], ["variant"]
            taken = _taken(self._name_widths(heads, names))
        if len(heads) == 1:
            share = 4 if len(self.names) == 1 else 2
            least = min(taken, max(LEAST_NAME, width // share))
            taken = max(least, min(taken, width - _taken(wide)))
            names = [[text] for text in distinct([row[0] for row in names], taken - GAP)]
        blocks: list[list[int]] = [[]]
        for place in range(len(wide)):
            if blocks[-1] and taken + _taken([wide[each] for each in (*blocks[-1], place)]) > width:
                blocks.append([])
            blocks[-1].append(place)
        return [self._table(heads, names, block, width) for block in blocks]

    def _columns(self) -> list[list[str]]:
        """Heading and cells of every column of numbers."""
        cells = zip(*(row.cells for row in self.rows), strict=True)
        return [[head, *column] for head, column in zip(self.headings, cells, strict=True)]

    @staticmethod
    def _name_widths(heads: Sequence[str], names: Sequence[Sequence[str]]) -> list[int]:
        return [_width([head, *column]) for head, column in zip(heads, zip(*names, strict=True), strict=True)]

    def _table(
        self, heads: Sequence[str], names: Sequence[Sequence[str]], block: Sequence[int], width: int
    ) -> Table:
        table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, collapse_padding=True)
        numbers = _taken([_width(self._columns()[place]) for place in block])
        for head in heads:
            most = width - numbers - GAP if len(heads) == 1 else None
            table.add_column(Text(head), overflow="fold", max_width=most)
        for place in block:
            table.add_column(Text(self.headings[place]), justify="right", no_wrap=True)
        for name, row in zip(names, self.rows, strict=True):
            table.add_row(*map(Text, name), *(Text(row.cells[place]) for place in block))
        return table


def shortened(text: str, width: int) -> str:
    """A text of at most so many characters: what is too much is left out in the middle."""
    if len(text) <= width:
        return text
    kept = max(width - 1, 2)
    return f"{text[: (kept + 1) // 2]}…{text[-(kept // 2) :]}"


def distinct(names: Sequence[str], width: int) -> list[str]:
    """Names shortened to a width; whole, to be folded, if two would look the same or a name has several lines."""
    short = [shortened(name, width) for name in names]
    whole = len(set(short)) < len(set(names)) or any("\n" in name for name in names)
    return list(names) if whole else short


def _width(texts: Sequence[str]) -> int:
    return max((cell_len(line) for text in texts for line in text.split("\n")), default=0)


def _taken(widths: Sequence[int]) -> int:
    """Columns of these widths, each with the gap beside it."""
    return sum(widths) + GAP * len(widths)
