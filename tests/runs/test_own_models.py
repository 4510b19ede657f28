"""Models of the user's own: a short trial decides how they are trained, and the decision is part of the run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from torch import nn

import polyfed
from polyfed import learn
from polyfed.models import memory_format
from polyfed.testing import result_of

BASE: dict[str, Any] = {"data": {"limit": 400, "clients": 4}, "training": {"batch": 16}}


def small() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 24), nn.Tanh(), nn.Linear(24, 10))


def conv() -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(512, 10))


def decide(monkeypatch: pytest.MonkeyPatch, *, last: bool, stack: bool) -> None:
    monkeypatch.setattr(learn, "prefers_channels_last", lambda *_: last)
    monkeypatch.setattr(learn, "worth_stacking", lambda *_: stack)


def never(*_: Any) -> bool:
    raise AssertionError("it was decided before")


def resolved(path: Path) -> dict[str, Any]:
    return dict(yaml.safe_load((path / "config.yaml").read_text()))


@pytest.mark.parametrize("given", [conv, conv()], ids=["a function", "a model"])
def test_the_decision_is_followed_and_written_down(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: Callable[[], nn.Module] | nn.Module
) -> None:
    decide(monkeypatch, last=True, stack=False)
    run = polyfed.prepare(BASE, models={"net": given}, rounds=1, out=tmp_path / "run", workers=1)
    model = run.federation.build("net")
    assert memory_format(model) is torch.channels_last
    assert model[0].weight.is_contiguous(memory_format=torch.channels_last)  # type: ignore[index]
    run.go()
    run.close()
    assert resolved(run.path)["models"]["own"] == {"net": {"channels_last": True, "stack": False}}
    assert resolved(run.path)["stack"] == 1


def test_what_is_decided_is_not_tried_again_on_resume(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    decide(monkeypatch, last=False, stack=True)
    settings: dict[str, Any] = {"models": {"net": small}, "rounds": 3}
    whole = polyfed.run(BASE, **settings, out=tmp_path / "whole", workers=1)
    begun = polyfed.prepare(BASE, **settings, out=tmp_path / "begun", workers=1)
    begun.go(lambda run: run.stop())
    begun.close()
    assert resolved(begun.path)["stack"] > 1
    monkeypatch.setattr(learn, "prefers_channels_last", never)
    monkeypatch.setattr(learn, "worth_stacking", never)
    done = polyfed.resume(begun.path, models={"net": small}, workers=2)
    assert result_of(done.path) == result_of(whole.path)


def test_stacked_or_not_a_model_learns_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    for stack in (False, True):
        decide(monkeypatch, last=False, stack=stack)
        done = polyfed.run(BASE, models={"net": small}, rounds=2, out=tmp_path / str(stack), workers=1)
        model = polyfed.load_model(done.path, "net", make=small)
        found.append(torch.cat([parameter.detach().flatten() for parameter in model.parameters()]))
    assert not torch.equal(*found)  # else nothing was stacked
    torch.testing.assert_close(*found, rtol=0, atol=1e-6)


def test_a_model_that_says_its_layout_is_believed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    decide(monkeypatch, last=True, stack=False)

    def plain() -> nn.Module:
        model = conv()
        model.channels_last = False  # type: ignore[assignment]
        return model

    run = polyfed.prepare(BASE, models={"net": plain}, rounds=1, out=tmp_path / "run", workers=1)
    assert run.config.models.own["net"].channels_last is False
    run.close()


def test_a_real_trial_decides_and_its_decision_is_followed(tmp_path: Path) -> None:
    """Which way it decides is for the clock to say; the run and its config agree."""
    run = polyfed.prepare(
        {**BASE, "stack": 4}, models={"net": small}, rounds=1, out=tmp_path / "run", workers=1
    )
    decided = run.config.models.own["net"]
    assert decided.channels_last is False  # it has no images to lay out
    assert ("net" in run.federation.stackable()) == decided.stack
    run.close()


@pytest.mark.parametrize("name", ["a/b", "../evil", "", ".hidden", "server", "a b", "n" * 200])
def test_a_name_that_cannot_be_a_files_is_refused_before_anything_starts(tmp_path: Path, name: str) -> None:
    out = tmp_path / "run"
    with pytest.raises(polyfed.UserError, match="a model cannot be called"):
        polyfed.prepare(BASE, models={name: small}, rounds=1, out=out, workers=1)
    assert not out.exists()


def lazy() -> nn.Module:
    return nn.Sequential(nn.LazyConv2d(4, 3), nn.ReLU(), nn.Flatten(), nn.Dropout(0.1), nn.LazyLinear(10))


@pytest.mark.parametrize("method", ["local", "fedavg"])
def test_lazy_layers_are_filled_from_the_runs_seed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    decide(monkeypatch, last=False, stack=False)
    found = [
        result_of(
            polyfed.run(
                BASE, models={"net": lazy}, method=method, rounds=2, out=tmp_path / name, workers=workers
            ).path
        )
        for name, workers in (("one", 1), ("two", 2))
    ]
    assert found[0] == found[1]
    model = polyfed.load_model(tmp_path / "one", "client-1", make=lazy)
    assert model(torch.zeros(2, 1, 8, 8)).shape == (2, 10)


def test_lazy_clients_start_differently_and_copies_of_a_lazy_module_alike(tmp_path: Path) -> None:
    for given, alike in ((lazy, False), (lazy(), True)):
        run = polyfed.prepare(
            BASE, models={"net": given}, method="local", rounds=1, out=tmp_path / str(alike)
        )
        first, second = (run.federation.own_model(index)[-1].weight for index in (0, 1))  # type: ignore[index]
        assert torch.equal(first, second) is alike
        run.close()


def test_a_model_of_other_outputs_is_told_the_classes(tmp_path: Path) -> None:
    data = (torch.randn(60, 4), torch.arange(60) % 2 + 1)
    models = {"net": lambda: nn.Linear(4, 3)}
    with pytest.raises(
        polyfed.UserError, match=r"has 3 outputs, but the data have 2 classes \(1, 2\): give it 2"
    ):
        polyfed.prepare({"data": {"clients": 2}}, data=data, models=models, out=tmp_path / "run", workers=1)
