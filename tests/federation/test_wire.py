"""Tensors in fewer bytes, by kind and direction: what arrives, what it costs, and what cannot be packed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, ClassVar

import pytest
import torch
from tests.conftest import MakeRun
from tests.methods.by_hand import alike, mean_of
from torch import Tensor

from polyfed import Client, Declaration, Fields, Fleet, Kind, Method, Server, client_step
from polyfed.engines import Inline, Pool
from polyfed.errors import ConfigError
from polyfed.federation.engine import Engine, Outcome, Request, Success
from polyfed.federation.message import decode, encode
from polyfed.federation.method import registered
from polyfed.federation.wire import Wire, WireSettings
from polyfed.learn import supervised
from polyfed.methods import FedAvg
from polyfed.tasks import MultiLabel, Task
from polyfed.tasks import registered as registered_tasks
from polyfed.testing import check_method, failures_of, result_of

THIRD = torch.tensor(1 / 3)
HALF_THIRD = THIRD.half().float()


def test_only_float32_tensors_of_the_kind_are_packed_however_deep() -> None:
    wire = Wire(WireSettings(up={Kind.WEIGHTS: "half", Kind.LOGITS: "plain"}))
    fields: dict[str, Any] = {
        "model": {"w": THIRD.clone(), "deep": [THIRD.double(), torch.tensor(70000)]},
        "logits": THIRD.clone(),
        "rows": torch.tensor([70000]),
        "text": "x",
    }
    kinds = {"model": Kind.WEIGHTS, "logits": Kind.LOGITS}
    packed: Any = wire.pack(fields, kinds, "up")
    assert packed["model"]["w"].dtype == torch.float16
    arrived = wire.unpack(packed, kinds, "up")
    assert arrived["model"]["w"].dtype == torch.float32
    assert arrived["model"]["w"] == HALF_THIRD != THIRD
    assert arrived["model"]["deep"][0] == THIRD.double()
    assert arrived["model"]["deep"][1] == 70000
    for name in ("logits", "rows", "text"):
        assert arrived[name] is fields[name]
    assert wire.pack(fields, kinds, "down") is fields
    assert Wire().pack(fields, kinds, "up") is fields


@pytest.mark.parametrize("packing", ["half", "int8"])
@pytest.mark.parametrize("task", registered_tasks().values(), ids=registered_tasks())
def test_what_rounding_leaves_of_an_answer_is_an_answer_of_the_task(task: type[Task], packing: str) -> None:
    answer = task().answer(torch.randn(40, 2, generator=torch.Generator().manual_seed(0)) * 8)
    wire = Wire(WireSettings(up={Kind.POSTERIORS: packing}), task())
    sent = {"posteriors": answer}
    arrived = wire.unpack(
        wire.pack(sent, {"posteriors": Kind.POSTERIORS}, "up"), {"posteriors": Kind.POSTERIORS}, "up"
    )
    assert task().is_answer(arrived["posteriors"])
    assert not torch.equal(arrived["posteriors"], answer)
    assert torch.allclose(arrived["posteriors"], answer, atol=float(answer.max() - answer.min()) / 254)


def test_rows_without_any_class_stay_so_when_they_are_rounded() -> None:
    """Of several classes at once nothing adds up to 1: by hand, 0.25 · 255 = 63.75 and so 64 / 255."""
    answer = torch.tensor([[0.0, 0.0], [1.0, 0.25]] * 20)
    wire = Wire(WireSettings(up={Kind.POSTERIORS: "int8"}), MultiLabel())
    kinds = {"posteriors": Kind.POSTERIORS}
    arrived = wire.unpack(wire.pack({"posteriors": answer}, kinds, "up"), kinds, "up")["posteriors"]
    assert torch.allclose(arrived[:2], torch.tensor([[0.0, 0.0], [1.0, 64 / 255]]), atol=1e-6)


class Echo(Method):
    """Clients keep what they are sent, and send thirds."""

    name = "echo"
    large: ClassVar[float] = 1.0

    def declare(self) -> Declaration:
        return Declaration(
            sends={"logits": Kind.LOGITS, "features": Kind.FEATURES},
            tells={"told": Kind.POSTERIORS, "own": Kind.POSTERIORS, "plain": Kind.STATISTICS},
        )

    @client_step(sends=("logits", "features"))
    def echo(self, me: Client, told: Tensor, own: Tensor, plain: Tensor) -> Fields:
        me.memory |= {"told": told, "own": own, "plain": plain}
        thirds = torch.full((50,), 1 / 3)
        return {"logits": thirds * (self.large if me.facts.index == 1 else 1), "features": thirds}

    def round(self, t: int, fleet: Fleet, server: Server) -> None:
        thirds = torch.full((100,), 1 / 3)
        replies = fleet.ask(
            self.echo, fleet.sample(), each=lambda client: {"own": thirds}, told=thirds, plain=thirds
        )
        server.memory["arrived"] = {reply.client.name: dict(reply.fields) for reply in replies}


ENGINES = pytest.mark.parametrize("engine", [Inline(), Pool(2)], ids=["inline", "pool"])


@ENGINES
def test_half_precision_halves_the_bytes_of_its_kind_and_direction_and_rounds_nothing_else(
    make_run: MakeRun, engine: Engine
) -> None:
    run = make_run(Echo, engine, rounds=1, wire={"up": {"logits": "half"}, "down": {"posteriors": "half"}})
    run.go()
    assert run.ledger.total("up", "logits") == 4 * 50 * 2
    assert run.ledger.total("up", "features") == 4 * 50 * 4
    assert run.ledger.total("down", "posteriors") == 4 * 2 * 100 * 2
    assert run.ledger.total("down", "statistics") == 4 * 100 * 4
    for fields in run.server.memory["arrived"].values():
        assert torch.equal(fields["logits"], HALF_THIRD.expand(50))
        assert torch.equal(fields["features"], THIRD.expand(50))
    memory = decode(run.client_files()[0].read_bytes())["memory"]
    assert torch.equal(memory["told"], HALF_THIRD.expand(100))
    assert torch.equal(memory["own"], HALF_THIRD.expand(100))
    assert torch.equal(memory["plain"], THIRD.expand(100))


class Talk(Method):
    """Peers that keep what they hear."""

    name = "talk"

    def declare(self) -> Declaration:
        return Declaration(server=False, sends={"news": Kind.POSTERIORS})

    @client_step(sends=("news",))
    def say(self, me: Client) -> Fields:
        return {"news": torch.full((50,), 1 / 3)}

    @client_step
    def hear(self, me: Client, heard: list[tuple[str, dict[str, Any]]]) -> Fields:
        me.memory["heard"] = [fields["news"] for _, fields in heard]
        return {}

    def round(self, t: int, fleet: Fleet, server: Server) -> None:
        fleet.gossip(self.say, self.hear, "ring", fleet.sample())


@ENGINES
def test_what_peers_say_to_each_other_is_packed_as_what_clients_send(
    make_run: MakeRun, engine: Engine
) -> None:
    run = make_run(Talk, engine, rounds=1, wire={"up": {"posteriors": "half"}})
    run.go()
    for direction in ("up", "down"):
        assert run.ledger.total(direction, "posteriors") == 4 * 2 * 50 * 2
    heard = decode(run.client_files()[0].read_bytes())["memory"]["heard"]
    assert len(heard) == 2
    assert all(torch.equal(news, HALF_THIRD.expand(50)) for news in heard)


@ENGINES
def test_what_is_too_large_for_half_precision_is_its_clients_failure(
    make_run: MakeRun, engine: Engine
) -> None:
    method = type("Loud", (Echo,), {"large": 1e6})
    run = make_run(method, engine, rounds=1, wire={"up": {"logits": "half"}})
    run.go()
    (failure,) = failures_of(run.path)
    assert failure["client"] == "client-1"
    assert "'logits' holds NaN or infinity" in failure["reason"]
    assert list(run.server.memory["arrived"]) == ["client-0", "client-2", "client-3"]
    assert set(run.client_files()) == {0, 2, 3}
    plain = make_run(method, engine, rounds=1, outliers=None)
    plain.go()
    assert failures_of(plain.path) == []


def through(tensor: Tensor, base: Tensor, name: str) -> Tensor:
    """What arrives of a tensor that travels as a difference, in 8 bits or by its largest entries; no residual yet."""
    change = tensor - base
    if tensor.numel() < 64:
        return tensor.clone()
    if name == "int8":
        step = (change.max() - change.min()) / 255
        return base + ((change - change.min()) / step).round() * step + change.min()
    kept = change.abs().flatten().topk(-(-tensor.numel() // 20)).indices
    sparse = torch.zeros(tensor.numel())
    sparse[kept] = change.flatten()[kept]
    return base + sparse.reshape(tensor.shape)


@pytest.mark.parametrize("name", ["int8", "top-0.05"])
def test_a_round_of_fedavg_with_packed_weights_equals_a_loop_by_hand(make_run: MakeRun, name: str) -> None:
    """Down in 8 bits; up as a difference to what arrived there, not to what the server has."""
    wire = {"up": {"weights": name}, "down": {"weights": "int8"}}
    run = make_run("fedavg", rounds=1, wire=wire, stack=1)
    run.go()
    model = run.federation.population.build("mlp-small")
    exact = {key: tensor.clone() for key, tensor in model.state_dict().items()}
    received = {key: through(tensor, torch.zeros_like(tensor), "int8") for key, tensor in exact.items()}
    for base, right in ((received, True), (exact, False)):
        arrived, counts = [], []
        for client in range(4):
            model.load_state_dict(received)
            x, y = run.federation.holdings.of(client).train.tensors()
            stream = run.federation.seeds.torch("batches", f"client-{client}", 1, 1)
            supervised(model, x, y, run.config.training, stream)
            trained = model.state_dict()
            arrived.append({key: through(trained[key], base[key], name) for key in trained})
            counts.append(len(y))
        expected = mean_of(arrived, counts)
        found = run.server.memory["weights"]["mlp-small"]
        assert alike(found, expected, within=1e-6) == right
    plain = make_run("fedavg", rounds=1, stack=1)
    plain.go()
    share = run.ledger.total("up", "weights") / plain.ledger.total("up", "weights")
    assert share < (0.3 if name == "int8" else 0.15)
    assert 0.2 < run.ledger.total("down", "weights") / plain.ledger.total("down", "weights") < 0.3


@ENGINES
def test_what_is_left_out_is_the_clients_state_and_outlives_a_stop(make_run: MakeRun, engine: Engine) -> None:
    run = make_run("fedavg", engine, rounds=4, wire={"up": {"weights": "top-0.05"}}, cohort={"fraction": 0.5})
    run.go()
    states = {index: decode(path.read_bytes()) for index, path in run.client_files().items()}
    assert len(states) >= 2  # all that took part, and only they
    for state in states.values():
        assert set(state) == {"residuals"}
        assert any(bool(tensor.any()) for tensor in state["residuals"].values())


class Failing(FedAvg):
    """A client that does all its work, and fails in the second round."""

    @client_step(sends=("weights",))
    def train(self, me: Client, weights: Any, *_: Any, **told: Any) -> Fields:
        reply = super().train(me, weights)
        if me.facts.index == 1 and me.round == 2:
            me.residuals.clear()
            reply["weights"]["0.weight"] = torch.tensor(torch.inf)  # type: ignore[index]
        return reply


def test_a_client_that_fails_has_the_residuals_that_it_had(make_run: MakeRun) -> None:
    found = []
    for rounds in (1, 2):
        run = make_run(Failing, rounds=rounds, wire={"up": {"weights": "top-0.05"}}, settings={})
        run.go()
        found.append({index: path.read_bytes() for index, path in run.client_files().items()})
    assert found[0][1] == found[1][1]
    assert found[0][0] != found[1][0]


class Impostor(Inline):
    """Somebody in the place of client 2 who sends what cannot be unpacked."""

    def run(self, request: Request) -> Iterator[Outcome]:
        for outcome in super().run(request):
            if isinstance(outcome, Success) and outcome.client == 2 and request.step == "method.train":
                entry: dict[str, Any] = {
                    "top": torch.tensor([7]).int(),
                    "values": torch.ones(1),
                    "shape": [10**9],
                }
                yield replace(outcome, reply=encode({"weights": {"body.1.weight": entry}}))
            else:
                yield outcome


def test_a_reply_that_cannot_be_unpacked_is_left_out(make_run: MakeRun) -> None:
    run = make_run("fedavg", Impostor(), rounds=1, wire={"up": {"weights": "top-0.05"}})
    run.go()
    (failure,) = failures_of(run.path)
    assert failure["client"] == "client-2"
    assert "cannot be unpacked" in failure["reason"]


def test_models_are_fetched_and_looked_at_as_they_are(make_run: MakeRun) -> None:
    """What a client trained by itself is not rounded when it is written down."""
    found = []
    for wire in ({}, {"up": {"weights": "int8"}}):
        run = make_run("local", rounds=1, wire=wire)
        run.go()
        found.append(result_of(run.path)["models"])
    assert found[0] == found[1]


class Walk(Talk):
    """Peers that tell each other their weights, which are like what they were all sent."""

    def declare(self) -> Declaration:
        return replace(super().declare(), sends={"weights": Kind.WEIGHTS})

    @client_step(sends=("weights",))
    def say(self, me: Client, weights: Tensor) -> Fields:  # type: ignore[override]
        return {"weights": weights + me.facts.index}

    @client_step
    def hear(self, me: Client, heard: list[tuple[str, dict[str, Any]]]) -> Fields:
        me.memory["heard"] = {sender: fields["weights"] for sender, fields in heard}
        return {}

    def round(self, t: int, fleet: Fleet, server: Server) -> None:
        fleet.gossip(self.say, self.hear, "complete", fleet.sample(), weights=torch.arange(100.0))


@pytest.mark.parametrize(("name", "within"), [("half", 0.05), ("int8", 0.25), ("top-0.05", 0.0)])
def test_what_peers_hear_is_no_difference_to_what_they_were_not_told(
    make_run: MakeRun, name: str, within: float
) -> None:
    run = make_run(Walk, rounds=1, wire={"up": {"weights": name}})
    run.go()
    heard = decode(run.client_files()[0].read_bytes())["memory"]["heard"]
    for index in (1, 2, 3):
        away = (heard[f"client-{index}"] - (torch.arange(100.0) + index)).abs().max()
        assert float(away) <= within


EVERYTHING = dict.fromkeys(("weights", "gradients", "logits", "posteriors", "statistics"), "int8")
THINNED = {"weights": "top-0.1", "gradients": "top-0.1", "logits": "half", "posteriors": "half"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "up"),
    [
        ("fedavg", THINNED),
        ("qffl", THINNED),
        ("dsfl", EVERYTHING),
        ("feddf", EVERYTHING),
        ("fedh2l", EVERYTHING),
    ],
    ids=["fedavg, top", "qffl, top", "dsfl, 8 bits", "feddf, 8 bits", "fedh2l, 8 bits"],
)
def test_methods_keep_the_contract_whatever_is_packed(name: str, up: dict[str, str]) -> None:
    config = {
        "wire": {"up": up, "down": EVERYTHING},
        "models": {"names": ["mlp-small"]},
        "data": {"limit": 300},
        "cohort": {"fraction": 0.5},
        "rounds": 4,
    }
    if name == "fedh2l":
        config |= {"rounds": 15, "cohort": {"fraction": 1.0}}
    settings: dict[str, Any] = {"batches": 1} if name == "fedh2l" else {}
    check_method(registered()[name], config=config, **settings)


@pytest.mark.parametrize(
    ("wire", "told"),
    [
        ({"up": {"logits": "quarter"}}, "wire.up"),
        ({"down": {"sausages": "half"}}, "wire.down"),
        ({"sideways": {"logits": "half"}}, "wire.sideways"),
        ({"up": "half"}, "wire.up"),
        ({"up": {"weights": "top-2"}}, "top-0.05"),
        ({"down": {"weights": "top-0.1"}}, "use down: {weights: int8}"),
        ({"up": {"logits": "top-0.1"}}, "use logits: int8"),
    ],
)
def test_an_unknown_kind_direction_or_packing_is_told_in_one_line(
    make_run: MakeRun, wire: dict[str, Any], told: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        make_run("fedavg", wire=wire)
    assert told in str(caught.value)
    assert "\n" not in str(caught.value)
