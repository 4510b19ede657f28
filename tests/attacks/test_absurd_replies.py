"""Replies that are finite and absurd cost their sender its contribution: nobody else, and never the run."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from tests.conftest import MakeRun
from torch import Tensor

from polyfed import Client, Declaration, Fields, Fleet, Kind, Method, Server, client_step, learn
from polyfed.engines import Inline, Pool
from polyfed.errors import Divergence
from polyfed.federation.engine import Outcome, Request, Success
from polyfed.federation.message import decode, encode
from polyfed.federation.method import registered
from polyfed.testing import failures_of

Change = Callable[[Any, int], Any]

QUIET = {"local", "aggregated", "pooled"}  # of which no client sends anything that others use
METHODS = [name for name in registered() if name not in QUIET]
LARGE = {1: 1e20, 2: 1e14, 3: 1e4}  # by round


def spoil(outcomes: Iterator[Outcome], request: Request, change: Change) -> Iterator[Outcome]:
    """What client-1 sends in a step of the method arrives changed."""
    for outcome in outcomes:
        if isinstance(outcome, Success) and outcome.client == 1 and request.step.startswith("method."):
            fields = {
                name: change(value, request.moment.round) for name, value in decode(outcome.reply).items()
            }
            yield dataclasses.replace(outcome, reply=encode(fields))
        else:
            yield outcome


class Absurd(Inline):
    def __init__(self, change: Change) -> None:
        super().__init__()
        self.change = change

    def run(self, request: Request) -> Iterator[Outcome]:
        return spoil(super().run(request), request, self.change)


class AbsurdPool(Pool):
    def __init__(self, change: Change) -> None:
        super().__init__(2)
        self.change = change

    def run(self, request: Request) -> Iterator[Outcome]:
        return spoil(super().run(request), request, self.change)


def filled(value: Any, number: float) -> Any:
    """Every number that is not in a range by itself, replaced."""
    if isinstance(value, Tensor):
        return torch.full_like(value, number) if value.is_floating_point() else value
    if isinstance(value, dict):
        return {name: filled(item, number) for name, item in value.items()}
    return number if isinstance(value, float) else value


def history(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (path / "history.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("method", METHODS)
def test_a_client_that_always_sends_absurd_numbers_is_named_and_left_out(
    make_run: MakeRun, method: str
) -> None:
    """Larger than can be squared, than any update, and than the others': a round each."""
    settings = {"public_training": None, "private_training": None} if method == "fedmd" else {}
    run = make_run(
        {"name": method, **settings},
        Absurd(lambda value, number: filled(value, LARGE.get(number, 1.0))),
        data={"public": {"source": "share", "share": 0.2}},
        models={"names": ["cnn-small"], "server": "cnn-small"},
        training={"lr": 0.05},
    )
    run.go()
    failed = {
        (line["round"], each["client"]) for line in history(run.path) for each in line.get("failures", ())
    }
    assert failed == {(1, "client-1"), (2, "client-1"), (3, "client-1")}
    kept = [run.server.memory, {} if run.server.model is None else learn.weights_of(run.server.model)]
    assert all(bool(torch.isfinite(tensor).all()) for tensor in _floats(kept))


def _floats(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor) and value.is_floating_point():
        yield value
    items = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    for item in items:
        yield from _floats(item)


def weights_times(factor: float) -> Change:
    """Of a model that clients send in the second round."""
    return lambda value, number: filled(value, factor) if number == 2 else value


def failing_in_round_two(value: Any, number: int) -> Any:
    return "nothing of use" if number == 2 else value


@pytest.mark.parametrize("checkpoints", [0, 1000], ids=["each round", "none"])
def test_a_round_that_was_spoilt_is_done_again_as_if_the_client_had_failed(
    make_run: MakeRun, checkpoints: int
) -> None:
    """Replies are folded in as they come: when all are there, an outlier is in the mean already."""
    pause = {"checkpoint_seconds": checkpoints}
    runs = [
        make_run("fedavg", engine, **pause)
        for engine in (
            Absurd(weights_times(1e4)),
            AbsurdPool(weights_times(1e4)),
            Absurd(failing_in_round_two),
        )
    ]
    for run in runs:
        run.go()
    models = [
        {file.name: file.read_bytes() for file in (run.path / "models").glob("*.safetensors")} for run in runs
    ]
    assert models[0] == models[1] == models[2]
    ledgers = [(run.path / "ledger.jsonl").read_text() for run in runs]
    assert ledgers[0] == ledgers[1]
    (failure,) = failures_of(runs[0].path)
    assert failure["client"] == "client-1"
    assert "times as large as the others'" in failure["reason"]


def test_without_a_bound_everything_that_is_finite_is_let_in(make_run: MakeRun) -> None:
    run = make_run("fedavg", Absurd(lambda value, number: filled(value, 1e4)), rounds=1, outliers=None)
    run.go()
    assert failures_of(run.path) == []


@pytest.mark.parametrize(
    ("value", "method", "field"),
    [
        (10**400, "qffl", "h"),
        (-(10**400), "fednova", "steps"),
        (1e308, "qffl", "h"),
        (True, "qffl", "h"),
        (torch.zeros(5, 10).to(torch.float8_e4m3fn), "fedmd", "logits"),
        (torch.zeros(5, 10, dtype=torch.complex64), "fedmd", "logits"),
        (torch.full((3,), 2**62), "fedgen", "counts"),
    ],
)
def test_numbers_of_any_type_and_size_cost_their_sender_alone(
    make_run: MakeRun, value: Any, method: str, field: str
) -> None:
    class One(Absurd):
        def run(self, request: Request) -> Iterator[Outcome]:
            for outcome in Inline.run(self, request):
                fields = decode(outcome.reply) if isinstance(outcome, Success) else {}
                if isinstance(outcome, Success) and outcome.client == 1 and field in fields:
                    yield dataclasses.replace(outcome, reply=encode({**fields, field: value}))
                else:
                    yield outcome

    settings = {"public_training": None, "public_rows": 5} if method == "fedmd" else {}
    run = make_run(
        {"name": method, **settings},
        One(weights_times(1)),
        rounds=2,
        data={"public": {"source": "share", "share": 0.2}},
        models={"names": ["cnn-small"], "server": "cnn-small"},
    )
    run.go()
    assert {failure["client"] for failure in failures_of(run.path)} == {"client-1"}


def test_a_variance_below_zero_is_not_let_in(make_run: MakeRun) -> None:
    def negative(value: Any, number: int) -> Any:
        if not isinstance(value, dict):
            return value
        return {name: -tensor if name.endswith("running_var") else tensor for name, tensor in value.items()}

    run = make_run("fedavg", Absurd(negative), models={"names": ["cnn-small"], "norm": "batch"})
    run.go()
    assert {failure["client"] for failure in failures_of(run.path)} == {"client-1"}
    assert all(
        bool((tensor >= 0).all())
        for name, tensor in run.server.weights("cnn-small").items()
        if name.endswith("running_var")
    )


class Scaling(Method):
    """The server multiplies its weights by what clients say: a method that a number can overflow."""

    name = "scaling"
    power: ClassVar[float] = 40.0

    def declare(self) -> Declaration:
        return Declaration(sends={"factor": Kind.STATISTICS}, keeps=frozenset())

    @client_step(sends=("factor",))
    def say(self, me: Client) -> Fields:
        return {"factor": 1.0 + me.facts.index / 10}

    def round(self, t: int, fleet: Fleet, server: Server) -> None:
        [architecture] = server.roster.architectures
        model = server.weights(architecture)
        factor = max(reply["factor"] for reply in fleet.stream(self.say, fleet.sample()))
        larger = {name: tensor * factor**self.power for name, tensor in model.items()}
        server.put_weights(architecture, larger)
        server.memory["factor"] = factor


@pytest.mark.parametrize("power", [40.0, 10.0], ids=["not finite", "finite, but no answers"])
def test_a_round_after_which_nothing_can_be_shared_is_done_again_without_who_stands_out(
    make_run: MakeRun, power: float
) -> None:
    method = type("Scaling", (Scaling,), {"power": power})
    loud = Absurd(lambda value, number: 99.0 if number == 2 else value)
    if power == 10.0:
        loud = Absurd(lambda value, number: 2e3 if number == 2 else value)
    run = make_run(method, loud, outliers=10_000.0)
    run.go()
    assert run.server.memory["factor"] == 1.3
    (failure,) = failures_of(run.path)
    assert (failure["client"], history(run.path)[1]["round"]) == ("client-1", 2)
    assert "with its reply" in failure["reason"]


def test_where_nobody_stands_out_the_run_ends_and_says_what_to_lower(make_run: MakeRun) -> None:
    run = make_run(Scaling, Absurd(lambda value, number: value), rounds=300)
    with pytest.raises(
        Divergence, match=r"no client stands out: lower training\.lr \(0\.1\); `polyfed resume"
    ):
        run.go()
    assert all(bool(torch.isfinite(tensor).all()) for tensor in _floats(_last_state(run.path)))


def _last_state(path: Path) -> dict[str, Any]:
    manifest = json.loads((path / "manifest.json").read_text())
    return decode((path / "states" / manifest["server"][0]).read_bytes())
