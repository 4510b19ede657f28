"""What a method declares: said once, whole, and refused in one line where it cannot be."""

from __future__ import annotations

import copy
import pickle
from dataclasses import replace
from typing import Any

import pytest
from tests.conftest import MakeRun

from polyfed import (
    Client,
    Declaration,
    Fields,
    Fleet,
    Kind,
    LikeWeights,
    Method,
    Need,
    Server,
    Table,
    client_step,
)
from polyfed.errors import MethodError
from polyfed.federation.declaration import ANY_TASK, CLASSES, LABELS, TABLES, when
from polyfed.federation.method import registered
from polyfed.learn import Training
from polyfed.methods import FedAvg
from polyfed.testing import check_method

WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "a list of fields": (
        {"sends": ["weights"]},
        "sends: give names of fields, each with a kind or what it must be",
    ),
    "a field that is only a word": (
        {"sends": {"weights": "weights"}},
        "sends: give names of fields, each with a",
    ),
    "told fields without kinds": (
        {"tells": {"rows": 3}},
        "tells: give names of fields, each with its kind, not {'",
    ),
    "what is told by a field": (
        {"tells": {"rows": Table()}},
        "tells: give names of fields, each with its kind",
    ),
    "a set of needs": (
        {"needs": {Need.PUBLIC}},
        "needs: give needs, each with the setting that does without it",
    ),
    "a need by its words": (
        {"needs": {"public data": ""}},
        "needs: give needs, each with the setting that does",
    ),
    "a need without a text": (
        {"needs": {Need.PUBLIC: None}},
        "needs: give needs, each with the setting that does",
    ),
    "an unknown part": ({"keeps": {"models"}}, "keeps: give a set of model, memory, not {'models'}"),
    "a part that is no set": ({"keeps": "model"}, "keeps: give a set of model, memory, not 'model'"),
    "tasks by their names": (
        {"tasks": {"detection"}},
        "tasks: give traits of tasks, each with the setting that does without it",
    ),
    "one stage, no tuple": ({"stages": "trained"}, "stages: give a tuple of names, not 'trained'"),
    "stages by number": ({"stages": (1, 2)}, "stages: give a tuple of names, not (1, 2)"),
    "one note, no tuple": ({"notes": "loss"}, "notes: give a tuple of names, not 'loss'"),
    "a final stage of its own": (
        {"stages": ("trained",), "final_stage": "end"},
        "final_stage: 'end' is not among the stages: add it to `stages`",
    ),
    "no name of a stage": ({"final_stage": None}, "final_stage: give a name, not None"),
    "two kinds": (
        {"sends": {"logits": Table()}, "tells": {"logits": Kind.POSTERIORS}},
        "tells: 'logits' is of the kind logits in `sends` and posteriors here: give one of them",
    ),
    "perhaps": ({"single_replies": "no"}, "single_replies: give True or False, not 'no'"),
    "a server by name": ({"server": "big"}, "server: give True or False, not 'big'"),
    "half personal": ({"personal": 0}, "personal: give True or False, not 0"),
    "a server model by number": (
        {"server_model": 3},
        "server_model: give a model's name, 'smallest' or None, not 3",
    ),
}


def method_that_says(what: Any) -> type[Method]:
    return type("Mine", (Method,), {"name": "mine", "declare": lambda self: what()})


@pytest.mark.parametrize("what", WRONG)
def test_a_mistake_is_refused_in_one_line_when_the_method_object_is_made(what: str) -> None:
    given, said = WRONG[what]
    mine = method_that_says(lambda: Declaration(**given))
    with pytest.raises(MethodError) as refused:
        mine(Method.Settings(), Training())
    assert str(refused.value).startswith(f"Mine declares {said}")
    assert "\n" not in str(refused.value)


def test_something_else_than_a_declaration_is_refused() -> None:
    with pytest.raises(MethodError, match=r"^Mine.declare gives \{'sends': 1\}, not a Declaration$"):
        method_that_says(lambda: {"sends": 1})(Method.Settings(), Training())


def test_a_method_that_declares_nothing_is_refused() -> None:
    silent = type("Silent", (Method,), {"name": "silent"})
    with pytest.raises(
        MethodError, match=r"^Silent declares nothing: write declare\(self\) -> Declaration in it$"
    ):
        silent(Method.Settings(), Training())


def test_what_is_inherited_by_accident_is_refused() -> None:
    heir = type("Heir", (FedAvg,), {"name": "heir"})
    with pytest.raises(MethodError, match=r"`return super\(\).declare\(\)` if it is as of FedAvg$"):
        check_method(heir)


@pytest.mark.parametrize("kind", registered().values(), ids=lambda kind: kind.name)
def test_every_method_declares_for_itself(kind: type[Method]) -> None:
    assert "declare" in vars(kind)


def test_nothing_in_it_can_be_changed_from_outside() -> None:
    sends: dict[str, Any] = {"logits": Kind.LOGITS}
    stages = ["first"]
    declared = Declaration(sends=sends, stages=stages, keeps={"memory"})
    sends["rows"] = Kind.INDICES
    stages.append("second")
    assert (dict(declared.sends), declared.stages) == ({"logits": Kind.LOGITS}, ("first",))
    for change in (declared.sends, declared.tells, declared.needs, declared.kinds_up, declared.kinds_down):
        with pytest.raises(TypeError):
            change["more"] = Kind.LOGITS  # type: ignore[index]
    assert isinstance(declared.keeps, frozenset)
    with pytest.raises(AttributeError):
        declared.server = False  # type: ignore[misc]


def test_kinds_and_what_lasts_are_worked_out_of_it() -> None:
    declared = Declaration(
        sends={"weights": LikeWeights(), "part": LikeWeights(rows="rows"), "rows": Kind.INDICES},
        tells={"control": Kind.GRADIENTS},
    )
    up = {"weights": Kind.WEIGHTS, "part": Kind.WEIGHTS, "rows": Kind.INDICES}
    assert dict(declared.kinds_up) == up
    assert dict(declared.kinds_down) == {**up, "control": Kind.GRADIENTS}
    assert declared.lasting == {"weights"}
    assert declared.sends_weights
    assert not Declaration(tells={"weights": Kind.WEIGHTS}).sends_weights


@pytest.mark.parametrize("kind", registered().values(), ids=lambda kind: kind.name)
def test_it_survives_being_pickled_copied_and_replaced(kind: type[Method]) -> None:
    """Workers that are not forked get it that way."""
    declared = kind(kind.Settings(), Training()).declared
    for again in (pickle.loads(pickle.dumps(declared)), copy.deepcopy(declared), replace(declared)):
        assert again == declared
        assert again.kinds_down == declared.kinds_down


def test_entries_on_a_condition() -> None:
    assert {**when(True, {"a": 1}), **when(None, {"b": 2}), **when([0], {"c": 3})} == {"a": 1, "c": 3}
    assert set(ANY_TASK) < set(TABLES) < set(LABELS) < set(CLASSES)


class Counted(Method):
    """Counts how often it is asked what it declares."""

    name = "counted"
    asked = 0

    def declare(self) -> Declaration:
        type(self).asked += 1
        return Declaration(sends={"number": Kind.METRICS}, stages=("said",))

    @client_step(sends=("number",))
    def say(self, me: Client) -> Fields:
        me.measure("said")
        return {"number": 1.0}

    def round(self, t: int, fleet: Fleet, server: Server) -> None:
        fleet.ask(self.say, fleet.sample())


def test_a_method_is_asked_once_per_run_what_it_declares(make_run: MakeRun) -> None:
    run = make_run(Counted, rounds=3)
    before = Counted.asked
    run.go()
    assert (before, Counted.asked) == (1, 1)


def test_settings_and_training_decide_what_is_declared() -> None:
    def declared(training: Training | None = None, **settings: Any) -> Declaration:
        return FedAvg(FedAvg.Settings(**settings), training or Training()).declared

    assert declared().keeps == frozenset()
    assert declared(Training(keep_optimiser=True)).keeps == declared(batch_norm="local").keeps == {"memory"}
    assert declared(batch_norm="local").personal
    assert [*declared(batch_norm="recompute").sends] == ["weights", "statistics"]
    assert [*declared().sends] == ["weights"]
    assert declared().needs == {Need.COMMON_ARCHITECTURE: "method.within=architecture"}
    assert declared(within="architecture").needs == {}
