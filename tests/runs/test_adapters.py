"""Models that answer with more than logits, or take their input by name, are used as any other."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
import yaml
from safetensors.torch import load_file
from torch import Tensor, nn

import polyfed
from polyfed import models
from polyfed.errors import UserError
from polyfed.methods.fedavg import FedAvg
from polyfed.models import features_and_logits
from polyfed.testing import check_method, result_of

RNG = np.random.default_rng(0)
Y = RNG.integers(0, 3, 150)
X = (RNG.normal(size=(150, 6)) + 2 * Y[:, None]).astype(np.float32)
BASE: dict[str, Any] = {
    "data": {"clients": 3, "partition": {"kind": "iid"}},
    "training": {"epochs": 1, "batch": 16},
    "rounds": 2,
    "stack": 1,  # whether stacking pays is found out by a trial, and changes the last bits
}


@dataclass
class Record:
    hidden: Tensor
    scores: Tensor


class Named(NamedTuple):
    hidden: Tensor
    scores: Tensor


class Output(dict[str, Any]):
    """As transformers' ModelOutput: a dict whose keys are attributes, too."""


SHAPED: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "tensor": lambda _h, out: out,
    "dict": lambda h, out: {"hidden": h, "logits": out},
    "dict of one table": lambda h, out: {"hidden": h, "answers": out, "loss": None},
    "tuple": lambda h, out: (h, out),
    "object": Record,
    "named tuple": Named,
    "subclass": lambda h, out: Output(logits=out, hidden=h),
}
FOUND = {
    "dict": "logits",
    "dict of one table": "answers",
    "tuple": 1,
    "object": "scores",
    "subclass": "logits",
}
FOUND |= {"named tuple": "scores"}


class Net(nn.Module):
    def __init__(self, shaped: str, inner: int = 8) -> None:
        super().__init__()
        self.shaped = shaped
        self.body = nn.Linear(6, inner)
        self.head = nn.Linear(inner, 3)

    def forward(self, values: Tensor) -> Any:
        hidden = self.body(values).relu()
        return SHAPED[self.shaped](hidden, self.head(hidden))


class ByName(Net):
    def forward(self, *, values: Tensor) -> Any:  # type: ignore[override]
        return super().forward(values)


class Two(Net):
    """Two tables of one width, of which either may be the logits."""

    def __init__(self) -> None:
        super().__init__("tensor")
        self.other = nn.Linear(8, 3)

    def forward(self, values: Tensor) -> Any:
        hidden = self.body(values).relu()
        return {"coarse": self.other(hidden), "fine": self.head(hidden), "hidden": hidden}


def go(out: Path, maker: Any, adapter: dict[str, Any] | None = None, **more: Any) -> polyfed.Run:
    adapt = {"adapt": {"net": adapter}} if adapter else {}
    config = {**BASE, "models": {"names": ["net"], **adapt}, **more.pop("config", {})}
    return polyfed.run(config, data=(X, Y), models={"net": maker}, out=out, workers=1, **more)


def weights_of(run: polyfed.Run) -> dict[str, Tensor]:
    return load_file(next((run.path / "models").glob("*.safetensors")))


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Tensor]:
    return weights_of(go(tmp_path_factory.mktemp("plain") / "run", lambda: Net("tensor")))


@pytest.mark.parametrize("shaped", FOUND)
def test_the_logits_are_found_and_what_is_learnt_is_the_same(
    tmp_path: Path, plain: dict[str, Tensor], shaped: str
) -> None:
    run = go(tmp_path / "run", lambda: Net(shaped))
    learnt = weights_of(run)
    assert list(learnt) == list(plain)  # the names in the state dict, too
    assert all(learnt[name].equal(plain[name]) for name in plain)
    written = yaml.safe_load((run.path / "config.yaml").read_text())["models"]["adapt"]
    assert written == {"net": {"output": FOUND[shaped], "input": None}}
    model = polyfed.load_model(run.path, "client-0", make=lambda: Net(shaped))
    assert len(model.predict(X).classes) == len(X)
    assert model(torch.from_numpy(X)).shape == (len(X), 3)


@pytest.mark.parametrize("output", ["fine", "coarse"])
def test_what_is_said_is_taken(tmp_path: Path, output: str) -> None:
    run = go(tmp_path / "run", Two, {"output": output})
    left_alone = {"fine": "other.weight", "coarse": "head.weight"}[output]
    start = run.federation.population.build("net").state_dict()[left_alone]
    assert weights_of(run)[left_alone].equal(start)  # nothing pulls at the other one
    model = polyfed.load_model(run.path, "client-0", make=Two)
    used: Any = getattr(model, {"fine": "head", "coarse": "other"}[output])
    x, body = torch.from_numpy(X), model.get_submodule("body")
    assert model(x).equal(used(body(x).relu()))  # the file says which, nobody has to say it again


def test_an_input_is_given_by_its_name(tmp_path: Path, plain: dict[str, Tensor]) -> None:
    run = go(tmp_path / "run", lambda: ByName("dict"), {"input": "values"})
    assert all(tensor.equal(plain[name]) for name, tensor in weights_of(run).items())
    model = polyfed.load_model(run.path, "client-0", make=lambda: ByName("dict"))
    assert model(torch.from_numpy(X)).equal(model(values=torch.from_numpy(X)))


@pytest.mark.parametrize(
    ("maker", "adapter", "told"),
    [
        (
            Two,
            None,
            r"a dict of coarse \(rows×3\), fine \(rows×3\), hidden \(rows×8\): say which are the logits",
        ),
        (Two, {"output": "best"}, "gives a dict without 'best': known: coarse, fine, hidden"),
        (lambda: Net("dict of one table"), {"output": "loss"}, "gives a NoneType as 'loss', not logits"),
        (
            lambda: ByName("dict"),
            None,
            r"if it takes its input by name, set models.adapt: \{net: \{input: …\}\}",
        ),
        (lambda: ByName("dict"), {"input": "x"}, "unexpected keyword argument 'x'"),
    ],
)
def test_what_is_not_clear_is_refused_before_the_run(
    tmp_path: Path, maker: Any, adapter: dict[str, Any] | None, told: str
) -> None:
    with pytest.raises(UserError, match=told):
        go(tmp_path / "run", maker, adapter)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("name", "told"),
    [("nett", "no model of this run: did you mean 'net'"), ("mlp", "'mlp' is polyfed's own")],
)
def test_adapters_are_for_models_of_the_run_that_need_one(tmp_path: Path, name: str, told: str) -> None:
    config = {**BASE, "models": {"names": ["net", "mlp"], "adapt": {name: {"output": 0}}}}
    with pytest.raises(UserError, match=f"models.adapt: .*{told}"):
        polyfed.run(
            config, data=(X, Y), models={"net": lambda: Net("dict")}, out=tmp_path / "run", method="local"
        )


def test_inline_pool_resumed_and_stacked_are_one() -> None:
    config = {**BASE, "rounds": 3, "models": {"names": ["net"], "adapt": {"net": {"input": "values"}}}}
    config["training"] = {"epochs": 3, "batch": 16, "lr": 0.1}
    check_method(FedAvg, config=config, data=(X, Y), models={"net": lambda: ByName("dict")})


def test_a_run_is_resumed_with_its_adapter(tmp_path: Path) -> None:
    undisturbed = go(tmp_path / "one", Two, {"output": "fine"})
    config = {**BASE, "models": {"names": ["net"], "adapt": {"net": {"output": "fine"}}}}
    ready = polyfed.prepare(config, data=(X, Y), models={"net": Two}, out=tmp_path / "two", workers=1)
    ready.go(lambda run: run.stop())
    ready.close()
    again = polyfed.resume(ready.path, data=(X, Y), models={"net": Two}, workers=2)
    assert result_of(again.path) == result_of(undisturbed.path)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_types_and_adapters_go_together(tmp_path: Path, dtype: torch.dtype) -> None:
    run = go(tmp_path / "run", lambda: ByName("dict").to(dtype), {"input": "values"})
    model = run.federation.population.build("net")
    assert model(torch.from_numpy(X)).dtype is torch.float32
    assert weights_of(run)["head.weight"].dtype is dtype


def test_an_adapted_model_is_copied_pickled_measured_and_has_features(tmp_path: Path) -> None:
    run = go(tmp_path / "run", lambda: ByName("tuple"), {"input": "values"})
    model = run.federation.population.build("net")
    x = torch.from_numpy(X)
    for again in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert again(x).equal(model(x))
    features, logits = features_and_logits(model, x)
    assert features.equal(model.get_submodule("body")(x).relu())
    assert logits.equal(model(x))
    assert models.feature_count(model, (6,)) == 8
    assert models.size(model, (6,)).macs == 6 * 8 + 8 * 3


class Shared:
    """A maker that gives one object again and again."""

    def __init__(self) -> None:
        self.net = ByName("dict")

    def __call__(self) -> nn.Module:
        return self.net


def test_one_object_is_adapted_once(tmp_path: Path) -> None:
    maker = Shared()
    go(tmp_path / "run", maker, {"input": "values"})
    assert len(maker.net._forward_pre_hooks) == len(maker.net._forward_hooks) == 1


class Auxiliary(nn.Module):
    """Answers with more in training, as torchvision's Inception and GoogLeNet."""

    def __init__(self) -> None:
        super().__init__()
        self.head, self.other = nn.Linear(6, 3), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Any:
        return {"logits": self.head(x), "auxiliary": self.other(x)} if self.training else self.head(x)


def test_a_model_that_answers_with_more_in_training_alone_is_used(tmp_path: Path) -> None:
    done = polyfed.run(BASE, data=(X, Y), models={"net": Auxiliary}, out=tmp_path / "run", workers=1)
    assert done.config.models.adapt["net"].output == "logits"
    model = polyfed.load_model(done.path, "client-0", make=Auxiliary)
    assert model.predict(X[:3]).probabilities.shape == (3, 3)


class Detached(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(x).detach()
        return out


class Constant(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x[:, :3]


@pytest.mark.parametrize(
    ("maker", "reason"),
    [
        (Detached, "cannot be trained: what it answers is detached from its parameters"),
        (Constant, "has no parameter that trains"),
    ],
)
def test_a_model_that_cannot_be_trained_is_refused_before_the_run(
    tmp_path: Path, maker: Any, reason: str
) -> None:
    with pytest.raises(UserError, match=reason):
        polyfed.run(BASE, data=(X, Y), models={"net": maker}, out=tmp_path / "run", workers=1)
    assert not (tmp_path / "run").exists()


def test_an_adapter_of_a_model_that_needs_none_is_refused(tmp_path: Path) -> None:
    config = {**BASE, "models": {"names": ["net"], "adapt": {"net": {"output": "logits"}}}}
    with pytest.raises(UserError, match="answers with a tensor, in which there is no 'logits'"):
        polyfed.run(config, data=(X, Y), models={"net": lambda: nn.Linear(6, 3)}, out=tmp_path / "run")


def test_a_place_in_a_tuple_may_be_written_as_a_text() -> None:
    class Pair(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(6, 3)

        def forward(self, x: Tensor) -> Any:
            return x, self.head(x)

    model = Pair()
    assert models.adapt(model, (6,), 3, output="1") == "1"
    assert model(torch.zeros(2, 6)).shape == (2, 3)
