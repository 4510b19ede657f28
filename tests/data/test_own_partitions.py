"""Partitions of one's own: row numbers for each client, or a function that gives them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.conftest import Command

import polyfed
from polyfed import plug_ins
from polyfed.errors import ConfigError, DataError, ModelError, UserError
from polyfed.runs.config import read_config
from polyfed.runs.setup import set_up
from polyfed.testing import result_of

LISTED = {"north": list(range(0, 60, 2)), "south": [1, 3, 5, 61, 63], "rest": list(range(100, 140))}


def content(partition: dict[str, Any], **data: Any) -> dict[str, Any]:
    return {"method": "local", "rounds": 1, "data": {"limit": 200, "partition": partition, **data}}


def held(partition: dict[str, Any], **data: Any) -> dict[str, list[int]]:
    """The rows of each client, whatever they are for."""
    holdings = set_up(read_config(content(partition, **data))).holdings
    found = {}
    for index, name in enumerate(holdings.names):
        own = holdings.of(index)
        found[name] = sorted(np.concatenate([own.train.index, own.validation.index, own.test.index]).tolist())
    return found


def test_rows_are_those_that_are_listed_and_clients_are_called_as_they_are() -> None:
    assert held({"kind": "rows", "rows": LISTED}) == LISTED


def test_lists_without_names_are_numbered_clients() -> None:
    assert held({"kind": "rows", "rows": [[0, 1], [2, 3, 4]]}) == {"client-0": [0, 1], "client-1": [2, 3, 4]}
    named = held({"kind": "rows", "rows": [[0, 1], [2, 3, 4]]}, names=["a", "b"])
    assert named == {"a": [0, 1], "b": [2, 3, 4]}


def test_public_rows_are_left_out_of_what_clients_hold() -> None:
    public = {"source": "share", "share": 0.2}
    found = held({"kind": "rows", "rows": LISTED}, public=public)
    open_rows = set_up(read_config(content({"kind": "rows", "rows": LISTED}, public=public))).holdings.public
    assert open_rows is not None
    for name, rows in LISTED.items():
        assert found[name] == [row for row in rows if row not in open_rows.index]


@pytest.mark.parametrize(
    ("partition", "data", "said"),
    [
        ({"kind": "rows"}, {}, "data.partition.rows: is missing"),
        ({"kind": "rows", "rows": []}, {}, "data.partition.rows"),
        ({"kind": "rows", "rows": [[0], [200]]}, {}, "client 1 has row 200, but rows go from 0 to 199"),
        ({"kind": "rows", "rows": [[0], [-1]]}, {}, "client 1 has row -1, but rows go from 0 to 199"),
        (
            {"kind": "rows", "rows": {"a": [0, 1], "b": [1]}},
            {},
            "row 1 is listed twice, the second time for b",
        ),
        ({"kind": "rows", "rows": [[4, 4]]}, {}, "row 4 is listed twice, the second time for client 0"),
        ({"kind": "rows", "rows": [[0], []]}, {}, "the rows of client 1 are not a list of row numbers"),
        (
            {"kind": "rows", "rows": [[0], [1]]},
            {"clients": 3},
            "lists the rows of 2 clients, but data.clients is 3",
        ),
        ({"kind": "function", "function": "nowhere:deal"}, {}, "start polyfed where nowhere.py is"),
        (
            {"kind": "function", "function": "deal"},
            {},
            "does not name a function: write my_module:my_function",
        ),
    ],
)
def test_mistakes_are_told_in_one_line(partition: dict[str, Any], data: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError) as error:
        held(partition, **data)
    assert said in str(error.value) and "\n" not in str(error.value)


DEAL = """
import numpy as np

def by_label(labels, clients, rng):
    return {f"digit-{label}": np.flatnonzero(labels == label) for label in range(3)}

def at_random(inputs, clients, rng):
    return np.array_split(rng.permutation(len(inputs)), clients or 5)

def broken(labels):
    return labels[10**6]

def wants(labels, more):
    return [[0]]

def gives_nothing():
    return None

NUMBER = 7
"""


@pytest.fixture
def dealing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    (tmp_path / "own_deal.py").write_text(DEAL)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    yield
    plug_ins.named_function.cache_clear()


@pytest.mark.usefixtures("dealing")
def test_a_function_deals_rows_out() -> None:
    found = held({"kind": "function", "function": "own_deal:by_label"})
    assert list(found) == ["digit-0", "digit-1", "digit-2"]
    assert len(held({"kind": "function", "function": "own_deal:at_random"})) == 5
    seven = held({"kind": "function", "function": "own_deal:at_random"}, clients=7)
    assert len(seven) == 7 and sorted(row for rows in seven.values() for row in rows) == list(range(200))


@pytest.mark.usefixtures("dealing")
@pytest.mark.parametrize(
    ("function", "said"),
    [
        ("broken", r"partition 'own_deal:broken' failed: IndexError: .*own_deal\.py:\d+"),
        (
            "wants",
            "wants 'more': its arguments may be called labels, inputs, clients and rng, others need a default",
        ),
        ("gives_nothing", "gave a NoneType: give a list of row numbers for each client"),
        ("NUMBER", "is a int: name a function"),
    ],
)
def test_a_function_that_cannot_be_used_is_told(function: str, said: str) -> None:
    with pytest.raises(DataError, match=said):
        held({"kind": "function", "function": f"own_deal:{function}"})


@pytest.mark.usefixtures("dealing")
def test_from_python_a_function_may_be_given_itself_if_it_can_be_imported() -> None:
    import own_deal  # type: ignore[import-not-found]

    config = read_config(content({"kind": "function", "function": own_deal.by_label}))
    assert config.as_file()["data"]["partition"]["function"] == "own_deal:by_label"
    with pytest.raises(ConfigError, match="a function must be in a module of its own"):
        read_config(content({"kind": "function", "function": lambda labels: [[0]]}))


@pytest.mark.usefixtures("dealing")
def test_a_run_with_a_function_is_resumed_if_its_module_is_trusted(tmp_path: Path, command: Command) -> None:
    config = content({"kind": "function", "function": "own_deal:by_label"}) | {"checkpoint_seconds": 0}
    whole = polyfed.run({**config, "rounds": 3}, out=tmp_path / "whole", workers=1)
    part = polyfed.run(config, out=tmp_path / "part", workers=1)
    with pytest.raises(
        ModelError, match=r"names the module own_deal, whose code would be run: .* --trust own_deal"
    ):
        polyfed.resume(part.path, rounds=3)
    assert command("resume", part.path, "--rounds", 3, "--trust", "own_deal").code == 0
    assert result_of(part.path) == result_of(whole.path)
    said = command("partition", part.path / "config.yaml")
    assert said.code == 2 and "--trust own_deal" in said.err
