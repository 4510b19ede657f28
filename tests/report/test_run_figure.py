"""The figure of a run, and how figures are written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from tests.conftest import MakeRun

import polyfed
from polyfed.errors import ConfigError
from polyfed.report.curves import score_curves
from polyfed.report.drawing import check_writable, drawn_by_polyfed, labels, plain
from polyfed.report.run_figure import _lines, run_figure
from polyfed.runs.history import RunRecord


def svg(record: RunRecord, path: Path) -> str:
    """A figure of which the words can be read: matplotlib leaves each as a comment."""
    written = run_figure(record, path.with_suffix(".svg"))
    assert written is not None
    return written.read_text()


def test_a_run_is_drawn_with_own_and_whole_and_each_client(
    records: dict[str, RunRecord], tmp_path: Path
) -> None:
    text = svg(records["fedavg"], tmp_path / "run")
    for words in ("fedavg: fedavg, 4 clients", "own test data", "whole test set", "worst to best client"):
        assert f"<!-- {words}" in text or words in text
    assert all(f"<!-- client-{number} -->" in text for number in range(4))


def test_stages_and_the_servers_models_are_lines_and_the_result_is_drawn_once(
    records: dict[str, RunRecord], tmp_path: Path
) -> None:
    lines = _lines(records["fedmd"])
    last = records["fedmd"].summary["last"]
    assert lines["own test data"][3] == 100 * last["own"]["mean"]
    assert lines["whole test set"][3] == 100 * last["whole"]["mean"]
    assert lines["distilled, whole test set"][3] == 100 * last["stages"]["distilled"]["whole"]["mean"]
    assert lines["global (server), whole test set"][3] == 100 * last["server"]["global"]
    assert list(lines["initial, whole test set"]) == [0]
    assert "personalised, whole test set" not in lines  # it is the whole test set's line
    assert "<!-- global (server), whole test set -->" in svg(records["fedmd"], tmp_path / "run")


@pytest.mark.parametrize("clients", [30, 31])
def test_the_clients_of_a_run_of_few_are_shown_one_by_one(make_run: MakeRun, clients: int) -> None:
    run = make_run("local", rounds=1, data={"clients": clients, "partition": {"kind": "iid"}})
    run.go()
    text = svg(RunRecord(run.path), run.path / "run")
    assert ("each client, round 1" in text) == (clients <= 30)


def test_a_run_of_one_round_is_drawn_in_whole_rounds(make_run: MakeRun) -> None:
    run = make_run("local", rounds=1)
    run.go()
    path = run_figure(RunRecord(run.path), run.path / "one.png")
    assert path is not None
    with Image.open(path) as image:
        pixels = np.asarray(image.convert("L"))
    assert pixels.min() < 100 < pixels.max() == 255


def test_a_run_in_which_nothing_was_measured_has_no_figure(tmp_path: Path) -> None:
    own = (torch.rand(60, 1, 8, 8), torch.arange(60) % 3)
    settings = {"clients": 2, "test": 0.0, "partition": {"kind": "iid"}}
    run = polyfed.run({"rounds": 1, "data": settings}, data=own, out=tmp_path / "run", workers=1)
    assert run_figure(RunRecord(run.path), run.path / "none.png") is None
    assert not (run.path / "none.png").exists()


@pytest.mark.parametrize("ending", [".png", ".svg", ".pdf", ".PNG"])
def test_a_figure_of_ours_may_be_replaced_and_no_other_file(
    records: dict[str, RunRecord], tmp_path: Path, ending: str
) -> None:
    path = tmp_path / f"figure{ending}"
    check_writable(path)
    run_figure(records["local"], path)
    assert drawn_by_polyfed(path)
    check_writable(path)
    other = tmp_path / f"holiday{ending}"
    other.write_bytes(b"a file of somebody's")
    with pytest.raises(ConfigError, match="is no figure of polyfed: choose another name"):
        check_writable(other)


def test_a_format_that_cannot_be_drawn_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"a figure's name ends in \.png, \.svg, \.pdf"):
        check_writable(tmp_path / "figure.jpg")


def test_names_from_outside_are_labels_and_nothing_else(
    records: dict[str, RunRecord], tmp_path: Path
) -> None:
    names = ["_hidden", "$a_b$ \\frac", "[red]", "x" * 200, "x" * 150 + "y" + "x" * 49]
    assert plain("_hidden") == " _hidden"
    assert len(set(labels(names, 40))) == len(names)
    assert max(len(line) for label in labels(names, 40) for line in label.split("\n")) <= 42
    text = score_curves({name: [records["local"]] for name in names}, tmp_path / "c.svg").read_text()
    assert all(f"<!-- {words} -->" in text for words in (" _hidden", r"$a_b$ \frac", "[red]"))


class OwnAlone(RunRecord):
    """A run without a whole test set."""

    @property
    def evaluations(self) -> list[dict[str, Any]]:
        lines = super().evaluations
        return [{**line, "summary": {"own": line["summary"]["own"]}} for line in lines]


def test_a_run_that_is_in_one_panel_only_is_in_the_legend_too(
    records: dict[str, RunRecord], tmp_path: Path
) -> None:
    runs: dict[str, list[RunRecord]] = {
        "whole and own": [records["local"]],
        "own alone": [OwnAlone(records["fedavg"].path)],
    }
    text = score_curves(runs, tmp_path / "c.svg").read_text()
    assert text.count("<!-- own alone -->") == text.count("<!-- whole and own -->") == 1
