"""What is printed: as wide as is asked for, without blanks at the ends of lines, mistakes in one line."""

from __future__ import annotations

import pytest
from rich.table import Table
from tests.conftest import Command

from polyfed.cli.screen import PLAIN_WIDTH, make_screen
from polyfed.experiments import papers
from polyfed.experiments.reproduce import paper_details


@pytest.mark.parametrize(
    ("columns", "width"),
    [
        ("120", 120),
        ("40", 40),
        ("", PLAIN_WIDTH),
        ("0", PLAIN_WIDTH),
        ("-5", PLAIN_WIDTH),
        ("wide", PLAIN_WIDTH),
    ],
)
def test_piped_output_is_as_wide_as_columns_says(
    columns: str, width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    assert make_screen().width == width


def test_piped_lines_do_not_end_with_blanks(capsys: pytest.CaptureFixture[str]) -> None:
    table = Table("name", "a number", box=None)
    table.add_row("one", "1")
    make_screen().print(table, "two  words ")
    lines = capsys.readouterr().out.splitlines()
    assert [line.split() for line in lines[:2]] == [["name", "a", "number"], ["one", "1"]]
    assert lines == [line.rstrip() for line in lines]
    assert "two  words" in lines[-1]


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        (["run"], "polyfed run: Missing argument 'FILE' (see polyfed run --help)"),
        (["rum"], "polyfed: No such command 'rum'"),
        (["run", "--foo"], "polyfed run: No such option: --foo"),
        (["run", "a.yaml", "b.yaml"], "polyfed run: Got unexpected extra argument"),
        (["sweep", "x.yaml", "--seeds", "many"], "polyfed sweep: Invalid value for '--seeds'"),
        (["cost", "--alpha", "3"], "polyfed cost: Invalid value for '--alpha'"),
        (["cost", "--alpha"], "polyfed: Option '--alpha' requires an argument"),
        (["--wrong"], "polyfed: No such option: --wrong"),
        (["reproduce", "000"], "polyfed: no paper '000': there are fedh2l, fedkem, fedkf, fedorion, lwof"),
        (["reproduce", "fedkff/table3"], "polyfed: no paper 'fedkff': there are fedh2l, fedkem, fedkf, fed"),
    ],
)
def test_a_usage_mistake_is_one_line_and_exit_code_2(command: Command, typed: list[str], said: str) -> None:
    found = command(*typed)
    assert (found.code, found.out) == (2, "")
    assert found.err.startswith(said)
    assert found.err.count("\n") == 1


def test_help_and_version_are_no_mistakes(command: Command) -> None:
    assert command("--version").code == command("run", "--help").code == 0
    nothing = command()
    assert "Usage: " in nothing.out + nothing.err


def test_a_paper_in_a_narrow_terminal_keeps_its_keys_whole() -> None:
    for name in papers.known():
        paper = papers.load(name)
        for width in (40, 60, 80):
            console = make_screen()
            with console.capture() as captured:
                console.print(paper_details(paper, width), soft_wrap=True)
            words = captured.get().replace(",", " ").split()
            for table in paper.tables.values():
                keys = {row.key for row in table.rows} | {column.key for column in table.columns}
                assert keys <= set(words), (name, width)
