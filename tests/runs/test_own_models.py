"""Models of the user's own: a short trial decides how they are trained, and the decision is part of the run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from safetensors.torch import load_file
from torch import Tensor, nn

import polyfed
from polyfed import learn, models
from polyfed.errors import ModelError
from polyfed.models import memory_format
from polyfed.testing import result_of

BASE: dict[str, Any] = {"data": {"limit": 400, "clients": 4}, "training": {"epochs": 1, "batch": 16}}


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
    model = run.federation.population.build("net")
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


def test_clients_whose_function_builds_a_known_model_start_differently_and_reproducibly(
    tmp_path: Path,
) -> None:
    def narrow() -> nn.Module:
        return models.build("mlp-small", (1, 8, 8), 10)

    found = []
    for name in ("one", "again"):
        run = polyfed.prepare(
            BASE, method="local", models={"net": narrow}, rounds=1, out=tmp_path / name, workers=1
        )
        found.append([models_weights(run.federation.population.own_model(index)) for index in range(2)])
        run.close()
    assert not torch.equal(found[0][0], found[0][1])
    assert all(torch.equal(one, again) for one, again in zip(*found, strict=True))


def models_weights(model: nn.Module) -> Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


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
        first, second = (run.federation.population.own_model(index)[-1].weight for index in (0, 1))  # type: ignore[index]
        assert torch.equal(first, second) is alike
        run.close()


def test_a_model_of_other_outputs_is_told_the_classes(tmp_path: Path) -> None:
    data = (torch.randn(60, 4), torch.arange(60) % 2 + 1)
    models = {"net": lambda: nn.Linear(4, 3)}
    with pytest.raises(
        polyfed.UserError, match=r"has 3 outputs, but the data have 2 classes \(1, 2\): give it 2"
    ):
        polyfed.prepare({"data": {"clients": 2}}, data=data, models=models, out=tmp_path / "run", workers=1)


@pytest.mark.parametrize("name", ["a/b", "../evil", "/tmp/evil", "server"])
@pytest.mark.parametrize("key", ["names", "server", "clients"])
def test_a_name_in_the_run_file_that_is_no_model_is_refused_before_anything_starts(
    tmp_path: Path, key: str, name: str
) -> None:
    models: dict[str, Any] = {"names": [name], "server": name, "clients": {"0": name}}
    with pytest.raises(polyfed.UserError, match="unknown model") as refused:
        polyfed.prepare({**BASE, "models": {key: models[key]}}, out=tmp_path / "run", workers=1)
    assert len(str(refused.value).splitlines()) == 1
    assert not list(tmp_path.iterdir())


def wide() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 48), nn.Tanh(), nn.Linear(48, 10))


def stopped_run(path: Path) -> Path:
    run = polyfed.prepare(BASE, method="local", models=[small, wide], rounds=2, out=path, workers=1)
    run.go(lambda now: now.stop())
    run.close()
    return path


@pytest.mark.parametrize(
    "again",
    [{"wide": wide, "small": small}, [wide, small]],
    ids=["a mapping in another order", "a list in another order"],
)
def test_own_models_are_told_apart_by_name_when_a_run_is_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, again: Any
) -> None:
    decide(monkeypatch, last=False, stack=False)
    whole = polyfed.run(
        BASE, method="local", models=[small, wide], rounds=2, out=tmp_path / "whole", workers=1
    )
    done = polyfed.resume(stopped_run(tmp_path / "part"), models=again, workers=1)
    assert [done.federation.roster.architecture(index) for index in range(4)] == ["small", "wide"] * 2
    assert result_of(done.path) == result_of(whole.path)


@pytest.mark.parametrize(
    ("again", "message"),
    [
        ({"little": small, "wide": wide}, "'small' is a model of your own: pass it again"),
        ({"small": small}, "'wide' is a model of your own: pass it again"),
        (
            {"small": small, "wide": wide, "wider": wide},
            "'wider' is no model of this run: did you mean 'wide'?",
        ),
        (None, "'small' is a model of your own"),
    ],
    ids=["renamed", "one missing", "one more", "none"],
)
def test_own_models_under_other_names_are_refused_in_one_line(
    tmp_path: Path, again: Any, message: str
) -> None:
    with pytest.raises(polyfed.UserError) as refused:
        polyfed.resume(stopped_run(tmp_path / "run"), models=again, workers=1)
    assert message in str(refused.value)
    assert len(str(refused.value).splitlines()) == 1


def test_own_models_whose_names_were_exchanged_are_refused_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(polyfed.UserError) as refused:
        polyfed.resume(stopped_run(tmp_path / "run"), models={"small": wide, "wide": small}, workers=1)
    assert len(str(refused.value).splitlines()) == 1


def test_an_own_model_with_a_known_models_name_must_be_given_again(tmp_path: Path) -> None:
    run = polyfed.prepare(
        BASE, method="local", models={"mlp": small}, rounds=2, out=tmp_path / "run", workers=1
    )
    run.go(lambda now: now.stop())
    run.close()
    with pytest.raises(polyfed.UserError, match="'mlp' is a model of your own"):
        polyfed.resume(run.path, workers=1)


class Unfit(nn.Module):
    """Of its parts each is wrong in its own way, and it has a name of its own."""

    name = "unfit"

    def __init__(self, *, lazy: bool = False, pair: bool = False, width: int = 64, flat: bool = True) -> None:
        super().__init__()
        self.head, self.pair, self.flat = nn.Linear(width, 10), pair, flat
        self.unused = nn.LazyLinear(3) if lazy else None

    def forward(self, x: Tensor) -> Any:
        logits = self.head(x.flatten(1) if self.flat else x.reshape(1, 1, -1))
        return (logits, logits) if self.pair else logits


@pytest.mark.parametrize(
    "make",
    [
        lambda: Unfit(lazy=True),
        lambda: Unfit(pair=True),
        lambda: Unfit(width=7),
        lambda: Unfit(flat=False),
        lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 10), nn.LazyLinear(10), nn.Unflatten(1, (2, 5))),
        Unfit(pair=True),
    ],
)
def test_an_error_calls_a_model_what_the_user_called_it(make: Any, tmp_path: Path) -> None:
    with pytest.raises(polyfed.UserError, match=r"^model 'mine' ") as refused:
        polyfed.run(BASE, method="local", rounds=1, models={"mine": make}, out=tmp_path / "run")
    assert not any(word in str(refused.value) for word in ("Unfit", "unfit", "Sequential"))
    assert not (tmp_path / "run").exists()


# -- tied weights ------------------------------------------------------------------------------------------------


class Tied(nn.Module):
    """Its head is its embedding, turned round: one parameter in two places."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(64, 10, bias=False)
        self.second = nn.Linear(64, 10)
        self.second.weight = self.first.weight

    def forward(self, x: Tensor) -> Tensor:
        x = x.flatten(1)
        out: Tensor = self.first(x) + self.second(x)
        return out


@pytest.mark.parametrize("method", ["fedavg", "local"])
def test_tied_weights_travel_once_and_are_whole_in_the_end(tmp_path: Path, method: str) -> None:
    done = [
        polyfed.run(BASE, method=method, rounds=2, models=[Tied], out=tmp_path / str(n), workers=n)
        for n in (1, 2)
    ]
    assert result_of(done[0].path) == result_of(done[1].path)
    assert done[0].federation.assignment.models["Tied"].weights_bytes == 4 * (64 * 10 + 10)
    sent = done[0].summary["bytes"]["up"].get("weights", 0)
    assert sent == (0 if method == "local" else 4 * 2 * 4 * (64 * 10 + 10))  # clients, rounds, bytes
    name = "client-0" if method == "local" else "shared_Tied"
    weights = load_file(done[0].path / "models" / f"{name}.safetensors")
    Tied().load_state_dict(weights)
    assert weights["first.weight"].equal(weights["second.weight"])
    model = polyfed.load_model(done[0].path, "client-0", make=Tied)
    assert model.get_parameter("first.weight").equal(weights["first.weight"])
    init = {"init": str(done[0].path)}
    warm = polyfed.prepare({**BASE, "models": init}, method=method, models=[Tied], out=tmp_path / "warm")
    population = warm.federation.population
    first = population.own_model(0) if method == "local" else population.build("Tied")
    assert first.get_parameter("second.weight").equal(weights["first.weight"])
    warm.close()


def test_a_function_that_needs_arguments_is_told_by_its_name() -> None:
    def net(outputs: int) -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(64, outputs))

    maker: Any = net

    with pytest.raises(
        ModelError, match=r"'net' is called without arguments, and .*outputs.*: give a function"
    ):
        polyfed.prepare(BASE, models=[maker])
