"""FedH2L's domains as its paper has them: who holds what, what is held out, and that peers gain by each other."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

import polyfed
from polyfed.experiments import papers
from polyfed.runs.checkpoint import read_lines
from polyfed.runs.config import read_config
from polyfed.runs.cut_data import CutData
from polyfed.runs.federation import Federation
from polyfed.runs.setup import set_up


def federation(run: str, setting: str, scale: str = "paper", **changes: Any) -> CutData:
    return simulated(run, setting, scale, **changes)[1]


def simulated(run: str, setting: str, scale: str = "paper", **changes: Any) -> tuple[Federation, CutData]:
    made = set_up(read_config({**papers.load("fedh2l").config(run, setting, scale, seed=3), **changes}))
    assert isinstance(made.holdings, CutData)
    return made, made.holdings


@pytest.mark.parametrize(
    ("run", "private", "public"),
    [("fedh2l-5", 700, 50), ("agg-10", 650, 100), ("ind", 650, 100), ("fedmd-15", 600, 150)],
)
def test_rotated_mnist_is_split_exactly_as_in_the_paper(
    real_data: Path, run: str, private: int, public: int
) -> None:
    """1,000 images a domain, all classes alike; nothing of a test image, however rotated, is seen in training."""
    made = federation(run, "mnist")
    origin, domain = made.dataset.column("origin"), made.dataset.column("domain")
    assert made.partition.names == ("0°", "-20°", "-40°", "-60°")
    assert len(made.dataset) == 4 * 1000
    assert made.public is not None and len(made.public) == 4 * public
    seen, tested = set(made.public.column("origin").tolist()), set()
    for client in range(4):
        held = made.seen_by(client)
        own = made.public[held.own_public]  # type: ignore[index]
        for rows, size in ((held.train, private), (own, public), (held.validation, 100), (held.test, 150)):
            assert rows.class_counts().tolist() == [size // 10] * 10
            assert set(domain[rows.index]) == {client}
        assert made.samples()[client] == private
        seen |= set(origin[held.train.index]) | set(origin[held.validation.index])
        tested |= set(origin[held.test.index])
    assert len(tested) == 150  # the same images in every domain
    assert not seen & tested
    assert made.whole_test is not None and len(made.whole_test) == 600
    assert made.whole_validation is not None and len(made.whole_validation) == 400


def test_the_paper_turns_clockwise(real_data: Path) -> None:
    """A quarter of a turn would bring what is at the top of an image to its right: so does a third of it, in part."""
    made = federation("ind", "mnist")
    pixels, domain = np.asarray(made.dataset.inputs[..., 0]).astype(float), made.dataset.column("domain")
    ones = made.dataset.need_labels() == 1  # a stroke from the bottom (left) to the top (right)
    across = np.arange(28) - 13.5
    tops = [pixels[ones & (domain == number), :10].sum(axis=(0, 1)) for number in range(4)]
    centres = [float(top @ across / top.sum()) for top in tops]
    assert centres == sorted(centres)
    assert centres[3] > centres[0] + 3


def test_pacs_is_held_out_properly_and_each_domain_has_its_model(real_data: Path) -> None:
    whole, made = simulated("objects-fedh2l", "pacs")
    assert made.partition.names is not None
    models = {made.partition.names[client]: whole.roster.architecture(client) for client in range(4)}
    assert models == {
        "photo": "resnet18-imagenet",
        "art_painting": "resnet34-imagenet",
        "cartoon": "alexnet",
        "sketch": "vgg11",
    }
    assert made.dataset.shape == (3, 64, 64)
    domain = made.dataset.column("domain")
    assert made.public is not None
    everything = [made.public.index]
    for client in range(4):
        held = made.seen_by(client)
        parts = [held.train.index, held.validation.index, held.test.index]
        assert {*domain[np.concatenate(parts)]} == {client}
        own = made.public.column("domain")[held.own_public]
        assert set(own) == {client}
        total = sum(map(len, parts)) + len(own)
        shares = {0.65: held.train, 0.10: held.validation, 0.15: held.test}
        for share, part in shares.items():
            assert len(part) / total == pytest.approx(share, abs=0.002)
        assert len(own) / total == pytest.approx(0.10, abs=0.002)
        everything += parts
    assert sorted(np.concatenate(everything)) == list(range(9991))  # each image in one place


def picture(grey: int) -> dict[str, bytes]:
    file = io.BytesIO()
    Image.fromarray(np.full((8, 8, 3), grey, np.uint8)).save(file, "png")
    return {"bytes": file.getvalue()}


def test_office_home_is_held_out_properly_and_each_domain_has_its_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the layout of the hub, with 100 images a domain: the real one is not at hand."""
    domains = [name for name in ("Real World", "Product", "Clipart", "Art") for _ in range(100)]
    labels = [number % 2 for number in range(400)]
    table = {"image": [picture(number % 256) for number in range(400)], "domain": domains, "label": labels}
    (tmp_path / "office_home").mkdir()
    pq.write_table(pa.table(table), tmp_path / "office_home" / "train.parquet")
    monkeypatch.setenv("POLYFED_DATA", str(tmp_path))
    monkeypatch.setenv("POLYFED_CACHE", str(tmp_path / "cache"))
    whole, made = simulated("objects-fedh2l", "office-home")
    assert made.partition.names is not None
    models = [(made.partition.names[client], whole.roster.architecture(client)) for client in range(4)]
    assert models == [
        ("Art", "resnet34-imagenet"),
        ("Clipart", "mobilenetv2"),
        ("Product", "alexnet"),
        ("Real World", "resnet34-imagenet"),
    ]
    for client in range(4):
        held = made.seen_by(client)
        assert held.own_public is not None
        assert len(held.own_public) == 10
        assert [len(part) for part in (held.train, held.validation, held.test)] == [65, 10, 15]


TINY = papers.load("fedh2l").config("fedh2l-10", "mnist", "tiny", seed=0)


@pytest.fixture(scope="module")
def reached(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Rotated digits: what 60 steps come to, alone and together."""
    folder = tmp_path_factory.mktemp("domains")
    found = {}
    for name in ("local", "fedh2l"):
        method = {**TINY["method"], "name": name} if name == "fedh2l" else name
        once = (
            {"training": {**TINY["training"], "steps": 1, "keep_optimiser": True}} if name == "local" else {}
        )
        config = {
            **TINY,
            **once,
            "method": method,
            "rounds": 60,
            "evaluate": {"every": 20, "validation": "everyone"},
        }
        found[name] = polyfed.run(config, out=folder / name, workers=1)
    return found


def test_on_rotated_digits_peers_know_more_of_all_domains_than_each_alone(reached: dict[str, Any]) -> None:
    alone, together = (reached[name].summary["last"] for name in ("local", "fedh2l"))
    assert together["whole"]["mean"] > alone["whole"]["mean"] + 0.1
    assert together["others"]["mean"] > alone["others"]["mean"] + 0.15
    assert together["whole"]["worst"] > alone["whole"]["worst"]


def test_what_is_not_a_nodes_own_of_the_whole_are_the_others(reached: dict[str, Any]) -> None:
    """WDP, CDP and ACC of the history agree: 60 own test rows, 180 of the others, 240 in all."""
    for line in read_lines(reached["fedh2l"].path / "history.jsonl"):
        for score in line["clients"].values():
            assert [score[part][1] for part in ("own", "others", "whole")] == [60, 180, 240]
            assert score["own"][0] + score["others"][0] == score["whole"][0]
            assert score["validation"][1] == 4 * 40  # everybody's
        means = {part: line["summary"][part]["mean"] for part in ("own", "others", "whole")}
        assert means["whole"] == pytest.approx((means["own"] + 3 * means["others"]) / 4)
