"""How claims name numbers: `row`, `row@column`, `table.row`, `table.row@column`."""

from __future__ import annotations

import re
from dataclasses import dataclass

from polyfed.experiments.papers.paper import Claim, Paper

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


def columns_judged(claim: Claim, table: str, paper: Paper) -> tuple[str | None, ...]:
    """The columns in which a claim is judged; a single None where its terms name their own."""
    if all(term.column for term in terms_of(claim, table)):
        return (None,)
    return claim.only or tuple(column.key for column in paper.tables[table].columns)
