"""Which worker does what: where clients live, when they move, and what travels together."""

from __future__ import annotations

from polyfed.engines.scheduler import OWN_SHORT_SECONDS, Move, Scheduler, Shift
from polyfed.federation.engine import Call, Request
from polyfed.federation.nodes import Moment


def request(*units: tuple[int, ...], window: int | None = None) -> Request:
    return Request(
        "step", Moment(1, 1), b"", [[Call(client) for client in unit] for unit in units], window=window
    )


def scheduler(seconds: dict[int, float], homes: dict[int, int] | None = None, workers: int = 2) -> Scheduler:
    """Clients of known cost, some of which live somewhere."""
    made = Scheduler(workers)
    for client, cost in seconds.items():
        made.note_seconds("step", client, cost)
    for client, home in (homes or {}).items():
        made.note(client, home, stays=True)
    return made


def shift(known: Scheduler, what: Request) -> Shift:
    return known.shift(what, range(len(what.units)))


def test_clients_that_stay_are_done_where_they_live_and_the_others_anywhere() -> None:
    known = scheduler({0: 1, 1: 1}, {0: 1, 1: 0})
    known.note(2, 1, stays=False)
    found = shift(known, request((0,), (1,), (2,)))
    assert [list(mine) for mine in found.own] == [[1], [0]]
    assert list(found.free) == [2]
    assert found.moves == []


def test_a_stack_comes_together_where_its_first_client_lives() -> None:
    known = scheduler({}, {0: 1, 1: 0})
    found = shift(known, request((0, 1, 2)))
    assert found.moves == [Move(1, 0, 1)]
    assert [list(mine) for mine in found.own] == [[], [0]]
    assert known.homes == {0: 1, 1: 1}


def test_clients_move_where_a_worker_would_be_idle_but_not_for_a_little() -> None:
    crowded = scheduler({0: 1, 1: 1, 2: 1, 3: 1}, dict.fromkeys(range(4), 0))
    found = shift(crowded, request((0,), (1,), (2,), (3,)))
    assert len(found.moves) == 2
    assert sorted(map(len, found.own)) == [2, 2]
    nearly_even = scheduler({0: 1, 1: 1.05}, {0: 0, 1: 1})
    assert shift(nearly_even, request((0,), (1,))).moves == []


def test_the_longest_of_the_free_ones_are_first_unless_replies_are_streamed() -> None:
    known = scheduler({0: 1, 1: 3, 2: 2})
    units = [(0,), (1,), (2,)]
    assert list(shift(known, request(*units)).free) == [1, 2, 0]
    assert list(shift(known, request(*units, window=2)).free) == [0, 1, 2]


def test_units_travel_together_until_that_is_work_for_a_while() -> None:
    short, long = OWN_SHORT_SECONDS / 4, OWN_SHORT_SECONDS * 2
    known = scheduler({0: short, 1: short, 2: long, 3: short}, dict.fromkeys(range(4), 0), workers=1)
    found = shift(known, request((0,), (1,), (2,), (3,)))
    assert [found.batch(0, limit=9) for _ in range(3)] == [{0: short, 1: short, 2: long}, {3: short}, {}]


def test_nothing_beyond_the_limit_is_handed_out() -> None:
    known = scheduler({}, {0: 0, 1: 0})
    found = shift(known, request((2,), (0,), (1,), (3,), window=2))
    assert list(found.batch(0, limit=2)) == [1]
    assert list(found.batch(1, limit=2)) == [0]
    assert found.batch(0, limit=2) == found.batch(1, limit=2) == {}
    assert list(found.batch(0, limit=4)) == [2]
    assert list(found.batch(1, limit=4)) == [3]


def test_a_worker_is_given_a_client_that_it_has_met_before_if_there_is_one() -> None:
    known = scheduler({0: 1, 1: 1, 2: 1})
    known.note(1, 0, stays=False)
    found = shift(known, request((0,), (1,), (2,)))
    assert list(found.batch(0, limit=9)) == [1]
    assert list(found.batch(0, limit=9)) == [0]
    found.put_back([1, 0])
    assert list(found.free) == [1, 0, 2]


def test_the_largest_of_the_servers_jobs_are_first() -> None:
    """Models of unequal size, of which nothing else is known: a large one that comes last would be waited for."""
    jobs = Request("step", Moment(1, 1), b"", [[Call(None, bytes(size))] for size in (10, 30, 20)])
    known = Scheduler(2)
    assert list(shift(known, jobs).free) == [1, 2, 0]
    known.note_seconds("step", None, 1.0)
    assert list(shift(known, jobs).free) == [1, 2, 0]
