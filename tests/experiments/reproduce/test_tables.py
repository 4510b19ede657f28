"""A paper's table beside the measured one: how numbers are printed and laid out."""

from __future__ import annotations

import dataclasses
import io
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from polyfed.experiments import papers
from polyfed.experiments.papers.chance import Accuracies
from polyfed.experiments.papers.claims import FindNumber, judge_all
from polyfed.experiments.papers.numbers import Bounded, Number
from polyfed.experiments.papers.results import Cell, MeasuredTable, read_printed
from polyfed.experiments.reproduce.figures import (
    Curve,
    CurvesPanel,
    FeaturesPanel,
    draw_curves,
    draw_features,
    draw_lines,
    draw_table,
)
from polyfed.experiments.reproduce.formats import format_mean, format_number
from polyfed.experiments.reproduce.markdown import markdown
from polyfed.experiments.reproduce.measured import as_json, find_printed
from polyfed.experiments.reproduce.tables import full_report, measured_tables, side_by_side
from polyfed.experiments.reproduce.verdicts import claims_list, format_p, formula

CHOSEN_LESS = 30.0


@pytest.fixture
def measured() -> MeasuredTable:
    return as_if_measured("lwof")


@pytest.fixture
def grouped() -> MeasuredTable:
    return as_if_measured("fedh2l")


def as_if_measured(name: str, key: str = "table2") -> MeasuredTable:
    """A table of a paper as if measured: the paper's numbers and two more, 30 less at the chosen round."""
    paper = papers.load(name)
    table = paper.tables[key]
    cells = {}
    for row in table.rows:
        for column in table.columns:
            number = read_printed(paper, key, row, column.key)
            if not isinstance(number, float):
                assert row.note
                cells[row.key, column.key] = Cell()
                continue
            cells[row.key, column.key] = Cell(
                last={seed: number + 1 + seed for seed in range(3)},
                chosen=dict.fromkeys(range(3), number - CHOSEN_LESS),
            )
    first = "initial" if name == "lwof" else table.rows[0].key
    judged = judge_all(
        paper,
        key,
        last=lambda _table, row, column: cells[row, column].last,
        chosen=lambda _table, row, column: {} if row == first else cells[first, column].chosen,
        printed=find_printed(paper),
    )
    return MeasuredTable(paper, key, "tiny", 3, table.rows, table.columns, cells, judged)


def printed(what: Any, width: int) -> list[str]:
    console = Console(width=width, record=True, file=Path("/dev/null").open("w"))  # noqa: SIM115
    console.print(what)
    console.file.close()
    return console.export_text().splitlines()


def test_numbers_are_printed_in_their_unit() -> None:
    assert format_number(12.345, "percent") == "12.3"
    assert format_number(12.345, "percent", sign=True) == "+12.3"
    assert format_number(2.016, "thousandths") == "2.02"
    assert format_number(-2.016, "hundredths", sign=True) == "-2.02"
    assert format_number(79486, "count") == "79,486"
    assert format_number(1.5e6, "bytes") == "1.5 MB"
    assert format_number(2.5, "number") == "2.5"
    assert format_mean(-2.0, 0.51, "percent", sign=True) == "-2.0 ± 0.5"
    assert format_mean(2.0, None, "percent") == "2.0"


@pytest.mark.parametrize("width", [110, 150])
def test_the_paper_and_the_measurement_stand_side_by_side(measured: MeasuredTable, width: int) -> None:
    lines = printed(full_report(measured, width), width)
    assert max(len(line.rstrip()) for line in lines) <= width
    place = next(number for number, line in enumerate(lines) if line.strip().startswith("Global "))
    assert lines[place].split()[:5] == ["Global", "68.34", "70.3", "±", "1.0"]
    assert lines[place + 1].split()[:5] == ["chosen", "round", "38.3", "±", "0.0"]


def test_a_table_that_is_too_wide_is_printed_in_parts(measured: MeasuredTable) -> None:
    assert len(measured_tables(measured, 150)) == 1
    parts = measured_tables(measured, 70)
    assert len(parts) == 2
    assert all(len(line.rstrip()) <= 70 for part in parts for line in printed(part, 70))


def test_a_claim_has_its_formula_and_in_each_column_mark_mean_p_seeds_and_what_the_paper_has(
    measured: MeasuredTable,
) -> None:
    lines = printed(full_report(measured, 80), 80)
    place = next(
        number for number, line in enumerate(lines) if line.startswith("The global model outperforms")
    )
    assert lines[place + 1].strip() == "global − distilled > 0"
    said = [" ".join(line.split()) for line in lines[place + 2 : place + 10]]
    assert said[0] == "✓ shown le = 5, α = 0.5 +3.4 ± 0.0 ± 0.0 0 3/3 +3.4 ✓"
    assert len([line for line in said if line.startswith("✓ shown")]) == 4
    stricter = [line.rstrip() for line in lines].index("  global − distilled > 3")
    assert any("contradicted" in line and "+2.7 ✗" in line for line in lines[stricter:])


def test_a_claim_names_its_column_even_where_a_single_one_is_shown(measured: MeasuredTable) -> None:
    """Claims are of the whole table: a part of it shows fewer numbers, not fewer claims."""
    part = dataclasses.replace(measured, columns=measured.columns[:1])
    lines = printed(full_report(part, 80), 80)
    assert any("✓ shown" in line and "le = 10, α = 0.1" in line for line in lines)


def test_the_chosen_round_is_printed_where_its_mark_is_another(measured: MeasuredTable) -> None:
    lines = printed(full_report(measured, 80), 80)
    other = [line.split() for line in lines if line.strip().startswith(("‼", "✗")) and "chosen round" in line]
    assert "✗ not shown chosen round +0.0 ± 0.0 ± 0.0 1.00 0/3" in [" ".join(words) for words in other]


@pytest.mark.parametrize("name", ["lwof", "fedh2l"])
def test_at_80_columns_no_line_of_a_claim_is_cut_or_broken(name: str) -> None:
    lines = printed(claims_list(as_if_measured(name), 80), 80)
    assert max(len(line.rstrip()) for line in lines) <= 80
    assert not any("…" in line for line in lines)
    marked = [line for line in lines if line.strip()[:1] in ("✓", "✗", "‼")]
    assert marked
    assert all("/3 " in f"{line} " for line in marked)
    head = next(line for line in lines if line.split() == ["here", "90", "%", "p", "seeds", "paper"])
    assert {line.index("/3") + 2 for line in marked} == {head.index("seeds") + len("seeds")}


def test_how_many_claims_were_judged_is_said_with_the_marks_and_what_chance_would_show(
    measured: MeasuredTable,
) -> None:
    marks = [judged.last.mark for judged in measured.judgements]
    text = " ".join(" ".join(printed(full_report(measured, 150), 150)).split())
    said = f"last round: {len(marks)} of {len(marks)} claims judged: {marks.count('shown')} shown, "
    assert said in text
    assert f"(level 0.05: if none were true, up to {0.05 * len(marks):.2g} of {len(marks)} would be" in text
    assert "chosen round: " in text
    assert said in markdown(measured, "polyfed reproduce lwof/table2", "table2.png")
    counted = as_json(measured)["judged"]
    assert (counted["level"], counted["least seeds"]) == (0.05, 3)
    assert counted["last"]["judged"] == counted["last"]["tested"] == len(marks)
    assert counted["last"]["shown"] == marks.count("shown")


def test_with_two_seeds_nothing_is_judged_and_the_numbers_are_still_shown(measured: MeasuredTable) -> None:
    find = _of_two_seeds(measured)
    judged = judge_all(measured.paper, "table2", last=find, chosen=find, printed=find_printed(measured.paper))
    lines = printed(full_report(dataclasses.replace(measured, judgements=judged), 150), 150)
    text = " ".join(" ".join(lines).split())
    assert f"last round: 0 of {len(judged)} claims judged: {len(judged)} not judged" in text
    assert "? not judged le = 5, α = 0.5 +3.4 ± 0.0 ± 0.0 2/2 +3.4 ✓" in text
    assert "2 of at least 3 seeds" in text
    assert as_json(dataclasses.replace(measured, judgements=judged))["judged"]["last"]["judged"] == 0


@pytest.mark.parametrize("spread", [17.0, 0.1])
def test_power_and_chance_stand_beside_the_verdict_wherever_it_is_written(
    measured: MeasuredTable, spread: float
) -> None:
    """Local epochs "do not affect the global model greatly": within 2 points, which ± 17 could not show."""

    def find(_table: str, row: str, _column: str) -> Number:
        varies = spread if row == "global" else 0.0
        return {seed: 50.0 + (seed - 1) * varies * (1 if "le5" in _column else 2) for seed in range(3)}

    def poor(_table: str, row: str, _column: str) -> list[Accuracies | None]:
        return [Accuracies([0.1, 0.1, 0.1] if row != "global" else [0.5, 0.6, 0.7], 0.1)]

    judged = judge_all(
        measured.paper,
        "table2",
        last=find,
        chosen=lambda *_: {},
        printed=find_printed(measured.paper),
        accuracies={"last": poor},
    )
    known = dataclasses.replace(measured, judgements=judged)
    content = as_json(known)
    found = next(claim for claim in content["claims"] if "Local epochs do not affect" in claim["text"])
    width = 2.9200 * spread / math.sqrt(3)
    assert found["last"]["comparison"]["half_width"] == pytest.approx(width, rel=1e-4)
    assert (found["last"]["mark"], found["last"]["powerless"]) == (
        ("not shown", True) if spread > 1 else ("shown", False)
    )
    texts = [markdown(known, "polyfed reproduce", None), "\n".join(printed(full_report(known, 80), 80))]
    why = f"no power: these seeds can show ± {width:.1f} at best"
    assert all((why in text) is (spread > 1) for text in texts)
    assert all("both within noise of chance (10 %)" in text for text in texts)  # of the other rows
    assert content["judged"]["last"]["without power"] == sum(each.last.powerless for each in judged)
    assert all(("without power" in text) is (spread > 1) for text in texts)


def _of_two_seeds(measured: MeasuredTable) -> FindNumber:
    def find(_table: str, row: str, column: str) -> Number:
        values = measured.cells[row, column].last
        assert isinstance(values, dict)
        return {seed: values[seed] for seed in (0, 1)}

    return find


@pytest.mark.parametrize(
    ("p", "text"),
    [(0.0, "0"), (0.0004, "<0.001"), (0.0123, "0.012"), (0.46, "0.46"), (1, "1.00")],
)
def test_a_p_is_printed_as_far_as_it_matters(p: float, text: str) -> None:
    assert format_p(p) == text


def test_a_formula_says_what_has_to_be_true() -> None:
    assert formula("a − b", 7.28, math.inf) == "a − b > 7.28"
    assert formula("a / b", -math.inf, 3) == "a / b < 3"
    assert formula("a − b", -2, 2) == "-2 < a − b < 2"


def test_markdown_has_both_tables_the_claims_and_the_command(measured: MeasuredTable) -> None:
    text = markdown(measured, "polyfed reproduce lwof/table2", "table2.png")
    assert "| Global | 68.34 → **70.3 ± 1.0** |" in text
    assert "| Global | 68.34 → **38.3 ± 0.0** |" in text
    assert (
        "| global − distilled > 0 | le = 5, α = 0.5 | ✓ shown | +3.4 ± 0.0 | ± 0.0 | 0 | 3/3 | +3.4 holds |"
        in text
    )
    assert "![measured values beside the paper's](table2.png)" in text
    assert "Repeat it: `polyfed reproduce lwof/table2`" in text
    tables = [line for line in text.splitlines() if line.startswith("|")]
    assert {line.count("|") for line in tables} == {6, 11}


def test_figures_are_drawn(measured: MeasuredTable, tmp_path: Path) -> None:
    assert draw_table(measured, tmp_path / "table.svg") is not None
    assert "<svg" in (tmp_path / "table.svg").read_text()
    curves: dict[str, Curve] = {
        "Global": {1: (10.0, 1.0), 2: (20.0, 2.0)},
        "Initial": {0: (5.0, None)},
        "Missing": {},
    }
    path = draw_curves(
        [CurvesPanel("le = 5", curves)] * 5, "title " * 40, "accuracy in %", tmp_path / "curves.svg"
    )
    assert "<svg" in path.read_text()


# -- groups of columns ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("room", "sizes"),
    [
        (158, [15]),  # 15 columns of 10, and 4 gaps of 2 between 5 groups
        (157, [12, 3]),
        (62, [6, 6, 3]),
        (61, [3] * 5),
        (29, [2, 1] * 5),
        (9, [1] * 15),
    ],
)
def test_groups_are_kept_whole_where_that_is_possible(
    grouped: MeasuredTable, room: int, sizes: list[int]
) -> None:
    parts = side_by_side(grouped.columns, {column.key: 10 for column in grouped.columns}, room)
    assert [len(part) for part in parts] == sizes
    assert [column for part in parts for column in part] == list(grouped.columns)


def test_without_groups_as_many_columns_as_fit_are_side_by_side(measured: MeasuredTable) -> None:
    widths = {column.key: 20 for column in measured.columns}
    assert [len(part) for part in side_by_side(measured.columns, widths, 60)] == [3, 1]


@pytest.mark.parametrize(("width", "blocks"), [(110, 5), (150, 3), (210, 2)])
def test_fifteen_columns_are_printed_in_blocks_of_whole_groups(
    grouped: MeasuredTable, width: int, blocks: int
) -> None:
    tables = measured_tables(grouped, width)
    assert len(tables) == blocks
    lines = [line for table in tables for line in printed(table, width)]
    assert max(len(line.rstrip()) for line in lines) <= width
    text = "\n".join(lines)
    for name in ("Avg.", "M0-LeNet", "M20-LeNet", "M40-LeNet", "M60-LeNet"):
        assert text.count(name) == 1
    row = next(line for line in lines if line.strip().startswith("IND "))
    assert row.split()[:4] == ["IND", "68.45", "70.5", "±"]


def test_a_group_may_have_a_long_name(grouped: MeasuredTable) -> None:
    """It makes its middle column wider, and then fewer fit side by side; rows keep their names."""
    columns = tuple(
        column.model_copy(update={"group": f"{column.group}-{'x' * 30}"}) for column in grouped.columns
    )
    table = grouped.table.model_copy(update={"columns": columns})
    paper = grouped.paper.model_copy(update={"tables": {"table2": table}})
    for width in (110, 150):
        lines = [
            line
            for part in measured_tables(dataclasses.replace(grouped, paper=paper, columns=columns), width)
            for line in printed(part, width)
        ]
        assert max(len(line.rstrip()) for line in lines) <= width
        assert sum("M20-LeNet-" + "x" * 30 in line for line in lines) == 1
        assert sum(line.strip().startswith("FedH2L (asynchronous) ") for line in lines) >= 3


def test_claims_name_a_column_with_its_group(grouped: MeasuredTable) -> None:
    lines = printed(full_report(grouped, 150), 150)
    assert any(line.split()[:4] == ["✓", "shown", "Avg.", "ACC"] for line in lines)
    assert any("the round chosen on validation for each client" in line for line in lines)


def test_markdown_has_a_table_for_each_group(grouped: MeasuredTable) -> None:
    text = markdown(grouped, "polyfed reproduce fedh2l/table2", "table2.png")
    assert text.count("**M20-LeNet**") == 2  # at the last round, and as chosen
    assert text.count("|  | ACC | WDP | CDP |") == 10
    assert "| IND | 68.45 → **70.5 ± 1.0** |" in text
    assert "At the round chosen on validation for each client (never on test data):" in text


def test_other_figures_are_drawn(grouped: MeasuredTable, tmp_path: Path) -> None:
    assert draw_table(grouped, tmp_path / "table.svg") is not None
    assert "<svg" in (tmp_path / "table.svg").read_text()
    curves: dict[str, Curve] = {"CE": {50: (2.0, 0.1), 100: (1.0, 0.1)}, "Missing": {}}
    panels = [CurvesPanel("Losses", curves, "loss"), CurvesPanel("Accuracy", curves, "accuracy in %")]
    lines = draw_lines(panels, "title " * 40, "local steps", tmp_path / "lines.svg")
    assert "<svg" in lines.read_text()
    clouds = [FeaturesPanel("IND (80 % of the variance)", np.arange(12.0).reshape(6, 2))] * 3
    for classes in (3, 12):
        names = [str(number) for number in range(classes)]
        path = draw_features(clouds, np.arange(6) % 3, names, "title", tmp_path / f"features-{classes}.svg")
        assert "<svg" in path.read_text()


def test_a_target_that_was_not_reached_is_said_wherever_the_number_is(
    measured: MeasuredTable, tmp_path: Path
) -> None:
    place = next(key for key, cell in measured.cells.items() if cell.last != {})
    cell = Cell(last={0: 10.0, 1: Bounded(20, low=20), 2: 12.0})
    known = dataclasses.replace(measured, cells={**measured.cells, place: cell})
    assert "> 14.0 (2 of 3)" in markdown(known, "polyfed reproduce", None)
    said = Console(width=200, record=True, file=io.StringIO())
    said.print(full_report(known, 200))
    assert "> 14.0 (2 of 3)" in said.export_text()
    rows = {row["key"]: row["cells"] for row in as_json(known)["rows"]}
    found = rows[place[0]][place[1]]["last"]
    assert (found["seeds"], found["not reached"]) == ({0: 10.0, 1: 20.0, 2: 12.0}, [1])
    assert "not reached" not in json.dumps(as_json(measured), allow_nan=False)
    json.dumps(as_json(known), allow_nan=False)
    assert draw_table(known, tmp_path / "x.png") is not None
