"""The one door for replies: what is let in, what is refused and why, and that a run goes on without it."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest
import torch
from tests.conftest import MakeRun
from torch import Tensor

from polyfed import Client, Declaration, Fields, Fleet, Kind, Method, Server, client_step, learn
from polyfed.engines import Inline, Pool
from polyfed.errors import MethodError, RunError
from polyfed.federation.engine import Engine
from polyfed.federation.fields import (
    Counts,
    Declared,
    Indices,
    LikeWeights,
    Number,
    OwnWeights,
    Probabilities,
    RowNumbers,
    Surroundings,
    Table,
    kinds_of,
    why_refused,
    why_report_refused,
)
from polyfed.federation.message import decode
from polyfed.learn import is_statistic
from polyfed.runs.history import RunRecord
from polyfed.testing import failures_of

SIZES = {"outputs": 3, "classes": 2, "public": 7}
WEIGHTS = {
    "weight": torch.zeros(2, 3),
    "running_mean": torch.zeros(2),
    "num_batches_tracked": torch.tensor(0),
}
OWN = {"weight": torch.zeros(4, 3, device="meta"), "num_batches_tracked": torch.tensor(0, device="meta")}
SENT: dict[str, Any] = {"rows": torch.arange(4), "weights": WEIGHTS}


def refusal(declared: Any, value: Any, **others: Any) -> str | None:
    """Why a reply of this one field (and others, of bare kinds) is not let in."""
    fields = {"field": value, **others}
    sends: Declared = {"field": declared, **dict.fromkeys(others, Kind.CONTROL)}
    around = Surroundings(SIZES, sent=SENT, reply=fields, own_model=lambda: OWN)
    return why_refused(sends, ["field"], fields, around)


def even(rows: int, columns: int) -> Tensor:
    return torch.full((rows, columns), 1 / columns)


# -- what is let in ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("declared", "value"),
    [
        (Table("rows", "outputs"), torch.randn(4, 3)),
        (Table("rows", "outputs"), torch.randn(4, 3).half()),
        (Table("rows", "classes"), torch.randn(4, 2)),
        (Table("public", "outputs"), torch.randn(7, 3)),
        (Table("rows"), torch.randn(4, 3)),
        (Probabilities("rows", "outputs"), even(4, 3)),
        (Probabilities("rows", "outputs"), even(4, 3).half().float()),
        (Probabilities("rows", "outputs"), torch.eye(3)[torch.tensor([0, 1, 2, 0])]),
        (Indices("public"), torch.tensor([0, 6, 3])),
        (Indices("public"), torch.tensor([6], dtype=torch.int32)),
        (Indices("classes"), torch.tensor([1, 1])),
        (Indices("public", distinct=True), torch.tensor([6, 0, 3])),
        (Counts("rows"), torch.tensor([1, 5, 2, 1])),
        (Counts("classes"), torch.tensor([1, 10**12])),
        (Counts("classes"), torch.tensor([1, 2], dtype=torch.int32)),
        (LikeWeights("weights"), {name: tensor + 1 for name, tensor in WEIGHTS.items()}),
        (LikeWeights("weights", only=lambda name: name == "weight"), {"weight": torch.ones(2, 3)}),
        (
            LikeWeights("weights", only=is_statistic),
            {name: WEIGHTS[name] for name in ("num_batches_tracked", "running_mean")},
        ),
        (OwnWeights(), {"weight": torch.ones(4, 3), "num_batches_tracked": torch.tensor(2)}),
        (OwnWeights(only=is_statistic), {"num_batches_tracked": torch.tensor(2)}),
        (Number(0, 1), 0),
        (Number(0, 1), 1.0),
        (Number(), -1e30),
        (Kind.CONTROL, {"any": ["thing", 1, torch.zeros(2)]}),
        (Kind.FEATURES, torch.zeros(2, 2, 2)),
    ],
)
def test_what_is_as_declared_is_let_in(declared: Any, value: Any) -> None:
    assert refusal(declared, value) is None


def test_a_size_may_be_the_length_of_another_field_of_the_reply() -> None:
    own = torch.tensor([1, 2])
    assert refusal(Table("chosen", "outputs"), torch.zeros(2, 3), chosen=own) is None
    reason = refusal(Table("chosen", "outputs"), torch.zeros(4, 3), chosen=own)
    assert reason == "its field are not a table of 2 rows × 3 outputs"


def test_what_was_sent_says_a_size_before_the_reply_does() -> None:
    """Else a client could choose how much it answers."""
    reason = refusal(Table("rows", "outputs"), torch.zeros(2, 3), rows=torch.arange(2))
    assert reason == "its field are not a table of 4 rows × 3 outputs"


@pytest.mark.parametrize("chosen", [3, "all", torch.tensor(3), {"a": 1}], ids=str)
def test_a_reply_that_does_not_say_its_own_size_is_refused_and_ends_nothing(chosen: Any) -> None:
    reason = refusal(Table("chosen", "outputs"), torch.zeros(2, 3), chosen=chosen)
    assert reason == "its reply does not say how many chosen there are"


# -- what is refused -----------------------------------------------------------------------------------------

TABLE = "its field are not a table of 4 rows × 3 outputs"
IMPROBABLE = "its field are not probabilities: each at least 0, and 1 in sum"
NO_ROWS = "its field are not row numbers from 0 to 6"
NO_COUNTS = "its field are not 4 whole numbers from 1"
NO_NUMBER = "its field is not a number from 0 to 1"


@pytest.mark.parametrize(
    ("declared", "value", "reason"),
    [
        (Table("rows", "outputs"), torch.zeros(5, 3), TABLE),
        (Table("rows", "outputs"), torch.zeros(4, 2), TABLE),
        (Table("rows", "outputs"), torch.zeros(12), TABLE),
        (Table("rows", "outputs"), torch.zeros(4, 3, 1), TABLE),
        (Table("rows", "outputs"), torch.zeros(4, 3).long(), TABLE),
        (Table("rows", "outputs"), torch.zeros(4, 3, dtype=torch.complex64), TABLE),
        (Table("rows", "outputs"), torch.zeros(4, 3).tolist(), TABLE),
        (Table("rows", "outputs"), 3.0, TABLE),
        (Table("rows", "outputs"), None, TABLE),
        (Table("rows", "classes"), torch.zeros(4, 3), "its field are not a table of 4 rows × 2 classes"),
        (Probabilities("rows", "outputs"), even(5, 3), TABLE),
        (Probabilities("rows", "outputs"), 2 * even(4, 3), IMPROBABLE),
        (Probabilities("rows", "outputs"), torch.tensor([[1.5, -0.5, 0.0]] * 4), IMPROBABLE),
        (Probabilities("rows", "outputs"), torch.zeros(4, 3), IMPROBABLE),
        (Counts("rows"), torch.tensor([1, 5, 2]), NO_COUNTS),
        (Counts("rows"), torch.tensor([1, 5, 2, 0]), NO_COUNTS),
        (Counts("rows"), torch.tensor([1, 5, 2, -1]), NO_COUNTS),
        (Counts("rows"), torch.tensor([1.0, 5.0, 2.0, 1.0]), NO_COUNTS),
        (Counts("rows"), torch.tensor([[1, 5, 2, 1]]), NO_COUNTS),
        (Counts("rows"), [1, 5, 2, 1], NO_COUNTS),
        (
            Indices("public", distinct=True),
            torch.tensor([1, 2, 1]),
            "its field are not different row numbers from 0 to 6",
        ),
        (Indices("public"), torch.tensor([7]), NO_ROWS),
        (Indices("public"), torch.tensor([-1]), NO_ROWS),
        (Indices("public"), torch.tensor([[1]]), NO_ROWS),
        (Indices("public"), torch.tensor(1), NO_ROWS),
        (Indices("public"), torch.tensor([], dtype=torch.int64), NO_ROWS),
        (Indices("public"), torch.tensor([1.0]), NO_ROWS),
        (Indices("public"), torch.tensor([True]), NO_ROWS),
        (Indices("public"), [1], NO_ROWS),
        (Number(0, 1), 1.1, NO_NUMBER),
        (Number(0, 1), -0.1, NO_NUMBER),
        (Number(0, 1), True, NO_NUMBER),
        (Number(0, 1), "0.5", NO_NUMBER),
        (Number(0, 1), torch.tensor(0.5), NO_NUMBER),
        (Number(0, 1), [0.5], NO_NUMBER),
    ],
)
def test_what_is_not_as_declared_is_refused(declared: Any, value: Any, reason: str) -> None:
    assert refusal(declared, value) == reason


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"weight": torch.zeros(3, 2)}, "its field 'weight' are of another size than the model's"),
        ({"weight": "none"}, "its field 'weight' are of another size than the model's"),
        (
            {"weight": torch.zeros(2, 3).double()},
            "its field 'weight' are of another type (torch.float64) than the model's (torch.float32)",
        ),
        (
            {"num_batches_tracked": torch.tensor(0.0)},
            "its field 'num_batches_tracked' are of another type (torch.float32) than the model's (torch.int64)",
        ),
        ({"more": torch.zeros(1)}, "its field have other names than the model's"),
        ({"weight": None}, "its field have other names than the model's"),
    ],
)
def test_weights_unlike_those_that_were_sent_are_refused(changes: dict[str, Any], reason: str) -> None:
    sent_back = {name: value for name, value in {**WEIGHTS, **changes}.items() if value is not None}
    assert refusal(LikeWeights("weights"), sent_back) == reason


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        (
            {"weight": torch.zeros(2, 3)},
            "its field 'weight' are of another size than the model's",
        ),  # as was sent
        (
            {"weight": torch.zeros(4, 3).half()},
            "its field 'weight' are of another type (torch.float16) than the model's (torch.float32)",
        ),
        ({"running_mean": torch.zeros(2)}, "its field have other names than the model's"),
        ({"weight": None}, "its field have other names than the model's"),
        ({"weight": torch.full((4, 3), float("nan"))}, "its field hold NaN or infinity"),
    ],
)
def test_weights_unlike_those_of_the_clients_own_model_are_refused(
    changes: dict[str, Any], reason: str
) -> None:
    good = {"weight": torch.zeros(4, 3), "num_batches_tracked": torch.tensor(0)}
    sent_up = {name: value for name, value in {**good, **changes}.items() if value is not None}
    assert str(refusal(OwnWeights(), sent_up)).replace("field['weight']", "field") == reason


@pytest.mark.parametrize("value", [{}, torch.zeros(3), None, "weights", [torch.zeros(2)]])
@pytest.mark.parametrize("declared", [LikeWeights("weights"), OwnWeights()])
def test_what_is_not_weights_is_refused(declared: Any, value: Any) -> None:
    assert refusal(declared, value) == "its reply has no field at all"


def test_of_some_names_only_neither_more_nor_fewer_are_let_in() -> None:
    statistics = LikeWeights("weights", only=is_statistic)
    assert refusal(statistics, WEIGHTS) == "its field have other names than the model's"
    assert refusal(statistics, {"running_mean": torch.zeros(2)}) is not None


# -- some rows of some layers --------------------------------------------------------------------------------

LAYERS = {
    "first.weight": torch.zeros(4, 3),
    "first.bias": torch.zeros(4),
    "norm.weight": torch.zeros(4),
    "norm.num_batches_tracked": torch.tensor(0),
}
IN_PART: dict[str, Any] = {"weights": LikeWeights("weights", rows="rows"), "rows": RowNumbers("filters")}
TWO_ROWS = {"first": torch.tensor([0, 3], dtype=torch.int32)}


def in_part(rows: Any = None, **changes: Any) -> str | None:
    """Why rows 0 and 3 of the first layer, with some changes, are not let in."""
    taken = {
        name: tensor[:2] if name.startswith("first.") else tensor
        for name, tensor in {**LAYERS, **changes}.items()
    }
    reply = {"weights": {**taken, **changes}, "rows": TWO_ROWS if rows is None else rows}
    sent: dict[str, Any] = {"weights": LAYERS, "filters": {"first": 2}}
    return why_refused(IN_PART, ["weights", "rows"], reply, Surroundings(SIZES, sent=sent, reply=reply))


def test_the_rows_that_were_asked_for_are_let_in() -> None:
    assert in_part() is None
    assert in_part({"first": torch.tensor([2, 1])}) is None


@pytest.mark.parametrize(
    "rows",
    [
        [0, 4],
        [-1, 0],
        [1, 1],
        [0],
        [0, 1, 2],
        [],
        [0.0, 1.0],
        [[0, 1]],
    ],
)
def test_rows_that_are_none_of_the_layers_are_refused(rows: list[Any]) -> None:
    reason = in_part({"first": torch.tensor(rows)})
    assert reason is not None
    if len(rows) == 2:  # else the weights are refused already: of another size
        assert reason == "its rows of 'first' are not 2 different row numbers from 0 to 3"


@pytest.mark.parametrize(
    "rows",
    [
        {},
        {"second": torch.tensor([0, 1])},
        {**TWO_ROWS, "norm": torch.tensor([0, 1])},
        torch.tensor([0, 1]),
        "all",
        {"first": "all"},
        {"first": None},
    ],
)
def test_rows_of_other_layers_or_of_none_are_refused(rows: Any) -> None:
    assert in_part(rows) is not None
    whole = {name: LAYERS[name] for name in ("first.weight", "first.bias")}
    assert in_part(rows, **whole) is not None


@pytest.mark.parametrize(
    ("name", "tensor"),
    [
        ("first.weight", torch.zeros(4, 3)),
        ("first.weight", torch.zeros(2, 4)),
        ("first.bias", torch.zeros(3)),
        ("norm.weight", torch.zeros(2)),
        ("first.weight", torch.zeros(2, 3).double()),
        ("first.weight", torch.full((2, 3), float("nan"))),
        ("more.weight", torch.zeros(2, 3)),
    ],
)
def test_tensors_that_are_not_those_rows_are_refused(name: str, tensor: Tensor) -> None:
    assert in_part(**{name: tensor}) is not None


def test_rows_must_have_been_asked_for() -> None:
    with pytest.raises(MethodError, match="send both to the clients"):
        refusal(RowNumbers("filters"), TWO_ROWS)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize(
    "declared", [Kind.LOGITS, Table("rows", "outputs"), LikeWeights("weights"), Number()]
)
def test_nothing_may_be_nan_or_infinite(declared: Any, bad: float) -> None:
    hidden: Any = torch.zeros(4, 3)
    hidden[1, 2] = bad
    if isinstance(declared, LikeWeights):
        hidden = {**WEIGHTS, "weight": torch.full((2, 3), bad)}
    if isinstance(declared, Number):
        hidden = bad
    assert "hold NaN or infinity" in str(refusal(declared, hidden))


def test_a_missing_field_and_one_that_nobody_declared_are_refused() -> None:
    sends: Declared = {"a": Kind.LOGITS, "b": Number()}
    around = Surroundings(SIZES)
    assert why_refused(sends, ["a", "b"], {"a": 1}, around) == "its reply has no b"
    assert why_refused(sends, ["a"], {"a": 1}, around) is None
    reason = why_refused(sends, [], {"a": 1, "labels": 2}, around)
    assert reason == "its reply has a field 'labels' that the method does not declare"


def test_a_declaration_that_cannot_be_checked_is_the_methods_mistake() -> None:
    with pytest.raises(MethodError, match="'sausages' is not a size: use outputs, classes, public"):
        refusal(Table("sausages", "outputs"), torch.zeros(1, 3))
    with pytest.raises(MethodError, match="must be like 'anchor', which was not sent"):
        refusal(LikeWeights("anchor"), WEIGHTS)


def test_a_declaration_says_the_kind() -> None:
    sends: Declared = {
        "a": Table("rows"),
        "b": Probabilities("rows"),
        "c": Indices(),
        "d": LikeWeights(only=is_statistic, kind=Kind.STATISTICS),
        "e": Number(),
        "f": Kind.FEATURES,
        "g": Table("rows", kind=Kind.FEATURES),
    }
    assert list(kinds_of(sends).values()) == [
        Kind.LOGITS,
        Kind.POSTERIORS,
        Kind.INDICES,
        Kind.STATISTICS,
        Kind.METRICS,
        Kind.FEATURES,
        Kind.FEATURES,
    ]


# -- measurements and notes ----------------------------------------------------------------------------------


def report_refusal(report: dict[str, Any]) -> str | None:
    return why_report_refused(
        report, ("stage", "after training"), ("loss", "mutual-kl", "x"), outputs=2, metrics=ASKED
    )


@pytest.mark.parametrize(
    "report",
    [
        {},
        {"measured": {"after training": {"own": [3, 4], "whole": [0, 7], "validation": [1, 1]}}},
        {
            "measured": {
                "stage": {"own": [3, 4], "metrics": {"own": {"auc": 0.5, "confusion": [[3, 1], [0, 0]]}}}
            }
        },
        {"measured": {"stage": {"own": [3, 4], "metrics": {"own": {"macro-f1": 1}}}}},
        {"measured": {"stage": {"metrics": {}}}},
        {"noted": {"loss": 0.5, "mutual-kl": None, "local-loss": -3.0}},
        {"measured": {"stage": {}}, "noted": {"x": 1e308}},
    ],
)
def test_scores_and_numbers_under_declared_names_are_let_through(report: dict[str, Any]) -> None:
    assert report_refusal(report) is None


BY_STAGE = "what it measured are not scores by stage"
SCORES = "what it measured at 'stage' are not scores of classification"
ASKED = [
    learn.METRICS[name] for name in ("balanced-accuracy", "macro-f1", "auc", "calibration-error", "confusion")
]
METRICS = (
    "what it measured at 'stage' are not balanced-accuracy, macro-f1, auc, calibration-error, confusion"
    " of a scored part"
)
NUMBER = "what it noted as 'x' is not a number"
UNDECLARED = "it notes 'everythingeverythingeve, which the method does not declare: add it to `notes`"
ELSEWHERE = "it measures at 'sssssssssssssssssssssss, which the method does not declare: add it to `stages`"


def with_metrics(metrics: Any) -> dict[str, Any]:
    return {"measured": {"stage": {"own": [3, 4], "validation": [1, 2], "metrics": metrics}}}


@pytest.mark.parametrize(
    ("report", "reason"),
    [
        (with_metrics({"own": {"rows": 0.5}}), METRICS),
        (with_metrics({"own": {"auc": 1.5}}), METRICS),
        (with_metrics({"own": {"auc": -0.1}}), METRICS),
        (with_metrics({"own": {"auc": float("nan")}}), METRICS),
        (with_metrics({"own": {"auc": None}}), METRICS),
        (with_metrics({"own": {"auc": True}}), METRICS),
        (with_metrics({"own": {"auc": [0.5]}}), METRICS),
        (with_metrics({"own": {"auc": torch.zeros(10)}}), METRICS),
        (with_metrics({"own": {"confusion": 0.5}}), METRICS),
        (with_metrics({"own": {"confusion": [[3, 1]]}}), METRICS),
        (with_metrics({"own": {"confusion": [[3, 0.5], [0, 0.5]]}}), METRICS),
        (with_metrics({"own": {"confusion": [[5, -1], [0, 0]]}}), METRICS),
        (
            with_metrics({"own": {"confusion": [[3, 2], [0, 0]]}}),
            METRICS,
        ),  # five rows, of which there are four
        (with_metrics({"own": {"confusion": torch.tensor([[3, 1], [0, 0]])}}), METRICS),
        (with_metrics({"whole": {"auc": 0.5}}), METRICS),  # not scored
        (with_metrics({"validation": {"auc": 1.5}}), METRICS),
        (with_metrics({"others": {"auc": 0.5}}), METRICS),
        (with_metrics({"own": [0.5]}), METRICS),
        (with_metrics([0.5]), METRICS),
        (with_metrics(torch.zeros(1000)), METRICS),
        ({"noted": {"x": torch.zeros(1000)}}, NUMBER),
        ({"noted": {"x": "a text with everything in it"}}, NUMBER),
        ({"noted": {"x": [1.0, 2.0]}}, NUMBER),
        ({"noted": {"x": {"y": 1.0}}}, NUMBER),
        ({"noted": {"x": True}}, NUMBER),
        ({"noted": {"everything" * 10: 1.0}}, UNDECLARED),
        ({"noted": {"x": 10**400}}, NUMBER),
        ({"noted": {"x": float("inf")}}, NUMBER),
        ({"noted": {"x": float("nan")}}, NUMBER),
        ({"noted": [1.0]}, "what it noted are not numbers by name"),
        ({"measured": {"s" * 41: {"own": [1, 2]}}}, ELSEWHERE),
        ({"measured": {"stage": {"elsewhere": [1, 2]}}}, SCORES),
        ({"measured": {"stage": {"own": [1, 2, 3]}}}, SCORES),
        ({"measured": {"stage": {"own": [3, 2]}}}, SCORES),
        ({"measured": {"stage": {"own": [-1, 2]}}}, SCORES),
        ({"measured": {"stage": {"own": [True, 2]}}}, SCORES),
        ({"measured": {"stage": {"own": [0.5, 2]}}}, SCORES),
        ({"measured": {"stage": {"own": torch.tensor([1, 2])}}}, SCORES),
        ({"measured": {"stage": {"own": "1/2"}}}, SCORES),
        ({"measured": {"stage": [1, 2]}}, SCORES),
        ({"measured": torch.zeros(3)}, BY_STAGE),
        ({"measured": 5}, BY_STAGE),
        ({"measured": {"stage": {"own": [0, 0]}}}, SCORES),
        ({"measured": {"stage": {"own": [0, 10**400]}}}, SCORES),
        (with_metrics({"own": {"confusion": [[3, 1, 0], [0, 0, 0], [0, 0, 0]]}}), METRICS),
        ({"rows": torch.zeros(3)}, "it reports something else than measurements and notes"),
    ],
)
def test_nothing_else_leaves_a_client_beside_its_reply(report: dict[str, Any], reason: str) -> None:
    assert report_refusal(report) == reason


class Smuggler(Method):
    """Client 1 would let its rows out as a note or a measurement."""

    name = "smuggler"
    way: ClassVar[str] = "noted"

    def declare(self) -> Declaration:
        return Declaration()

    @client_step
    def train(self, me: Client) -> Fields:
        me.memory["done"] = 1
        if me.facts.index == 1:
            getattr(me, self.way)["rows"] = me.inputs(me.train)
        return {}

    def round(self, t: int, fleet: Fleet, server: Server) -> None:
        fleet.ask(self.train, fleet.sample())


@pytest.mark.parametrize("engine", [Inline(), Pool(2)], ids=["inline", "pool"])
@pytest.mark.parametrize("way", ["noted", "measured"])
def test_a_report_that_is_refused_costs_its_client_the_step(
    make_run: MakeRun, way: str, engine: Engine
) -> None:
    run = make_run(type("Smuggler", (Smuggler,), {"way": way}), engine, rounds=1)
    run.go()
    (failure,) = failures_of(run.path)
    assert failure["client"] == "client-1"
    assert "'rows', which the method does not declare" in failure["reason"]
    assert set(run.client_files()) == {0, 2, 3}  # rolled back
    sent = [entry for entry in RunRecord(run.path).ledger if entry.client == "client-1"]
    assert all(entry.purpose == "evaluation" for entry in sent if entry.direction == "up")


# -- through a run -------------------------------------------------------------------------------------------


def hostile_table(value: Tensor) -> Any:
    return value[:, 1:]


HOSTILE: dict[str, tuple[Any, str]] = {
    "shape": (hostile_table, "its logits are not a table of 3 rows × 10 outputs"),
    "dtype": (lambda value: value.long(), "its logits are not a table of 3 rows × 10 outputs"),
    "text": (lambda value: "trust me", "its logits are not a table of 3 rows × 10 outputs"),
    "NaN": (lambda value: value / 0 * 0, "holds NaN or infinity"),
}


class Survey(Method):
    """Everyone answers with 2^its number; one client with something else."""

    name = "survey"
    hostile: ClassVar[tuple[Any, int]] = (None, 0)

    def declare(self) -> Declaration:
        return Declaration(sends={"logits": Table("rows", "outputs")}, tells={"rows": Kind.INDICES})

    @client_step(sends=("logits",))
    def answer(self, me: Client, rows: Tensor) -> Fields:
        me.memory["asked"] = me.memory.get("asked", 0) + 1
        logits = torch.full((len(rows), me.outputs), float(2**me.facts.index))
        fault, who = self.hostile
        return {"logits": fault(logits) if me.facts.index == who else logits}

    def round(self, t: int, fleet: Fleet, server: Server) -> None:
        rows = torch.arange(3)
        found = fleet.mean(self.answer, fleet.sample(), "logits", rows=rows)
        server.memory["mean"] = found.unique().tolist()
        replies = fleet.ask(self.answer, fleet.sample(), rows=rows)
        server.memory["answered"] = [reply.client.index for reply in replies]


@pytest.mark.parametrize("engine", [Inline(), Pool(2)], ids=["inline", "pool"])
@pytest.mark.parametrize("what", HOSTILE)
@pytest.mark.parametrize("who", [0, 2], ids=["first", "later"])
def test_a_hostile_reply_is_left_out_with_its_reason_and_the_mean_is_that_of_the_others(
    make_run: MakeRun, what: str, who: int, engine: Engine
) -> None:
    fault, reason = HOSTILE[what]
    # Several rounds: a client that was refused is asked again.
    run = make_run(type("Survey", (Survey,), {"hostile": (fault, who)}), engine, rounds=2)
    run.go()
    others = [index for index in range(4) if index != who]
    assert run.server.memory["mean"] == [pytest.approx(sum(2**index for index in others) / 3)]
    assert run.server.memory["answered"] == others
    found = failures_of(run.path)
    assert [(failure["client"], failure["step"]) for failure in found] == [(f"client-{who}", "answer")] * 4
    assert all(reason in failure["reason"] for failure in found)


def test_what_was_refused_is_counted_all_the_same(make_run: MakeRun) -> None:
    """It has travelled: a table of 3 rows × 9 columns instead of 10, twice."""
    run = make_run(type("Survey", (Survey,), {"hostile": (hostile_table, 0)}), rounds=1)
    run.go()
    assert run.ledger.total("up", "logits") == 2 * 4 * 3 * (3 * 10 + 9)


def test_where_every_reply_is_refused_the_run_says_so(make_run: MakeRun) -> None:
    class AllHostile(Survey):
        @client_step(sends=("logits",))
        def answer(self, me: Client, rows: Tensor) -> Fields:
            return {"logits": torch.zeros(1)}

    with pytest.raises(
        RunError, match="every client failed, client-3 in step 'answer': its logits are not a"
    ):
        make_run(AllHostile).go()


class Quiet(Survey):
    """Client 3 leaves out what it should send, in a step that does not say what it sends."""

    @client_step
    def answer(self, me: Client, rows: Tensor) -> Fields:
        return {} if me.facts.index == 3 else super().answer(me, rows)

    def round(self, t: int, fleet: Fleet, server: Server) -> None:
        server.memory["mean"] = fleet.mean(self.answer, fleet.sample(), "logits", rows=torch.arange(3))


def test_a_reply_without_the_field_of_which_the_mean_is_taken_is_refused(make_run: MakeRun) -> None:
    method = type("Quiet", (Quiet,), {"hostile": (None, 9)})
    run = make_run(method, rounds=1)
    run.go()
    assert bool((run.server.memory["mean"] == (1 + 2 + 4) / 3).all())
    (failure,) = failures_of(run.path)
    assert (failure["client"], failure["reason"]) == ("client-3", "its reply has no logits")


# -- gossip --------------------------------------------------------------------------------------------------


class Whisper(Method):
    """Peers say 2^their number and add up what they hear; client 1 says something else."""

    name = "whisper"
    says: ClassVar[dict[str, Any]] = {}

    def declare(self) -> Declaration:
        return Declaration(
            server=False, sends={"posteriors": Probabilities("public", "outputs"), "accuracy": Number(0, 1)}
        )

    @client_step(sends=("posteriors", "accuracy"))
    def say(self, me: Client) -> Fields:
        said = {
            "posteriors": torch.full((len(me.public), me.outputs), 1 / me.outputs),
            "accuracy": 1 / 2**me.facts.index,
        }
        return {**said, **self.says} if me.facts.index == 1 else said

    @client_step
    def hear(self, me: Client, heard: list[tuple[str, dict[str, Any]]]) -> Fields:
        me.memory["heard"] = {name: fields["accuracy"] for name, fields in heard}
        return {}

    def round(self, t: int, fleet: Fleet, server: Server) -> None:
        fleet.gossip(self.say, self.hear, "complete", fleet.sample())


PUBLIC = {"public": {"source": "share", "share": 0.2}}


@pytest.mark.parametrize("engine", [Inline(), Pool(2)], ids=["inline", "pool"])
@pytest.mark.parametrize(
    ("says", "reason"),
    [
        ({"accuracy": 2.0}, "its accuracy is not a number from 0 to 1"),
        ({"posteriors": torch.zeros(60, 10)}, "its posteriors are not probabilities"),
        ({"posteriors": torch.zeros(3)}, "its posteriors are not a table of 60 rows × 10 outputs"),
    ],
)
def test_a_hostile_peer_is_not_heard_and_the_others_hear_each_other(
    make_run: MakeRun, says: dict[str, Any], reason: str, engine: Engine
) -> None:
    method = type("Whisper", (Whisper,), {"says": says})
    run = make_run(method, engine, rounds=1, data=PUBLIC)
    run.go()
    (failure,) = failures_of(run.path)
    assert (failure["client"], failure["step"]) == ("client-1", "say")
    assert reason in failure["reason"]
    for index, path in run.client_files().items():
        heard = decode(path.read_bytes())["memory"]["heard"]
        assert heard == {f"client-{other}": 1 / 2**other for other in (0, 2, 3) if other != index}
