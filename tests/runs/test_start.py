"""`models.init`: models start from those of an earlier run, or all from one file."""

from __future__ import annotations

import json
import pickle
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from safetensors.torch import load_file, save_file
from torch import nn

import polyfed
from polyfed.errors import UserError
from polyfed.testing import result_of

RNG = np.random.default_rng(0)
Y = RNG.integers(0, 3, 150)
X = (RNG.normal(size=(150, 6)) + 2 * Y[:, None]).astype(np.float32)
BASE: dict[str, Any] = {
    "data": {"clients": 3, "partition": {"kind": "iid"}},
    "training": {"epochs": 1, "batch": 16, "lr": 0.1},
    "rounds": 1,
    "stack": 1,
}


class Tied(nn.Module):
    """Two layers with one weight."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(6, 6), nn.Linear(6, 6)
        self.second.weight = self.first.weight
        self.head = nn.Linear(6, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.head(self.second(self.first(x).relu()).relu())
        return out


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))


def wide() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 9), nn.ReLU(), nn.Linear(9, 3))


def prepare(out: Path, init: Path | None, maker: Any = net, **config: Any) -> polyfed.Run:
    models = {**config.pop("models", {}), **({} if init is None else {"init": str(init)})}
    settings = {**BASE, **config, "models": {"names": ["net"], **models}}
    return polyfed.prepare(settings, data=(X, Y), models={"net": maker}, out=out, workers=1)


def go(out: Path, init: Path | None, maker: Any = net, **config: Any) -> polyfed.Run:
    run = prepare(out, init, maker, **config)
    run.go()
    run.close()
    return run


def started(out: Path, init: Path | None, maker: Any = net, **config: Any) -> Any:
    """The federation of a run that is prepared and not done."""
    run = prepare(out, init, maker, **config)
    run.close()
    return run.federation


def left(run: polyfed.Run, name: str) -> dict[str, torch.Tensor]:
    return load_file(run.path / "models" / f"{name}.safetensors")


def same(model: nn.Module, weights: dict[str, torch.Tensor]) -> bool:
    return all(tensor.equal(weights[name]) for name, tensor in model.state_dict().items())


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> polyfed.Run:
    """A run whose clients have a model each."""
    return go(tmp_path_factory.mktemp("alone") / "run", None, method="local")


@pytest.fixture(scope="module")
def together(tmp_path_factory: pytest.TempPathFactory) -> polyfed.Run:
    """A run whose clients share one."""
    return go(tmp_path_factory.mktemp("together") / "run", None, method="fedavg")


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> polyfed.Run:
    """A run whose clients have a model each, and the server one."""
    path = tmp_path_factory.mktemp("served") / "run"
    return go(path, None, method="fml", models={"server": "net"})


def test_each_client_starts_from_its_own_model(tmp_path: Path, alone: polyfed.Run) -> None:
    population = started(tmp_path / "run", alone.path, method="local").population
    for index in range(3):
        assert same(population.own_model(index), left(alone, f"client-{index}"))
    assert not left(alone, "client-0")["0.bias"].equal(left(alone, "client-1")["0.bias"])


def test_two_short_runs_are_one_long_one(tmp_path: Path, together: polyfed.Run) -> None:
    # Without anything that lasts beside the weights, but for the random streams of the second round.
    again = go(tmp_path / "run", together.path, method="fedavg")
    assert again.summary["last"]["own"]["mean"] >= together.summary["last"]["own"]["mean"]
    start = started(tmp_path / "other", together.path)
    assert same(start.population.build("net"), left(together, "shared_net"))
    shared = start.server().weights("net")
    assert all(tensor.equal(left(together, "shared_net")[name]) for name, tensor in shared.items())


def test_clients_with_models_of_their_own_start_from_a_shared_one(
    tmp_path: Path, together: polyfed.Run
) -> None:
    population = started(tmp_path / "run", together.path, method="local").population
    assert all(same(population.own_model(index), left(together, "shared_net")) for index in range(3))


def test_the_server_starts_from_the_servers(tmp_path: Path, served: polyfed.Run) -> None:
    federation = started(tmp_path / "run", served.path, method="fml", models={"server": "net"})
    model = federation.server().model
    assert model is not None
    assert same(model, left(served, "server"))
    assert same(federation.population.own_model(1), left(served, "client-1"))


def test_a_server_without_a_model_to_start_from_is_told(
    tmp_path: Path, alone: polyfed.Run, caplog: pytest.LogCaptureFixture
) -> None:
    started(tmp_path / "run", alone.path, method="fml", models={"server": "net"})
    assert "has no model of a server: the server's starts anew" in caplog.text


@pytest.mark.parametrize("method", ["local", "fedavg"])
def test_all_start_from_one_file(tmp_path: Path, alone: polyfed.Run, method: str) -> None:
    file = alone.path / "models" / "client-1.safetensors"
    population = started(tmp_path / "run", file, method=method).population
    made = (
        [population.own_model(index) for index in range(3)]
        if method == "local"
        else [population.build("net")]
    )
    assert all(same(model, load_file(file)) for model in made)


def test_a_file_from_elsewhere_will_do(tmp_path: Path) -> None:
    weights = {name: torch.full_like(tensor, 0.25) for name, tensor in net().state_dict().items()}
    save_file(weights, tmp_path / "mine.safetensors")
    population = started(tmp_path / "run", tmp_path / "mine.safetensors").population
    assert same(population.build("net"), weights)


def test_built_in_models_start_so_too(tmp_path: Path) -> None:
    small = {
        **BASE,
        "data": {"limit": 100, "clients": 2},
        "models": {"names": ["mlp-small"]},
        "method": "fedavg",
    }
    first = polyfed.run(small, out=tmp_path / "one", workers=1)
    second = polyfed.prepare(small, overrides=[f"models.init={first.path}"], out=tmp_path / "two", workers=1)
    second.close()
    assert same(second.federation.population.build("mlp-small"), left(first, "shared_mlp-small"))


def test_a_head_may_start_anew(tmp_path: Path, together: polyfed.Run) -> None:
    def other() -> nn.Module:
        return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Sequential(nn.Linear(8, 5), nn.Linear(5, 3)))

    anew = {"init_except": ["2"]}
    population = started(tmp_path / "run", together.path, other, models=anew).population
    model = population.build("net").state_dict()
    assert model["0.weight"].equal(left(together, "shared_net")["0.weight"])
    assert model["2.0.weight"].shape == (5, 8)


# -- what is refused, in one line, before the run ------------------------------------------------------------


def refused(tmp_path: Path, init: Path | str, told: str, maker: Any = net, **config: Any) -> None:
    with pytest.raises(UserError, match=told) as caught:
        prepare(tmp_path / "refused", Path(init), maker, **config)
    assert str(caught.value).startswith("models.init")
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "refused").exists()


@pytest.mark.parametrize("method", ["local", "fedavg"])
def test_another_structure(tmp_path: Path, together: polyfed.Run, method: str) -> None:
    told = (
        r"is of another structure than 'net': '0.weight' is 8×6 there and 9×6 here.*models.init_except: \[0\]"
    )
    refused(tmp_path, together.path, told, wide, method=method)


def test_a_part_that_there_is_not(tmp_path: Path, together: polyfed.Run) -> None:
    deeper = nn.Sequential(*net().children(), nn.Linear(3, 3))
    refused(tmp_path, together.path, "'3.weight' is not there and 3×3 here", deeper)
    refused(tmp_path, together.path, "no model has a part 'tail'", models={"init_except": ["tail"]})
    with pytest.raises(UserError, match=r"models.init_except: there is no models.init"):
        prepare(tmp_path / "run", None, models={"init_except": ["2"]})


FOUR = {"clients": 4, "partition": {"kind": "iid"}}


@pytest.mark.parametrize("method", ["local", "fedavg"])
def test_a_client_that_was_not_there(tmp_path: Path, alone: polyfed.Run, method: str) -> None:
    refused(
        tmp_path, alone.path, "no final model 'client-3' in|a model for each client", method=method, data=FOUR
    )


def test_a_new_client_starts_from_what_its_architecture_shared(tmp_path: Path, together: polyfed.Run) -> None:
    found = started(tmp_path / "run", together.path, data=FOUR)
    assert len(found.roster) == 4
    assert same(found.population.build("net"), left(together, "shared_net"))
    refused(tmp_path, together.path, "no final model 'client-3' in", method="local", data=FOUR)


def test_one_model_each_where_one_is_for_all(tmp_path: Path, alone: polyfed.Run) -> None:
    told = (
        "a model for each client and none that they share, but fedavg starts all.*models/client-0.safetensors"
    )
    refused(tmp_path, alone.path, told)


def test_a_run_that_is_not_finished(tmp_path: Path) -> None:
    begun = prepare(tmp_path / "begun", None, rounds=3)
    begun.go(lambda run: run.stop())
    begun.close()
    refused(tmp_path, begun.path, "has not finished: `polyfed resume")


@pytest.mark.parametrize("harm", ["cut", "edited", "gone"])
def test_a_run_that_is_damaged(tmp_path: Path, alone: polyfed.Run, harm: str) -> None:
    copy = shutil.copytree(alone.path, tmp_path / "copy")
    file = copy / "models" / "client-1.safetensors"
    if harm == "gone":
        file.unlink()
    else:
        data = file.read_bytes()
        file.write_bytes(data[:-4] if harm == "cut" else data[:-1] + bytes([data[-1] ^ 1]))
    told = "client-1" if harm == "gone" else "client-1.safetensors (was truncated or edited|holds no weights)"
    refused(tmp_path, copy, told, method="local")


@pytest.mark.parametrize(
    ("name", "content", "told"),
    [
        ("none.safetensors", None, "none.safetensors cannot be read: No such file"),
        ("none", None, "is not there: give the directory of a finished run, or a .safetensors file"),
        ("model.pt", b"PK", "is not a .safetensors file"),
        ("bad.safetensors", b"no weights at all", "holds no weights"),
        ("empty", "folder", "is not a run directory"),
    ],
)
def test_what_is_no_start(tmp_path: Path, name: str, content: bytes | str | None, told: str) -> None:
    if content == "folder":
        (tmp_path / name).mkdir()
    elif isinstance(content, bytes):
        (tmp_path / name).write_bytes(content)
    refused(tmp_path, tmp_path / name, told)


def frozen_body() -> nn.Module:
    model = net()
    model[0].requires_grad_(False)  # type: ignore[index]
    return model


def test_frozen_parts_start_so_too_and_are_one_for_all(
    tmp_path: Path, alone: polyfed.Run, together: polyfed.Run
) -> None:
    run = go(tmp_path / "run", together.path, frozen_body, method="local")
    for index in range(3):
        assert left(run, f"client-{index}")["0.weight"].equal(left(together, "shared_net")["0.weight"])
    refused(
        tmp_path,
        alone.path,
        "'0.weight' is frozen in 'net', and so the same for all",
        frozen_body,
        method="local",
    )


# -- resuming ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["local", "fedavg"])
def test_inline_pool_and_resumed_are_one(
    tmp_path: Path, alone: polyfed.Run, together: polyfed.Run, method: str
) -> None:
    init = alone.path if method == "local" else together.path
    config: dict[str, Any] = {"method": method, "rounds": 2, "cohort": {"fraction": 0.5}}
    undisturbed = go(tmp_path / "one", init, **config)
    ready = prepare(tmp_path / "two", init, **config)
    ready.go(lambda run: run.stop())
    ready.close()
    again = polyfed.resume(ready.path, data=(X, Y), models={"net": net}, workers=2)
    assert result_of(again.path) == result_of(undisturbed.path)
    models = {"names": ["net"], "init": str(init)}
    pool = polyfed.run(
        {**BASE, **config, "models": models},
        data=(X, Y),
        models={"net": net},
        out=tmp_path / "three",
        workers=2,
    )
    assert result_of(pool.path) == result_of(undisturbed.path)


def stopped(tmp_path: Path, init: Path, **config: Any) -> Path:
    ready = prepare(tmp_path / "stopped", init, rounds=2, **config)
    ready.go(lambda run: run.stop())
    ready.close()
    return ready.path


def test_a_resumed_run_with_another_start_is_refused(tmp_path: Path, together: polyfed.Run) -> None:
    file = tmp_path / "start.safetensors"
    shutil.copy(together.path / "models" / "shared_net.safetensors", file)
    path = stopped(tmp_path, file)
    assert "(initial models)" in json.loads((path / "data.json").read_text())["fingerprints"]
    weights = load_file(file)
    save_file({name: tensor + 1 for name, tensor in weights.items()}, file)
    with pytest.raises(UserError, match=r"\(initial models\)\): it cannot be resumed with others"):
        polyfed.resume(path, data=(X, Y), models={"net": net}, workers=1)


def test_a_start_that_is_gone_is_named(tmp_path: Path, together: polyfed.Run) -> None:
    file = tmp_path / "start.safetensors"
    shutil.copy(together.path / "models" / "shared_net.safetensors", file)
    path = stopped(tmp_path, file)
    file.unlink()
    with pytest.raises(UserError, match=f"models.init: {file} cannot be read: No such file"):
        polyfed.resume(path, data=(X, Y), models={"net": net}, workers=1)


def test_a_relative_path_holds_from_everywhere(
    tmp_path: Path, together: polyfed.Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(together.path.parent)
    path = stopped(tmp_path, Path(together.path.name))
    assert yaml.safe_load((path / "config.yaml").read_text())["models"]["init"] == str(together.path)


def test_a_run_that_starts_anew_says_nothing_of_it(together: polyfed.Run) -> None:
    assert list(json.loads((together.path / "data.json").read_text())["fingerprints"]) == [
        "training",
        "test",
        "public",
    ]


def test_a_start_can_be_sent_to_workers_that_are_spawned(tmp_path: Path, alone: polyfed.Run) -> None:
    population = started(tmp_path / "run", alone.path, method="local").population
    sent = pickle.loads(pickle.dumps(population))
    assert all(same(sent.own_model(index), left(alone, f"client-{index}")) for index in range(3))


def test_a_run_is_not_overwritten_by_one_that_starts_from_it(tmp_path: Path) -> None:
    """In whatever way its folder is written: what is not there any more cannot be started from."""
    before = result_of(go(tmp_path / "run", None, method="local").path)
    (tmp_path / "link").symlink_to(tmp_path / "run")
    for init in (tmp_path / "run", tmp_path / "link", tmp_path / "run" / "models" / "client-0.safetensors"):
        settings = {**BASE, "method": "local", "models": {"names": ["net"], "init": str(init)}}
        with pytest.raises(UserError, match=r"models\.init: .* would be deleted"):
            polyfed.run(settings, data=(X, Y), models={"net": net}, out=tmp_path / "run", overwrite=True)
    assert result_of(tmp_path / "run") == before


def test_of_a_weight_in_two_places_both_names_start_anew(tmp_path: Path) -> None:
    source = go(tmp_path / "source", None, Tied, method="local")
    trained = left(source, "client-0")
    for part in ("first", "second"):
        anew = started(
            tmp_path / part, source.path, Tied, method="local", models={"init_except": [part]}
        ).population.own_model(0)
        assert not anew.first.weight.equal(trained["first.weight"])
        assert anew.second.weight is anew.first.weight
        assert anew.head.weight.equal(trained["head.weight"])


@pytest.mark.parametrize(
    ("tensor", "reason"),
    [
        (torch.ones(8, 6, dtype=torch.complex64), "'0.weight' is complex64 there and float32 here"),
        (torch.ones(8, 6, dtype=torch.bool), "'0.weight' is bool there and float32 here"),
        (torch.ones(8, 6, dtype=torch.int64), "'0.weight' is int64 there and float32 here"),
        (torch.full((8, 6), torch.nan), "'0.weight' has NaN or infinity in it"),
        (torch.full((8, 6), torch.inf), "'0.weight' has NaN or infinity in it"),
    ],
    ids=["complex", "bool", "int", "NaN", "infinity"],
)
def test_weights_of_another_kind_are_refused(tmp_path: Path, tensor: torch.Tensor, reason: str) -> None:
    file = tmp_path / "odd.safetensors"
    save_file({**net().state_dict(), "0.weight": tensor}, file)
    with pytest.raises(UserError, match=reason):
        prepare(tmp_path / "run", file)


def test_another_normalisation_is_told(
    tmp_path: Path, alone: polyfed.Run, caplog: pytest.LogCaptureFixture
) -> None:
    prepare(tmp_path / "same", alone.path, method="local").close()
    assert "normalise" not in caplog.text
    prepare(
        tmp_path / "run", alone.path, method="local", data={**BASE["data"], "normalise": "client"}
    ).close()
    assert "has learnt from inputs with data.normalise=all, which is client here" in caplog.text
