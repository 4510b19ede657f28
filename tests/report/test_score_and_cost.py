"""The picture of runs beside each other."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from tests.conftest import SMALL

import polyfed
from polyfed.report.score_and_cost import score_and_cost
from polyfed.report.tables import amount, sent_words
from polyfed.runs.history import RunRecord
from polyfed.runs.metrics import sent_per_client


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, RunRecord]:
    folder = tmp_path_factory.mktemp("runs")
    for name in ("pooled", "fedavg", "local"):
        polyfed.run({**SMALL, "name": name, "method": name}, out=folder / name, workers=1)
    return {f"{name}, in words": RunRecord(folder / name) for name in ("pooled", "fedavg", "local")}


def words_in(path: Path) -> list[str]:
    """The texts of an SVG, which matplotlib writes as comments beside their outlines."""
    return re.findall(r"<!-- (.*?) -->", path.read_text())


def test_the_picture_names_every_line_and_says_what_each_client_sent(
    runs: dict[str, RunRecord], tmp_path: Path
) -> None:
    said = words_in(score_and_cost(runs, tmp_path / "runs.svg", "one seed"))
    fedavg = runs["fedavg, in words"].summary
    assert set(runs) <= set(said)
    assert {"pooled", "fedavg", "local", "nothing", "all its data", amount(sent_per_client(fedavg))} <= set(
        said
    )
    assert "Accuracy on the whole test set, mean of 4 clients (%)" in said
    assert "one seed" in said


def test_what_is_no_bound_has_a_colour(runs: dict[str, RunRecord], tmp_path: Path) -> None:
    def coloured(path: Path) -> int:
        with Image.open(path) as image:
            pixels = np.asarray(image.convert("RGB")).astype(int)
        return int((pixels.max(axis=2) - pixels.min(axis=2) > 60).sum())

    bounds = {words: run for words, run in runs.items() if run.summary["method"] != "fedavg"}
    assert coloured(score_and_cost(bounds, tmp_path / "bounds.png")) == 0
    assert coloured(score_and_cost(runs, tmp_path / "all.png")) > 1000


def test_a_run_without_accuracy_on_the_whole_test_set_is_refused(tmp_path: Path) -> None:
    content: dict[str, Any] = {**SMALL, "method": "local", "rounds": 1, "evaluate": {"test_rows": 0}}
    polyfed.run(content, out=tmp_path / "run", workers=1)
    with pytest.raises(ValueError, match="no accuracy on the whole test set"):
        score_and_cost({"local": RunRecord(tmp_path / "run")}, tmp_path / "x.png")


def test_a_method_that_is_not_installed_here_is_still_shown(runs: dict[str, RunRecord]) -> None:
    summary = runs["fedavg, in words"].summary
    assert sent_words({**summary, "method": "somebody's own"}) == amount(sent_per_client(summary))


def test_matplotlib_is_imported_only_where_something_is_drawn() -> None:
    code = "import sys, polyfed.cli.demonstrating; sys.exit('matplotlib' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
