"""The toy of FedORION's Figure 1: what its points are, and that a server knows what no client has seen."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from tests.conftest import Command

from polyfed.experiments import toy
from polyfed.runs.history import RunRecord

TWO_OF_THREE = 0.68
"""What a client reaches that knows its two classes alone, on a grid of which each class takes a third."""


def test_sectors_are_a_third_of_the_disc_each_and_bend_with_the_distance() -> None:
    """Class 0 begins at angle 1.6 r: near the centre at 0 degrees, at the rim at 92; it ends 120 degrees later."""
    near = 0.001 * np.array([[np.cos(a), np.sin(a)] for a in np.radians([10, 110, 130, 250, -10])])
    assert toy.true_class(near).tolist() == [0, 0, 1, 2, 2]
    rim = np.array([[np.cos(a), np.sin(a)] for a in np.radians([90, 93, 211, 213])])
    assert toy.true_class(rim).tolist() == [2, 0, 0, 1]
    shares = np.bincount(toy.true_class(toy.grid())) / len(toy.grid())
    assert shares.tolist() == pytest.approx([1 / 3] * 3, abs=0.01)


def test_every_client_has_seen_two_classes_and_no_point_of_the_third() -> None:
    seen = toy.seen_points(0)
    for client, (points, labels) in seen.items():
        assert set(labels.tolist()) == set(toy.SEEN[client])
        assert len(points) == 2 * toy.POINTS
        assert np.array_equal(toy.true_class(points), labels)
    assert not np.array_equal(seen["first"][0], toy.seen_points(1)["first"][0])


def test_the_servers_regions_are_true_where_those_of_clients_alone_are_not(
    command: Command, tmp_path: Path
) -> None:
    said = command("toy", "--rounds", 5, "--out", "out")
    assert said.code == 0, said
    told = {line.partition(":")[0]: line for line in said.out.splitlines()}
    right = {
        name: [float(words.split()[-2]) / 100 for words in told[name].split(",")]
        for name in ("local", toy.METHOD)
    }
    assert len(right["local"]) == 3 and max(right["local"]) < TWO_OF_THREE
    assert len(right[toy.METHOD]) == 4 and right[toy.METHOD][3] > 0.8
    with Image.open(tmp_path / "out" / "toy" / "toy.png") as picture:
        assert min(picture.size) > 600


@pytest.mark.parametrize(
    ("method", "title"),
    [
        ("fedproto", None),
        ("fedavg", "server: served, mlp-16-16-8"),
        ("feddf", "server: 3 served models, mean of logits"),
        ("fdmeta", "server: mlp-16-16-8"),
        ("fedh2l", None),
    ],
)
def test_any_method_shows_what_its_clients_use_and_its_server_serves(
    method: str, title: str | None, tmp_path: Path
) -> None:
    points = toy.write_points(tmp_path / "points", 0)
    run = toy.prepare(method, points, tmp_path / "run", rounds=1)
    run.go()
    run.close()
    found = toy.regions(run, toy.square(5))
    assert list(found) == [*toy.SEEN, *(["server"] if title else [])]
    if title:
        assert found["server"].title == title
    # what the picture says is what the run measured on the same points: the mean over clients
    mean = np.mean([found[client].accuracy for client in toy.SEEN])
    assert run.summary["last"]["whole"]["mean"] == pytest.approx(mean, abs=1e-6)
    if method == "feddf":
        line = next(iter(RunRecord(run.path).evaluations))
        assert line["server"]["ensemble"] == pytest.approx(found["server"].accuracy, abs=1e-6)


def test_a_method_that_nobody_knows_is_one_line(command: Command, tmp_path: Path) -> None:
    said = command("toy", "--method", "fedmdd")
    assert said.code == 2 and "did you mean 'fedmd'?" in said.err
    assert list(tmp_path.iterdir()) == []
