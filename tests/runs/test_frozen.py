"""What does not train is not sent, averaged, kept for clients or counted; and stays what it is."""

from __future__ import annotations

import copy
import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

import polyfed
from polyfed import learn, models
from polyfed.errors import ModelError, UserError
from polyfed.federation.declaration import Need
from polyfed.federation.method import registered
from polyfed.methods.fedavg import FedAvg
from polyfed.models import Network
from polyfed.runs.checkpoint import read_states
from polyfed.testing import check_method, result_of

RNG = np.random.default_rng(0)
Y = RNG.integers(0, 3, 150)
X = (RNG.normal(size=(150, 6)) + 2 * Y[:, None]).astype(np.float32)
BASE: dict[str, Any] = {
    "data": {"clients": 3, "partition": {"kind": "iid"}},
    "training": {"epochs": 2, "batch": 16, "lr": 0.1, "weight_decay": 0.1},
    "rounds": 2,
}


class LoRA(nn.Module):
    """A frozen linear layer and a low-rank change of it that trains."""

    def __init__(self, linear: nn.Linear, rank: int = 2) -> None:
        super().__init__()
        self.linear = linear.requires_grad_(False)
        self.down = nn.Parameter(0.1 * torch.randn(rank, linear.in_features))
        self.up = nn.Parameter(torch.zeros(linear.out_features, rank))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.linear(x) + x @ self.down.T @ self.up.T
        return out


def lora(features: int = 6, outputs: int = 3, hidden: int = 12) -> nn.Module:
    """A pre-trained body with LoRA and a frozen BatchNorm layer, and a head that trains whole."""
    body = nn.Sequential(
        nn.Flatten(),
        LoRA(nn.Linear(features, hidden)),
        nn.BatchNorm1d(hidden).requires_grad_(False),
        nn.ReLU(),
    )
    return Network(body, nn.Linear(hidden, outputs))


FROZEN = {
    "body.1.linear.weight",
    "body.1.linear.bias",
    *(f"body.2.{name}" for name in ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")),
}
TRAINED = {"body.1.down", "body.1.up", "head.weight", "head.bias"}
TRAINED_BYTES = 4 * (2 * 6 + 12 * 2 + 3 * 12 + 3)


def noted(model: nn.Module) -> nn.Module:
    models.note_frozen(model)
    return model


def go(out: Path, maker: Any = lora, **config: Any) -> polyfed.Run:
    return polyfed.run({**BASE, **config}, data=(X, Y), models={"net": maker}, out=out, workers=1)


# -- at a module ---------------------------------------------------------------------------------------------


def test_what_travels_is_what_trains() -> None:
    model = noted(lora())
    assert models.frozen_names(model) == FROZEN
    assert learn.named_tensors(model).keys() == TRAINED
    assert learn.weights_of(model).keys() == TRAINED
    assert learn.frozen_weights_of(model).keys() == FROZEN
    assert learn.all_tensors(model).keys() == model.state_dict().keys() == TRAINED | FROZEN
    assert len(learn.trained_tensors(model)) == len(TRAINED)
    assert models.size(model, (6,)).weights_bytes == TRAINED_BYTES
    assert models.size(model, (6,)).parameters == sum(each.numel() for each in model.parameters())


def test_what_is_switched_off_for_a_while_is_not_frozen() -> None:
    model = noted(lora())
    with learn.frozen(model):
        assert learn.weights_of(model).keys() == TRAINED
    model.head.requires_grad_(False)
    assert learn.weights_of(model).keys() == TRAINED
    for again in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert learn.weights_of(again).keys() == TRAINED


def test_weights_of_a_frozen_part_are_refused() -> None:
    model = noted(lora())
    with pytest.raises(ModelError, match=r"weights of another architecture: 'body.1.linear.bias'"):
        learn.load_weights(model, {"body.1.linear.bias": torch.zeros(12)}, partly=True)


def test_a_model_in_which_nothing_trains_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="model 'net' has no parameter that trains: leave requires_grad on"):
        go(tmp_path / "run", lambda: nn.Linear(6, 3).requires_grad_(False))


def test_a_frozen_norm_keeps_its_statistics_and_normalises_by_them() -> None:
    model = noted(lora())
    norm: Any = model.get_submodule("body.2")
    norm.running_mean.fill_(0.5)
    norm.running_var.fill_(4.0)
    before = {name: tensor.clone() for name, tensor in norm.state_dict().items()}
    model.train()
    x = torch.randn(8, 12)
    assert norm(x).allclose((x - 0.5) / (4.0 + norm.eps) ** 0.5)
    learn.recompute_statistics(model, torch.randn(32, 6), 8)
    with learn.batch_statistics(model):
        assert norm(x).allclose((x - 0.5) / (4.0 + norm.eps) ** 0.5)
    assert all(tensor.equal(before[name]) for name, tensor in norm.state_dict().items())


def test_a_norm_that_trains_keeps_track_as_ever() -> None:
    model = noted(nn.Sequential(nn.Linear(6, 12).requires_grad_(False), nn.BatchNorm1d(12), nn.Linear(12, 3)))
    model(torch.randn(8, 6))
    assert int(model[1].num_batches_tracked) == 1  # type: ignore[index]
    assert models.frozen_names(model) == {"0.weight", "0.bias"}


def test_a_norm_without_parameters_is_frozen_with_what_is_around_it() -> None:
    body = nn.Sequential(nn.Linear(6, 12), nn.BatchNorm1d(12, affine=False)).requires_grad_(False)
    frozen = noted(nn.Sequential(body, nn.Linear(12, 3)))
    assert "0.1.running_mean" in models.frozen_names(frozen)
    free = noted(
        nn.Sequential(nn.BatchNorm1d(6, affine=False), nn.Linear(6, 3), nn.Linear(3, 3).requires_grad_(False))
    )
    assert models.frozen_names(free) == {"2.weight", "2.bias"}


def test_weight_decay_and_optimisers_leave_it_alone() -> None:
    model = noted(lora())
    before = learn.frozen_weights_of(model)
    training = learn.Training(epochs=2, batch=16, lr=0.1, weight_decay=0.5, momentum=0.9)
    learn.supervised(
        model, torch.from_numpy(X), torch.from_numpy(Y), training, torch.Generator().manual_seed(0)
    )
    assert all(tensor.equal(before[name]) for name, tensor in learn.frozen_weights_of(model).items())


# -- in a federation -----------------------------------------------------------------------------------------


def test_only_what_trains_is_counted(tmp_path: Path) -> None:
    run = go(tmp_path / "run", rounds=3)
    sent = run.summary["bytes"]
    assert sent["up"]["weights"] == sent["down"]["weights"] == 3 * 3 * TRAINED_BYTES
    assigned = json.loads((run.path / "assignment.json").read_text())
    assert assigned["models"]["net"]["weights_bytes"] == TRAINED_BYTES


def test_clients_states_have_only_what_trains(tmp_path: Path) -> None:
    run = go(tmp_path / "run", method="local")
    states = [
        load_file(run.path / "states" / state.file) for state in read_states(run.path).values() if state.file
    ]
    assert states
    for state in states:
        assert sum(tensor.nbytes for tensor in state.values()) == TRAINED_BYTES


@pytest.mark.parametrize("method", ["fedavg", "local"])
def test_final_models_are_whole(tmp_path: Path, method: str) -> None:
    run = go(tmp_path / "run", method=method)
    start = run.federation.population.build("net").state_dict()
    for file in (run.path / "models").glob("*.safetensors"):
        left = load_file(file)
        assert left.keys() == TRAINED | FROZEN
        assert all(left[name].equal(start[name]) for name in FROZEN)
        assert not left["body.1.up"].equal(start["body.1.up"])
    model = polyfed.load_model(run.path, "client-0", make=lora)
    used = run.federation.population.build("net").eval()
    used.load_state_dict(left)
    x = torch.from_numpy(X)
    assert method == "local" or model(x).equal(used(x))


def test_everybody_of_an_architecture_has_the_same_frozen_parts(tmp_path: Path) -> None:
    run = go(tmp_path / "run", method="local", rounds=1)
    population = run.federation.population
    own = [population.own_model(index) for index in range(3)]
    heads = [learn.weights_of(model)["head.weight"] for model in own]
    assert not heads[0].equal(heads[1])
    common = learn.frozen_weights_of(population.build("net"))
    for model in own:
        assert all(tensor.equal(common[name]) for name, tensor in learn.frozen_weights_of(model).items())
    memory = {model.body[1].linear.weight.data_ptr() for model in own}  # type: ignore[index, union-attr]
    assert len(memory) == 1  # and in one place, however many clients there are


class Restless(nn.Module):
    """Changes what it says is frozen, as a momentum encoder does."""

    def __init__(self) -> None:
        super().__init__()
        self.slow = nn.Linear(6, 3).requires_grad_(False)
        self.fast = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        if self.training and torch.is_grad_enabled():
            with torch.no_grad():
                self.slow.weight.lerp_(self.fast.weight, 0.1)
        out: Tensor = self.fast(x) + self.slow(x)
        return out


@pytest.mark.parametrize("method", ["fedavg", "local", "fml"])
def test_a_frozen_part_that_changes_is_told(tmp_path: Path, method: str) -> None:
    """fml: of the network that travels, which a client borrows for a step."""
    makers = {"net": lora if method == "fml" else Restless, "common": Restless}
    config = {**BASE, "method": method, "stack": 1, "models": {"server": "common"}, "rounds": 3}
    with pytest.raises(UserError, match=r"changes 'slow.weight', which is frozen: let it train"):
        polyfed.run(config, data=(X, Y), models=makers, out=tmp_path / "run", workers=1)


class Changing:
    """Freezes another part each time."""

    def __init__(self) -> None:
        self.made = 0

    def __call__(self) -> nn.Module:
        self.made += 1
        model = nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 3))
        model[self.made % 2].requires_grad_(False)
        return model


def test_a_maker_that_freezes_another_part_each_time_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="model 'net' has other frozen parts each time it is made"):
        go(tmp_path / "run", Changing())


def needs_server_model(name: str) -> bool:
    kind = registered()[name]
    return Need.SERVER_MODEL in kind(kind.Settings(), learn.Training()).declared.needs


SENDING = [
    name
    for name, kind in registered().items()
    if kind(kind.Settings(), learn.Training()).declared.sends_weights
    and Need.ALL_DATA not in kind(kind.Settings(), learn.Training()).declared.needs
]


def test_the_methods_that_send_weights_are_known() -> None:
    assert {"fedavg", "scaffold", "fednova", "qffl", "spatl", "feddf", "fedkem", "fml", "fedorion"} <= {
        *SENDING
    }


# FedAvg with another local loss has FedAvg's steps: it is enough that it runs (below).
OF_THEIR_OWN = [name for name in SENDING if name == "fedavg" or not issubclass(registered()[name], FedAvg)]


@pytest.mark.evidence
@pytest.mark.parametrize("name", OF_THEIR_OWN)
def test_every_method_that_sends_weights_keeps_its_contract(name: str) -> None:
    kind = registered()[name]
    config: dict[str, Any] = {
        "models": {"names": ["net"], **({"server": "net"} if needs_server_model(name) else {})},
        "data": {"limit": 300, "clients": 3, "partition": {"kind": "iid"}},
        "training": {"epochs": 1 if name == "fedkf" else 4, "batch": 32, "lr": 0.1, "momentum": 0.9},
        "rounds": 2,
    }
    config["data"]["public"] = {"source": "share", "share": 0.2}
    check_method(kind, config=config, models={"net": lambda: lora(64, 10, 48)})


@pytest.mark.parametrize("name", SENDING)
def test_every_method_sends_less_than_the_whole(tmp_path: Path, name: str) -> None:
    public = {"data": {**BASE["data"], "public": {"source": "share", "share": 0.2}}}
    net = {"names": ["net"], **({"server": "net"} if needs_server_model(name) else {})}
    run = go(tmp_path / "run", method=name, **public, models=net)
    before = run.federation.population.build("net").state_dict()
    for file in (run.path / "models").glob("*.safetensors"):
        left = load_file(file)
        assert left.keys() == TRAINED | FROZEN
        assert all(left[key].equal(before[key]) for key in FROZEN)
    messages = 2 * 3 * 2  # rounds × clients × at most two models
    if name != "fedgen":  # whose generator goes down, too
        assert run.summary["bytes"]["down"].get("weights", 0) <= messages * TRAINED_BYTES
    assert run.summary["bytes"]["up"].get("weights", 0) <= messages * TRAINED_BYTES


def test_all_of_the_body_frozen_leaves_spatl_nothing_to_share(tmp_path: Path) -> None:
    def frozen_body() -> nn.Module:
        body = nn.Sequential(nn.Flatten(), nn.Linear(6, 12), nn.ReLU()).requires_grad_(False)
        return Network(body, nn.Linear(12, 3))

    with pytest.raises(UserError, match="spatl shares the body of a model, and all of it is frozen"):
        go(tmp_path / "run", frozen_body, method="spatl")


def test_a_federation_can_be_sent_to_workers_that_are_spawned(tmp_path: Path) -> None:
    run = go(tmp_path / "run", method="local", rounds=1)
    population = run.federation.population
    sent = pickle.loads(pickle.dumps(population))
    for index in range(3):
        one, other = population.own_model(index), sent.own_model(index)
        assert all(tensor.equal(other.state_dict()[name]) for name, tensor in one.state_dict().items())
        assert models.frozen_names(other) == FROZEN


# -- what changes all the same -------------------------------------------------------------------------------


class Momentum(nn.Module):
    """A frozen copy that follows the trained part, as in DINO, in one of the ways in which that is written."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how = how
        self.query, self.key = nn.Linear(6, 8), nn.Linear(6, 8).requires_grad_(False)
        self.head = nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.follow()
        out: Tensor = self.head(torch.cat([self.query(x), self.key(x)], dim=1).relu())
        return out

    @torch.no_grad()
    def follow(self) -> None:
        key, query = self.key.weight, self.query.weight
        if self.how == "through data":
            key.data.mul_(0.9).add_(0.1 * query.detach())
        elif self.how == "in place":
            key.mul_(0.9).add_(query, alpha=0.1)
        elif self.how == "other memory":
            key.data = 0.9 * key + 0.1 * query
        else:
            key.numpy()[:] = 0.9 * key.numpy() + 0.1 * query.detach().numpy()


@pytest.mark.parametrize("how", ["through data", "in place", "other memory", "through numpy"])
@pytest.mark.parametrize("method", ["local", "fedavg"])
def test_a_frozen_part_that_follows_a_trained_one_is_an_error(tmp_path: Path, method: str, how: str) -> None:
    with pytest.raises(UserError, match=r"changes 'key\.weight', which is frozen"):
        go(tmp_path / "run", lambda: Momentum(how), method=method)


class Passing(nn.Module):
    """Subtracts a mean that it follows in a buffer which is in nobody's state."""

    mean: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(6, 3)
        self.register_buffer("mean", torch.zeros(6), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.mean = 0.9 * self.mean + 0.1 * x.detach().mean(dim=0)
        out: Tensor = self.head(x - self.mean)
        return out


@pytest.mark.parametrize("method", ["local", "fedavg", "feddf"])
def test_a_buffer_that_does_not_last_begins_each_step_anew(tmp_path: Path, method: str) -> None:
    """So inline is the pool, and a resumed run an undisturbed one."""
    config = {**BASE, "rounds": 4, "method": method, "stack": 1, "checkpoint_seconds": 0}
    config["models"] = {"server": "net", "names": ["net"]}
    config["data"] = {**BASE["data"], "public": {"source": "share", "share": 0.2}}
    given: dict[str, Any] = {"data": (X, Y), "models": {"net": Passing}}
    inline = polyfed.run(config, **given, out=tmp_path / "inline", workers=1)
    pinned = inline.config.as_file()  # the trials' decisions are part of the arithmetic
    pinned["data"].pop("source")
    pool = polyfed.run(pinned, **given, out=tmp_path / "pool", workers=2)
    assert result_of(pool.path) == result_of(inline.path)
    polyfed.run(
        pinned,
        **given,
        out=tmp_path / "parts",
        workers=1,
        listener=lambda run: run.stop() if run.round == 2 else None,
    )
    polyfed.resume(tmp_path / "parts", **given, workers=1)
    assert result_of(tmp_path / "parts") == result_of(inline.path)


def test_clients_do_not_train_what_a_function_gives_again_and_again(tmp_path: Path) -> None:
    """A body that was loaded once and is to be trained: each client has its own, and the user's stays as it is."""
    torch.manual_seed(0)
    body = nn.Linear(6, 8)
    first = copy.deepcopy(body.state_dict())
    makers: dict[str, Any] = {
        "shared": lambda: nn.Sequential(body, nn.ReLU(), nn.Linear(8, 3)),
        "copied": lambda: nn.Sequential(copy.deepcopy(body), nn.ReLU(), nn.Linear(8, 3)),
    }
    done = {
        (name, workers): polyfed.run(
            {**BASE, "stack": 1},
            method="local",
            data=(X, Y),
            models={"net": maker},
            workers=workers,
            out=tmp_path / f"{name}-{workers}",
        )
        for name, maker in makers.items()
        for workers in (1, 2)
    }
    results = [result_of(run.path) for run in done.values()]
    assert all(result["models"] == results[0]["models"] for result in results)
    assert all(tensor.equal(first[name]) for name, tensor in body.state_dict().items())


def test_a_frozen_body_that_a_function_gives_again_and_again_is_not_copied(tmp_path: Path) -> None:
    body = nn.Linear(6, 8).requires_grad_(False)
    run = go(tmp_path / "run", lambda: nn.Sequential(body, nn.ReLU(), nn.Linear(8, 3)), method="local")
    population = run.federation.population
    one, other = population.own_model(0), population.own_model(1)
    assert one[0].weight.data_ptr() == other[0].weight.data_ptr() == body.weight.data_ptr()  # type: ignore[index]
    assert one[2].weight.data_ptr() != other[2].weight.data_ptr()  # type: ignore[index]
