"""What a method sees of the others: cohorts, drop-out, order, gossip, and the bytes of it."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any, ClassVar

import pytest
import torch
from tests.conftest import MakeRun

from polyfed import Client, Declaration, Fields, Fleet, Kind, Method, MethodSettings, Server, client_step
from polyfed.engines import Inline, Pool
from polyfed.errors import ConfigError, MethodError, RunError
from polyfed.federation.message import EMPTY, decode, encode
from polyfed.federation.method import registered
from polyfed.learn import Training
from polyfed.runs.checkpoint import read_lines
from polyfed.runs.history import RunRecord
from polyfed.runs.metrics import received_per_client, sent_per_client
from polyfed.testing import check_method


class Roll(Method):
    """Every client of the cohort answers with its number."""

    name = "roll"

    def declare(self) -> Declaration:
        return Declaration(
            sends={"number": Kind.STATISTICS}, tells={"common": Kind.FEATURES, "own": Kind.CONTROL}
        )

    @client_step
    def answer(self, me: Client, common: torch.Tensor, own: int) -> Fields:
        return {"number": torch.tensor([me.facts.index, own])}

    def round(self, t: int, fleet: Fleet, server: Server) -> None:
        cohort = fleet.sample()
        assert cohort == fleet.sample()
        replies = fleet.stream(
            self.answer, cohort, each=lambda facts: {"own": facts.index * 10}, common=torch.zeros(100)
        )
        numbers = [reply["number"].tolist() for reply in replies]
        assert numbers == [[facts.index, facts.index * 10] for facts in cohort]
        server.memory.setdefault("cohorts", []).append([facts.index for facts in cohort])


def cohorts_of(make_run: MakeRun, **changes: Any) -> list[list[int]]:
    run = make_run(Roll, data={"clients": 10, "partition": {"kind": "iid"}}, rounds=6, **changes)
    run.go()
    return list(run.server.memory["cohorts"])


def test_everyone_takes_part_unless_told(make_run: MakeRun) -> None:
    assert cohorts_of(make_run) == [list(range(10))] * 6


def test_a_cohort_has_the_asked_size_and_changes_from_round_to_round(make_run: MakeRun) -> None:
    cohorts = cohorts_of(make_run, cohort={"fraction": 0.3})
    assert [len(cohort) for cohort in cohorts] == [3] * 6
    assert len({tuple(cohort) for cohort in cohorts}) > 1
    assert all(cohort == sorted(set(cohort)) for cohort in cohorts)
    assert cohorts == cohorts_of(make_run, cohort={"fraction": 0.3})


def test_dropout_by_chance_takes_others_each_round(make_run: MakeRun) -> None:
    cohorts = cohorts_of(make_run, cohort={"dropout": 0.4})
    assert [len(cohort) for cohort in cohorts] == [6] * 6
    assert len({tuple(cohort) for cohort in cohorts}) > 1


def test_dropout_by_budget_takes_the_weakest_for_good(make_run: MakeRun) -> None:
    budgets = [{"parameters": 10_000 - 1000 * index} for index in range(10)]
    cohorts = cohorts_of(
        make_run, cohort={"dropout": 0.6, "dropout_by": "budget"}, models={"budgets": budgets}
    )
    assert cohorts == [[0, 1, 2, 3]] * 6


def test_dropout_by_budget_needs_budgets(make_run: MakeRun) -> None:
    with pytest.raises(ConfigError, match=r"models\.budgets"):
        cohorts_of(make_run, cohort={"dropout": 0.6, "dropout_by": "budget"})


def test_a_cohort_larger_than_the_population_is_refused(make_run: MakeRun) -> None:
    with pytest.raises(ConfigError, match="only 10 clients"):
        cohorts_of(make_run, cohort={"count": 11})


def test_when_everyone_drops_out_the_run_says_so(make_run: MakeRun) -> None:
    with pytest.raises(RunError, match="every client dropped out"):
        cohorts_of(make_run, cohort={"count": 1, "dropout": 0.9})


@pytest.mark.parametrize("engine", [Inline(), Pool(2)], ids=["inline", "pool"])
def test_the_ledger_counts_each_message_by_its_encoded_size(make_run: MakeRun, engine: Any) -> None:
    run = make_run(Roll, engine, rounds=1, evaluate={"test_rows": 0}, data={"validation": 0, "test": 0})
    run.go()
    up = len(encode({"number": torch.tensor([0, 0])}))
    entries = [entry for entry in RunRecord(run.path).ledger if entry.purpose == "training"]
    for index in (0, 3):
        down = len(encode({"common": torch.zeros(100)})) + len(encode({"own": index * 10}))
        mine = [entry for entry in entries if entry.client == f"client-{index}"]
        sent = {entry.kind: entry.bytes for entry in mine if entry.direction == "up"}
        assert sent["statistics"] == 16
        assert sum(sent.values()) == up
        received = sum(entry.bytes for entry in mine if entry.direction == "down")
        assert received == down


class GossipSettings(MethodSettings):
    topology: Any = "ring"


class Gossip(Method):
    name = "gossip"
    Settings = GossipSettings
    settings: GossipSettings

    def declare(self) -> Declaration:
        return Declaration(server=False, sends={"news": Kind.POSTERIORS})

    @client_step
    def say(self, me: Client) -> Fields:
        return {"news": torch.full((5,), float(me.facts.index))}

    @client_step
    def hear(self, me: Client, heard: list[tuple[str, dict[str, Any]]]) -> Fields:
        me.memory["heard"] = [[name, float(fields["news"][0])] for name, fields in heard]
        return {}

    def round(self, t: int, fleet: Fleet, server: Server) -> None:
        fleet.gossip(self.say, self.hear, self.settings.topology, fleet.sample())


@pytest.mark.parametrize("engine", [Inline(), Pool(2)], ids=["inline", "pool"])
def test_on_a_ring_everyone_hears_two_neighbours_and_each_link_is_counted(
    make_run: MakeRun, engine: Any
) -> None:
    run = make_run(Gossip, engine, rounds=1)
    run.go()
    heard = {
        name: decode(path.read_bytes())["memory"]["heard"]
        for name, path in run.directory.state_files().items()
    }
    assert heard["client-0"] == [["client-1", 1.0], ["client-3", 3.0]]
    assert heard["client-2"] == [["client-1", 1.0], ["client-3", 3.0]]
    by_kind = run.summary["bytes"]
    assert by_kind["up"]["posteriors"] == 4 * 2 * 20  # clients × listeners × five floats
    assert by_kind["down"]["posteriors"] == 4 * 2 * 20


class Shy(Gossip):
    """Client 1 has nothing to say."""

    name = "shy"

    @client_step
    def say(self, me: Client) -> Fields:
        return {} if me.facts.index == 1 else {"news": torch.full((5,), float(me.facts.index))}


def test_a_peer_that_says_nothing_sends_no_byte_and_is_not_heard(make_run: MakeRun) -> None:
    run = make_run(Shy, rounds=1)
    run.go()
    sent = [
        (entry.client, entry.kind, entry.bytes)
        for entry in RunRecord(run.path).ledger
        if (entry.purpose, entry.direction) == ("training", "up")
    ]
    assert sum(count for client, _, count in sent if client == "client-1") == len(EMPTY)  # to `hear`
    news = {client: count for client, kind, count in sent if kind == "posteriors"}
    assert news == {"client-0": 40, "client-2": 40, "client-3": 40}  # two listeners × five floats
    heard = decode(run.directory.state_files()["client-0"].read_bytes())["memory"]["heard"]
    assert heard == [["client-3", 3.0]]


class Leaky(Roll):
    name = "leaky"

    @client_step
    def answer(self, me: Client, common: torch.Tensor, own: int) -> Fields:
        return {"number": torch.tensor([0]), "labels": me.train.labels}


@pytest.mark.parametrize("engine", [Inline(), Pool(2)], ids=["inline", "pool"])
def test_what_is_not_declared_does_not_leave_a_client(make_run: MakeRun, engine: Any) -> None:
    run = make_run(Leaky, engine)
    with pytest.raises(RunError, match="'labels', which its `sends` does not declare"):
        run.go()
    assert list(read_lines(run.path / "ledger.jsonl")) == []


class NotAStep(Roll):
    name = "not a step"

    def answer(self, me: Client, common: torch.Tensor, own: int) -> Fields:
        return {}


def test_a_function_that_is_no_client_step_is_refused(make_run: MakeRun) -> None:
    with pytest.raises(MethodError, match="@client_step"):
        make_run(NotAStep).go()


class Noter(Method):
    """Every client notes two numbers, one of them none."""

    name = "noter"

    def declare(self) -> Declaration:
        return Declaration(notes=("number", "loss"))

    @client_step
    def note_two(self, me: Client) -> Fields:
        me.note("number", float(me.facts.index))
        me.note("loss", torch.tensor(float("nan")))
        return {}

    def round(self, t: int, fleet: Fleet, server: Server) -> None:
        fleet.ask(self.note_two, fleet.sample())


def test_a_noted_loss_that_is_no_number_is_null_in_the_history(make_run: MakeRun) -> None:
    run = make_run(Noter, rounds=1)
    run.go()
    text = (run.path / "history.jsonl").read_text()
    assert "NaN" not in text
    assert json.loads(text)["noted"] == {"number": 1.5, "loss": None}


# -- the mean of a field -------------------------------------------------------------------------------------


class Mean(Method):
    """Everyone sends weights with a BatchNorm counter, and a table; the server takes means of each."""

    name = "mean"
    broken: ClassVar[frozenset[int]] = frozenset()

    def declare(self) -> Declaration:
        return Declaration(
            sends={"weights": Kind.WEIGHTS, "table": Kind.LOGITS}, tells={"what": Kind.CONTROL}
        )

    @client_step
    def send(self, me: Client, what: str) -> Fields:
        number = me.facts.index
        if number in self.broken:
            raise ValueError("broken")
        if what == "table":
            return {"table": torch.full((2, 3), float(2**number))}
        # In single precision 2²⁴ + 1 is 2²⁴.
        w = torch.tensor([float(number), 2.0**24 if number == 0 else 1.0])
        counter = torch.tensor([7, 3, 9, 1][number])
        return {"weights": {"w": w, "num_batches_tracked": counter}}

    @client_step
    def rest(self, me: Client) -> Fields:
        return {}

    def round(self, t: int, fleet: Fleet, server: Server) -> None:
        cohort = fleet.sample()
        fleet.ask(self.rest, cohort)
        for field in ("weights", "table"):
            server.memory[field] = fleet.mean(self.send, cohort, field, default="nothing", what=field)
            server.memory[f"{field} by share"] = fleet.mean(
                self.send,
                cohort,
                field,
                share=lambda client: [0, 1, 3, 0][client.index],
                default=0,
                what=field,
            )
        server.memory["no share"] = fleet.mean(
            self.send, cohort, "table", share=lambda client: 0, default="nothing", what="table"
        )


@pytest.mark.parametrize("engine", [Inline(), Pool(2)], ids=["inline", "pool"])
def test_the_mean_of_a_field_by_hand(make_run: MakeRun, engine: Any) -> None:
    run = make_run(Mean, engine, rounds=1, outliers=None)  # 2²⁴ is one
    run.go()
    found = run.server.memory
    # (0 + 1 + 2 + 3) / 4, and (2²⁴ + 3) / 4, which single precision would make 2²² + ½ or 2²²
    assert found["weights"]["w"].tolist() == [1.5, torch.tensor((2**24 + 3) / 4).item()]
    assert found["weights"]["num_batches_tracked"].item() == 9
    assert found["weights"]["num_batches_tracked"].dtype == torch.int64
    # (1 · 1 + 3 · 2) / 4
    assert found["weights by share"]["w"].tolist() == [1.75, 1.0]
    assert torch.equal(found["table"], torch.full((2, 3), (1 + 2 + 4 + 8) / 4))
    assert torch.equal(found["table by share"], torch.full((2, 3), (2 + 3 * 4) / 4))
    assert found["no share"] == "nothing"


def test_where_no_reply_is_of_use_the_default_is_given_back(make_run: MakeRun) -> None:
    """And since every client failed in that step, though not in another one, the run ends."""
    run = make_run(type("Broken", (Mean,), {"broken": frozenset(range(4))}), rounds=1)
    with pytest.raises(
        RunError, match="round 1: every client failed, client-3 in step 'send': ValueError: broken"
    ):
        run.go()
    assert run.server.memory["weights"] == run.server.memory["table"] == "nothing"


class Strict(Mean):
    def round(self, t: int, fleet: Fleet, server: Server) -> None:
        cohort = fleet.sample()
        fleet.ask(self.rest, cohort)
        fleet.mean(self.send, cohort, "table", what="table")


def test_without_a_default_a_mean_of_nothing_ends_the_run(make_run: MakeRun) -> None:
    run = make_run(type("Broken", (Strict,), {"broken": frozenset(range(4))}), rounds=1)
    with pytest.raises(
        RunError, match="round 1: every client failed, client-3 in step 'send': ValueError: broken"
    ):
        run.go()


class OnlyMeans(Roll):
    """A method that promises to read no single replies, and does so all the same."""

    name = "only-means"

    def declare(self) -> Declaration:
        return replace(super().declare(), single_replies=False)


def test_a_method_that_only_takes_means_is_held_to_it(make_run: MakeRun) -> None:
    run = make_run(OnlyMeans, data={"clients": 4})
    with pytest.raises(
        MethodError, match=r"OnlyMeans says that it reads no single replies .* use fleet\.mean"
    ):
        run.go()


class MeanOfNumbers(OnlyMeans):
    @client_step(sends=("number",))
    def say(self, me: Client) -> Fields:
        return {"number": torch.tensor([float(me.facts.index)])}

    def round(self, t: int, fleet: Fleet, server: Server) -> None:
        fleet.ask(self.say, [])
        server.memory["mean"] = fleet.mean(self.say, fleet.sample(), "number")


def test_means_are_open_to_it(make_run: MakeRun) -> None:
    run = make_run(MeanOfNumbers, data={"clients": 4}, rounds=1)
    run.go()
    assert run.server.memory["mean"].tolist() == [1.5]


def test_methods_that_average_say_that_they_see_no_single_reply() -> None:
    methods = {name: kind(kind.Settings(), Training()) for name, kind in registered().items()}
    single = {name for name, method in methods.items() if method.declared.single_replies}
    assert {"fedavg", "fedprox", "fedmd", "dsfl", "fdmeta", "local", "aggregated"}.isdisjoint(single)


# -- every byte has a kind -----------------------------------------------------------------------------------


class Whispering(Roll):
    """Sends down something that it does not declare: to all, or to each."""

    name = "whispering"

    def declare(self) -> Declaration:
        return replace(super().declare(), tells={"own": Kind.CONTROL})


class WhisperingToEach(Roll):
    name = "whispering-to-each"

    def declare(self) -> Declaration:
        return replace(super().declare(), tells={"common": Kind.FEATURES})


@pytest.mark.parametrize(("method", "field"), [(Whispering, "common"), (WhisperingToEach, "own")])
def test_what_is_sent_down_without_a_kind_ends_the_first_round(
    make_run: MakeRun, method: type[Method], field: str
) -> None:
    words = f"sends '{field}' down to its step 'answer', .* add \"{field}\" and its kind to `tells`"
    with pytest.raises(MethodError, match=words):
        make_run(method).go()
    with pytest.raises(MethodError, match=words):
        check_method(method)


class Steering(Roll):
    def declare(self) -> Declaration:
        return replace(super().declare(), tells=dict.fromkeys(("common", "own"), Kind.CONTROL))


def test_what_tables_and_files_show_is_every_byte_that_was_counted(make_run: MakeRun) -> None:
    """Control too: what a method calls so is paid for like everything else."""
    run = make_run(Steering)
    run.go()
    record = RunRecord(run.path)
    for direction, shown in (("up", sent_per_client), ("down", received_per_client)):
        counted = sum(
            entry.bytes
            for entry in record.ledger
            if entry.direction == direction and entry.purpose == "training"
        )
        assert shown(record.summary) == counted / 4
    assert received_per_client(record.summary) > 3 * 400
