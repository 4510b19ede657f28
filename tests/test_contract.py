"""Every registered method keeps the contract: inline = pool = resumed, only declared kinds leave, and so on."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from torch import nn

import polyfed
from polyfed import (
    Client,
    Declaration,
    Fields,
    Fleet,
    Kind,
    Method,
    Server,
    Weights,
    client_step,
    learn,
    reads_only,
    stacks,
)
from polyfed.errors import UserError
from polyfed.federation.method import registered
from polyfed.methods import FedAvg, local_training
from polyfed.methods.fedprox import FedProx
from polyfed.testing import ContractError, check_method, result_of


@pytest.mark.slow
@pytest.mark.parametrize("name", registered())
def test_every_registered_method_keeps_the_contract(name: str) -> None:
    check_method(registered()[name], task="classification")


@pytest.mark.evidence
@pytest.mark.parametrize("name", registered())
def test_every_registered_method_keeps_the_contract_on_every_task_that_it_declares(name: str) -> None:
    check_method(registered()[name])


HALF = {"cohort": {"fraction": 0.5}, "rounds": 4}
CACHED = {"inactive": "cached"}
KEPT = {"momentum": 0.9, "keep_optimiser": True}
MLPS = {"names": ["mlp-small", "mlp"], "server": "mlp-small"}
STACKED = {"models": {"names": ["mlp-small"]}, "stack": 3}
FEW = {"epochs": 2}

# What lasts of a client or of the server, in other settings than the defaults: all that can go wrong in a resumed run.
VARIANTS: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "fedavg with cached models and local norms": ("fedavg", {**CACHED, "batch_norm": "local"}, HALF),
    "fedavg that recomputes statistics": ("fedavg", {"batch_norm": "recompute"}, {}),
    "fedgkd with local norms": ("fedgkd", {"batch_norm": "local", "within": "architecture"}, HALF),
    "moon with cached models": ("moon", CACHED, HALF),
    "fedkf as its authors have it": (
        *("fedkf", {"flavour": "authors", "width": 16, "noise": 10}),
        {**STACKED, **HALF},
    ),
    "scaffold in part": ("scaffold", {}, {**STACKED, **HALF}),
    "spatl in part": ("spatl", {"keep": 0.3}, {**STACKED, **HALF}),
    "fedmd with kept moments": (
        "fedmd",
        {
            "distil": {**FEW, "optimiser": "adam", "lr": 0.003, "keep_optimiser": True},
            **{"public_training": FEW, "private_training": None},
        },
        {"models": MLPS, "data": {"limit": 300}},
    ),
    "ktpfl in part": ("ktpfl", {"distil": FEW}, {"models": MLPS, "data": {"limit": 300}, **HALF}),
    "fedkem by SCAFFOLD's rule": ("fedkem", {"fusion": "scaffold"}, {"models": MLPS, **HALF}),
    "fedkem with kept moments": ("fedkem", {"ensemble": "vote"}, {"models": MLPS, "training": KEPT}),
    "fedorion with kept moments": (
        "fedorion",
        {"mutual": "none", "aggregate": False, "distil": {"keep_optimiser": True, "cosine": True}},
        {"training": KEPT, "models": {"names": ["mlp", "mlp-small"], "server": "smallest"}},
    ),
    "fedprox, stacked": ("fedprox", {}, STACKED),
    "qffl, stacked": ("qffl", {}, STACKED),
}


@pytest.mark.evidence
@pytest.mark.parametrize("variant", VARIANTS)
def test_settings_that_change_what_lasts_keep_the_contract(variant: str) -> None:
    name, settings, config = VARIANTS[variant]
    check_method(registered()[name], config=config, **settings)


def test_a_kept_optimiser_keeps_the_contract() -> None:
    training = {"optimiser": "amsgrad", "lr": 0.003, "keep_optimiser": True}
    check_method(registered()["local"], config={"training": training})


@pytest.mark.slow
def test_augmentation_keeps_the_contract() -> None:
    check_method(registered()["local"], config={"training": {"augment": True}})


def test_dropout_layers_draw_the_same_on_every_engine(small: dict[str, Any], tmp_path: Path) -> None:
    def make() -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Dropout(0.5), nn.Linear(32, 10))

    done = [
        polyfed.run(small, method="local", models=[make], out=tmp_path / str(workers), workers=workers)
        for workers in (1, 2)
    ]
    assert result_of(done[0].path) == result_of(done[1].path)


@pytest.mark.slow
@pytest.mark.parametrize("task", ["binary", "multilabel"])
def test_classes_that_weigh_differently_keep_the_contract(task: str) -> None:
    """In full: on every engine, resumed, rolled back, and where a stack is asked for."""
    check_method(FedAvg, task={"name": task, "class_weights": "balanced"})


class Peers(Method):
    """Peers that average what their neighbours say: the smallest method that gossips."""

    name = "peers"
    topology: ClassVar[Any] = "complete"

    def declare(self) -> Declaration:
        return Declaration(server=False, sends={"weights": Kind.WEIGHTS})

    @client_step
    def say(self, me: Client) -> Fields:
        learn.supervised(me.model, *me.tensors(me.train), self.training, me.rng("batches"))
        return {"weights": learn.weights_of(me.model)}

    @client_step
    def hear(self, me: Client, heard: list[tuple[str, dict[str, Any]]]) -> Fields:
        mean = learn.WeightedMean()
        mean.add(learn.weights_of(me.model), 1)
        for _, fields in heard:
            mean.add(fields["weights"], 1)
        learn.load_weights(me.model, mean.result())
        return {}

    def round(self, t: int, fleet: Fleet, server: Server) -> None:
        fleet.gossip(self.say, self.hear, self.topology, fleet.sample())


@pytest.mark.slow
@pytest.mark.parametrize("topology", ["ring", "pairs"])
def test_a_method_of_peers_keeps_the_contract(topology: str) -> None:
    peers = type("PeersHere", (Peers,), {"topology": topology, "declare": Peers.declare})
    check_method(peers, config={"models": {"names": ["mlp-small"]}})


class _Round(Method):
    name = "broken"

    def declare(self) -> Declaration:
        return Declaration(sends={"weights": Kind.WEIGHTS})

    @client_step
    def train(self, me: Client) -> Fields:
        learn.supervised(me.model, *me.tensors(me.train), self.training, me.rng("batches"))
        return {"weights": learn.weights_of(me.model)}

    def round(self, t: int, fleet: Fleet, server: Server) -> None:
        fleet.ask(self.train, fleet.sample())


class Forgetful(_Round):
    """Keeps its state in the method object, which no checkpoint sees."""

    def declare(self) -> Declaration:
        return super().declare()

    def round(self, t: int, fleet: Fleet, server: Server) -> None:
        super().round(t, fleet, server)
        self.rounds_done = t


class Dicing(_Round):
    """Draws from the global random state before a step names it."""

    def declare(self) -> Declaration:
        return super().declare()

    @client_step
    def train(self, me: Client) -> Fields:
        noise = torch.randn(3, generator=torch.Generator().manual_seed(torch.seed() % 1000))
        me.memory["noise"] = noise
        return super().train(me)


class Idle(_Round):
    def declare(self) -> Declaration:
        return super().declare()

    @client_step
    def train(self, me: Client) -> Fields:
        return {"weights": learn.weights_of(me.model)}


class Boastful(_Round):
    """Declares what it never sends."""

    def declare(self) -> Declaration:
        return super().declare()

    @client_step
    def train(self, me: Client) -> Fields:
        learn.supervised(me.model, *me.tensors(me.train), self.training, me.rng("batches"))
        return {}


@pytest.mark.parametrize(
    ("method", "complaint"),
    [
        (Forgetful, "holds state"),
        (Dicing, "the pool does not give the same (models|states|server state) as the inline engine"),
        (Idle, "can be had without looking"),
        (Boastful, "never sends"),
    ],
)
def test_a_method_that_breaks_the_contract_is_caught(method: type[Method], complaint: str) -> None:
    with pytest.raises(ContractError, match=complaint):
        check_method(method)


class Nameless(Method):
    def declare(self) -> Declaration:
        return Declaration()

    def round(self, t: int, fleet: Fleet, server: Server) -> None: ...


class Roundless(Method):
    name = "roundless"

    def declare(self) -> Declaration:
        return Declaration()


@pytest.mark.parametrize(
    ("method", "settings", "said"),
    [
        (FedProx, {"mue": 1}, "method.mue: unknown key, did you mean 'mu'?"),
        (FedProx, {"mu": "much"}, "method.mu: must be a number, not 'much'"),
        (Idle, {"typo": 1}, f"method.typo: unknown key, {Idle.name} has no settings of its own"),
        (Idle, {"config": {"roundz": 1}}, "roundz: unknown key, did you mean 'rounds'?"),
        (Idle, {"config": {"data": "digits"}}, "data: "),
        (FedAvg(FedAvg.Settings(), learn.Training()), {}, "pass FedAvg, not an object of it"),
        ("fedavg", {}, "check_method takes the class of a method: 'fedavg' is none"),
        (dict, {}, "check_method takes the class of a method: <class 'dict'> is none"),
        (None, {}, "check_method takes the class of a method: None is none"),
        (Nameless, {}, 'Nameless has no name: write name = "nameless" in it'),
        (Roundless, {}, "Roundless has no round: write round(self, t, fleet, server)"),
    ],
)
def test_what_cannot_be_tried_is_told_in_one_line(method: Any, settings: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError) as caught:
        check_method(method, **settings)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def _careless_together(
    self: Careless, us: list[Client], payloads: list[dict[str, Any]]
) -> list[Fields] | None:
    for me, payload in zip(us, payloads, strict=True):
        self.load(me, payload["weights"])
    local_training.train_together(us)  # without the loss
    return [self.trained(me) for me in us]


class Careless(FedAvg):
    """One by one its clients train with a loss of their own, stacked without it."""

    name = "careless"

    def declare(self) -> Declaration:
        return super().declare()

    def local_loss(self, me: Client, weights: Weights) -> learn.ExtraLoss:
        return learn.Proximal(0.5, weights)

    @client_step(sends=("weights",))
    @stacks(_careless_together)
    def train(self, me: Client, weights: Weights) -> Fields:
        self.load(me, weights)
        local_training.train(me, self.local_loss(me, weights))
        return self.trained(me)


@pytest.mark.slow
def test_a_stacked_twin_that_drops_something_is_caught() -> None:
    with pytest.raises(ContractError, match="stacked"):
        check_method(Careless)


class OldHabit(_Round):
    """zero_grad, backward, step: gradients of the last batch stay behind, and must not count as state."""

    def declare(self) -> Declaration:
        return super().declare()

    @client_step
    def train(self, me: Client) -> Fields:
        x, y = me.tensors(me.train)
        optimiser = torch.optim.SGD(me.model.parameters(), lr=0.3)
        for _ in range(20):
            nn.functional.cross_entropy(me.model(x), y).backward()
            optimiser.step()
        me.model.eval()
        return {"weights": learn.weights_of(me.model)}


@pytest.mark.slow
def test_gradients_and_modes_left_behind_are_no_state() -> None:
    check_method(OldHabit)


class Meddler(_Round):
    def declare(self) -> Declaration:
        return super().declare()

    @client_step
    @reads_only
    def look(self, me: Client) -> Fields:
        me.memory["looked"] = 1
        return {}

    def round(self, t: int, fleet: Fleet, server: Server) -> None:
        super().round(t, fleet, server)
        fleet.ask(self.look, fleet.sample())


@pytest.mark.slow
def test_a_step_that_says_it_only_reads_and_writes_is_caught() -> None:
    with pytest.raises(ContractError, match="look"):
        check_method(Meddler)
