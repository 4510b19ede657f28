"""Runs with models that a run file names by module and function, or that a plug-in adds: nothing is passed again."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import yaml
from tests.conftest import Command

import polyfed
from polyfed import plug_ins
from polyfed.models import outside
from polyfed.testing import result_of

MODELS = """
from torch import nn

def small_net():
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 12), nn.ReLU(), nn.Linear(12, 10))

def wide_net(shape, outputs):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 20), nn.ReLU(), nn.Linear(20, outputs))

def plug_in(shape, outputs, norm):
    return wide_net(shape, outputs)

def eleven():
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 11))
"""

RUN = """
method: {method}
rounds: 2
data: {{limit: 300, clients: 4}}
models: {{names: [{names}]}}
training: {{epochs: 1, batch: 16}}
checkpoint_seconds: 0
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with a module of models, which an installed package has under another name too."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(outside, "_factories", {})
    plug_ins.named_function.cache_clear()
    (tmp_path / "my_own_models.py").write_text(MODELS)
    installed = tmp_path / "installed"
    information = installed / "models_plug_in_run-1.0.dist-info"
    information.mkdir(parents=True)
    (installed / "models_plug_in_run.py").write_text(MODELS)
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: models_plug_in_run\nVersion: 1.0\n")
    (information / "entry_points.txt").write_text("[polyfed.models]\nPlugged = models_plug_in_run:plug_in\n")
    sys.path.insert(0, str(installed))
    yield tmp_path
    plug_ins.named_function.cache_clear()
    for name in ("my_own_models", "models_plug_in_run"):
        sys.modules.pop(name, None)


def write(folder: Path, method: str, names: str) -> Path:
    file = folder / "run.yaml"
    file.write_text(RUN.format(method=method, names=names))
    return file


@pytest.mark.parametrize("names", ["my_own_models:small_net, my_own_models:wide_net", "plugged, mlp-small"])
def test_a_run_file_names_models_and_they_are_resumed_and_loaded_by_themselves(
    folder: Path, command: Command, names: str
) -> None:
    file = write(folder, "local", names)
    assert command("run", file, "--out", "whole", "--workers", 1).code == 0
    begun = polyfed.prepare(file, out="begun", workers=1)
    begun.go(lambda run: run.stop())
    begun.close()
    trust = [] if names.startswith("plugged") else ["my_own_models"]
    flags = [word for module in trust for word in ("--trust", module)]
    assert command("resume", "begun", "--workers", 1, *flags).code == 0
    assert result_of(Path("whole")) == result_of(Path("begun"))
    for client in ("client-0", "client-1"):
        model = polyfed.load_model("whole", client, trust=trust)
        assert model(torch.zeros(2, 1, 8, 8)).shape == (2, 10)


def test_clients_of_one_function_start_differently(folder: Path) -> None:
    run = polyfed.prepare(write(folder, "local", "my_own_models:small_net"), out="run", workers=1)
    first, second = (next(run.federation.population.own_model(index).parameters()) for index in range(2))
    assert not torch.equal(first, second)
    run.close()


def test_shared_models_have_safe_file_names(folder: Path, command: Command) -> None:
    file = write(folder, "fedavg", "my_own_models:small_net")
    assert command("run", file, "--out", "run", "--workers", 1).code == 0
    assert sorted(path.name for path in Path("run/models").iterdir()) == [
        "clients.json",
        "shared_my_own_models+small_net.safetensors",
    ]
    trust = "my_own_models"
    by_client = polyfed.load_model("run", "client-2", trust=trust).state_dict()
    by_name = polyfed.load_model("run", "my_own_models:small_net", trust=trust).state_dict()
    assert all(torch.equal(by_client[key], by_name[key]) for key in by_client)


def test_they_are_tried_like_models_given_from_python_and_the_decision_is_kept(folder: Path) -> None:
    run = polyfed.prepare(write(folder, "local", "my_own_models:small_net"), out="run", workers=1)
    assert set(run.config.models.own) == {"my_own_models:small_net"}
    assert run.config.models.names == ["my_own_models:small_net"]
    run.go()
    run.close()
    written = yaml.safe_load(Path("run/config.yaml").read_text())
    assert set(written["models"]["own"]) == {"my_own_models:small_net"}


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("my_own_models:absent", "AttributeError"),
        ("nobodys_models:net", "start polyfed where nobodys_models.py is"),
        ("my_own_models:eleven", "has 11 outputs, but the data have 10 classes: give it 10"),
    ],
)
def test_a_mistake_is_one_line_and_leaves_no_run_directory(
    folder: Path, command: Command, name: str, hint: str
) -> None:
    said = command("run", write(folder, "local", name), "--out", "run")
    assert said.code == 2
    assert said.err.count("\n") == 1 and hint in said.err
    assert not Path("run").exists()


def test_a_feature_size_that_differs_is_told_with_what_to_set(folder: Path, command: Command) -> None:
    file = write(folder, "fedproto", "my_own_models:small_net, mlp-small")
    said = command("run", file)
    assert said.code == 2
    assert "here are my_own_models:small_net 12, mlp-small 64: set models.features=12" in said.err
    assert command("run", file, "--set", "models.features=12", "--workers", 1).code == 0
