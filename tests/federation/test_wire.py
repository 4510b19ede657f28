"""Tensors in fewer bytes, by kind and direction: what arrives, what it costs, and what cannot be packed."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest
import torch
from tests.conftest import MakeRun
from torch import Tensor

from polyfed import Client, Fields, Fleet, Kind, Method, Server, client_step
from polyfed.engines import Inline, Pool
from polyfed.errors import ConfigError
from polyfed.federation.engine import Engine
from polyfed.federation.message import decode
from polyfed.federation.wire import Wire, WireSettings
from polyfed.methods.fedmd import FedMD
from polyfed.testing import check_method, failures_of

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


class Echo(Method):
    """Clients keep what they are sent, and send thirds."""

    name = "echo"
    sends: ClassVar = {"logits": Kind.LOGITS, "features": Kind.FEATURES}
    tells: ClassVar = {"told": Kind.POSTERIORS, "own": Kind.POSTERIORS, "plain": Kind.STATISTICS}
    large: ClassVar[float] = 1.0

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
    server = False
    sends: ClassVar = {"news": Kind.POSTERIORS}

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
    plain = make_run(method, engine, rounds=1)
    plain.go()
    assert failures_of(plain.path) == []


@pytest.mark.slow
def test_a_method_whose_logits_travel_in_half_precision_keeps_the_contract() -> None:
    half = {"logits": "half"}
    quick = {"epochs": 2}
    check_method(
        FedMD,
        config={
            "wire": {"up": half, "down": half},
            "models": {"names": ["mlp-small", "mlp"], "server": "mlp-small"},
            "data": {"limit": 300},
        },
        public_training=quick,
        private_training=None,
        distil=quick,
    )


@pytest.mark.parametrize(
    ("wire", "told"),
    [
        ({"up": {"logits": "quarter"}}, "wire.up"),
        ({"down": {"sausages": "half"}}, "wire.down"),
        ({"sideways": {"logits": "half"}}, "wire.sideways"),
        ({"up": "half"}, "wire.up"),
    ],
)
def test_an_unknown_kind_direction_or_packing_is_told_in_one_line(
    make_run: MakeRun, wire: dict[str, Any], told: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        make_run("fedavg", wire=wire)
    assert told in str(caught.value)
    assert "\n" not in str(caught.value)
