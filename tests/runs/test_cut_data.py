"""A user's own data in a run: what is warned of at set-up, and what a run without test rows says."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.conftest import Command

import polyfed
from polyfed.runs.config import read_config
from polyfed.runs.cut_data import CutData
from polyfed.seeds import Seeds

ROWS = 90


def clinics(path: Path, **cells: tuple[int, str]) -> Path:
    """A table of three clinics. cells: other contents of single cells, as column=(row, content)."""
    rng = np.random.default_rng(0)
    table: dict[str, list[Any]] = {
        "patient_id": [1000 + row for row in range(ROWS)],
        "age": rng.integers(20, 90, ROWS).tolist(),
        "bmi": rng.normal(25, 4, ROWS).round(2).tolist(),
        "smoker": ["true" if row % 3 else "false" for row in range(ROWS)],
        "city": ["Ulm" if row % 2 else "Bonn" for row in range(ROWS)],
        "clinic": [("north", "south", "west")[row % 3] for row in range(ROWS)],
        "diagnosis": rng.integers(1, 3, ROWS).tolist(),
    }
    for column, (row, content) in cells.items():
        table[column][row] = content
    lines = [",".join(map(str, row)) for row in zip(*table.values(), strict=True)]
    path.write_text("\n".join([",".join(table), *lines]) + "\n")
    return path


def run_file(path: Path, **data: Any) -> dict[str, Any]:
    content = {
        "source": str(path),
        "label": "diagnosis",
        "partition": {"kind": "natural", "column": "clinic"},
        "drop": ["city", "patient_id"],
    }
    return {"rounds": 2, "models": {"names": ["mlp-small"]}, "data": content | data}


def made(content: dict[str, Any], given: Any = None) -> CutData:
    config = read_config(content)
    return CutData(config, Seeds(0), given)


def test_dropped_columns_and_the_clients_column_are_not_learnt_from(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    federated = made(run_file(clinics(tmp_path / "c.csv")))
    assert federated.dataset.features == ("age", "bmi", "smoker")
    assert federated.dataset.classes == ("1", "2")
    assert len(federated.names) == 3
    assert caplog.text == ""


def test_an_id_that_is_learnt_from_is_warned_of_at_every_set_up(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    content = run_file(clinics(tmp_path / "c.csv"), drop=["city"])
    for _ in range(2):
        caplog.clear()
        made(content)
        (warning,) = caplog.records
        assert warning.levelno == logging.WARNING
        assert "column 'patient_id' looks like an id (90 different" in warning.message
        assert "data.drop: [city, patient_id] leaves it out" in warning.message


@pytest.mark.parametrize(
    ("data", "given", "message"),
    [
        ({"test": 0}, None, "set data.test, such as 0.2"),
        ({"test": 0, "validation": 0}, None, "set data.test, such as 0.2"),
        ({"test": 0, "partition": {"kind": "rotated"}}, "digits", "set data.test, such as 0.2"),
        (
            {"clients": 8, "partition": {"kind": "iid"}},
            (np.eye(8), [0, 1] * 4),
            "no client has more than a row",
        ),
        ({"test": 0.2}, None, None),
        ({"test": 0, "partition": {"kind": "iid"}, "clients": 2}, "digits", None),
    ],
)
def test_a_run_in_which_nothing_will_be_scored_is_warned_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, data: dict[str, Any], given: Any, message: str | None
) -> None:
    content = run_file(clinics(tmp_path / "c.csv"), **data)
    if given is not None:
        content["data"] |= {"drop": [], "label": None}
    made(content, given)
    if message is None:
        assert caplog.text == ""
    else:
        (warning,) = caplog.messages
        assert "has no test rows, so nothing will be scored" in warning
        assert message in warning


@pytest.mark.parametrize("method", ["local", "fedavg", {"name": "fedmd", "global": False}], ids=str)
@pytest.mark.parametrize("validation", [0, 0.2])
def test_a_run_without_test_rows_ends_well(tmp_path: Path, method: Any, validation: float) -> None:
    public = {"source": "share", "share": 0.2}
    content = run_file(clinics(tmp_path / "c.csv"), test=0, validation=validation, public=public)
    done = polyfed.run(content, method=method, out=tmp_path / "run", workers=1)
    assert "own" not in done.summary["last"] and "whole" not in done.summary["last"]
    assert ("validation" in done.summary["last"]) is bool(validation)


def test_the_table_of_a_run_without_test_rows_says_so(command: Command, tmp_path: Path) -> None:
    clinics(tmp_path / "c.csv")
    file = tmp_path / "run.yaml"
    file.write_text(str(run_file(Path("c.csv"), test=0)))
    said = command("run", file, "--workers", 1)
    assert said.code == 0
    assert "nothing was scored: no test rows (data.test)" in said.out
    assert "all validation rows together" in said.out
    said = command("run", file, "--set", "data.validation=0", "--workers", 1)
    assert said.code == 0
    assert "all validation rows" not in said.out
    assert command("compare", "polyfed-runs/run", "polyfed-runs/run-2").code == 0


CELLS: dict[str, tuple[dict[str, tuple[int, str]], tuple[str, ...], str]] = {
    "a missing value": ({"age": (3, "")}, (), "c.csv: column 'age' has no value in line 5"),
    "a text among numbers": ({"bmi": (7, "high")}, (), "'bmi' is text ('high' in line 9)"),
    "a missing clinic": ({"clinic": (1, "")}, (), "c.csv: column 'clinic' has no value in line 3"),
    "a missing label": ({"diagnosis": (0, "")}, (), "column 'diagnosis': line 2 has no label"),
    "a value too many": ({"city": (5, "Ulm,Donau")}, (), "c.csv, line 7: 8 values, but the header has 7"),
    "a column that is not dropped": (
        {},
        ("data.drop=[patient_id]",),
        "data.drop: [patient_id, city] leaves it",
    ),
    "a column that is not there": ({}, ("data.drop=[citty]",), "no column 'citty': did you mean 'city'?"),
    "a label that is an id": ({}, ("data.label=patient_id", "data.drop=city"), "is this the label column?"),
}


@pytest.mark.parametrize("what", list(CELLS))
def test_a_mistake_in_a_table_is_one_line(command: Command, tmp_path: Path, what: str) -> None:
    cells, changes, message = CELLS[what]
    clinics(tmp_path / "c.csv", **cells)
    (tmp_path / "run.yaml").write_text(str(run_file(Path("c.csv"))))
    sets = [word for change in changes for word in ("--set", change)]
    said = command("run", "run.yaml", *sets, "--workers", 1)
    assert said.code == 2
    assert said.err.startswith("polyfed: ") and said.err.count("\n") == 1
    assert message in said.err
    assert not (tmp_path / "polyfed-runs").exists()


def test_what_looks_odd_in_the_test_rows_is_warned_of_too(caplog: pytest.LogCaptureFixture) -> None:
    x = np.random.default_rng(0).normal(size=(ROWS, 4))
    y = np.arange(ROWS) % 2
    x[:, 3] = y
    with caplog.at_level(logging.WARNING):
        made({"rounds": 1, "data": {"clients": 3}}, {"train": (x, y), "test": (x[:30], y[:30])})
    said = [record.getMessage() for record in caplog.records]
    assert ["column 3 tells the label" in said[0], "30 of 30 test rows are training rows" in said[1]] == [
        True,
        True,
    ]
    assert len(said) == 2
