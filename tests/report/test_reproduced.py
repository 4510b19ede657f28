"""A paper's table beside the measured one: how numbers are printed and laid out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from polyfed import papers
from polyfed.papers.claims import judge_all
from polyfed.papers.results import Cell, Outcome
from polyfed.report.reproduced import outcome_tables, shown, whole, with_spread
from polyfed.report.reproduced_figures import Curve, Panel, draw_curves, draw_table
from polyfed.report.reproduced_markdown import markdown
from polyfed.reproduce.outcome import printed_look

CHOSEN_LESS = 30.0


@pytest.fixture
def outcome() -> Outcome:
    """Table 2 of paper 000 as if measured: the paper's numbers and two more, 30 less at the chosen round."""
    paper = papers.load("000")
    table = paper.tables["table2"]
    cells = {}
    for row in table.rows:
        for column in table.columns:
            number = row.paper[column.key].value
            cells[row.key, column.key] = Cell(
                last={0: number + 1, 1: number + 3}, chosen={0: number - CHOSEN_LESS, 1: number - CHOSEN_LESS}
            )
    judged = judge_all(
        paper,
        "table2",
        last=lambda _table, row, column: cells[row, column].last,
        chosen=lambda _table, row, column: {} if row == "initial" else cells["initial", column].chosen,
        printed=printed_look(paper),
    )
    return Outcome(paper, "table2", "tiny", 2, table.rows, table.columns, cells, judged)


def printed(what: Any, width: int) -> list[str]:
    console = Console(width=width, record=True, file=Path("/dev/null").open("w"))  # noqa: SIM115
    console.print(what)
    console.file.close()
    return console.export_text().splitlines()


def test_numbers_are_printed_in_their_unit() -> None:
    assert (shown(12.345, "percent"), shown(12.345, "percent", sign=True)) == ("12.3", "+12.3")
    assert (shown(79486, "count"), shown(1.5e6, "bytes"), shown(2.5, "number")) == ("79,486", "1.5 MB", "2.5")
    assert with_spread(-2.0, 0.51, "percent", sign=True) == "-2.0 ± 0.5"
    assert with_spread(2.0, None, "percent") == "2.0"


@pytest.mark.parametrize("width", [110, 150])
def test_the_paper_and_the_measurement_stand_side_by_side(outcome: Outcome, width: int) -> None:
    lines = printed(whole(outcome, width), width)
    assert max(len(line.rstrip()) for line in lines) <= width
    place = next(number for number, line in enumerate(lines) if line.strip().startswith("Global "))
    assert lines[place].split()[:5] == ["Global", "68.34", "70.3", "±", "1.4"]
    assert lines[place + 1].split()[:5] == ["chosen", "round", "38.3", "±", "0.0"]


def test_a_table_that_is_too_wide_is_printed_in_parts(outcome: Outcome) -> None:
    assert len(outcome_tables(outcome, 150)) == 1
    parts = outcome_tables(outcome, 70)
    assert len(parts) == 2
    assert all(len(line.rstrip()) <= 70 for part in parts for line in printed(part, 70))


def test_claims_are_marked_with_their_weakest_link_and_the_chosen_round_where_it_differs(
    outcome: Outcome,
) -> None:
    lines = printed(whole(outcome, 150), 150)
    place = next(number for number, line in enumerate(lines) if "global model is above the distilled" in line)
    assert lines[place].strip().endswith("(4 of 4)")
    first = " ".join(lines[place + 1].split())
    assert first == "✓ shown le = 5, α = 0.5 global − distilled: +3.4 ± 0.0 in 2/2 seeds paper +3.4"
    assert any("chosen round: not shown" in line for line in lines)


def test_markdown_has_both_tables_the_claims_and_the_command(outcome: Outcome) -> None:
    text = markdown(outcome, "polyfed reproduce 000/table2", "table2.png")
    assert "| Global | 68.34 → **70.3 ± 1.4** |" in text
    assert "| Global | 68.34 → **38.3 ± 0.0** |" in text
    assert "| ✓ shown | global − distilled | +3.4 ± 0.0 | 2/2 | +3.4 |" in text
    assert "![measured values beside the paper's](table2.png)" in text
    assert "Repeat it: `polyfed reproduce 000/table2`" in text
    tables = [line for line in text.splitlines() if line.startswith("|")]
    assert {line.count("|") for line in tables} == {6, 9}


def test_figures_are_drawn(outcome: Outcome, tmp_path: Path) -> None:
    assert "<svg" in draw_table(outcome, tmp_path / "table.svg").read_text()
    curves: dict[str, Curve] = {
        "Global": {1: (10.0, 1.0), 2: (20.0, 2.0)},
        "Initial": {0: (5.0, None)},
        "Missing": {},
    }
    path = draw_curves([Panel("le = 5", curves)] * 5, "title " * 40, "accuracy in %", tmp_path / "curves.svg")
    assert "<svg" in path.read_text()
