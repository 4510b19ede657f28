"""What a target costs, in a table, in a figure and on the command line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.conftest import SMALL, Command
from tests.report.conftest import Shown

import polyfed
from polyfed.errors import ConfigError
from polyfed.report.communication import (
    Course,
    courses,
    read_target,
    seldom_evaluated,
    target_table,
    whole_table,
)
from polyfed.report.communication_figure import communication_figure
from polyfed.report.drawing import drawn_by_polyfed
from polyfed.runs.communication import Point
from polyfed.runs.history import RunRecord
from polyfed.tasks import CLASSIFICATION


class Told(Course):
    """A course with points that are told by hand, of runs that are there."""

    told: list[list[Point]]

    @property
    def points(self) -> list[list[Point]]:
        return self.told

    @property
    def measured(self) -> list[tuple[RunRecord, list[Point]]]:
        return list(zip(self.runs, self.told, strict=True))


def told(record: RunRecord, *points: list[Point]) -> Course:
    made = Told("run", "all", [record] * len(points), "whole.mean")
    object.__setattr__(made, "told", list(points))
    return made


def cells(table: Any) -> dict[str, str]:
    (row,) = table.rows
    headings = [heading.replace("\n", " ") for heading in table.headings]
    return dict(zip(headings, row.cells, strict=True))


FAST = [Point(1, 0.5, 2_000_000), Point(2, 0.9, 4_000_000), Point(3, 0.8, 6_000_000)]
SLOW = [Point(1, 0.3, 2_000_000), Point(2, 0.5, 4_000_000), Point(3, 0.7, 6_000_000)]
NEVER = [Point(1, 0.1, 2_000_000), Point(2, 0.2, 4_000_000), Point(3, 0.1, 6_000_000)]
# mlp-small on digits: 4 clients, all in each round, 2 × 4 bytes × 4,810 parameters.
ROUND = 4 * 2 * 4 * 4810


def test_a_single_run_shows_rounds_bytes_the_prediction_and_its_best(records: dict[str, RunRecord]) -> None:
    found = told(records["fedavg"], FAST)
    assert cells(target_table([found], 0.6)) == {
        "accuracy of": "all",
        "rounds to 60 %": "2",
        "bytes to 60 %": "4.0 MB",
        "by Eq. 6": f"{2 * ROUND / 1e3:.1f} kB",
        "best (round)": "90.0 (2)",
    }
    assert cells(whole_table([found])) == {
        "accuracy of": "all",
        "rounds": "3",
        "accuracy in %": "80.0",
        "bytes": "6.0 MB",
        "by Eq. 6": f"{3 * ROUND / 1e3:.1f} kB",
        "% per MB": "13.3",  # 80 % / 6 MB
    }


def test_a_run_that_never_gets_there_is_not_shown_as_nought(records: dict[str, RunRecord]) -> None:
    row = cells(target_table([told(records["fedavg"], NEVER)], 0.625))
    assert row["rounds to 62.5 %"] == "not in 3"
    assert row["bytes to 62.5 %"] == "> 6.0 MB"
    assert row["by Eq. 6"] == f"> {3 * ROUND / 1e3:.1f} kB"
    assert row["best (round)"] == "20.0 (2)"


def test_over_seeds_there_are_mean_and_spread_and_how_many_got_there(records: dict[str, RunRecord]) -> None:
    both = cells(target_table([told(records["fedavg"], FAST, SLOW)], 0.6))
    assert both["seeds there"] == "2 of 2"
    assert both["rounds to 60 %"] == "2.5 ± 0.7"  # 2 and 3: half of √2
    assert both["bytes to 60 %"] == "5.0 ± 1.4 MB"  # 4 and 6
    assert both["best (round)"] == "80.0 ± 14.1"
    some = cells(target_table([told(records["fedavg"], FAST, NEVER)], 0.6))
    assert some["seeds there"] == "1 of 2"
    assert some["rounds to 60 %"] == "> 2.5"  # the other takes more than 3
    assert some["bytes to 60 %"] == "> 5.0 MB"
    none = cells(target_table([told(records["fedavg"], NEVER, NEVER)], 0.6))
    assert (none["seeds there"], none["rounds to 60 %"]) == ("0 of 2", "not in 3")


def test_what_is_measured_follows_the_question(records: dict[str, RunRecord]) -> None:
    groups = {name: [records[name]] for name in ("fedavg", "fedmd")}

    def asked(of: Any) -> list[tuple[str, str]]:
        return [(each.name, each.measure) for each in courses(groups, of)]

    both = [("fedavg", "whole.mean"), ("fedmd", "whole.mean")]
    assert asked(None) == [*both, ("fedmd", "server.global")]
    assert asked("all") == both
    assert asked("own") == [("fedavg", "own.mean"), ("fedmd", "own.mean")]
    assert asked("server") == [("fedavg", "whole.mean"), ("fedmd", "server.global")]


def test_where_no_model_travels_there_is_no_equation_6_and_local_sends_nothing(
    records: dict[str, RunRecord], shown: Shown
) -> None:
    groups = {name: [record] for name, record in records.items()}
    table = whole_table(courses(groups, "all"))
    rows = {row.names[0]: row.cells for row in table.rows}
    assert rows["fedavg"][4] == f"{3 * ROUND / 1e3:.1f} kB"
    assert rows["fedmd"][4] == rows["local"][4] == ""
    assert (rows["local"][3], rows["local"][5]) == ("nothing", "–")
    for each in (table, target_table(courses(groups, None), 0.3)):
        assert max(map(len, shown(each, 80).splitlines())) <= 80


def test_rounds_between_evaluations_are_said(tmp_path: Path) -> None:
    path = polyfed.run({**SMALL, "evaluate": {"every": 3}}, out=tmp_path / "seldom", workers=1).path
    (note,) = seldom_evaluated(courses({"seldom": [RunRecord(path)]}, None))
    assert note == "seldom was evaluated every 3 rounds: it may have been there up to 2 rounds earlier"


@pytest.mark.parametrize("text", ["60", "abc", "nan", "inf", "0", "-0.1", "1.01", ""])
def test_a_target_is_a_share(text: str, command: Command, records: dict[str, RunRecord]) -> None:
    with pytest.raises(ConfigError, match=r"--target .*such as 0\.6"):
        read_target(text, CLASSIFICATION)
    said = command("compare", "--target", text, records["local"].path, "--no-figure")
    assert (said.code, said.err.count("\n")) == (2, 1)
    assert "such as 0.6" in said.err


def test_compare_prints_and_draws_it(command: Command, records: dict[str, RunRecord], tmp_path: Path) -> None:
    paths = [records[name].path for name in ("fedavg", "fedmd", "local")]
    said = command("compare", "--target", "0.2", *paths, "-o", "cost.png")
    assert said.code == 0, said.err
    assert "what 20 % accuracy costs" in said.out
    assert "global (server)" in said.out
    assert drawn_by_polyfed(tmp_path / "cost.png")
    for words, told_so in (
        (("--of", "x", "--target", "0.2"), "--of x: use own"),
        (("--of", "own"), "--of own: give --target too"),
    ):
        wrong = command("compare", *words, *paths)
        assert (wrong.code, wrong.err.count("\n")) == (2, 1)
        assert told_so in wrong.err


def test_a_figure_has_a_line_for_every_setup_that_sends_and_marks_the_target(
    records: dict[str, RunRecord], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    figures: list[Any] = []
    monkeypatch.setattr(
        "polyfed.report.communication_figure.save", lambda figure, _path: figures.append(figure)
    )
    cheap = [Point(point.round, point.score, point.bytes // 100) for point in SLOW]
    found = [
        told(records["fedavg"], FAST, FAST),
        told(records["fedmd"], cheap),
        told(records["local"], NEVER),
    ]
    communication_figure(found, 0.6, tmp_path / "x.png")
    over_rounds, over_bytes = figures[0].axes
    assert over_bytes.get_xscale() == "log"  # a hundred times apart
    fast = over_bytes.lines[0]
    assert list(fast.get_xdata()) == [2.0, 4.0, 6.0]  # megabytes
    assert fast.get_ydata() == pytest.approx([50, 90, 80])
    marks = [line for line in over_bytes.lines if len(line.get_xdata()) == 1]
    assert [(mark.get_xdata()[0], mark.get_ydata()[0]) for mark in marks] == [(4.0, 90), (0.06, 70)]
    assert len([line for line in over_rounds.lines if len(line.get_xdata()) == 3]) == 3
    assert len([line for line in over_bytes.lines if len(line.get_xdata()) == 3]) == 2  # local sends nothing
