"""FedH2L between peers: what travels, to the byte; peers that talk nonsense, vanish and come back."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

import pytest
import torch
from tests.conftest import MakeRun

from polyfed.disk import digest
from polyfed.engines import Inline, Pool
from polyfed.federation.engine import Engine
from polyfed.federation.message import Fields, decode
from polyfed.federation.method import client_step
from polyfed.federation.nodes import Client, ClientData
from polyfed.methods.fedh2l import FedH2L
from polyfed.runs.checkpoint import read_lines
from polyfed.runs.history import RunRecord
from polyfed.runs.rounds import Run
from polyfed.testing import failures_of, result_of

FEDERATION: dict[str, Any] = {
    "data": {
        "limit": None,
        "per_class": 40,
        "clients": None,
        "partition": {"kind": "rotated"},
        "public": {"source": "share", "share": 0.2},
    },
    "training": {"batch": 16, "lr": 0.003, "optimiser": "amsgrad"},
}
ROWS = 32  # of a lesson
CLASSES = 10
POSTERIORS = ROWS * CLASSES * 4  # 32-bit floats
INDICES = ROWS * 4


def done(make_run: MakeRun, method: type[FedH2L] = FedH2L, **changes: Any) -> Run:
    settings = {"batches": 1, **changes.pop("settings", {})}
    run = make_run(method, settings=settings, **{**FEDERATION, **changes})
    run.go()
    return run


def sizes(run: Run, number: int) -> dict[tuple[str, str, str], int]:
    """Training bytes of a round by client, direction and kind, framing left out."""
    return {
        (entry.client, entry.direction, entry.kind): entry.bytes
        for entry in RunRecord(run.path).ledger
        if entry.round == number and entry.purpose == "training" and entry.kind != "framing"
    }


# -- bytes ---------------------------------------------------------------------------------------------------


def test_rows_posteriors_and_accuracy_travel_and_nothing_else(make_run: MakeRun) -> None:
    run = done(make_run, rounds=2, evaluate={"every": 2})
    found = sizes(run, 1)
    for client in ("client-0", "client-1", "client-2", "client-3"):
        kinds = {kind: size for (name, way, kind), size in found.items() if (name, way) == (client, "up")}
        assert set(kinds) == {"posteriors", "indices", "metrics"}
        assert kinds["posteriors"] == 3 * POSTERIORS
        assert kinds["indices"] == 3 * INDICES
        # one number, as JSON, to each of three peers: at least 0.5, at most 0.03125
        assert kinds["metrics"] % 3 == 0 and 3 <= kinds["metrics"] // 3 <= 7
        assert found[client, "down", "posteriors"] == 3 * POSTERIORS
        assert found[client, "down", "indices"] == 3 * INDICES
    assert "weights" not in run.summary["bytes"]["up"]


def test_a_round_has_as_many_steps_as_it_is_told_and_the_interval_counts_steps(make_run: MakeRun) -> None:
    """Two steps a round and a lesson after every third: none in round 1, after steps 3 and 6 one each."""
    run = done(make_run, rounds=3, evaluate={"every": 3}, settings={"batches": 2, "interval": 3})
    said = [sizes(run, number).get(("client-0", "up", "posteriors"), 0) for number in (1, 2, 3)]
    assert said == [0, 3 * POSTERIORS, 3 * POSTERIORS]
    run = done(make_run, rounds=1, settings={"batches": 2}, name="both")
    assert sizes(run, 1)["client-0", "up", "posteriors"] == 2 * 3 * POSTERIORS


def test_what_is_measured_on_the_way_is_not_sent_to_peers(make_run: MakeRun) -> None:
    """In an evaluated round, a reply also holds losses. They are no cost of the method's, and no peer gets them."""
    run = done(make_run, rounds=2, evaluate={"every": 2})
    plain, evaluated = sizes(run, 1), sizes(run, 2)
    total = {
        way: {
            kind: sum(size for (_, w, k), size in evaluated.items() if (w, k) == (way, kind))
            for kind in KINDS
        }
        for way in ("up", "down")
    }
    for kind in KINDS:
        assert total["up"][kind] == total["down"][kind]
    for kind in ("posteriors", "indices"):
        assert total["up"][kind] == 4 * plain["client-0", "up", kind]
    line = list(read_lines(run.path / "history.jsonl"))[-1]
    assert set(line["noted"]) == {"local-loss", "mutual-kl", "mutual-ce"}


KINDS = ("posteriors", "indices", "metrics")


@pytest.mark.parametrize(("topology", "links"), [("complete", 12), ("ring", 8), ("pairs", 4), ("star", 6)])
def test_every_link_is_counted(make_run: MakeRun, topology: str, links: int) -> None:
    run = done(make_run, settings={"topology": topology}, rounds=2)
    for number in (1, 2):
        for way in ("up", "down"):
            found = [
                size for (_, w, kind), size in sizes(run, number).items() if (w, kind) == (way, "posteriors")
            ]
            assert sum(found) == links * POSTERIORS


def test_an_interval_of_5_sends_a_fifth(make_run: MakeRun) -> None:
    every, fifth = (
        done(make_run, settings={"interval": interval}, rounds=10, evaluate={"every": 10})
        for interval in (1, 5)
    )
    for kind in ("posteriors", "indices"):
        assert every.summary["bytes"]["up"][kind] == 5 * fifth.summary["bytes"]["up"][kind]
    assert sizes(fifth, 5)
    assert not sizes(fifth, 4)  # nothing at all in between


def test_without_labels_no_accuracy_travels(make_run: MakeRun) -> None:
    data = {**FEDERATION["data"], "public": {"source": "share", "share": 0.2, "labels": "none"}}
    run = done(make_run, settings={"labels": False}, data=data, rounds=2, evaluate={"every": 2})
    assert {kind for _, _, kind in sizes(run, 1)} == {"posteriors", "indices"}


def test_how_often_models_are_looked_at_does_not_change_them(make_run: MakeRun) -> None:
    results = [result_of(done(make_run, rounds=4, evaluate={"every": every}).path) for every in (1, 4)]
    assert results[0]["states"] == results[1]["states"]
    assert results[0]["models"] == results[1]["models"]


# -- peers that fail -----------------------------------------------------------------------------------------


class Nonsense(FedH2L):
    """Client 1 says something that cannot be learnt from."""

    says: ClassVar[Any] = None

    @client_step
    def broadcast(self, me: Client) -> Fields:
        said: dict[str, Any] = dict(super().broadcast(me))
        if me.facts.index == 1:
            if self.says is None:
                raise RuntimeError("nothing to say")
            said |= self.says
        return said


def states(run: Run) -> dict[int, str]:
    """A digest of each client's state, as it was saved last."""
    return {client: digest(path.read_bytes()) for client, path in run.client_files().items()}


@pytest.mark.parametrize("engine", [Inline(), Pool(2)], ids=["inline", "pool"])
@pytest.mark.parametrize(
    ("says", "reason"),
    [
        ({"posteriors": torch.full((ROWS, 7), 1 / 7)}, "are not a table of 32 rows × 10 outputs"),
        ({"rows": torch.full((ROWS,), 10**6).int()}, "are not row numbers"),
        ({"accuracy": 7.5}, "its accuracy is not a number from 0 to 1"),
        ({"accuracy": "much"}, "its accuracy is not a number from 0 to 1"),
        ({"posteriors": torch.ones(ROWS, CLASSES)}, "its posteriors are not probabilities"),
    ],
    ids=["wrong width", "rows that are not there", "too good", "no number", "no probabilities"],
)
def test_a_peers_nonsense_is_as_if_it_had_said_nothing(
    make_run: MakeRun, says: dict[str, Any], reason: str, engine: Engine
) -> None:
    """To the others, bit for bit; nobody else fails of it, and the reason stands in the history."""
    silent = done(make_run, Nonsense, rounds=1)
    absurd = make_run(
        type("Absurd", (Nonsense,), {"says": says}), engine, **FEDERATION, rounds=1, settings={"batches": 1}
    )
    absurd.go()
    assert [failure["client"] for failure in failures_of(silent.path)] == ["client-1"]
    (failure,) = failures_of(absurd.path)
    assert (failure["client"], failure["step"]) == ("client-1", "broadcast")
    assert reason in failure["reason"]
    for client in (0, 2, 3):
        assert states(absurd)[client] == states(silent)[client]
    # It had trained before it spoke, and has heard the others.
    assert states(absurd)[1] != states(silent)[1]


class AllButOneAbsurd(FedH2L):
    @client_step
    def broadcast(self, me: Client) -> Fields:
        said = super().broadcast(me)
        return said if me.facts.index == 2 else {**said, "accuracy": -1.0}


def test_one_that_hears_nothing_of_use_makes_no_mutual_step(make_run: MakeRun) -> None:
    run = done(make_run, AllButOneAbsurd, rounds=1)
    assert {failure["client"] for failure in failures_of(run.path)} == {"client-0", "client-1", "client-3"}
    for client, path in run.client_files().items():
        # A mutual step clears the local gradients; the one that spoke sense heard nothing.
        assert ("local" in decode(path.read_bytes())["memory"]) == (client == 2)


def test_a_node_without_public_rows_of_its_own_learns_and_teaches_nothing(make_run: MakeRun) -> None:
    run = make_run(FedH2L, **FEDERATION, rounds=2, settings={"batches": 1})
    seen_by = run.federation.holdings.seen_by

    def without(index: int) -> ClientData:
        held = seen_by(index)
        return replace(held, own_public=torch.empty(0, dtype=torch.int64)) if index == 1 else held

    run.federation.holdings.seen_by = without  # type: ignore[method-assign]
    before = states(run)
    run.go()
    assert failures_of(run.path) == []
    assert states(run)[1] != before.get(1)
    for number in (1, 2):
        found = sizes(run, number)
        assert ("client-1", "up", "posteriors") not in found
        assert found["client-1", "down", "posteriors"] == 3 * POSTERIORS
        assert found["client-0", "down", "posteriors"] == 2 * POSTERIORS


def test_nan_does_not_leave_the_peer_that_made_it(make_run: MakeRun) -> None:
    says = {"posteriors": torch.full((ROWS, CLASSES), float("nan"))}
    broken = done(make_run, type("Broken", (Nonsense,), {"says": says}), rounds=2)
    silent = done(make_run, Nonsense, rounds=2)
    assert {(failure["client"], failure["step"]) for failure in failures_of(broken.path)} == {
        ("client-1", "broadcast")
    }
    assert "NaN" in failures_of(broken.path)[0]["reason"]
    assert states(broken) == states(silent)


class Vanishing(FedH2L):
    """Client 2 cannot be reached in rounds 3 to 5."""

    gone: ClassVar[dict[int, range]] = {2: range(3, 6)}

    def be_reachable(self, me: Client) -> None:
        if me.moment.round in self.gone.get(me.facts.index, ()):
            raise ConnectionError("out of reach")

    @client_step
    def broadcast(self, me: Client) -> Fields:
        self.be_reachable(me)
        return super().broadcast(me)

    @client_step
    def mutual_step(self, me: Client, heard: Any) -> Fields:
        self.be_reachable(me)
        return super().mutual_step(me, heard)


def watched(make_run: MakeRun, method: type[FedH2L], rounds: int) -> tuple[Run, list[dict[int, str]]]:
    """A run, and every client's state after each round."""
    run = make_run(method, **FEDERATION, rounds=rounds, evaluate={"every": rounds}, settings={"batches": 1})
    seen: list[dict[int, str]] = [{}]
    run.go(lambda now: seen.append(states(now)))
    return run, seen


def test_a_peer_may_vanish_and_come_back_while_the_others_go_on(make_run: MakeRun) -> None:
    run, seen = watched(make_run, Vanishing, rounds=7)
    failures = {
        (line["round"], failure["client"], failure["step"])
        for line in read_lines(run.path / "history.jsonl")
        for failure in line.get("failures", ())
    }
    assert failures == {
        (number, "client-2", step) for number in (3, 4, 5) for step in ("broadcast", "mutual_step")
    }
    # As it left, so it comes back; the others went on in every round, with two teachers instead of three.
    assert seen[2][2] == seen[3][2] == seen[4][2] == seen[5][2] != seen[6][2] != seen[7][2]
    for client in (0, 1, 3):
        assert len({states[client] for states in seen[1:]}) == 7
    for number, heard in ((2, 3), (3, 2), (5, 2), (6, 3)):
        assert sizes(run, number)["client-0", "down", "posteriors"] == heard * POSTERIORS
    _, undisturbed = watched(make_run, FedH2L, rounds=3)
    assert undisturbed[2] == seen[2]
    assert undisturbed[3][0] != seen[3][0]  # it is missed


class Stumbling(FedH2L):
    """Client 2 has taught in round 2, and is out of reach when it is to learn."""

    @client_step
    def mutual_step(self, me: Client, heard: Any) -> Fields:
        if (me.facts.index, me.moment.round) == (2, 2):
            raise ConnectionError("out of reach")
        return super().mutual_step(me, heard)


def test_a_peer_that_vanishes_within_a_round_has_taught_the_others(make_run: MakeRun) -> None:
    run, seen = watched(make_run, Stumbling, rounds=3)
    _, undisturbed = watched(make_run, FedH2L, rounds=3)
    assert [(failure["client"], failure["step"]) for failure in failures_of(run.path)] == [
        ("client-2", "mutual_step")
    ]
    for client in (0, 1, 3):
        assert seen[2][client] == undisturbed[2][client]
    assert seen[1] == undisturbed[1]
    assert seen[2][2] not in (
        seen[1][2],
        undisturbed[2][2],
    )  # its own step is made, the others' lessons are missed
    assert seen[3][0] != undisturbed[3][0]


def test_the_last_peer_goes_on_alone(make_run: MakeRun) -> None:
    alone = type("Alone", (Vanishing,), {"gone": {client: range(2, 9) for client in (1, 2, 3)}})
    run, seen = watched(make_run, alone, rounds=4)
    assert len({states[0] for states in seen[1:]}) == 4
    assert "client-0" not in {failure["client"] for failure in failures_of(run.path)}


def test_those_who_drop_out_are_missed_for_a_round_and_nobody_fails(make_run: MakeRun) -> None:
    run = done(make_run, rounds=6, cohort={"dropout": 0.25})
    assert failures_of(run.path) == []
    absent = set()
    for number in range(1, 7):
        found = {name: size for (name, way, kind), size in sizes(run, number).items() if (way, kind) == UP}
        assert list(found.values()) == [2 * POSTERIORS] * 3
        absent |= {"client-0", "client-1", "client-2", "client-3"} - set(found)
    assert len(absent) > 1


UP = ("up", "posteriors")
