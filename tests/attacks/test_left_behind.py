"""Whatever a step does, answers or leaves behind is that client's failure in that round, and nobody else's."""

from __future__ import annotations

import collections
import os
import signal
import sys
import types
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.conftest import MakeRun
from torch import nn

from polyfed import (
    Client,
    Declaration,
    Fields,
    Fleet,
    Kind,
    Method,
    Server,
    client_step,
    errors,
    learn,
    reads_only,
)
from polyfed.engines import Inline, Pool
from polyfed.errors import RunError
from polyfed.federation import message
from polyfed.federation.engine import Engine
from polyfed.federation.message import decode
from polyfed.runs.checkpoint import read_lines
from polyfed.runs.rounds import Run

Mischief = Callable[[Client], Any]


def raising(error: BaseException) -> Mischief:
    def step(_me: Client) -> None:
        raise error

    return step


def setting(**attributes: Any) -> Mischief:
    def step(me: Client) -> None:
        for name, value in attributes.items():
            setattr(me, name, value)

    return step


def remembering(make: Callable[[], Any]) -> Mischief:
    def step(me: Client) -> None:
        me.memory["x"] = make()

    return step


def answering(make: Callable[[], Any]) -> Mischief:
    def step(_me: Client) -> Any:
        return {"answer": make()}

    return step


class Unspeakable(BaseException):
    def __str__(self) -> str:
        raise SystemExit(3)


class LyingMapping(collections.UserDict[str, Any]):
    """Says that it is a tensor, has no length, and its items are another's."""

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        return torch.Tensor

    def __len__(self) -> int:
        raise RunError("no length")

    def items(self) -> Any:
        raise KeyboardInterrupt


class LoudTensor(torch.Tensor):
    @classmethod
    def __torch_function__(cls, *_args: Any, **_kwargs: Any) -> Any:
        raise MemoryError("every operation fails")


class Wrapper(torch.Tensor):
    """A tensor without numbers of its own."""

    @staticmethod
    def __new__(cls) -> Any:
        return torch.Tensor._make_wrapper_subclass(cls, (2,))

    @classmethod
    def __torch_dispatch__(cls, *_args: Any, **_kwargs: Any) -> Any:
        raise RuntimeError("nothing is there")


def nested(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


def in_itself() -> Any:
    value: list[Any] = []
    value.append(value)
    return {"loop": value}


def everywhere() -> Any:
    value: Any = [1.0]
    for _ in range(10):
        value = [value] * 100
    return value


def quantised() -> torch.Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.quantize_per_tensor(torch.zeros(2), 1.0, 0, torch.quint8)


def without_storage() -> torch.Tensor:
    tensor = torch.ones(4)
    tensor.untyped_storage().resize_(0)
    return tensor


def break_module(me: Client) -> None:
    vars(me.model)["_parameters"] = None
    vars(me.model)["_modules"] = None


def for_ever(me: Client) -> None:
    for_ever(me)


def other_shape(me: Client) -> None:
    for parameter in me.model.parameters():
        parameter.data = torch.zeros(3)


def cut_storage(me: Client) -> None:
    next(me.model.parameters()).data.untyped_storage().resize_(0)


CANNOT_BE_KEPT: dict[str, Callable[[], Any]] = {
    "object": object,
    "lambda": lambda: lambda: None,
    "set": lambda: {1, 2},
    "bytes": lambda: b"x",
    "key": lambda: {5: 1},
    "sparse": lambda: torch.ones(2).to_sparse(),
    "meta": lambda: torch.ones(2, device="meta"),
    "quantised": quantised,
    "complex128": lambda: torch.ones(2, dtype=torch.complex128),
    "storage": without_storage,
    "wrapper": Wrapper,
    "deep": lambda: nested(2000),
    "rather deep": lambda: nested(100),
    "long": lambda: 10**5000,
    "cycle": in_itself,
    "everywhere": everywhere,
    "lying": lambda: LyingMapping(a=1),
    "many": lambda: [1] * 30_000,
}

OUR_ERRORS = [name for name, kind in vars(errors).items() if str(kind).startswith("<class 'polyfed.errors.")]

MISCHIEF: dict[str, Mischief] = {
    **{
        f"raise {error!r:.40}" if not isinstance(error, Unspeakable) else "raise unspeakable": raising(error)
        for error in (
            *(vars(errors)[name]("mine") for name in OUR_ERRORS),
            *(kind() for kind in (KeyboardInterrupt, SystemExit, GeneratorExit, StopIteration, MemoryError)),
            Unspeakable(),
            ValueError("\ud800 half a pair"),
            OSError(28, "No space left on device"),
        )
    },
    "exit": lambda _me: sys.exit(0),
    "recursion": for_ever,
    **{f"remember {name}": remembering(make) for name, make in CANNOT_BE_KEPT.items()},
    **{f"answer {name}": answering(make) for name, make in CANNOT_BE_KEPT.items()},
    "answer nothing known": lambda _me: object(),
    "answer lies": lambda _me: LyingMapping(answer=1),
    "answer proxy of lies": lambda _me: types.MappingProxyType({"answer": LyingMapping(a=1)}),
    "odd key": lambda me: me.memory.__setitem__(5, 1),  # type: ignore[index]
    **{
        f"{name} = {value!r}": setting(**{name: value}) for name in ("memory", "model") for value in (None, 3)
    },
    "no memory": lambda me: delattr(me, "memory"),
    "no model": lambda me: delattr(me, "model"),
    "nothing at all": lambda me: vars(me).clear(),
    "another model": lambda me: setattr(me, "model", nn.Linear(2, 3)),
    "half": lambda me: me.model.half(),
    "double": lambda me: me.model.double(),
    "meta model": lambda me: me.model.to("meta"),
    "one more layer": lambda me: me.model.add_module("more", nn.Linear(1, 1)),
    "broken module": break_module,
    "other shape": other_shape,
    "cut storage": cut_storage,
}


class Mischievous(Method):
    """Everybody trains; in each round client 1 then does something else that it must not."""

    name = "mischievous"

    def declare(self) -> Declaration:
        return Declaration(sends={"answer": Kind.METRICS})

    @client_step
    def train(self, me: Client) -> Fields:
        with torch.no_grad():
            for weight in me.model.parameters():
                weight.add_(1.0)
        me.memory["rounds"] = me.memory.get("rounds", 0) + 1
        if me.facts.index == 1:
            answer: Any = list(MISCHIEF.values())[me.round - 1](me)
            return answer or {"answer": 0}
        return {"answer": me.memory["rounds"]}

    def round(self, t: int, fleet: Fleet, server: Server) -> None:
        for reply in fleet.ask(self.train, fleet.sample()):
            server.memory.setdefault("answered", []).append([t, reply.client.name])


def failures_of(run: Run) -> Iterator[tuple[int, str, str]]:
    for line in read_lines(run.path / "history.jsonl"):
        for failure in line.get("failures", ()):
            yield line["round"], failure["client"], failure["reason"]


ENGINES: dict[str, Callable[[], Engine]] = {
    "inline": Inline,
    "inline, spilling": lambda: Inline(live_bytes=1),
    "pool": lambda: Pool(2),
    "pool, spilling": lambda: Pool(1, live_bytes=1),
}


@pytest.mark.parametrize("engine", ENGINES)
def test_whatever_a_step_does_is_its_clients_failure_in_that_round(
    make_run: MakeRun, monkeypatch: pytest.MonkeyPatch, engine: str
) -> None:
    monkeypatch.setattr(message, "MOST_VALUES", 20_000)  # so many are soon counted
    rounds, pause = len(MISCHIEF), 0 if engine == "inline" else 1000
    run = make_run(
        Mischievous, ENGINES[engine](), rounds=rounds, evaluate={"every": rounds}, checkpoint_seconds=pause
    )
    run.go()
    failed = list(failures_of(run))
    did = dict(enumerate(MISCHIEF, start=1))
    assert [did[number] for number, _, _ in failed] == list(MISCHIEF)
    assert {client for _, client, _ in failed} == {"client-1"}
    assert all(0 < len(reason) < 500 for _, _, reason in failed)
    others = [f"client-{index}" for index in (0, 2, 3)]
    assert run.server.memory["answered"] == [[t, name] for t in did for name in others]
    # Client 1 has no state: none of its steps was done.
    memories = {index: decode(path.read_bytes())["memory"] for index, path in run.client_files().items()}
    assert memories == {index: {"rounds": rounds} for index in (0, 2, 3)}


class Allowed(Method):
    """What a client may do is what comes of it, on every engine."""

    name = "allowed"

    def declare(self) -> Declaration:
        return Declaration(sends={"answer": Kind.METRICS})

    @client_step
    def train(self, me: Client) -> Fields:
        other = type(me.model).__new__(type(me.model))
        other.__dict__.update(vars(me.model))
        me.model = other  # another module with the same tensors: what lasts is their numbers
        torch.nn.init.constant_(next(me.model.parameters()), 7.0)
        conjugated = torch.tensor([1 + 2j]).conj()
        me.memory.update(
            nan=float("nan"),
            tuple=(1, torch.tensor([float("nan")], requires_grad=True)),
            counter=collections.Counter("ab"),
            negative=conjugated.imag,  # stored as its opposite, with a mark
            parameter=nn.Parameter(torch.ones(2)),
            loud=torch.ones(2).as_subclass(LoudTensor),
            big=2**64,
        )
        me.facts = me.data = me.seeds = me.report = None  # type: ignore[assignment,method-assign]
        return types.MappingProxyType({"answer": [conjugated.imag, 2**40]})

    @reads_only
    @client_step
    def look(self, me: Client) -> Fields:
        me.memory["looked"] = object()
        me.memory["counter"]["a"] = lambda: None
        if me.facts.index:  # a step that nobody got through would end the run
            me.model = None  # type: ignore[assignment]
        return {}

    def round(self, t: int, fleet: Fleet, server: Server) -> None:
        server.memory["answers"] = [reply["answer"] for reply in fleet.ask(self.train, fleet.sample())]
        if t == 1:
            fleet.ask(self.look, fleet.sample())


@pytest.mark.parametrize("engine", ENGINES)
def test_what_lasts_of_a_step_is_what_every_engine_can_keep(make_run: MakeRun, engine: str) -> None:
    run = make_run(Allowed, ENGINES[engine](), rounds=2)
    run.go()
    assert [(number, client) for number, client, _ in failures_of(run)] == [
        (1, f"client-{index}") for index in range(1, 4)
    ]  # what `look` left as its model
    for answer in run.server.memory["answers"]:
        assert (answer[0].tolist(), answer[1]) == ([-2.0], 2**40)
    for path in run.client_files().values():
        state = decode(path.read_bytes())
        assert state["memory"].keys() == {"nan", "tuple", "counter", "negative", "parameter", "loud", "big"}
        assert state["memory"]["counter"] == {"a": 1, "b": 1}
        assert state["memory"]["negative"].tolist() == [-2.0]
        assert bool((next(iter(state["model"].values())) == 7.0).all())


class Graffiti(Method):
    """The first client leaves more than numbers in models that others get after it."""

    name = "graffiti"

    def declare(self) -> Declaration:
        return Declaration(sends={"sum": Kind.METRICS}, keeps=frozenset())

    @client_step
    def look(self, me: Client) -> Fields:
        scratch = me.scratch_model("mlp-small")
        x = torch.ones(2, *me.shape)
        total = [float(model(x).detach().double().sum()) for model in (me.model, scratch)]
        if me.facts.index == 0:
            for model in (me.model, scratch):
                WALLS[me.round - 1](model)
        return {"sum": total}

    def round(self, t: int, fleet: Fleet, server: Server) -> None:
        sums = [reply["sum"] for reply in fleet.ask(self.look, fleet.sample())]
        server.memory.setdefault("sums", []).extend(sums)


def wrapped(model: nn.Module) -> None:
    model.forward = lambda x: x.sum() * 0


WALLS: list[Callable[[nn.Module], Any]] = [
    lambda model: model.register_forward_hook(lambda _module, _inputs, output: output * 0),
    lambda model: model.half(),
    lambda model: model.add_module("more", nn.Linear(1, 1)),
    lambda model: [vars(module).update(_buffers=None) for module in model.modules()],
    lambda model: [weight.untyped_storage().resize_(0) for weight in model.parameters()],
    lambda model: [vars(module).update(_parameters=None) for module in model.modules()],
    wrapped,
]


def test_what_one_client_leaves_in_a_shared_model_is_not_there_for_the_next(make_run: MakeRun) -> None:
    run = make_run(Graffiti, Inline(), rounds=len(WALLS), evaluate={"every": len(WALLS)})
    run.go()
    assert list(failures_of(run)) == []
    sums = run.server.memory["sums"]
    assert len(sums) == 4 * len(WALLS)
    assert all(each == sums[0] for each in sums)


def test_a_real_ctrl_c_in_a_step_ends_the_run_and_is_no_clients_failure(make_run: MakeRun) -> None:
    class Interrupted(Mischievous):
        @client_step
        def train(self, me: Client) -> Fields:
            if me.round == 2:
                os.kill(os.getpid(), signal.SIGINT)
            return {"answer": 1}

    run = make_run(Interrupted, Inline())
    # In a shell's background jobs it is ignored.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            run.go()
        assert run.round == 1
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("engine", [Inline(live_bytes=1), Pool(2, live_bytes=1)], ids=["inline", "pool"])
@pytest.mark.parametrize("what", ["removed", "damaged"])
def test_a_state_that_cannot_be_read_again_ends_the_run_and_is_no_clients_fault(
    make_run: MakeRun, engine: Engine, what: str
) -> None:
    run = make_run("local", engine, rounds=2, checkpoint_seconds=1000)

    def damage(now: Run) -> None:
        for path in Path(now.directory.scratch).glob("client-*.safetensors"):
            path.unlink() if what == "removed" else path.write_bytes(b"x")

    with pytest.raises(RunError, match=r"cannot read the state of client-\d again"):
        run.go(damage)


def test_models_are_compared_in_all_that_must_stay() -> None:
    from polyfed.engines.transaction import alike

    model = nn.Linear(2, 2)
    weights = learn.weights_of(model)
    assert alike(model, weights)
    assert not alike(nn.Linear(2, 2, bias=False), weights)
    assert not alike(nn.Linear(2, 2).double(), weights)
    assert not alike(None, weights)  # type: ignore[arg-type]
