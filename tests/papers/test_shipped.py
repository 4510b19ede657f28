"""The papers that come along: every one loads, every run's config holds, every claim is true of the paper's numbers."""

from __future__ import annotations

import pytest

from polyfed import papers
from polyfed.papers import Paper
from polyfed.papers.claims import judge
from polyfed.papers.results import count_parameters
from polyfed.papers.terms import places_of, terms_of
from polyfed.reproduce.outcome import printed_look
from polyfed.reproduce.plan import config_of, make_plan

SHIPPED = papers.known()


@pytest.fixture(params=SHIPPED)
def paper(request: pytest.FixtureRequest) -> Paper:
    return papers.load(request.param)


def test_there_are_papers_000_and_004() -> None:
    assert {"000", "004"} <= set(SHIPPED)


def test_every_config_at_every_scale_passes_the_checks_of_a_run_file(paper: Paper) -> None:
    for scale in paper.scales:
        for run in paper.runs:
            for setting in paper.settings:
                config_of(paper, run, setting, scale, seed=1)


def test_every_table_and_figure_can_be_planned_at_every_scale(paper: Paper) -> None:
    for key, item in {**paper.tables, **paper.figures}.items():
        for scale in paper.scales_of(item):
            assert make_plan(f"{paper.id}/{key}", scale=scale, seeds=1).paper == paper


def test_every_claim_holds_on_the_papers_own_numbers(paper: Paper) -> None:
    """Where it prints them: of a ratio it may print the ratio alone."""
    for key, table in paper.tables.items():
        for claim in table.claims:
            for place in places_of(claim, key, paper):
                printed = any(paper.tables[term.table].row(term.row).paper for term in terms_of(claim, key))
                expected = "shown" if printed or not claim.ratio else "not measured"
                assert judge(claim, key, place, printed_look(paper)).mark == expected, (claim.text, place)


def test_differences_add_up_in_the_paper(paper: Paper) -> None:
    for table in paper.tables.values():
        for row in table.rows:
            if row.difference is not None:
                first, second = (table.row(key) for key in row.difference)
                for column, number in row.paper.items():
                    difference = first.paper[column].value - second.paper[column].value
                    assert number.value == pytest.approx(difference, abs=0.011), (row.key, column)


def test_what_is_scaled_is_said(paper: Paper) -> None:
    for scale in paper.scales.values():
        assert bool(scale.says) == bool(scale.set or scale.runs or scale.settings)


def test_000_table_1_counts_what_the_paper_prints() -> None:
    """Up to the paper's own rounding; its totals of FedAvg are those of WRN-34-1."""
    table = papers.load("000").tables["table1"]
    for row in table.rows:
        assert row.parameters is not None
        counted = count_parameters(table, row.parameters)
        printed = row.paper["parameters"]
        unit = 1e6 if printed.text.endswith("m") else 1e3
        slip = row.key in ("fedavg-40", "fedavg-60", "fedavg-100")
        assert (abs(counted - printed.value) <= (0.05 if unit == 1e6 else 0.51) * unit) != slip, row.key
