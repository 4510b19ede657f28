"""The figure of accuracy against bytes."""

from __future__ import annotations

import random
import re
from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure
from PIL import Image

from polyfed.report.cost_points import _name_points, _Point, _without_common_end, score_against_bytes
from polyfed.report.drawing import spaced
from polyfed.runs.history import RunRecord


def test_every_variant_has_its_name_and_different_models_a_panel_of_their_own(
    records: dict[str, RunRecord], tmp_path: Path
) -> None:
    runs = {f"{name}, in words": [record] for name, record in records.items()}
    text = score_against_bytes(runs, tmp_path / "cost.svg").read_text()
    said = re.findall(r"<!-- (.*?) -->", text)
    assert set(runs) <= set(said)
    for words in (
        "weights or gradients leave a client",
        "answers or prototypes do",
        "clients' models: mlp-small",
    ):
        assert words in said
    assert "nothing travels, or all data do" in said  # local is a level, not a point


def test_a_model_of_the_servers_own_is_a_ring_beside_what_clients_reach(
    records: dict[str, RunRecord], tmp_path: Path
) -> None:
    def said(*names: str) -> list[str]:
        runs = {name: [records[name]] for name in names}
        return re.findall(r"<!-- (.*?) -->", score_against_bytes(runs, tmp_path / "cost.svg").read_text())

    assert "the server's own model" in said("fedavg", "fedmd")
    assert "the server's own model" not in said("fedavg")


def test_where_all_send_the_same_bytes_there_is_a_figure_too(
    records: dict[str, RunRecord], tmp_path: Path
) -> None:
    runs = {"local": [records["local"]], "a": [records["fedavg"]], "b": [records["fedavg"]]}
    said = re.findall(r"<!-- (.*?) -->", score_against_bytes(runs, tmp_path / "cost.svg").read_text())
    assert {"a", "b", "local"} <= set(said)


def test_without_anything_that_travels_there_is_nothing_to_draw(
    records: dict[str, RunRecord], tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match="bytes to draw"):
        score_against_bytes({"local": [records["local"]]}, tmp_path / "cost.png")


def test_names_are_moved_apart_around_where_they_belong() -> None:
    assert spaced([90.0, 50.0], 3.0, 0.0, 100.0) == [90.0, 50.0]
    assert spaced([50.0, 50.0], 3.0, 0.0, 100.0) == [51.5, 48.5]
    high, middle, low = spaced([50.0, 50.0, 50.0], 3.0, 0.0, 100.0)
    assert (high - middle, middle - low) == pytest.approx((3.0, 3.0), abs=1e-6)
    assert high + middle + low == pytest.approx(150.0)
    assert spaced([99.0, 99.0], 3.0, 0.0, 100.0) == [100.0, 97.0]
    assert spaced([1.0, 1.0], 3.0, 0.0, 100.0) == [3.0, 0.0]


def test_leaders_do_not_cross_however_close_the_points_are() -> None:
    stream = random.Random(0)
    points = [
        _Point(f"m{number}", stream.uniform(3e6, 8e6), stream.uniform(88, 96), 0.0, weights=True, bound=False)
        for number in range(12)
    ]
    axes = Figure().subplots()
    _name_points(axes, points, 40.0, 100.0, 1.5)
    leaders = [np.asarray(line.get_xydata()) for line in axes.lines]
    assert len(leaders) == len(points)
    bends, ends = [leader[1] for leader in leaders], [leader[2] for leader in leaders]
    assert len({bend[0] for bend in bends}) == len({end[0] for end in ends}) == 1
    assert sorted(range(12), key=lambda n: bends[n][1]) == sorted(range(12), key=lambda n: ends[n][1])
    assert all(leader[0][1] == leader[1][1] for leader in leaders)  # straight, until all points are passed


def test_what_all_names_of_a_panel_end_with_is_said_once_and_few_points_make_a_low_figure(
    records: dict[str, RunRecord], tmp_path: Path
) -> None:
    assert _without_common_end(["fedavg-mixed", "fed-md-mixed"]) == ["fedavg", "fed-md"]
    for names in (["a-mixed", "b"], ["a-mixed"], ["mixed", "a-mixed"], ["a-1", "b-2"], []):
        assert _without_common_end(names) == names

    def height(number: int) -> int:
        runs = {f"run {each}": [records["fedavg"]] for each in range(number)}
        with Image.open(score_against_bytes(runs, tmp_path / "cost.png")) as picture:
            return picture.height

    assert height(2) < 0.6 * height(30)
