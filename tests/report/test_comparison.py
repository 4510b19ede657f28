"""Runs beside each other: what is shown, what is left out, and that it is said."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import SMALL, MakeRun
from tests.engines.test_tracebacks import Buggy, place
from tests.report.conftest import Shown

import polyfed
from polyfed.errors import CheckpointError
from polyfed.report.comparison import Comparison, compare_runs
from polyfed.report.tables import amount, percent
from polyfed.runs.history import RunRecord


def cells_of(comparison: Comparison) -> dict[str, dict[str, str]]:
    """A comparison's cells by the run's name and the heading of their column."""
    table = comparison.table()
    headings = [heading.replace("\n", " ") for heading in table.headings]
    return {row.names[0]: dict(zip(headings, row.cells, strict=True)) for row in table.rows}


def run_at(path: Path, **changes: Any) -> Path:
    return polyfed.run({**SMALL, **changes}, out=path, workers=1).path


def test_compared_runs_show_accuracy_bytes_and_the_gain_over_local(records: dict[str, RunRecord]) -> None:
    comparison = compare_runs([records["local"].path, records["fedavg"].path])
    rows = cells_of(comparison)
    local, fedavg = (records[name].summary["last"] for name in ("local", "fedavg"))
    row = rows["fedavg"]
    assert row["own mean"] == percent(fedavg["own"]["mean"])
    assert row["own spread"] == percent(fedavg["own"]["spread"])
    assert row["own worst"] == percent(fedavg["own"]["worst"])
    assert row["all mean"] == percent(fedavg["whole"]["mean"])
    assert row["gain own"] == f"{100 * (fedavg['own']['mean'] - local['own']['mean']):+.1f}"
    assert row["gain all"] == f"{100 * (fedavg['whole']['mean'] - local['whole']['mean']):+.1f}"
    sizes = records["fedavg"].summary["bytes"]["up"]
    assert row["sent per client"] == amount(sum(sizes.values()) / 4)
    assert rows["local"]["sent per client"] == "nothing"
    assert rows["local"]["gain own"] == ""
    assert "rounds" not in row
    assert comparison.notes() == []


def test_a_legend_has_methods_and_folders_only_where_a_method_has_several_runs(
    records: dict[str, RunRecord],
) -> None:
    local, fedavg = records["local"], records["fedavg"]
    runs = {"deep/down/a": local, "deep/down/b": fedavg}
    assert Comparison(runs, {}).by_method() == {"local": local, "fedavg": fedavg}
    again = Comparison({**runs, "deep/up/b": fedavg}, {}).by_method()
    assert list(again) == ["local", "fedavg: deep/down/b", "fedavg: deep/up/b"]


def test_runs_of_other_data_models_or_seed_have_no_gain_and_that_is_said(
    records: dict[str, RunRecord], tmp_path: Path
) -> None:
    seeded = run_at(tmp_path / "seeded", seed=1)
    comparison = compare_runs([records["local"].path, records["fedmd"].path, seeded])
    rows = cells_of(comparison)
    assert {rows[name]["gain own"] for name in ("fedmd", "seeded")} == {""}
    fedmd, other_seed = comparison.notes()
    assert fedmd == "no gain for fedmd: local has other data and other models"
    assert other_seed.startswith("no gain for seeded: local has another seed (a gain is over a local run of")


def test_without_a_local_run_the_rule_of_gains_is_said(records: dict[str, RunRecord]) -> None:
    (note,) = compare_runs([records["fedavg"].path, records["fedmd"].path]).notes()
    assert note.startswith("no gain is shown: a gain is over a local run of the same data")


def test_runs_of_different_length_are_marked_and_not_subtracted(
    records: dict[str, RunRecord], tmp_path: Path
) -> None:
    short = run_at(tmp_path / "short", rounds=2)
    comparison = compare_runs([records["local"].path, records["fedavg"].path, short])
    rows = cells_of(comparison)
    assert [row["rounds"] for row in rows.values()] == ["3", "3", "2"]
    assert rows["short"]["gain own"] == rows["short"]["gain all"] == ""
    assert rows["fedavg"]["gain own"] != ""
    different, no_gain = comparison.notes()
    assert "different numbers of rounds" in different
    assert no_gain.startswith("no gain for short: local has 3 rounds instead of 2")


def test_of_two_local_runs_the_one_of_the_same_length_counts(
    records: dict[str, RunRecord], tmp_path: Path
) -> None:
    short = run_at(tmp_path / "short", method="local", rounds=2)
    rows = cells_of(compare_runs([short, records["local"].path, records["fedavg"].path]))
    gain = records["fedavg"].gain_over(records["local"])
    assert rows["fedavg"]["gain own"] == f"{100 * gain['own']:+.1f}"


def test_a_run_that_has_not_finished_is_left_out_and_named(
    records: dict[str, RunRecord], make_run: MakeRun
) -> None:
    run = make_run("local", name="half")
    run.go(lambda now: now.stop())
    comparison = compare_runs([run.path, records["local"].path])
    assert list(comparison.runs) == ["local"]
    assert comparison.notes() == [
        f"left out: half has not finished; `polyfed resume {run.path}` goes on from round 1"
    ]


def test_if_none_has_finished_that_is_a_mistake(make_run: MakeRun) -> None:
    runs = [make_run("local"), make_run("fedavg")]
    for run in runs:
        run.go(lambda now: now.stop())
    with pytest.raises(CheckpointError, match=r"none of these runs has finished: .* goes on from round 1"):
        compare_runs([run.path for run in runs])


def test_runs_of_one_name_are_told_apart_by_their_folders(
    records: dict[str, RunRecord], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = tmp_path / "first" / "fedavg", tmp_path / "second" / "fedavg"
    for copy in (first, second):
        shutil.copytree(records["fedavg"].path, copy)
    monkeypatch.chdir(second)
    comparison = compare_runs([records["local"].path, first, Path(), first / "../fedavg"])
    assert list(comparison.runs) == ["local", "first/fedavg", "second/fedavg"]


def test_failed_clients_are_below_the_table(make_run: MakeRun) -> None:
    run = make_run(Buggy, name="[bold]buggy")
    run.go()
    comparison = compare_runs([run.path])
    assert comparison.notes() == [
        "[bold]buggy: 1 of 4 clients (client-1) failed in step 'train', rounds 1–3, 3 times:"
        f" KeyError: 'missing' ({place()})",
        f"[bold]buggy: tracebacks are in {run.path / 'failures.log'}",
    ]


@pytest.mark.parametrize("width", [60, 80])
def test_in_a_narrow_terminal_nothing_is_cut(records: dict[str, RunRecord], shown: Shown, width: int) -> None:
    table = compare_runs([record.path for record in records.values()]).table()
    text = shown(table, width)
    words = text.split()
    for row in table.rows:
        assert all(word in words for cell in [*row.names, *row.cells] for word in cell.split())
    assert all(word in words for heading in table.headings for word in heading.split())
    assert "…" not in text
