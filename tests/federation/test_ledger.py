from __future__ import annotations

import json

from polyfed.federation.ledger import Entry, Ledger, entries
from polyfed.federation.message import Kind


def used() -> Ledger:
    """Two clients: 100 + 10 bytes up, three times 40 down, and 7 for looking at the models."""
    ledger = Ledger()
    ledger.count("client-0", "up", {Kind.WEIGHTS: 100, Kind.CONTROL: 10}, "training")
    ledger.count("client-1", "down", {Kind.WEIGHTS: 40}, "training", times=3)
    ledger.count("client-1", "up", {Kind.METRICS: 7}, "evaluation")
    return ledger


def test_bytes_are_counted_by_direction_kind_and_purpose() -> None:
    ledger = used()
    assert ledger.total() == 100 + 10 + 3 * 40
    assert ledger.total("up") == 110
    assert ledger.total("down") == 120
    assert ledger.total(kind="weights") == 220
    assert ledger.total("up", "weights") == 100
    assert ledger.total(kind="logits") == 0


def test_looking_at_the_models_is_not_counted_as_training() -> None:
    ledger = used()
    assert ledger.total(purpose="evaluation") == 7
    assert ledger.total(purpose=None) == 237
    assert ledger.by_kind() == {"up": {"control": 10, "weights": 100}, "down": {"weights": 120}}


def test_a_line_holds_one_round_and_totals_go_on() -> None:
    ledger = used()
    line = ledger.close_round(1)
    assert line == {
        "round": 1,
        "rows": [
            ["client-0", "up", "weights", "training", 100],
            ["client-0", "up", "control", "training", 10],
            ["client-1", "down", "weights", "training", 120],
            ["client-1", "up", "metrics", "evaluation", 7],
        ],
    }
    ledger.count("client-0", "up", {Kind.WEIGHTS: 5}, "training")
    ledger.count("client-0", "up", {Kind.WEIGHTS: 6}, "training")
    assert ledger.close_round(2) == {"round": 2, "rows": [["client-0", "up", "weights", "training", 11]]}
    assert ledger.total("up", "weights") == 111


def test_a_round_in_which_nothing_travelled_has_no_line() -> None:
    ledger = used()
    ledger.close_round(1)
    assert ledger.close_round(2) is None


def test_lines_read_back_give_the_same_totals_and_no_new_line() -> None:
    ledger = used()
    first = ledger.close_round(1)
    ledger.count("client-0", "down", {Kind.LOGITS: 9}, "training")
    second = ledger.close_round(2)
    resumed = Ledger()
    for line in (first, second):
        resumed.replay(json.loads(json.dumps(line)))
    assert resumed.by_kind() == ledger.by_kind()
    assert resumed.total(purpose=None) == ledger.total(purpose=None) == 237 + 9
    assert resumed.close_round(3) is None


def test_a_line_reads_entry_by_entry() -> None:
    line = used().close_round(4)
    assert line is not None
    assert list(entries(line))[2] == Entry(4, "client-1", "down", "weights", "training", 120)
    assert sum(entry.bytes for entry in entries(line)) == 237
