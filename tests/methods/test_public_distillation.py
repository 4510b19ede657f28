"""What methods that learn through public data have in common: rows, bytes, and answers that are of no use."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.conftest import MakeRun
from tests.methods.conftest import write_other_classes
from torch import Tensor

from polyfed.errors import RunError
from polyfed.federation.message import Fields, decode
from polyfed.federation.method import Method, client_step, reads_only
from polyfed.federation.nodes import Client
from polyfed.methods.cronus import Cronus
from polyfed.methods.dsfl import DSFL
from polyfed.methods.fedmd import FedMD
from polyfed.methods.ktpfl import KTpFL
from polyfed.runs.checkpoint import read_lines
from polyfed.runs.history import RunRecord
from polyfed.runs.rounds import Run

SHARE = {"public": {"source": "share", "share": 0.2}}
QUICK: dict[str, Any] = {"public_training": None, "private_training": None, "distil": {"steps": 1}}
STEP = {"steps": 1}


def ledger_of(run: Run, number: int) -> dict[tuple[str, str, str], int]:
    """Training bytes of a round by client, direction and kind."""
    return {
        (entry.client, entry.direction, entry.kind): entry.bytes
        for entry in RunRecord(run.path).ledger
        if entry.round == number and entry.purpose == "training"
    }


# -- bytes ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def five_thousand(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """5,000 public images of 20 classes that are not digits, as many as Shi, Radu and Yang use a round."""
    return write_other_classes(tmp_path_factory.mktemp("public") / "public.npz", 5000)


@pytest.mark.parametrize(("packing", "size"), [("plain", 4), ("half", 2)])
def test_a_client_sends_600_kb_a_round_whatever_its_model(
    make_run: MakeRun, five_thousand: Path, packing: str, size: int
) -> None:
    """5,000 rows × 30 outputs × 4 bytes (or 2) up, the mean of the same size down; row numbers of 4 bytes, twice."""
    run = make_run(
        {"name": "fedmd", "global": False, **QUICK, "public_training": STEP},
        wire={"up": {"logits": packing}, "down": {"logits": packing}},
        data={"limit": 100, "clients": 2, "public": {"source": str(five_thousand)}},
        models={"names": ["mlp-small", "mlp-large"]},
        rounds=2,
        evaluate={"every": 2},
    )
    run.go()
    small, large = (
        sum(p.numel() for p in run.federation.population.own_model(index).parameters()) for index in (0, 1)
    )
    assert large > 10 * small
    for number in (1, 2):
        ledger = ledger_of(run, number)
        for client in ("client-0", "client-1"):
            assert ledger[client, "up", "logits"] == 5000 * 30 * size
            assert ledger[client, "down", "logits"] == 5000 * 30 * size
            assert ledger[client, "down", "indices"] == 2 * 5000 * 4
            for direction in ("up", "down"):
                assert ledger[client, direction, "framing"] < 500
        kinds = {(direction, kind) for _, direction, kind in ledger if kind not in ("framing", "metrics")}
        assert kinds == {("up", "logits"), ("down", "logits"), ("down", "indices")}


def test_posteriors_travel_in_half_precision_too(make_run: MakeRun) -> None:
    half = {"posteriors": "half"}
    run = make_run({"name": "dsfl", "distil": STEP}, data=SHARE, rounds=1, wire={"up": half, "down": half})
    run.go()
    assert run.federation.holdings.public is not None
    rows = len(run.federation.holdings.public)
    assert ledger_of(run, 1)["client-0", "up", "posteriors"] == rows * 10 * 2
    assert ledger_of(run, 1)["client-0", "down", "posteriors"] == rows * 10 * 2
    assert "failures" not in (run.last or {})  # rounding does not make them improbable


# -- rows ----------------------------------------------------------------------------------------------------


class Noted(FedMD):
    """Client 0 remembers the rows it was asked about."""

    @client_step
    def update(self, me: Client, rows: Tensor, logits: Tensor) -> Fields:
        me.memory.setdefault("rows", []).append(rows.tolist())
        return {}


def rows_of(make_run: MakeRun, public_rows: int) -> tuple[list[list[int]], int]:
    settings = {**QUICK, "global": False, "public_rows": public_rows}
    run = make_run(Noted, settings=settings, data=SHARE)
    run.go()
    assert run.federation.holdings.public is not None
    memory = decode(run.client_files()[0].read_bytes())["memory"]
    return memory["rows"], len(run.federation.holdings.public)


def test_rows_are_drawn_anew_each_round_without_repetition(make_run: MakeRun) -> None:
    rounds, public = rows_of(make_run, 25)
    assert len(rounds) == 3
    for rows in rounds:
        assert len(rows) == len(set(rows)) == 25
        assert rows == sorted(rows)
        assert 0 <= rows[0] <= rows[-1] < public
    assert rounds[0] != rounds[1] != rounds[2]


def test_all_rows_are_taken_where_there_are_no_more(make_run: MakeRun) -> None:
    rounds, public = rows_of(make_run, 5000)
    assert public == 60
    assert rounds == [list(range(public))] * 3


# -- outputs -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["dsfl", "feddf", "ktpfl", "fdmeta", "cronus"])
def test_methods_that_use_no_public_labels_keep_the_private_outputs(
    make_run: MakeRun, other_classes: Path, name: str
) -> None:
    run = make_run(
        name, data={"limit": 200, "public": {"source": str(other_classes)}}, models={"server": "mlp-small"}
    )
    assert run.federation.sizes["outputs"] == 10
    assert run.federation.holdings.public is not None
    assert run.federation.holdings.public.dataset.first_class == 10


# -- answers of no use ---------------------------------------------------------------------------------------

Fault = Callable[[Tensor], Any]

SHAPES: dict[str, Fault] = {
    "one row less": lambda answer: answer[1:],
    "one output less": lambda answer: answer[:, 1:],
    "one output more": lambda answer: torch.cat([answer, answer[:, :1]], dim=1),
    "flat": lambda answer: answer.flatten(),
    "a number": lambda answer: 3.0,
    "a list": lambda answer: answer.tolist(),
}
IMPROBABLE: dict[str, Fault] = {
    "logits": lambda answer: (answer + 1e-6).log(),
    "twice as sure": lambda answer: 2 * answer,
    "below zero": lambda answer: torch.cat([answer[:, :1] + 1, answer[:, 1:2] - 1, answer[:, 2:]], dim=1),
}


ANSWERING: dict[type[Method], str] = {FedMD: "predict", DSFL: "update", KTpFL: "update", Cronus: "answer"}


def answers_of(method: type[Method]) -> str:
    return "logits" if method is FedMD else "posteriors"


def spoilt(method: type[Method], fault: Fault, who: int | None) -> type[Method]:
    """The method with one client, or all, that answer otherwise, in whichever step that is."""
    step = ANSWERING[method]
    field = answers_of(method)
    honest = getattr(method, step)

    def answer(self: Method, me: Client, rows: Tensor) -> Fields:
        fields = dict(honest(self, me, rows))
        if who in (None, me.facts.index):
            fields[field] = fault(fields[field])
        return fields

    answer.__name__ = step
    if getattr(honest, "reads_only", False):
        answer = reads_only(answer)
    wrapped = client_step(sends=honest.required)(answer)
    return type("Spoilt", (method,), {step: wrapped})


def settings_of(method: type[Method]) -> dict[str, Any]:
    return {**QUICK, "global": False} if issubclass(method, FedMD) else {"distil": STEP}


@pytest.mark.parametrize("who", [0, 2], ids=["first", "later"])
@pytest.mark.parametrize("fault", list(SHAPES))
@pytest.mark.parametrize("method", [FedMD, KTpFL])
def test_an_answer_of_another_shape_is_left_out_and_the_others_go_on(
    make_run: MakeRun, method: type[Method], fault: str, who: int
) -> None:
    run = make_run(spoilt(method, SHAPES[fault], who), settings=settings_of(method), data=SHARE, rounds=1)
    run.go()
    assert run.last is not None
    (failure,) = run.last["failures"]
    assert failure["client"] == f"client-{who}"
    assert f"its {answers_of(method)} are not a table of" in failure["reason"]
    assert len(run.last["clients"]) == 4


@pytest.mark.parametrize("fault", list(IMPROBABLE))
@pytest.mark.parametrize("method", [DSFL, Cronus, KTpFL])
def test_posteriors_that_are_no_probabilities_are_left_out(
    make_run: MakeRun, method: type[Method], fault: str
) -> None:
    run = make_run(spoilt(method, IMPROBABLE[fault], 1), settings=settings_of(method), data=SHARE, rounds=2)
    run.go()
    lines = [line for line in read_lines(run.path / "history.jsonl") if line["round"]]
    assert len(lines) == 2
    for line in lines:
        (failure,) = line["failures"]
        assert failure["client"] == "client-1"
        assert "its posteriors are not probabilities" in failure["reason"]


def test_what_was_left_out_does_not_count(make_run: MakeRun) -> None:
    """A client that answers nonsense weighs nothing: the others learn as if it had not answered."""

    def nothing(_answer: Tensor) -> Any:
        raise RuntimeError("broken")

    results = []
    for fault in (SHAPES["one output less"], nothing):
        run = make_run(spoilt(FedMD, fault, 0), settings=settings_of(FedMD), data=SHARE, rounds=1)
        run.go()
        assert run.last is not None
        results.append({name: score for name, score in run.last["clients"].items() if name != "client-0"})
    assert results[0] == results[1]


def test_without_one_usable_answer_the_run_says_so(make_run: MakeRun) -> None:
    class Useless(FedMD):
        @client_step
        @reads_only
        def predict(self, me: Client, rows: Tensor) -> Fields:
            return {"logits": torch.zeros(1)}

    run = make_run(Useless, settings=settings_of(FedMD), data=SHARE)
    with pytest.raises(
        RunError, match=r"round 1: every client failed.*'predict': its logits are not a table"
    ):
        run.go()


# -- the mean ------------------------------------------------------------------------------------------------


class Said(FedMD):
    """Clients say their own number of every row; what came of it is kept."""

    @client_step(sends=("logits",))
    @reads_only
    def predict(self, me: Client, rows: Tensor) -> Fields:
        return {"logits": torch.full((len(rows), me.outputs), float(2**me.facts.index))}

    @client_step
    def update(self, me: Client, rows: Tensor, logits: Tensor) -> Fields:
        me.memory["consensus"] = logits
        return {}


def test_the_mean_counts_everyone_once_whatever_their_samples(make_run: MakeRun) -> None:
    run = make_run(Said, settings=settings_of(FedMD), data=SHARE, rounds=1)
    run.go()
    assert len({facts.samples for facts in run.federation.roster}) > 1
    consensus = decode(run.client_files()[0].read_bytes())["memory"]["consensus"]
    assert torch.equal(consensus, torch.full_like(consensus, (1 + 2 + 4 + 8) / 4))


@pytest.mark.parametrize("method", [Cronus, KTpFL])
def test_where_all_answers_are_needed_at_once_the_run_says_so_too(
    make_run: MakeRun, method: type[Method]
) -> None:
    run = make_run(spoilt(method, SHAPES["flat"], None), settings=settings_of(method), data=SHARE)
    with pytest.raises(RunError, match=r"round 1: every client failed.*: its posteriors are not a table"):
        run.go()
