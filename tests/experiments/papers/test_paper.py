"""A paper's file: what it may hold, and that a mistake is found when it is read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.experiments.conftest import Write

from polyfed.errors import ConfigError
from polyfed.experiments import papers
from polyfed.experiments.papers import Paper
from polyfed.experiments.papers.claims import check_printed
from polyfed.experiments.papers.paper import PrintedNumber
from polyfed.experiments.papers.terms import columns_judged, runs_for
from polyfed.experiments.reproduce.measured import find_printed
from polyfed.experiments.reproduce.plan import plan_reproduction


def set_at(content: Any, path: str, value: Any) -> None:
    *parents, last = path.split(".")
    for part in parents:
        content = content[int(part) if part.isdecimal() else part]
    content[int(last) if last.isdecimal() else last] = value


MISTAKES: dict[str, tuple[str, Any, str]] = {
    "unknown key": (
        "tables.main.rows.0.mesure",
        "x",
        "tables.main.rows.0.mesure: unknown key, did you mean 'measure'?",
    ),
    "unknown run": (
        "tables.main.rows.0.run",
        "alnoe",
        "rows.alone.run: no run 'alnoe', did you mean 'alone'?",
    ),
    "no run's scale": (
        "scales.tiny.runs.togehter",
        {},
        "scales.tiny.runs: no run 'togehter', did you mean 'together'?",
    ),
    "no run in a setting": (
        "settings.even.runs",
        {"alnoe": {}},
        "settings.even.runs: no run 'alnoe', did you mean 'alone'?",
    ),
    "a margin in several units": (
        "tables.domains",
        {
            "title": "x",
            "columns": [
                {"key": "amp", "setting": "even", "measure": "amp"},
                {"key": "fm", "setting": "even", "measure": "fm", "unit": "thousandths"},
            ],
            "rows": [{"key": "a", "name": "A", "run": "alone"}, {"key": "b", "name": "B", "run": "together"}],
            "claims": [{"text": "x", "order": ["a", "b"], "margin": 1}],
        },
        "percent and thousandths cannot be compared",
    ),
    "no setting's scale": ("scales.tiny.settings.odd", {}, "scales.tiny.settings: no setting 'odd'"),
    "unknown column": ("tables.main.columns.0", "eve", "no setting 'eve', did you mean 'even'?"),
    "a column twice": ("tables.main.columns.1", "even", "tables.main.columns: 'even' appears 2 times"),
    "a row twice": ("tables.main.rows.1.key", "alone", "tables.main.rows: 'alone' appears 2 times"),
    "a number for no column": (
        "tables.main.rows.0.paper.evn",
        1,
        "rows.alone.paper: no column 'evn', did you mean 'even'?",
    ),
    "no number": ("tables.main.rows.0.paper.even", "many", "as the paper prints it"),
    "no measure": ("tables.main.rows.0.measure", None, "no measure, neither here nor in column 'even'"),
    "an odd measure": ("tables.main.rows.0.measure", "accuracy", "tables.main.rows.0.measure:"),
    "no such row to subtract": (
        "tables.main.rows.2.difference",
        ["together", "alon"],
        "rows.gain.difference: no measured row 'alon', did you mean 'alone'?",
    ),
    "a difference of itself": (
        "tables.main.rows.2.difference",
        ["gain", "alone"],
        "no measured row 'gain'",
    ),
    "no such row to divide by": (
        "tables.traffic.rows.2.ratio",
        ["all", "rond"],
        "rows.rounds.ratio: no measured row 'rond', did you mean 'round'?",
    ),
    "a ratio of itself": ("tables.traffic.rows.2.ratio", ["all", "rounds"], "no measured row 'rounds'"),
    "no such scale": (
        "tables.traffic.scales",
        ["tinny"],
        "tables.traffic.scales: no scale 'tinny', did you mean 'tiny'?",
    ),
    "two things at once": ("tables.main.rows.2.run", "alone", "one of: run, difference, ratio, parameters"),
    "no such model": ("tables.sizes.rows.0.parameters", {"mlp-smal": 1}, "did you mean 'mlp-small'?"),
    "no inputs": ("tables.sizes.inputs", None, "needs `inputs`"),
    "a run without a setting": (
        "tables.sizes.rows.0",
        {"key": "one", "name": "x", "run": "alone"},
        "has no setting",
    ),
    "no term": ("tables.main.claims.0.order.0", "together > alone", "does not name a number"),
    "no row of that name": (
        "tables.main.claims.0.order.0",
        "togehter",
        "no row 'togehter', did you mean 'together'?",
    ),
    "no table of that name": (
        "tables.main.claims.0.order.0",
        "man.alone",
        "no table 'man', did you mean 'main'?",
    ),
    "no column of that name": (
        "tables.main.claims.1.order.0",
        "gain@skwed",
        "no column 'skwed', did you mean 'skewed'?",
    ),
    "not in the other table": (
        "tables.main.claims.0.order.0",
        "cost.together",
        "cost.together: no column 'even'",
    ),
    "only nowhere": ("tables.main.claims.0.only", ["od"], "claims.0.only: no column 'od'"),
    "only without effect": ("tables.main.claims.1.only", ["even"], "leave out `only`"),
    "apples and pears": (
        "tables.main.claims.1.order.0",
        "cost.together@up",
        "bytes and percent cannot be compared",
    ),
    "half a claim": ("tables.sizes.claims.0.at_most", None, "ratio goes with at_least or at_most"),
    "two claims": ("tables.sizes.claims.0.order", ["four", "one"], "one of: order, ratio, value, near"),
    "near what": (
        "tables.main.claims.0",
        {"text": "x", "near": ["alone", "together"]},
        "near and within go together",
    ),
    "one term": ("tables.main.claims.0.order", ["alone"], "claims.0.order: an order has two terms"),
    "a chain": (
        "tables.main.claims.0.order",
        ["together", "alone", "alone"],
        "tables.main.claims.0.order: an order has two terms: write a chain as several claims",
    ),
    "a value without a bound": (
        "tables.main.claims.0",
        {"text": "x", "value": "alone"},
        "ratio goes with at_least or at_most, and so does value",
    ),
    "a bound of an order": ("tables.main.claims.0.at_least", 3, "so does value"),
    "a margin of a ratio": ("tables.sizes.claims.0.margin", 3, "margin belongs to order or near"),
    "a difference from no table": (
        "tables.main.rows.2.difference",
        ["together", "man.alone"],
        "rows.gain.difference: no table 'man', did you mean 'main'?",
    ),
    "a difference from another column": (
        "tables.main.rows.2.difference",
        ["together", "cost.together"],
        "rows.gain.difference: cost.together: no column 'even'",
    ),
    "a difference of apples and pears": (
        "tables.main.rows.1.unit",
        "bytes",
        "rows.gain.difference: bytes and percent cannot be compared",
    ),
    "curves of no table": (
        "figures.curves.table",
        "man",
        "figures.curves.table: no table 'man', did you mean 'main'?",
    ),
    "curves of no run": ("figures.curves.rows", ["gain"], "no row with a run 'gain'"),
    "who holds what of no run": ("figures.who.run", "x", "figures.who.run: no run 'x'"),
    "lines of no run": ("figures.steps.panels.0.lines.1.run", "x", "figures.steps.panels.0: no run 'x'"),
    "lines in no setting": ("figures.steps.setting", "odd", "figures.steps.setting: no setting 'odd'"),
    "features of no run": ("figures.seen.runs", {"x": "X"}, "figures.seen.runs: no run 'x'"),
    "features in no setting": ("figures.seen.setting", "odd", "figures.seen.setting: no setting 'odd'"),
    "no scale of a figure": ("figures.seen.scales", ["big"], "figures.seen.scales: no scale 'big'"),
    "a figure of another kind": ("figures.seen.kind", "picture", "figures.seen"),
    "two of one name": (
        "figures.main",
        {"kind": "curves", "title": "x", "table": "main", "rows": ["alone"]},
        "figures.main",
    ),
    "no scale": ("scales", {}, "scales:"),
    "rounds in per cent": (
        "tables.main.rows.0.measure",
        "rounds_to.0.6.whole.mean",
        "rounds_to.0.6.whole.mean is no number in percent: set unit: count",
    ),
    "a target above all": ("tables.main.rows.0.measure", "rounds_to.60.whole.mean", "measure"),
}


@pytest.mark.parametrize("what", list(MISTAKES))
def test_a_mistake_is_one_line_that_says_where(what: str, content: dict[str, Any], written: Write) -> None:
    path, value, hint = MISTAKES[what]
    set_at(content, path, value)
    with pytest.raises(ConfigError) as caught:
        papers.load(written(content))
    message = str(caught.value)
    assert hint in message
    assert "mine.yaml: " in message
    assert "\n" not in message


def test_a_file_that_is_missing_or_not_yaml_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no file .*nowhere\.yaml"):
        papers.load(str(tmp_path / "nowhere.yaml"))
    (tmp_path / "bad.yaml").write_text("a: [1,\nb")
    with pytest.raises(ConfigError, match="is not YAML"):
        papers.load(str(tmp_path / "bad.yaml"))
    with pytest.raises(ConfigError, match="no paper 'fedkff': there are fedh2l, fedkem"):
        papers.load("fedkff")


@pytest.mark.parametrize(
    ("given", "text", "value"),
    [
        (79.29, "79.29", 79.29),
        ("76.00", "76.00", 76.0),
        ("79k", "79k", 79e3),
        ("4.7m", "4.7m", 4.7e6),
        ("2.06 GB", "2.06 GB", 2.06e9),
        ("10e6", "10e6", 1e7),
        ("74.78 ± 0.68", "74.78 ± 0.68", 74.78),
    ],
)
def test_numbers_keep_the_form_that_the_paper_gives_them(given: Any, text: str, value: float) -> None:
    printed = PrintedNumber.model_validate(given)
    assert printed.text == text
    assert printed.value == pytest.approx(value)


def test_a_column_is_a_setting_or_more_than_that(fake: Paper) -> None:
    even, skewed = fake.tables["main"].columns
    assert (even.key, even.setting, fake.column_name(skewed)) == ("even", "even", "α = 0.3")
    up = fake.tables["cost"].columns[0]
    assert (up.setting, up.measure, fake.column_name(up)) == ("even", "bytes.up", "sent")


def test_a_setting_may_set_what_single_runs_have_under_it(content: dict[str, Any], written: Write) -> None:
    """Above what is set for all runs, and below what a scale says."""
    content["settings"]["even"] = {
        "name": "all alike",
        "set": {"training": {"lr": 0.2, "batch": 8}},
        "runs": {"together": {"training": {"lr": 0.3, "epochs": 5}}},
    }
    paper = papers.load(written(content))
    assert paper.config("alone", "even", "paper", 0)["training"] == {"epochs": 1, "batch": 8, "lr": 0.2}
    assert paper.config("together", "even", "paper", 0)["training"] == {"batch": 8, "lr": 0.3, "epochs": 5}
    assert paper.config("together", "even", "tiny", 0)["training"] == {"batch": 8, "lr": 0.3, "epochs": 2}
    assert paper.config("together", "skewed", "paper", 0)["training"] == {"epochs": 1, "batch": 16, "lr": 0.1}


def test_an_order_is_judged_in_columns_of_different_units(content: dict[str, Any], written: Write) -> None:
    set_at(content, "tables.domains.claims", [{"text": "x", "order": ["alone", "together"]}])
    set_at(content, "tables.domains.columns.0.unit", "thousandths")
    paper = papers.load(written(content))
    units = {paper.tables["domains"].column_unit(column) for column in paper.tables["domains"].columns}
    assert units == {"percent", "thousandths"}


def test_a_column_of_a_group_is_named_by_both(fake: Paper) -> None:
    column = fake.tables["domains"].column("first-whole")
    assert (fake.column_name(column), fake.short_name(column)) == ("The first whole", "whole")
    assert fake.tables["domains"].groups and not fake.tables["main"].groups


def test_a_table_may_be_limited_to_some_scales(fake: Paper) -> None:
    assert fake.scales_of(fake.tables["traffic"]) == ("tiny",)
    assert fake.scales_of(fake.tables["main"]) == ("paper", "tiny")


def test_a_ratio_is_a_plain_number_of_the_runs_of_both_its_rows(fake: Paper) -> None:
    table = fake.tables["traffic"]
    column = table.column("sent")
    assert [table.unit_of(row, column) for row in table.rows] == ["bytes", "bytes", "number"]
    assert set(runs_for(fake, "traffic", table.row("rounds"), "sent")) == {("together", "even")}


def test_a_difference_needs_the_runs_of_both_its_rows(fake: Paper) -> None:
    table = fake.tables["main"]
    runs = runs_for(fake, "main", table.row("gain"), "skewed")
    assert list(runs) == [("together", "skewed"), ("alone", "skewed")]


def test_the_example_of_the_documentation_loads(tmp_path: Path) -> None:
    text = (Path(__file__).parents[3] / "docs" / "your-own.md").read_text()
    example = text.partition("## Your own table")[2].partition("```yaml\n")[2].partition("```")[0]
    (tmp_path / "mine.yaml").write_text(example)
    plan = plan_reproduction(f"{tmp_path}/mine.yaml/gain", out=tmp_path)
    assert len(plan.jobs) == 2 * 2 * 3
    for claim in plan.paper.tables["gain"].claims:
        for place in columns_judged(claim, "gain", plan.paper):
            assert check_printed(claim, "gain", place, find_printed(plan.paper)).holds


def test_the_order_is_base_run_setting_scale_and_seed() -> None:
    """Each layer says what it is in a key that all above it set too: the last to speak is heard."""
    layers = ["base", "run", "setting", "all", "this-run", "this-setting"]
    said = [
        {"method": {f"from-{place}": layer for place in range(number, 7)}}
        for number, layer in enumerate(layers)
    ]
    paper = Paper.model_validate(
        {
            "id": "x",
            "title": "t",
            "cite": "c",
            "base": said[0],
            "runs": {"r": said[1]},
            "settings": {"s": {"name": "S", "set": said[2]}},
            "scales": {"tiny": {"set": said[3], "runs": {"r": said[4]}, "settings": {"s": said[5]}}},
        }
    )
    config = paper.config("r", "s", "tiny", 7)
    assert [config["method"][f"from-{place}"] for place in range(7)] == [*layers, "this-setting"]
    assert (config["name"], config["seed"]) == ("r-s-7", 7)
