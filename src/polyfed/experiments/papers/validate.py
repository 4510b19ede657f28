"""Whether everything that a paper's file refers to is there: a mistake is found when the file is read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from polyfed import models
from polyfed.errors import ConfigError, nearest
from polyfed.experiments.papers.paper import (
    Claim,
    CurvesFigure,
    FeaturesFigure,
    LinesFigure,
    Paper,
    PaperFigure,
    PaperTable,
    TableColumn,
    TableRow,
)
from polyfed.experiments.papers.terms import Term, columns_judged, parse, parts_of, terms_of


def check(paper: Paper) -> None:
    """Raise a `ConfigError` that says where, if anything is wrong."""
    for name, setting in paper.settings.items():
        _all_known(setting.runs, paper.runs, f"settings.{name}.runs", "run")
    for name, scale in paper.scales.items():
        _all_known(scale.runs, paper.runs, f"scales.{name}.runs", "run")
        _all_known(scale.settings, paper.settings, f"scales.{name}.settings", "setting")
    both = paper.tables.keys() & paper.figures.keys()
    if both:
        raise ConfigError(f"figures.{min(both)}: a table has the same name: choose another")
    for key, table in paper.tables.items():
        _all_known(table.scales, paper.scales, f"tables.{key}.scales", "scale")
        _check_table(paper, key, f"tables.{key}")
    for key, table in paper.tables.items():
        for place, claim in enumerate(table.claims):
            _check_claim(paper, key, claim, f"tables.{key}.claims.{place}")
    for key, figure in paper.figures.items():
        _all_known(figure.scales, paper.scales, f"figures.{key}.scales", "scale")
        _check_figure(paper, figure, f"figures.{key}")


def _check_table(paper: Paper, key: str, where: str) -> None:
    table = paper.tables[key]
    _check_columns(paper, table.columns, where)
    _no_duplicates((row.key for row in table.rows), f"{where}.rows")
    for row in table.rows:
        _check_row(paper, table, row, f"{where}.rows.{row.key}")
        if row.made_of:
            kind = "difference" if row.difference else "ratio"
            _check_parts(paper, key, row, f"{where}.rows.{row.key}.{kind}")


def _check_columns(paper: Paper, columns: Iterable[TableColumn], where: str) -> None:
    _no_duplicates((column.key for column in columns), f"{where}.columns")
    for column in columns:
        if column.setting is not None:
            _known(column.setting, paper.settings, f"{where}.columns", "setting")


def _check_row(paper: Paper, table: PaperTable, row: TableRow, where: str) -> None:
    _all_known(row.paper, [column.key for column in table.columns], f"{where}.paper", "column")
    if row.run is not None:
        _known(row.run, paper.runs, f"{where}.run", "run")
        for column in table.columns:
            if column.setting is None:
                raise ConfigError(f"{where}: the row has a run, but column '{column.key}' has no setting")
            if row.measure is None and column.measure is None:
                raise ConfigError(f"{where}: no measure, neither here nor in column '{column.key}'")
            _check_unit(table, row, column, where)
    if row.parameters is not None:
        if table.inputs is None:
            raise ConfigError(f"{where}: to count parameters the table needs `inputs`")
        for name in row.parameters:
            if not models.is_known(name):
                raise ConfigError(
                    f"{where}.parameters: no model '{name}', {nearest(name, models.names(), 'polyfed models')}"
                )


def _check_unit(table: PaperTable, row: TableRow, column: TableColumn, where: str) -> None:
    """Rounds and bytes to a target are no shares: as per cent they would be a hundred times too many."""
    measure, unit = row.measure or column.measure or "", table.unit_of(row, column)
    for start, right in (("rounds_to.", "count"), ("bytes_to.", "bytes")):
        if measure.startswith(start) and unit != right:
            raise ConfigError(f"{where}: {measure} is no number in {unit}: set unit: {right}")


def _check_parts(paper: Paper, key: str, row: TableRow, where: str) -> None:
    """The rows that a difference or ratio is made of: there, not derived themselves, and of one unit."""
    for part in parts_of(row, key):
        _known(part.table, paper.tables, where, "table")
        plain = [other.key for other in paper.tables[part.table].rows if not other.made_of]
        _known(part.row, plain, where, "measured row")
    for column in paper.tables[key].columns:
        units = {_unit(paper, part, column.key, where) for part in parts_of(row, key)}
        if row.difference is not None and len(units) > 1:
            raise ConfigError(f"{where}: {' and '.join(sorted(units))} cannot be compared")


def _check_claim(paper: Paper, table: str, claim: Claim, where: str) -> None:
    for text in claim.terms:
        if parse(text, table) is None:
            raise ConfigError(
                f"{where}: '{text}' does not name a number: write row, row@column or table.row@column"
            )
    terms = terms_of(claim, table)
    for term in terms:
        _known(term.table, paper.tables, where, "table")
        _known(term.row, [row.key for row in paper.tables[term.table].rows], where, "row")
    _all_known(claim.only, [column.key for column in paper.tables[table].columns], f"{where}.only", "column")
    columns = columns_judged(claim, table, paper)
    if claim.only and columns == (None,):
        raise ConfigError(f"{where}: every term names its column, so leave out `only`")
    units = [{_unit(paper, term, column, where) for term in terms} for column in columns]
    if not claim.is_plain_order:  # its numbers are of one unit, whatever the column
        units = [set().union(*units)]
    for compared in units:
        if len(compared) > 1 and claim.ratio is None:
            raise ConfigError(f"{where}: {' and '.join(sorted(compared))} cannot be compared")


def _unit(paper: Paper, term: Term, judged: str | None, where: str) -> str:
    table = paper.tables[term.table]
    key = term.column or judged or ""
    _known(key, [column.key for column in table.columns], f"{where}: {term.table}.{term.row}", "column")
    return table.unit_of(table.row(term.row), table.column(key))


def _check_figure(paper: Paper, figure: PaperFigure, where: str) -> None:
    if isinstance(figure, CurvesFigure):
        _known(figure.table, paper.tables, f"{where}.table", "table")
        measured = [row.key for row in paper.tables[figure.table].rows if row.run is not None]
        _all_known(figure.rows, measured, f"{where}.rows", "row with a run")
    elif isinstance(figure, LinesFigure):
        _known(figure.setting, paper.settings, f"{where}.setting", "setting")
        for place, panel in enumerate(figure.panels):
            runs = [line.run for line in panel.lines]
            _all_known(runs, paper.runs, f"{where}.panels.{place}", "run")
    elif isinstance(figure, FeaturesFigure):
        _known(figure.setting, paper.settings, f"{where}.setting", "setting")
        _all_known(figure.runs, paper.runs, f"{where}.runs", "run")
    else:
        _known(figure.run, paper.runs, f"{where}.run", "run")
        _check_columns(paper, figure.columns, where)
        for column in figure.columns:
            if column.setting is None:
                raise ConfigError(f"{where}.columns: '{column.key}' has no setting")


def _known(word: str, known: Iterable[str], where: str, what: str) -> None:
    choices = list(known)
    if word not in choices:
        raise ConfigError(f"{where}: no {what} '{word}', {nearest(word, choices)}")


def _all_known(words: Iterable[str], known: Iterable[str], where: str, what: str) -> None:
    choices = list(known)
    for word in words:
        _known(word, choices, where, what)


def _no_duplicates(keys: Iterable[str], where: str) -> None:
    for key, times in Counter(keys).items():
        if times > 1:
            raise ConfigError(f"{where}: '{key}' appears {times} times")
