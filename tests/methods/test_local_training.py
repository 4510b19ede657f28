"""Answers of somebody who does not change while a client trains, and moments that outlast a round."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tests.conftest import MakeRun
from torch import Tensor

from polyfed import Client, Declaration, Fields, Fleet, Method, Server, client_step
from polyfed.errors import MethodError
from polyfed.federation.message import decode
from polyfed.federation.method import registered
from polyfed.learn import Training
from polyfed.methods import local_training


def test_a_stack_is_not_tried_with_settings_that_it_cannot_follow() -> None:
    for settings in ({"clip_value": 1.0}, {"sampling": "balanced"}, {"optimiser": "RMSprop"}):
        us: Any = [SimpleNamespace(training=Training(**settings))] * 2  # no models or data: nothing is begun
        assert not local_training.train_together(us)


class Asking(Method):
    """A client that trains with a teacher who says how bright a row is, and counts what it is asked."""

    name = "asking"

    def declare(self) -> Declaration:
        return Declaration()

    @client_step
    def train(self, me: Client) -> Fields:
        asked: list[int] = []

        def brightness(x: Tensor) -> Tensor:
            asked.append(len(x))
            return x.flatten(1).sum(dim=1)

        answer = local_training.answers(me, brightness)
        assert not asked  # a loss that is not used after all costs nothing
        batches = []

        def extra(_model: Any, rows: Tensor, x: Tensor, logits: Tensor) -> Tensor:
            assert torch.allclose(answer(rows, x), x.flatten(1).sum(dim=1), atol=1e-4)
            batches.append(len(rows))
            return logits.sum() * 0

        local_training.train(me, extra)
        me.memory["asked"], me.memory["batches"] = asked, batches
        return {}

    def round(self, t: int, fleet: Fleet, server: Server) -> None:
        fleet.ask(self.train, fleet.sample())


@pytest.mark.parametrize("augment", [True, False])
def test_rows_are_asked_about_once_unless_each_batch_is_another(make_run: MakeRun, augment: bool) -> None:
    run = make_run(Asking, rounds=1, training={"augment": augment, "epochs": 3})
    run.go()
    assert run.last is not None
    assert "failures" not in run.last
    for client, file in run.client_files().items():
        memory = decode(file.read_bytes())["memory"]
        rows = len(run.federation.holdings.of(client).train)
        assert sum(memory["batches"]) == 3 * rows
        assert memory["asked"] == (memory["batches"] if augment else [rows])


@pytest.mark.parametrize("name", registered())
def test_every_method_keeps_the_moments_where_the_run_says_so(make_run: MakeRun, name: str) -> None:
    """Or it refuses to, before the run starts."""
    settings = {
        "data": {
            "limit": 200,
            "clients": 2,
            "public": {"source": "share", "share": 0.2, "labels": "own"},
        },
        "models": {"names": ["mlp-small"], "server": "mlp-small"},
        "training": {"batch": 16, "momentum": 0.9, "keep_optimiser": True},
        "rounds": 1,
    }
    try:
        run = make_run(name, **settings)
    except MethodError as error:
        assert "keep_optimiser=false" in str(error)
        return
    run.go()
    memories = [decode(path.read_bytes())["memory"] for path in run.directory.state_files().values()]
    moments = [memory.get("optimiser") or memory.get("moments") for memory in memories]
    assert any(moments) if name == "pooled" else all(moments)
