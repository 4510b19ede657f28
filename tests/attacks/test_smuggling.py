"""A method that declares nothing gets nothing out of a client, whatever it tries."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from tests.conftest import MakeRun

from polyfed import Client, Declaration, Fields, Fleet, Method, Number, Server, client_step
from polyfed.engines import Inline, Pool
from polyfed.errors import PolyfedError, RunError
from polyfed.federation.engine import Engine, Success
from polyfed.federation.message import encode
from polyfed.runs.history import RunRecord
from polyfed.testing import check_method

SECRET = 1234567.0
WORD = "patient-47-is-ill"


class TwoFaced(dict[str, Any]):
    """Shows nothing to who looks at its keys and values, and everything to who writes it down."""

    def __iter__(self) -> Iterator[str]:
        return iter(())

    def keys(self) -> Any:
        return {}.keys()

    def values(self) -> Any:
        return {}.values()

    def __len__(self) -> int:
        return 1


def note(me: Client, name: Any, value: Any) -> None:
    me.noted[name] = value


def measure(me: Client, stage: Any, value: Any) -> None:
    me.measured[stage] = value


def replace(me: Client, what: str, value: Any) -> None:
    setattr(me, what, value)


def tensor(_me: Client) -> torch.Tensor:
    return torch.full((50,), SECRET)


WAYS: dict[str, Callable[[Client], Any]] = {
    "a tensor as a note": lambda me: note(me, "loss", tensor(me)),
    "a list as a note": lambda me: note(me, "loss", [SECRET] * 50),
    "a text as a note": lambda me: note(me, "loss", WORD * 20),
    "a map as a note": lambda me: note(me, "loss", {WORD: SECRET}),
    "a long whole number as a note": lambda me: note(me, "loss", int(SECRET) ** 200),
    "a name that carries data": lambda me: note(me, WORD, 1.0),
    "many names that carry data": lambda me: me.noted.update({f"{WORD}{n}": 1.0 for n in range(100)}),
    "an undeclared note": lambda me: me.note(WORD, 1.0),
    "a text through note": lambda me: me.note("loss", WORD),  # type: ignore[arg-type]
    "notes that are no map": lambda me: replace(me, "noted", tensor(me)),
    "notes that are two-faced": lambda me: replace(me, "noted", TwoFaced({WORD: [SECRET]})),
    "measurements that are a number": lambda me: replace(me, "measured", 5),
    "measurements that are two-faced": lambda me: replace(me, "measured", TwoFaced({WORD: [SECRET]})),
    "a stage that carries data": lambda me: measure(me, WORD, {"own": [1, 2]}),
    "a tensor as a score": lambda me: measure(me, "stage", {"own": tensor(me)}),
    "a long score": lambda me: measure(me, "stage", {"own": [1, 2, int(SECRET)]}),
    "a huge score": lambda me: measure(me, "stage", {"own": [1, int(SECRET) ** 200]}),
    "a part that carries data": lambda me: measure(me, "stage", {WORD: [1, 2]}),
    "metrics of an unknown name": lambda me: measure(
        me, "stage", {"own": [1, 2], "metrics": {"own": {WORD: 1}}}
    ),
    "a confusion matrix that is data": lambda me: measure(
        me, "stage", {"own": [1, 9], "metrics": {"own": {"confusion": [[1] * 9] * 9}}}
    ),
}
REPLIES: dict[str, Callable[[Client], Any]] = {
    "an undeclared field": lambda me: {"data": tensor(me)},
    "a field whose name carries data": lambda _me: {WORD: 1},
    "a reply that is two-faced": lambda me: TwoFaced({"data": tensor(me)}),
    "a reply that is a tensor": tensor,
    "a text": lambda _me: WORD,
    "a declared field that holds more": lambda _me: {"count": [SECRET] * 50},
    "a declared field that is a text": lambda _me: {"count": WORD},
}


class Smuggler(Method):
    """Every client would let its secret out beside the one number that it may send."""

    name = "smuggler"
    way: ClassVar[str] = ""

    def declare(self) -> Declaration:
        return Declaration(sends={"count": Number(0, 1000)}, stages=("stage",), notes=("loss",))

    @client_step
    def tell(self, me: Client) -> Fields:
        if self.way in WAYS:
            WAYS[self.way](me)
            return {"count": 1}
        told: Fields = REPLIES[self.way](me)
        return told

    def round(self, t: int, fleet: Fleet, server: Server) -> None:
        server.memory["heard"] = [dict(reply.fields) for reply in fleet.ask(self.tell, fleet.sample())]


def smuggler(way: str) -> type[Smuggler]:
    return type("Smuggler", (Smuggler,), {"way": way, "declare": Smuggler.declare})


def what_is_kept(path: Path) -> str:
    """What the server's side writes of what it heard, but for the reasons of failures, which quote a word or two."""
    lines = [json.loads(line) for line in (path / "history.jsonl").read_text().splitlines()]
    return json.dumps([{**line, "failures": []} for line in lines]) + (path / "ledger.jsonl").read_text()


@pytest.mark.parametrize("engine", [Inline(), Pool(2)], ids=["inline", "pool"])
@pytest.mark.parametrize("way", [*WAYS, *REPLIES])
def test_nothing_undeclared_arrives(make_run: MakeRun, way: str, engine: Engine) -> None:
    run = make_run(smuggler(way), engine, rounds=1)
    try:
        run.go()
    except RunError as error:
        assert "every client failed" in str(error)
        assert WORD * 2 not in str(error)
    else:  # let through, but not what was to be smuggled
        assert run.server.memory["heard"] == [{}] * 4
    kept = what_is_kept(run.path)
    assert WORD not in kept
    assert str(int(SECRET)) not in kept
    told = [entry for entry in RunRecord(run.path).ledger if entry.direction == "up"]
    assert not told or way == "a reply that is two-faced"


@pytest.mark.parametrize("way", ["a tensor as a note", "a stage that carries data", "an undeclared field"])
def test_the_suite_for_methods_refuses_a_smuggler(way: str) -> None:
    with pytest.raises((PolyfedError, AssertionError)):
        check_method(smuggler(way))


class Overwhelming(Method):
    """Every client notes the largest number; one measures nothing."""

    name = "overwhelming"

    def declare(self) -> Declaration:
        return Declaration(notes=("loss",))

    @client_step
    def tell(self, me: Client) -> Fields:
        me.note("loss", 1e308)
        return {}

    def round(self, t: int, fleet: Fleet, server: Server) -> None:
        fleet.ask(self.tell, fleet.sample())


def test_large_notes_have_a_mean(make_run: MakeRun) -> None:
    run = make_run(Overwhelming, rounds=1)
    run.go()
    (line,) = [json.loads(line) for line in (run.path / "history.jsonl").read_text().splitlines()]
    assert line["noted"]["loss"] == pytest.approx(1e308)


class Impostor(Inline):
    """An engine whose first client says beside its reply what no honest host lets out."""

    def __init__(self, report: Mapping[str, Any]) -> None:
        super().__init__()
        self.report = report

    def run(self, request: Any) -> Iterator[Any]:
        for outcome in super().run(request):
            if isinstance(outcome, Success) and outcome.client == 0 and request.step.endswith("train"):
                yield dataclasses.replace(outcome, report=encode(self.report))
            else:
                yield outcome


@pytest.mark.parametrize(
    "report",
    [
        {"measured": {"anything": {"own": [1, 2]}}},
        {"measured": {"trained": {"own": [0, 0]}}},
        {"measured": {"trained": 5}},
        {"noted": {"loss": 1.0}},
        {"noted": {"local-loss": "text"}},
        {"more": torch.zeros(3)},
    ],
)
def test_what_a_distant_client_reports_passes_the_same_door(
    make_run: MakeRun, report: dict[str, Any]
) -> None:
    run = make_run("fedavg", Impostor(report), rounds=2)
    run.go()
    lines = [json.loads(line) for line in (run.path / "history.jsonl").read_text().splitlines()]
    for line in lines:
        assert [failure["client"] for failure in line["failures"]] == ["client-0"]
        assert line["stages"].keys() == {"trained"}
