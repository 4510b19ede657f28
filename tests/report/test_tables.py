"""Tables for the terminal: that they show what run directories hold."""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console
from rich.table import Table
from tests.conftest import SMALL
from tests.report.conftest import Shown

import polyfed
from polyfed.errors import ConfigError
from polyfed.report import tables
from polyfed.report.measures import Measure, further_measures
from polyfed.report.sweeps import with_spread
from polyfed.report.tables import (
    amount,
    compare_further,
    confusion_table,
    data_table,
    method_summaries,
    methods_table,
    models_table,
    partition_table,
    percent,
    result_table,
    signed,
)
from polyfed.runs.history import RunRecord


def rows_of(table: Table) -> dict[str, dict[str, str]]:
    """A table's cells by the first cell of their row and the heading of their column, in one line."""
    headings = [str(column.header).replace("\n", " ") for column in table.columns]
    rows = zip(*(map(str, column.cells) for column in table.columns), strict=True)
    return {row[0]: dict(zip(headings, row, strict=True)) for row in rows}


def test_a_gain_has_its_sign_and_nothing_is_not_a_loss() -> None:
    assert [signed(gain) for gain in (0.0123, -0.0123, -0.0004, 0.0, None)] == [
        "+1.2",
        "-1.2",
        "+0.0",
        "+0.0",
        "",
    ]


# -- one run -------------------------------------------------------------------------------------------------


def test_a_result_shows_the_last_and_the_chosen_round_and_the_gain(records: dict[str, RunRecord]) -> None:
    record = records["fedavg"]
    rows = rows_of(result_table(record, records["local"]))
    summary = record.summary
    chosen = f"chosen on validation ({summary['chosen']['round']})"
    for title, part in (("own test data", "own"), ("whole test set", "whole")):
        for what in ("mean", "worst", "best", "spread"):
            row = rows[f"{title}, {what}"]
            assert row["last round (3)"] == percent(summary["last"][part][what])
            assert row[chosen] == percent(summary["chosen"][part][what])
    gain = record.gain_over(records["local"])["whole"]
    assert rows["gain over local, whole"]["last round (3)"] == f"{100 * gain:+.1f}"
    assert f"weights {amount(summary['bytes']['up']['weights'])}" in rows["bytes up"]["last round (3)"]
    assert "failed client steps" not in rows


def test_a_result_shows_what_was_measured_at_the_stages_of_a_round(records: dict[str, RunRecord]) -> None:
    record = records["fedmd"]
    rows = {name: row["last round (3)"] for name, row in rows_of(result_table(record, None)).items()}
    last = record.summary["last"]
    initial = record.preparation["stages"]["initial"]["whole"]["mean"]
    distilled, personalised = (
        last["stages"][stage]["whole"]["mean"] for stage in ("distilled", "personalised")
    )
    assert rows["initial, whole test set"] == percent(initial)
    assert rows["global (server), whole test set"] == percent(last["server"]["global"])
    assert rows["distilled, whole test set"] == percent(distilled)
    assert rows["gap (distilled − personalised)"] == percent(distilled - personalised)
    assert not any(name.startswith("gain") for name in rows)


def test_a_gap_is_between_the_stages_in_the_order_of_the_run(tmp_path: Path) -> None:
    """DS-FL's clients train first and distil then: the other way round than FedMD's."""
    data = {**SMALL["data"], "public": {"source": "share", "share": 0.2}}
    method = {"name": "dsfl", "public_rows": 40}
    polyfed.run({**SMALL, "data": data, "method": method}, out=tmp_path / "run", workers=1)
    record = RunRecord(tmp_path / "run")
    rows = rows_of(result_table(record, None))
    stages = record.summary["last"]["stages"]
    lost = stages["personalised"]["whole"]["mean"] - stages["distilled"]["whole"]["mean"]
    assert [name for name in rows if name.startswith("gap")] == ["gap (personalised − distilled)"]
    assert rows["gap (personalised − distilled)"]["last round (3)"] == percent(lost)


def test_a_stage_that_was_measured_on_own_rows_alone_is_shown_with_those(
    records: dict[str, RunRecord],
) -> None:
    record = records["fedavg"]
    rows = rows_of(result_table(record, None))
    trained = record.summary["last"]["stages"]["trained"]["own"]["mean"]
    assert rows["trained, own test data"]["last round (3)"] == percent(trained)
    assert "trained, whole test set" not in rows


def test_compared_runs_show_their_stages_and_servers_models(records: dict[str, RunRecord]) -> None:
    table = compare_further(records)
    assert table is not None
    cells = list(zip(*(map(str, column.cells) for column in table.columns), strict=True))
    last, chosen = (records["fedmd"].summary[when] for when in ("last", "chosen"))
    row = (
        "global (server), whole test set",
        "fedmd",
        *(percent(at["server"]["global"]) for at in (last, chosen)),
    )
    assert row in cells
    assert {name for _, name, *_ in cells} == {"fedavg", "fedmd"}
    assert compare_further({"local": records["local"]}) is None


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> RunRecord:
    """A run with metrics beside accuracy."""
    content = {**SMALL, "rounds": 1, "evaluate": {"metrics": "all"}}
    return RunRecord(polyfed.run(content, out=tmp_path_factory.mktemp("runs") / "run", workers=1).path)


def test_a_result_shows_the_metrics_that_were_asked_for(measured: RunRecord) -> None:
    rows = {name: row["last round (1)"] for name, row in rows_of(result_table(measured, None)).items()}
    metrics = measured.summary["last"]["metrics"]
    for title, name in (
        ("balanced accuracy", "balanced-accuracy"),
        ("macro-F1", "macro-f1"),
        ("AUC", "auc"),
        ("calibration error", "calibration-error"),
    ):
        for where, part in (("own test data", "own"), ("whole test set", "whole")):
            found = metrics[part][name]
            shown = f"{percent(found['mean'])} / {percent(found['worst'])}"
            assert rows[f"{title}, {where} (mean / worst)"] == shown


def test_a_metric_that_is_no_share_is_shown_as_it_is_and_its_worst_is_the_largest(
    measured: RunRecord,
) -> None:
    rows = {name: row["last round (1)"] for name, row in rows_of(result_table(measured, None)).items()}
    found = measured.summary["last"]["metrics"]["own"]["log-loss"]
    assert found["worst"] > found["mean"] > found["best"]
    shown = f"{found['mean']:.4g} / {found['worst']:.4g}"
    assert rows["log loss (a number), own test data (mean / worst)"] == shown
    further = compare_further({"run": measured})
    assert further is not None
    cells = list(zip(*(map(str, column.cells) for column in further.columns), strict=True))
    assert ("log loss (a number), own test data", "run", f"{found['mean']:.4g}") == next(
        cell[:3] for cell in cells if cell[0] == "log loss (a number), own test data"
    )
    assert (
        with_spread((0.51234, 0.01), known_measure(measured, "metrics.own.log-loss").shown) == "0.5123 ± 0.01"
    )


def known_measure(record: RunRecord, key: str) -> Measure:
    return next(measure for measure in further_measures(record, "last") if measure.key == key)


def test_a_confusion_matrix_is_shown_where_there_is_one(
    measured: RunRecord, records: dict[str, RunRecord], monkeypatch: pytest.MonkeyPatch
) -> None:
    table = confusion_table(measured)
    assert table is not None
    counts = measured.summary["last"]["metrics"]["own"]["confusion"]
    for kind, row in rows_of(table).items():
        expected = {"": kind, **{str(place): str(count) for place, count in enumerate(counts[int(kind)])}}
        assert {name: cell.replace("·", "0") for name, cell in row.items()} == expected
    assert confusion_table(records["fedavg"]) is None
    monkeypatch.setattr(tables, "MOST_CLASSES", 9)
    assert confusion_table(measured) is None


@pytest.mark.parametrize("width", [60, 80])
def test_in_a_narrow_terminal_no_number_of_a_result_is_cut(
    records: dict[str, RunRecord], shown: Shown, width: int
) -> None:
    table = result_table(records["fedmd"], records["local"])
    text = shown(table, width)
    words = text.split()
    for column in table.columns:
        for cell in [column.header, *column.cells]:
            assert all(word in words for word in str(cell).split())
    assert "…" not in text
    assert max(map(len, text.splitlines())) <= width


# -- lists ---------------------------------------------------------------------------------------------------


def test_methods_are_listed_with_what_each_declares() -> None:
    rows = rows_of(methods_table())
    assert rows["local"]["leaves a client"] == "nothing"
    assert rows["pooled"]["leaves a client"] == "all data"
    assert (rows["fedavg"]["weights travel"], rows["fedavg"]["different models"]) == ("yes", "in groups")
    assert (rows["fedmd"]["weights travel"], rows["fedmd"]["different models"]) == ("no", "yes")
    assert rows["fedmd"]["public data"] == "labelled"
    assert rows["fedh2l"]["server"] == "no"


def printed(table: Table, width: int = 80) -> str:
    console = Console(width=width, file=io.StringIO())
    with console.capture() as capture:
        console.print(table)
    return capture.get()


@pytest.mark.parametrize(
    "make",
    [
        lambda: methods_table(in_short=False),
        method_summaries,
        lambda: models_table("resnet*", (3, 32, 32), 10, "batch"),
        data_table,
    ],
    ids=["methods", "summaries", "models", "data"],
)
def test_lists_can_be_read_at_80_columns(make: Callable[[], Table]) -> None:
    table = make()
    said = printed(table)
    assert "…" not in said
    assert max(map(len, said.splitlines())) <= 80
    assert len(said.splitlines()) <= 3 * table.row_count + 6  # no column of a word per line
    first = [str(cell) for cell in table.columns[0].cells]
    assert [name for name in first if not re.search(rf"^ *{re.escape(name)} ", said, re.MULTILINE)] == []


def test_models_are_listed_by_wildcard_with_their_sizes() -> None:
    table = models_table("resnet8*", (3, 32, 32), 10, "batch")
    assert table.title == "models for 3x32x32 inputs and 10 classes"
    assert rows_of(table)["resnet8"]["parameters"] == "75,290"
    with pytest.raises(ConfigError, match=r"no model is called 'nothing\*'"):
        models_table("nothing*", (3, 32, 32), 10, "batch")


def test_data_sets_are_listed_with_where_they_come_from() -> None:
    assert "comes with polyfed" in rows_of(data_table())["digits"]["from"]


def test_a_partition_shows_every_class_where_these_are_few() -> None:
    rows = rows_of(partition_table(np.array([[5, 0], [1, 2]]), ["cat", "dog"], ["mlp", "cnn"]))
    assert rows["0"] == {
        "client": "0",
        "model": "mlp",
        "samples": "5",
        "classes": "1",
        "cat": "5",
        "dog": "·",
    }
    assert rows["1"]["dog"] == "2"


def test_a_partition_of_many_classes_and_clients_is_abridged() -> None:
    counts = np.ones((60, 25), dtype=int)
    counts[:, 3] = 26
    table = partition_table(counts, [str(number) for number in range(25)], ["mlp"] * 60)
    rows = rows_of(table)
    assert len(rows) == 51
    assert rows["7"]["largest class"] == "52.0 %"
    assert rows["…"]["model"] == "10 more"
    assert table.title == "60 clients, 3000 samples"


# -- numbers -------------------------------------------------------------------------------------------------


def test_bytes_are_in_decimal_units() -> None:
    sizes = (0, 999, 1000, 1_234_567, 5e9, 7.5e12)
    assert [amount(size) for size in sizes] == ["0 B", "999 B", "1.0 kB", "1.2 MB", "5.0 GB", "7500.0 GB"]


def test_a_share_that_is_not_known_is_a_dash() -> None:
    assert (percent(0.8125), percent(None)) == ("81.2", "–")
