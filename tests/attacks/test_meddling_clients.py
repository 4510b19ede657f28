"""A client that changes what it was given changes nothing for anybody else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.conftest import MakeRun

from polyfed import (
    Client,
    Declaration,
    Fields,
    Fleet,
    Kind,
    LikeWeights,
    Method,
    MethodSettings,
    Need,
    Number,
    Server,
    Weights,
    client_step,
    learn,
)
from polyfed.engines import Inline, Pool
from polyfed.testing import result_of


class MeddlingSettings(MethodSettings):
    how: str = ""


class Meddling(Method):
    """FedAvg with a look at the public data; the first client spoils what it has once it is done."""

    name = "meddling"
    Settings = MeddlingSettings
    settings: MeddlingSettings

    def declare(self) -> Declaration:
        return Declaration(
            sends={"weights": LikeWeights("weights"), "seen": Number()},
            tells={"extra": Kind.FEATURES},
            needs={Need.PUBLIC: ""},
            keeps=frozenset(),
        )

    @client_step
    def train(self, me: Client, weights: dict[str, Any], extra: dict[str, Any], **_all: Any) -> Fields:
        learn.load_weights(me.model, weights)
        learn.supervised(me.model, *me.tensors(me.train), self.training, me.rng("batches"))
        seen = float(me.inputs(me.public).sum()) + float(extra["list"][0].sum())
        reply: Fields = {"weights": learn.weights_of(me.model), "seen": seen}
        if me.facts.index == 0 and self.settings.how:
            WAYS[self.settings.how](me, weights, extra)
        return reply

    def round(self, t: int, fleet: Fleet, server: Server) -> None:
        weights = server.memory.get("weights") or learn.weights_of(server.build("mlp-small"))
        extra = {"list": [torch.ones(2, 2)], "word": "x"}
        total = learn.WeightedMean()
        for reply in fleet.ask(self.train, fleet.sample(), weights=weights, extra=extra):
            total.add(reply["weights"], 1.0)
            server.memory.setdefault("seen", []).append(reply["seen"])
        server.memory["weights"] = total.result()

    def serves(self, server: Server, client: Any) -> Weights | None:
        return server.memory.get("weights") or learn.weights_of(server.build("mlp-small"))


def spoil_everything_sent(_me: Client, weights: dict[str, Any], extra: dict[str, Any]) -> None:
    for tensor in weights.values():
        tensor.data.zero_()
    weights.clear()
    extra["list"][0].data.mul_(0)
    extra["list"].append(1)
    extra.pop("word")


def spoil_all_data(me: Client, _weights: dict[str, Any], _extra: dict[str, Any]) -> None:
    assert me.data.whole_test is not None
    for rows in (me.public, me.train, me.data.test, me.data.validation, me.data.whole_test):
        x, y = me.tensors(rows)
        x.mul_(0)
        x.data.add_(float("nan"))
        y.zero_()


WAYS: dict[str, Callable[[Client, dict[str, Any], dict[str, Any]], object]] = {
    "sent": spoil_everything_sent,
    "data": spoil_all_data,
    "pop": lambda _me, weights, _extra: weights.pop(next(iter(weights))),
    "model": lambda me, _weights, _extra: [weight.data.zero_() for weight in me.model.parameters()],
    "scratch": lambda me, _weights, _extra: me.scratch_model("mlp-small").requires_grad_(False),
}


@pytest.mark.parametrize("how", WAYS)
def test_what_a_client_spoils_is_its_own(make_run: MakeRun, how: str) -> None:
    changes: dict[str, Any] = {"data": {"public": {"source": "share", "share": 0.2}}}
    results = []
    for way, engine in (("", Inline()), (how, Inline()), (how, Pool(1)), (how, Pool(2))):
        run = make_run(Meddling, engine, settings={"how": way}, **changes)
        run.go()
        results.append(result_of(run.path))
    assert "failures" not in results[0]["history"][-1]
    assert all(result == results[0] for result in results)
