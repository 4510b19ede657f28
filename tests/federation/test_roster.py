"""Names and facts of clients: given, or made when asked for."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

from polyfed.federation.roster import Facts, Names, Roster


def test_clients_without_names_are_called_by_their_numbers() -> None:
    names = Names(3)
    assert list(names) == ["client-0", "client-1", "client-2"]
    assert [names.index(name) for name in names] == [0, 1, 2]
    assert names[1:] == ["client-1", "client-2"]


@pytest.mark.parametrize("name", ["client-3", "client--1", "client-01", "client-", "1", "north"])
def test_a_name_that_no_client_has_is_not_found(name: str) -> None:
    assert name not in Names(3)
    with pytest.raises(ValueError, match="no client is called"):
        Names(3).index(name)


def test_given_names_are_the_only_ones() -> None:
    names = Names(2, ["north", "client-0"])
    assert list(names) == ["north", "client-0"]
    assert names.index("client-0") == 1
    assert "client-1" not in names
    with pytest.raises(IndexError):
        names[2]


def test_facts_have_the_rosters_names() -> None:
    roster = Roster([5, 7], ["mlp", "cnn"], [1, 0], ["north", "south"])
    assert list(roster) == [Facts(0, "north", 5, "cnn"), Facts(1, "south", 7, "mlp")]
    assert [roster.name(index) for index in range(2)] == ["north", "south"]
    assert Roster([5, 7], ["mlp"], [0, 0])[1].name == "client-1"


def test_a_million_names_are_not_kept() -> None:
    small, large = (
        Roster(np.broadcast_to(20, count), ["mlp"], np.broadcast_to(0, count)) for count in (1, 1_000_000)
    )
    assert large[999_999] == Facts(999_999, "client-999999", 20, "mlp")
    assert large.names.index("client-999999") == 999_999
    assert len(pickle.dumps(large.names)) - len(pickle.dumps(small.names)) < 10
