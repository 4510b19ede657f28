"""How claims and derived rows name numbers: `row`, `row@column`, `table.row`, `table.row@column`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from polyfed.experiments.papers.paper import Claim, Paper, TableRow

_TERM = re.compile(r"(?:(?P<table>[\w-]+)\.)?(?P<row>[\w-]+)(?:@(?P<column>[\w-]+))?")


@dataclass(frozen=True)
class Term:
    """A row of a table; its column where the term itself names one."""

    table: str
    row: str
    column: str | None


def parse(text: str, table: str) -> Term | None:
    """A term, in a claim of this table; None if it is not written as one."""
    found = _TERM.fullmatch(text)
    return Term(found["table"] or table, found["row"], found["column"]) if found else None


def terms_of(claim: Claim, table: str) -> tuple[Term, ...]:
    """The terms of a claim that has been checked."""
    parsed = (parse(text, table) for text in claim.terms)
    return tuple(term for term in parsed if term is not None)


def parts_of(row: TableRow, table: str) -> tuple[Term, ...]:
    """The rows that a row of this table is the difference or ratio of; none for one that is measured or counted."""
    parsed = (parse(text, table) for text in row.made_of)
    return tuple(term for term in parsed if term is not None)


def columns_judged(claim: Claim, table: str, paper: Paper) -> tuple[str | None, ...]:
    """The columns in which a claim is judged; a single None where its terms name their own."""
    if all(term.column for term in terms_of(claim, table)):
        return (None,)
    return claim.only or tuple(column.key for column in paper.tables[table].columns)


def runs_for(paper: Paper, table: str, row: TableRow, column: str) -> Iterator[tuple[str, str]]:
    """The (run, setting) that a cell is read from: none for parameters."""
    for part in parts_of(row, table):
        yield from runs_for(paper, part.table, paper.tables[part.table].row(part.row), column)
    setting = paper.tables[table].column(column).setting
    if row.run is not None and setting is not None:
        yield row.run, setting
