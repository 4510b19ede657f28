"""Public data of other classes: an output for each class of both sets, and what is scored and sent of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.conftest import MakeRun
from tests.methods.by_hand import no_scratch_models, said, state_of
from tests.readers import dataset, whole_test

from polyfed import learn
from polyfed.methods.fedmd import FedMD
from polyfed.runs.rounds import Run


def widths(path: Path, classes: str, make_run: MakeRun, **method: Any) -> Run:
    return make_run(
        {"name": "fedmd", "global": False, **method},
        data={"limit": 200, "public": {"source": str(path), "classes": classes}},
        rounds=1,
    )


def test_there_is_an_output_for_each_class_of_both_sets(make_run: MakeRun, other_classes: Path) -> None:
    run = widths(other_classes, "auto", make_run)
    public = run.federation.holdings.public
    assert public is not None
    assert run.federation.sizes["outputs"] == 30
    assert sorted(set(public.labels.tolist())) == list(range(10, 30))
    assert sorted(set(dataset(run.federation).need_labels().tolist())) == list(range(10))
    x = run.federation.holdings.of(0).train.inputs()
    assert run.federation.population.own_model(0)(x).shape == (len(x), 30)


def test_classes_of_the_same_names_are_the_same(make_run: MakeRun, tmp_path: Path) -> None:
    images = np.random.default_rng(0).integers(256, size=(50, 8, 8), dtype=np.uint8)
    np.savez(tmp_path / "same.npz", x=images, y=np.arange(50) % 10)
    for classes, outputs in (("auto", 10), ("same", 10), ("other", 20)):
        run = widths(tmp_path / "same.npz", classes, make_run)
        assert run.federation.sizes["outputs"] == outputs


def test_only_as_many_outputs_as_are_trained_with_labels(make_run: MakeRun, other_classes: Path) -> None:
    """Without training on public labels nobody would ever learn what the public outputs mean."""
    assert widths(other_classes, "auto", make_run, public_training=None).federation.sizes["outputs"] == 10


@pytest.mark.parametrize(("outputs", "width"), [("all", 30), ("private", 10)])
def test_all_logits_travel_or_those_of_the_private_classes(
    make_run: MakeRun, other_classes: Path, outputs: str, width: int
) -> None:
    steps = {"steps": 1}
    run = widths(
        other_classes,
        "auto",
        make_run,
        outputs=outputs,
        public_training=steps,
        private_training=None,
        distil=steps,
    )
    run.go()
    assert run.federation.sizes["outputs"] == 30
    # 4 clients, 200 public rows, 4 bytes each
    assert run.ledger.total("up", "logits") == 4 * 200 * width * 4
    assert run.ledger.total("down", "logits") == 4 * 200 * width * 4


def test_private_outputs_are_the_first_ones_of_the_model(make_run: MakeRun, other_classes: Path) -> None:
    run = widths(other_classes, "auto", make_run, outputs="private")
    me = run.federation.population.client(0, run.federation.population.own_model(0), no_scratch_models)
    method = run.method
    assert isinstance(method, FedMD)
    rows = torch.arange(7)
    found = method.predict(me, rows)["logits"]
    assert isinstance(found, torch.Tensor)
    assert torch.equal(found, said(me.model, me.inputs(me.public[rows]))[:, :10])


@pytest.mark.parametrize("outputs", ["all", "private"])
def test_a_client_is_scored_among_all_outputs_or_the_private_ones(
    make_run: MakeRun, other_classes: Path, outputs: str
) -> None:
    """Models that hardly know private classes: among all outputs they choose public ones, and are wrong."""
    slightly = {"steps": 1, "lr": 1e-6}
    run = make_run(
        {
            "name": "fedmd",
            "public_training": {"epochs": 3},
            "private_training": None,
            "distil": slightly,
        },
        data={"limit": 200, "public": {"source": str(other_classes)}},
        models={"server": "mlp-small"},
        training=slightly,
        evaluate={"outputs": outputs},
        rounds=1,
    )
    run.go()
    assert run.last is not None
    x, y = whole_test(run.federation).tensors()
    model = run.federation.population.build("mlp-small")
    right: dict[str, list[list[int]]] = {"all": [], "private": []}
    for index in range(4):
        learn.load_weights(model, state_of(run, index))
        logits = said(model, x)
        right["all"].append([int((logits.argmax(dim=1) == y).sum()), len(y)])
        right["private"].append([int((logits[:, :10].argmax(dim=1) == y).sum()), len(y)])
    assert right["all"] != right["private"]
    found = [run.last["clients"][f"client-{index}"]["whole"] for index in range(4)]
    assert found == right[outputs]


def test_coarse_classes_of_cifar100_stand_behind_cifar10s(make_run: MakeRun, real_data: Path) -> None:
    private, public = (str(real_data / name / "test.parquet") for name in ("cifar10", "cifar100"))
    run = make_run(
        {"name": "fedmd", "global": False},
        data={
            "source": private,
            "limit": 200,
            "public": {"source": public, "label": "coarse_label", "rows": 500},
        },
        models={"names": ["cnn-small"]},
    )
    assert run.federation.sizes["outputs"] == 30
    assert run.federation.holdings.public is not None
    assert sorted(set(run.federation.holdings.public.labels.tolist())) == list(range(10, 30))
    assert sorted(set(dataset(run.federation).need_labels().tolist())) == list(range(10))
