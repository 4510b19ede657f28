"""FedAvg and FedProx against loops written out by hand."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from tests.readers import whole_test
from torch import Tensor, nn
from torch.nn import functional as F

import polyfed
from polyfed import learn, models
from polyfed.errors import MethodError
from polyfed.federation.message import Fields, Weights, decode, encode
from polyfed.federation.method import client_step, registered
from polyfed.federation.nodes import Client
from polyfed.methods import MOON, FedAvg, FedGKD, FedNTD, FedProx, local_training
from polyfed.methods.fedprox import FedProxSettings
from polyfed.runs.rounds import Run

MakeRun = Callable[..., Run]
Prepare = Callable[..., Run]

LR = 0.1
BATCH = 8


def plain() -> nn.Module:
    return nn.Sequential(nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 3))


def wide() -> nn.Module:
    return nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 3))


def normed() -> nn.Module:
    return nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.Linear(4, 3))


def norm_first() -> nn.Module:
    return nn.Sequential(nn.BatchNorm1d(5), nn.Linear(5, 3))


@pytest.fixture
def prepare(tmp_path: Path) -> Iterator[Prepare]:
    """`prepare([factory], method=…)`: a run of three clients of different sizes on 90 rows of noise."""
    made: list[Run] = []

    def make(models: list[Callable[[], nn.Module]], **settings: Any) -> Run:
        stream = torch.Generator().manual_seed(0)
        x, y = torch.randn(90, 5, generator=stream), torch.randint(3, (90,), generator=stream)
        config: dict[str, Any] = {
            "rounds": 1,
            "data": {"clients": 3, "partition": {"kind": "quantity", "alpha": 1.0}},
            "training": {"lr": LR, "batch": BATCH, "epochs": 2},
        }
        out = tmp_path / f"run-{len(made)}"
        made.append(polyfed.prepare({**config, **settings}, data=(x, y), models=models, out=out, workers=1))
        return made[-1]

    yield make
    for run in made:
        run.close()


def averaged(run: Run) -> dict[str, Weights]:
    """The server's weights, architecture by architecture, once the run is through."""
    run.go()
    shared: dict[str, Weights] = run.server.memory["weights"]
    return shared


def sgd(run: Run, model: nn.Module, client: int, number: int, sequence: int = 1, mu: float = 0.0) -> None:
    """Two epochs of plain SGD on a client's rows, with FedProx's pull towards where it started."""
    x, y = run.federation.holdings.of(client).train.tensors()
    stream = run.federation.seeds.torch("batches", f"client-{client}", number, sequence)
    start = [parameter.detach().clone() for parameter in model.parameters()]
    model.train()
    for _ in range(2):
        cuts = list(torch.randperm(len(y), generator=stream).split(BATCH))
        if len(cuts[-1]) == 1 and any("running_mean" in name for name in model.state_dict()):
            cuts[-2:] = [torch.cat(cuts[-2:])]
        for rows in cuts:
            parameters = list(model.parameters())
            gradients = torch.autograd.grad(F.cross_entropy(model(x[rows]), y[rows]), parameters)
            with torch.no_grad():
                for parameter, gradient, anchor in zip(parameters, gradients, start, strict=True):
                    parameter.sub_(LR * (gradient + mu * (parameter - anchor)))


def mean(states: list[dict[str, Tensor]], shares: list[int]) -> dict[str, Tensor]:
    parts = torch.tensor(shares, dtype=torch.float64) / sum(shares)
    return {
        name: torch.tensordot(parts, torch.stack([state[name].double() for state in states]), dims=1)
        for name in states[0]
    }


def by_hand(
    run: Run, name: str, clients: list[int], *, uniform: bool = False, mu: float = 0.0, sequence: int = 1
) -> dict[str, Tensor]:
    """The run's rounds of FedAvg among some clients, written out."""
    model = run.federation.population.build(name)
    weights = {key: tensor.clone() for key, tensor in model.state_dict().items()}
    for number in range(1, run.config.rounds + 1):
        states = []
        for client in clients:
            model.load_state_dict(weights)
            sgd(run, model, client, number, sequence, mu)
            states.append({key: tensor.clone() for key, tensor in model.state_dict().items()})
        weights = mean(states, [1 if uniform else samples(run, client) for client in clients])
    return weights


def samples(run: Run, client: int) -> int:
    return len(run.federation.holdings.of(client).train)


def close(found: Weights, expected: Weights, *, but: str = "no such entry") -> bool:
    assert found.keys() == expected.keys()
    return all(
        torch.allclose(found[name].double(), expected[name].double(), atol=1e-6, rtol=0)
        for name in expected
        if but not in name
    )


# -- the mean ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("weighting", ["samples", "uniform"])
@pytest.mark.parametrize("rounds", [1, 3])
def test_rounds_equal_a_loop_by_hand(prepare: Prepare, weighting: str, rounds: int) -> None:
    run = prepare([plain], method={"name": "fedavg", "weighting": weighting}, rounds=rounds)
    found = averaged(run)
    assert len({samples(run, client) for client in range(3)}) > 1
    assert close(found["plain"], by_hand(run, "plain", [0, 1, 2], uniform=weighting == "uniform"))
    assert not close(found["plain"], by_hand(run, "plain", [0, 1, 2], uniform=weighting != "uniform"))


class Numbers(FedAvg):
    """Every client's weights are its number."""

    @client_step
    def train(self, me: Client, weights: Weights) -> Fields:
        return {"weights": {name: torch.full_like(value, me.facts.index) for name, value in weights.items()}}


@pytest.mark.parametrize("weighting", ["samples", "uniform"])
def test_a_client_counts_by_its_samples_or_as_one(make_run: MakeRun, weighting: str) -> None:
    run = make_run(Numbers, settings={"weighting": weighting}, rounds=1)
    found = averaged(run)["mlp-small"]
    counts = [samples(run, client) for client in range(4)]
    expected = {"uniform": 1.5, "samples": (counts[1] + 2 * counts[2] + 3 * counts[3]) / sum(counts)}
    assert abs(expected["samples"] - 1.5) > 1e-3
    for tensor in found.values():
        assert torch.allclose(tensor, torch.tensor(expected[weighting]))


def test_only_the_cohort_is_averaged(make_run: MakeRun) -> None:
    run = make_run(Numbers, settings={"weighting": "uniform"}, rounds=1, cohort={"count": 2})
    found = averaged(run)["mlp-small"]["head.bias"]
    run.fleet.begin(1, measuring=False)
    cohort = [facts.index for facts in run.fleet.sample()]
    assert len(cohort) == 2
    assert torch.allclose(found, torch.tensor(sum(cohort) / 2))


def test_every_client_gets_the_servers_weights_and_returns_as_many_bytes(prepare: Prepare) -> None:
    run = prepare([plain], rounds=2)
    averaged(run)
    # (5·4 + 4 + 4·3 + 3) floats, three clients, two rounds, each way
    assert run.ledger.total("up", "weights") == 39 * 4 * 3 * 2
    assert run.ledger.total("down", "weights") == 39 * 4 * 3 * 2


@pytest.mark.parametrize(("method", "settings"), [(FedAvg, {}), (FedProx, {"mu": 0.5})])
def test_clients_trained_stacked_give_the_same_mean(
    make_run: MakeRun, method: type[FedAvg], settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    alone = averaged(make_run(method, settings=settings, rounds=2, stack=1))["mlp-small"]
    monkeypatch.setattr(local_training, "train", None)  # what is stacked does without
    together = averaged(make_run(method, settings=settings, rounds=2, stack=4))["mlp-small"]
    for name, tensor in alone.items():
        assert torch.allclose(tensor, together[name], atol=1e-5)


class Calmed(FedAvg):
    """FedAvg whose clients also keep their logits small: a local loss that has no form for a stack."""

    name = "calmed"

    def local_loss(self, me: Client, weights: Weights) -> learn.ExtraLoss:
        return lambda _model, _rows, _x, logits: logits.square().mean()


def test_a_local_loss_of_ones_own_counts_where_clients_would_be_stacked(make_run: MakeRun) -> None:
    alone = averaged(make_run(Calmed, rounds=2, stack=1))["mlp-small"]
    asked_to_stack = averaged(make_run(Calmed, rounds=2, stack=4))["mlp-small"]
    without = averaged(make_run(FedAvg, rounds=2, stack=1))["mlp-small"]
    assert all(torch.equal(tensor, asked_to_stack[name]) for name, tensor in alone.items())
    assert not any(torch.allclose(tensor, without[name], atol=1e-3) for name, tensor in alone.items())


# -- several architectures -----------------------------------------------------------------------------------


def test_several_architectures_are_averaged_each_among_its_own(prepare: Prepare) -> None:
    run = prepare([plain, wide], method={"name": "fedavg", "within": "architecture"})
    found = averaged(run)
    assert [run.federation.roster.architecture(client) for client in range(3)] == ["plain", "wide", "plain"]
    assert close(found["plain"], by_hand(run, "plain", [0, 2]))
    assert close(found["wide"], by_hand(run, "wide", [1], sequence=2))


def test_several_architectures_without_saying_so_are_refused(prepare: Prepare) -> None:
    with pytest.raises(MethodError, match=r"method\.within=architecture"):
        prepare([plain, wide], method="fedavg")


# -- batch norm ----------------------------------------------------------------------------------------------


def test_batch_norm_is_averaged_statistics_included(prepare: Prepare) -> None:
    run = prepare([normed])
    found = averaged(run)["normed"]
    assert close(found, by_hand(run, "normed", [0, 1, 2]), but="num_batches")


def test_batch_counters_are_not_averaged(prepare: Prepare) -> None:
    run = prepare([normed])
    found = averaged(run)["normed"]["1.num_batches_tracked"]
    batches = []
    for client in range(3):
        whole, left = divmod(samples(run, client), BATCH)
        batches.append(2 * (whole + (left > 1 or whole == 0)))
    assert found.dtype == torch.int64
    assert found.item() == max(batches)
    assert min(batches) < max(batches)


def test_recomputed_statistics_are_those_of_the_clients_data(prepare: Prepare) -> None:
    """The norm comes first, so its statistics are the data's own: with one batch, plain mean and variance."""
    method = {"name": "fedavg", "batch_norm": "recompute"}
    run = prepare([norm_first], method=method, training={"epochs": 1, "lr": LR, "batch": 100})
    found = averaged(run)["norm_first"]
    inputs = [run.federation.holdings.of(client).train.tensors()[0] for client in range(3)]
    total = sum(len(x) for x in inputs)
    running_mean = torch.stack([len(x) / total * x.mean(0) for x in inputs]).sum(0)
    running_var = torch.stack([len(x) / total * x.var(0) for x in inputs]).sum(0)
    assert torch.allclose(found["0.running_mean"], running_mean, atol=1e-6)
    assert torch.allclose(found["0.running_var"], running_var, atol=1e-6)
    assert run.ledger.total("up", "statistics") > 0


def test_recomputing_leaves_what_is_trained_to_the_mean(prepare: Prepare) -> None:
    run = prepare([normed], method={"name": "fedavg", "batch_norm": "recompute"})
    found = averaged(run)["normed"]
    expected = by_hand(run, "normed", [0, 1, 2])
    trained = {name: tensor for name, tensor in found.items() if "running" not in name and "num_" not in name}
    assert close(trained, {name: expected[name] for name in trained})
    assert not torch.allclose(found["1.running_mean"].double(), expected["1.running_mean"], atol=1e-4)


def test_local_norms_stay_with_their_client(prepare: Prepare) -> None:
    """FedBN: every round a client begins with the others' mean, but with its own norms of the round before."""
    run = prepare([normed], method={"name": "fedavg", "batch_norm": "local"}, rounds=3)
    found = averaged(run)["normed"]
    model = run.federation.population.build("normed")
    weights = {key: tensor.clone() for key, tensor in model.state_dict().items()}
    norms: dict[int, dict[str, Tensor]] = {0: {}, 1: {}, 2: {}}
    for number in (1, 2, 3):
        states = []
        for client in range(3):
            model.load_state_dict({**weights, **norms[client]})
            sgd(run, model, client, number)
            states.append({key: tensor.clone() for key, tensor in model.state_dict().items()})
            norms[client] = {key: tensor for key, tensor in states[-1].items() if key.startswith("1.")}
        weights = mean(states, [samples(run, client) for client in range(3)])
    trained = {name: tensor for name, tensor in found.items() if not name.startswith("1.")}
    assert close(trained, {name: weights[name] for name in trained})


# -- FedProx -------------------------------------------------------------------------------------------------


def test_the_pull_of_fedprox_by_hand() -> None:
    model = norm_first()
    anchor = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(2.0)
    model(torch.randn(4, 5))  # moves the running statistics: they are not pulled
    pull = learn.Proximal(0.5, anchor)
    loss = pull(model, torch.empty(0), torch.empty(0), torch.empty(0))
    # µ/2 · ‖w - w_t‖² = 0.25 · 2² · (5 + 5 + 15 + 3); its gradient µ (w - w_t) = 0.5 · 2
    assert loss.item() == pytest.approx(0.25 * 4 * 28)
    for gradient in torch.autograd.grad(loss, list(model.parameters())):
        assert torch.allclose(gradient, torch.ones_like(gradient))


@pytest.mark.parametrize("mu", [0.01, 2.0])
def test_fedprox_equals_a_loop_by_hand(prepare: Prepare, mu: float) -> None:
    run = prepare([plain], method={"name": "fedprox", "mu": mu}, rounds=2)
    assert close(averaged(run)["plain"], by_hand(run, "plain", [0, 1, 2], mu=mu))


def test_fedprox_pulls_by_default(prepare: Prepare) -> None:
    assert FedProxSettings().mu == 0.01
    found = [averaged(prepare([plain], method=name))["plain"] for name in ("fedavg", "fedprox")]
    assert encode(found[0]) != encode(found[1])


def test_with_local_norms_clients_are_scored_and_written_with_their_own(make_run: MakeRun) -> None:
    """FedBN: what a client uses is the averaged weights with its own BatchNorm layers; only the rest is sent."""
    run = make_run({"name": "fedavg", "batch_norm": "local"}, models={"names": ["cnn-small"]}, name="norms")
    run.go()
    shared = run.server.memory["weights"]["cnn-small"]
    norms = learn.norm_entries(run.federation.population.build("cnn-small"))
    assert norms
    for index in range(4):
        model = polyfed.load_model(run.path, f"client-{index}")
        kept = decode(run.client_files()[index].read_bytes())["memory"]["norms"]
        for name, tensor in learn.weights_of(model).items():
            assert torch.equal(tensor, kept[name] if name in norms else shared[name])
        right = learn.score(model, *whole_test(run.federation).tensors(models.memory_format(model)))
        assert run.last is not None
        assert run.last["clients"][f"client-{index}"]["whole"] == right
    sent = run.summary["bytes"]["up"]["weights"] / (4 * run.round)
    assert sent == sum(tensor.nbytes for name, tensor in shared.items() if name not in norms)


class Misfit(FedAvg):
    """Client 1 sends weights that do not fit, client 2 leaves some out."""

    @client_step
    def train(self, me: Client, weights: Weights) -> Fields:
        reply = dict(super().train(me, weights)["weights"])  # type: ignore[arg-type]
        name = next(iter(reply))
        if me.facts.index == 1:
            reply[name] = torch.zeros(1)
        if me.facts.index == 2:
            del reply[name]
        return {"weights": reply}


def test_weights_that_do_not_fit_are_left_out_with_their_reason(make_run: MakeRun) -> None:
    run = make_run(Misfit, rounds=1)
    run.go()
    assert run.last is not None
    reasons = {failure["client"]: failure["reason"] for failure in run.last["failures"]}
    assert "another size" in reasons["client-1"]
    assert "other names" in reasons["client-2"]
    assert set(reasons) == {"client-1", "client-2"}


class FirstMisfit(FedAvg):
    """The very first client sends what is no model."""

    fault: ClassVar[Callable[[Weights], Any]]

    @client_step
    def train(self, me: Client, weights: Weights) -> Fields:
        reply = super().train(me, weights)
        return {"weights": type(self).fault(reply["weights"])} if me.facts.index == 0 else reply  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "fault",
    [
        lambda weights: {name: weights[name] for name in list(weights)[1:]},
        lambda weights: torch.zeros(3),
        lambda weights: {**weights, next(iter(weights)): "none"},
    ],
    ids=["too few", "a tensor", "a text"],
)
@pytest.mark.parametrize("batch_norm", ["average", "local"])
def test_it_is_the_misfit_that_is_left_out_even_if_it_comes_first(
    make_run: MakeRun, fault: Any, batch_norm: str
) -> None:
    method = type("Misfit", (FirstMisfit,), {"fault": staticmethod(fault)})
    settings = {"batch_norm": batch_norm}
    run = make_run(method, settings=settings, rounds=1, stack=1, models={"names": ["cnn-small"]})
    run.go()
    assert run.last is not None
    assert [failure["client"] for failure in run.last["failures"]] == ["client-0"]


def test_a_kept_optimiser_is_carried_over(make_run: MakeRun) -> None:
    training = {"optimiser": "adam", "lr": 0.003, "keep_optimiser": True}
    run = make_run("fedavg", training=training, rounds=2)
    run.go()
    memory = decode(run.client_files()[0].read_bytes())["memory"]
    batches = run.config.training.batches(run.federation.roster[0].samples)
    assert float(memory["optimiser"]["0"]["step"]) == 2 * batches


# -- a loss of one's own -------------------------------------------------------------------------------------


class Shrinking(FedAvg):
    """FedAvg with a local loss of its own: small logits."""

    strength: ClassVar[float] = 0.5

    def local_loss(self, me: Client, weights: Weights) -> learn.ExtraLoss | None:
        if not self.strength:
            return None

        def small(_model: nn.Module, _rows: Tensor, _x: Tensor, logits: Tensor) -> Tensor:
            return self.strength * logits.square().mean()

        return small


class Sparse(FedAvg):
    """FedAvg with a local loss on features: small ones."""

    def local_loss(self, me: Client, weights: Weights) -> learn.FeatureLoss:
        return learn.FeatureLoss(lambda _model, _rows, _x, _logits, features: features.square().mean())


OWN_LOSSES: dict[type[FedAvg], dict[str, float]] = {
    Shrinking: {},
    Sparse: {},
    FedProx: {"mu": 0.5},
    FedGKD: {"gamma": 4.0},
    MOON: {"mu": 3.0},
    FedNTD: {"beta": 2.0},
}
"""All methods that are FedAvg with a local loss of their own, with settings by which it is seen."""


def test_every_shipped_loss_of_ones_own_is_among_them() -> None:
    shipped = [kind for kind in registered().values() if kind.__module__.startswith("polyfed.methods.")]
    assert {kind for kind in shipped if issubclass(kind, FedAvg) and "local_loss" in vars(kind)} <= {
        *OWN_LOSSES,
        FedAvg,
    }


@pytest.mark.parametrize("base", OWN_LOSSES)
def test_a_loss_of_ones_own_is_trained_with_whether_clients_are_stacked_or_not(
    make_run: MakeRun, base: type[FedAvg]
) -> None:
    """MLPs are stacked by default: a twin that dropped the loss would go unnoticed."""
    settings = OWN_LOSSES[base]

    def found(method: type[FedAvg], stack: Any, settings: dict[str, Any]) -> Weights:
        return averaged(make_run(method, settings=settings, rounds=3, stack=stack))["mlp-small"]

    alone = found(base, 1, settings)
    assert close(found(base, "auto", settings), alone)
    stacked = found(base, 4, settings)
    assert close(stacked, alone)
    # A loss that has no form for a stack is trained with one by one, which are the same bits. In the first round FedGKD
    # and MOON have nothing to add.
    assert (encode(stacked) == encode(alone)) == (base not in {FedProx, FedGKD, MOON})
    assert not close(found(FedAvg, "auto", {}), alone)


def test_small_mlps_would_be_stacked(make_run: MakeRun) -> None:
    run = make_run("fedavg", stack="auto")
    assert "mlp-small" in run.federation.stackable()
    assert int(run.config.stack) > 1
