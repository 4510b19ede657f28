"""Active–inactive aggregation (T1 of the FedKF paper): every client's last model counts, also where it is absent."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from tests.conftest import MakeRun
from tests.methods.by_hand import NO_PUBLIC, Averaged, Prepare, alike, averaging, mean_of, normed, plain
from tests.readers import whole_test
from torch import nn

import polyfed
from polyfed import learn
from polyfed.errors import ConfigError
from polyfed.federation.message import Fields, Weights, decode
from polyfed.federation.method import client_step
from polyfed.federation.nodes import Client
from polyfed.federation.roster import Roster
from polyfed.federation.shelf import Shelf
from polyfed.methods import FedAvg, last_models
from polyfed.runs.config import read_config
from polyfed.runs.rounds import Run
from polyfed.testing import result_of

CACHED = {"inactive": "cached"}


def wide() -> nn.Module:
    return nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 3))


def served(run: Run, architecture: str = "plain") -> Weights:
    return last_models.served(run.server, architecture)


def samples(run: Run, client: int) -> int:
    return len(run.federation.holdings.of(client).train)


def overall(run: Run, done: Averaged, unseen: str) -> Weights:
    """The mean over the last models of all three clients; or of those that were there."""
    initial = {
        name: tensor.clone() for name, tensor in run.federation.population.build("plain").state_dict().items()
    }
    slots = {client: done.last.get(client, initial) for client in range(3)}
    counted = [client for client in range(3) if client in done.last or unseen == "initial"]
    return mean_of([slots[client] for client in counted], [samples(run, client) for client in counted])


# -- the two means -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("unseen", ["initial", "left-out"])
@pytest.mark.parametrize("rounds", [1, 2, 9])
def test_rounds_equal_a_loop_by_hand(federate: Prepare, unseen: str, rounds: int) -> None:
    method = {"name": "fedavg", **CACHED, "unseen": unseen}
    run = federate([plain], server=False, data=NO_PUBLIC, method=method, rounds=rounds, cohort={"count": 1})
    run.go()
    done = averaging(run)
    assert alike(run.server.weights("plain"), done.active)
    assert alike(served(run), overall(run, done, unseen))
    if len(done.last) < 3:
        other = "left-out" if unseen == "initial" else "initial"
        assert not alike(served(run), overall(run, done, other), within=1e-3)
    if len(done.last) > 1 or unseen == "initial":
        assert not alike(served(run), done.active, within=1e-3)


def test_by_hand_somebody_is_unseen_at_first_and_everybody_was_there_at_last(federate: Prepare) -> None:
    """What the loops above are held against has both."""
    runs = (federate([plain], server=False, rounds=rounds, cohort={"count": 1}) for rounds in (1, 2, 9))
    assert [len(averaging(run).last) for run in runs] == [1, 2, 3]


class Numbers(FedAvg):
    """Every client's weights are its number and the round: 10 · round + number."""

    @client_step(sends=("weights",))
    def train(self, me: Client, weights: Weights) -> Fields:
        value = 10.0 * me.round + me.facts.index
        return {"weights": {name: torch.full_like(tensor, value) for name, tensor in weights.items()}}


def test_means_of_numbers_worked_out(make_run: MakeRun) -> None:
    """Four clients, two a round; in round 1 those of S_1, in round 2 those of S_2."""
    settings = {**CACHED, "unseen": "left-out", "weighting": "uniform"}
    run = make_run(Numbers, settings=settings, rounds=2, cohort={"count": 2})
    run.go()
    cohorts = []
    for number in (1, 2):
        run.fleet.begin(number, measuring=False)
        cohorts.append([facts.index for facts in run.fleet.sample()])
    last = {
        client: 10.0 * number + client
        for number, cohort in zip((1, 2), cohorts, strict=True)
        for client in cohort
    }
    bias = run.server.weights("mlp-small")["head.bias"]
    assert bias[0].item() == pytest.approx(20 + sum(cohorts[1]) / 2)
    assert served(run, "mlp-small")["head.bias"][0].item() == pytest.approx(sum(last.values()) / len(last))


def test_all_clients_in_every_round_is_plain_fedavg(make_run: MakeRun) -> None:
    found = []
    for settings in ({}, {"inactive": "cached"}):
        run = make_run(FedAvg, settings=settings)
        run.go()
        found.append(served(run, "mlp-small"))
    assert alike(found[1], found[0], within=1e-6)


# -- what is served ------------------------------------------------------------------------------------------


def test_the_overall_model_is_scored_and_written_and_the_active_one_trained(make_run: MakeRun) -> None:
    run = make_run({"name": "fedavg", **CACHED, "unseen": "left-out"}, cohort={"count": 2})
    run.go()
    model = polyfed.load_model(run.path, "mlp-small")
    assert alike(learn.weights_of(model), served(run, "mlp-small"), within=0)
    assert not alike(learn.weights_of(model), run.server.weights("mlp-small"), within=1e-4)
    right = learn.score(model, *whole_test(run.federation).tensors())
    assert run.last is not None
    assert {tuple(score["whole"]) for score in run.last["clients"].values()} == {tuple(right)}


def test_the_overall_model_is_made_once_in_a_round(
    make_run: MakeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[float] = []
    mean = last_models._mean

    def counted(sums: Weights, total: float, like: Weights) -> Weights:
        made.append(total)
        return mean(sums, total, like)

    monkeypatch.setattr(last_models, "_mean", counted)
    make_run({"name": "fedavg", **CACHED}, cohort={"count": 2}).go()
    assert len(made) == 3


# -- the sum -------------------------------------------------------------------------------------------------


class Noise(FedAvg):
    """Every reply is noise, far from the one before."""

    @client_step(sends=("weights",))
    def train(self, me: Client, weights: Weights) -> Fields:
        stream = me.rng("noise")
        return {
            "weights": {
                name: 1e3 * torch.randn(tensor.shape, generator=stream) for name, tensor in weights.items()
            }
        }


@pytest.mark.parametrize("unseen", ["initial", "left-out"])
def test_the_sum_is_that_of_the_slots_after_many_changes(make_run: MakeRun, unseen: str) -> None:
    settings = {**CACHED, "unseen": unseen}
    run = make_run(
        Noise,
        settings=settings,
        rounds=60,
        cohort={"count": 2},
        evaluate={"every": 60},
        checkpoint_seconds=1e9,
    )
    run.go()
    kept = run.server.memory["overall"]["mlp-small"]
    expected = {name: torch.zeros_like(tensor) for name, tensor in kept["sums"].items()}
    for client in range(4):
        slot = run.server.shelf[f"client-{client}"]["weights"]
        for name, tensor in slot.items():
            expected[name] += samples(run, client) * tensor.double()
    assert kept["total"] == sum(samples(run, client) for client in range(4))
    for name, tensor in kept["sums"].items():
        assert tensor.dtype == torch.float64
        assert torch.allclose(tensor, expected[name], rtol=0, atol=1e-7)  # of numbers of a hundred thousand


def test_a_round_touches_the_slots_of_its_cohort_alone(
    make_run: MakeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that it costs the same among many clients (timed in benchmarks/population.py)."""
    calls: list[str] = []

    def counted(kind: type, name: str) -> None:
        original = getattr(kind, name)

        def call(*args: Any) -> Any:
            calls.append(f"{kind.__name__}.{name}")
            return original(*args)

        monkeypatch.setattr(kind, name, call)

    run = make_run({"name": "fedavg", **CACHED}, cohort={"count": 2}, data={"clients": 30}, rounds=4)
    run.open()
    for kind, name in ((Shelf, "__getitem__"), (Shelf, "__setitem__"), (Roster, "__iter__")):
        counted(kind, name)
    run.go()
    assert calls.count("Shelf.__getitem__") == 4 * 2
    assert calls.count("Shelf.__setitem__") == 1 + 4 * 2  # the initial weights, once
    assert calls.count("Roster.__iter__") == 1  # how much all of them count


def test_a_run_that_broke_down_between_checkpoints_goes_back_to_the_same_sums(
    small: dict[str, Any], tmp_path: Path
) -> None:
    content = {**small, "method": {"name": "fedavg", **CACHED}, "rounds": 5, "cohort": {"count": 2}}
    whole = polyfed.run(content, out=tmp_path / "whole", workers=1)

    def fall(run: Any) -> None:
        if run.round == 4:
            raise KeyboardInterrupt

    content["checkpoint_seconds"] = 1e9
    with pytest.raises(KeyboardInterrupt):
        polyfed.run(content, out=tmp_path / "broken", workers=1, listener=fall)
    polyfed.resume(tmp_path / "broken", workers=1)
    found, expected = result_of(tmp_path / "broken"), result_of(whole.path)
    assert found["models"] == expected["models"]
    assert found["server state"] == expected["server state"]
    assert found["history"] == expected["history"]


# -- the door ------------------------------------------------------------------------------------------------


class Misfit(Numbers):
    """Client 1 sends what is no model, or NaN."""

    fault: ClassVar[str] = "size"

    @client_step(sends=("weights",))
    def train(self, me: Client, weights: Weights) -> Fields:
        reply: Any = dict(super().train(me, weights)["weights"])  # type: ignore[arg-type]
        if me.facts.index == 1:
            name = next(iter(reply))
            reply[name] = torch.zeros(1) if self.fault == "size" else reply[name] * torch.nan
        return {"weights": reply}


@pytest.mark.parametrize("fault", ["size", "nan"])
def test_what_is_refused_enters_no_slot(make_run: MakeRun, fault: str) -> None:
    method = type("Misfit", (Misfit,), {"fault": fault})
    settings = {**CACHED, "unseen": "left-out", "weighting": "uniform"}
    run = make_run(method, settings=settings, rounds=2)
    run.go()
    assert set(run.server.shelf) == {"client-0", "client-2", "client-3"}
    # round 2: (20 + 22 + 23) / 3
    assert served(run, "mlp-small")["head.bias"][0].item() == pytest.approx(65 / 3)


# -- with the other settings ---------------------------------------------------------------------------------


def test_each_architecture_has_an_overall_model_of_its_own(make_run: MakeRun) -> None:
    settings = {**CACHED, "unseen": "left-out", "weighting": "uniform", "within": "architecture"}
    run = make_run(
        Numbers, settings=settings, rounds=3, cohort={"count": 2}, models={"names": ["mlp-small", "mlp"]}
    )
    run.go()
    last: dict[int, float] = {}
    for number in (1, 2, 3):
        run.fleet.begin(number, measuring=False)
        last |= {facts.index: 10.0 * number + facts.index for facts in run.fleet.sample()}
    for place, architecture in enumerate(("mlp-small", "mlp")):
        values = [value for client, value in last.items() if client % 2 == place]
        assert values
        found = served(run, architecture)["head.bias"][0].item()
        assert found == pytest.approx(sum(values) / len(values))


def test_with_local_norms_they_stay_with_their_client(make_run: MakeRun) -> None:
    method = {"name": "fedavg", **CACHED, "batch_norm": "local", "unseen": "left-out"}
    run = make_run(method, models={"names": ["cnn-small"]}, cohort={"count": 2}, rounds=4)
    run.go()
    norms = learn.norm_entries(run.federation.population.build("cnn-small"))
    slots = [run.server.shelf[name]["weights"] for name in run.server.shelf]
    counts = [
        run.federation.roster[run.federation.roster.names.index(name)].samples for name in run.server.shelf
    ]
    assert not norms & slots[0].keys()
    expected = mean_of(slots, counts)
    for index, file in run.client_files().items():
        kept = decode(file.read_bytes())["memory"]["norms"]
        for name, tensor in learn.weights_of(polyfed.load_model(run.path, f"client-{index}")).items():
            assert torch.allclose(tensor, kept[name] if name in norms else expected[name], atol=1e-6)


def test_norms_are_averaged_over_all_clients_and_counters_are_not(make_run: MakeRun) -> None:
    method = {"name": "fedavg", **CACHED, "unseen": "left-out", "weighting": "uniform"}
    run = make_run(method, models={"names": ["cnn-small"]}, cohort={"count": 2}, rounds=4)
    run.go()
    slots = [run.server.shelf[name]["weights"] for name in run.server.shelf]
    found = served(run, "cnn-small")
    for name, tensor in found.items():
        each = torch.stack([slot[name] for slot in slots])
        if tensor.is_floating_point():
            assert torch.allclose(tensor, each.mean(dim=0), atol=1e-6)
        else:
            assert tensor.dtype == torch.int64
            assert tensor.item() == each.max().item()
    assert any(learn.is_statistic(name) for name in found)


def test_recomputed_statistics_are_refused_in_one_line() -> None:
    with pytest.raises(ConfigError) as caught:
        read_config({"method": {"name": "fedprox", **CACHED, "batch_norm": "recompute"}})
    assert "use batch_norm=average or batch_norm=local" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_single_replies_are_read_only_where_models_are_cached() -> None:
    def reads(kind: type[FedAvg], **settings: Any) -> bool:
        return kind(kind.Settings(**settings), learn.Training()).declared.single_replies

    assert reads(FedAvg, **CACHED)
    assert not reads(FedAvg)
    assert reads(Numbers, **CACHED)


@pytest.mark.parametrize("method", ["fedavg", "fedprox", "fedgkd", "moon"])
def test_every_method_that_is_fedavg_with_another_loss_has_it(make_run: MakeRun, method: str) -> None:
    run = make_run({"name": method, **CACHED}, cohort={"count": 2})
    run.go()
    assert not alike(served(run, "mlp-small"), run.server.weights("mlp-small"), within=1e-4)


def test_normed_models_are_served_whole(federate: Prepare) -> None:
    run = federate([normed], server=False, data=NO_PUBLIC, method={"name": "fedavg", **CACHED})
    run.go()
    assert served(run, "normed").keys() == run.federation.population.build("normed").state_dict().keys()
