"""Tables that fit: nothing is cut, whatever the width."""

from __future__ import annotations

import pytest
from tests.report.conftest import Shown

from polyfed.report.fitting import FittedTable, Row, distinct, shortened

HEADINGS = [f"number\n{letter}" for letter in "abcdefgh"]


def table(*names: str, heads: tuple[str, ...] = ("run",)) -> FittedTable:
    rows = [
        Row(name.split("|"), [f"{1000 * row + column}.5 ± 0.1" for column in range(len(HEADINGS))])
        for row, name in enumerate(names, 1)
    ]
    return FittedTable("numbers", heads, HEADINGS, rows, caption="what they mean")


@pytest.mark.parametrize("width", [40, 60, 80, 120, 200])
def test_every_number_and_every_heading_is_whole_and_once(shown: Shown, width: int) -> None:
    text = shown(table("short", "a-very-long-name-of-a-run-that-goes-on-and-on"), width)
    for row in (1, 2):
        assert all(text.count(f"{1000 * row + column}.5 ± 0.1") == 1 for column in range(8))
    assert all(text.split().count(letter) == 1 for letter in "abcdefgh")
    assert max(map(len, text.splitlines())) <= width


def test_with_room_enough_it_is_one_table() -> None:
    assert len(table("one", "two").tables(200)) == 1
    assert len(table("one", "two").tables(80)) == 2


def test_every_part_begins_with_the_names(shown: Shown) -> None:
    fitted = table("one", "two")
    text = shown(fitted, 60)
    assert text.count("one") == text.count("two") == len(fitted.tables(60)) > 1


def test_the_last_columns_give_way_first() -> None:
    first, *_ = table("one").tables(60)
    shown_first = [str(column.header) for column in first.columns]
    assert shown_first == ["run", *HEADINGS[: len(shown_first) - 1]]


def test_names_that_cannot_be_told_apart_when_shortened_are_whole(shown: Shown) -> None:
    names = [f"the-beginning-is-alike-but-not-{middle}-and-the-end-is-alike-again" for middle in "xy"]
    text = "".join(line[:20].strip() for line in shown(table(*names), 60).splitlines())
    assert all(name in text for name in names)


def test_many_key_columns_become_lines_of_one(shown: Shown) -> None:
    heads = ("data.partition.alpha", "training.weight_decay", "method.temperature")
    wide, narrow = (shown(table("0.1|0.01|2.5", heads=heads), width) for width in (250, 80))
    assert "data.partition.alpha=0.1" not in wide
    for line in ("data.partition.alpha=0.1", "training.weight_decay=0.01", "method.temperature=2.5"):
        assert line in narrow


def test_names_from_outside_are_not_markup(shown: Shown) -> None:
    assert "[red]run[/red]" in shown(table("[red]run[/red]"), 200)


def test_a_long_text_is_shortened_in_the_middle() -> None:
    assert shortened("abcdefghij", 10) == "abcdefghij"
    assert shortened("abcdefghij", 7) == "abc…hij"
    assert distinct(["abcdefghij", "abcdefghik"], 7) == ["abc…hij", "abc…hik"]
    assert distinct(["abcdefghij", "abcxefghij"], 7) == ["abcdefghij", "abcxefghij"]
