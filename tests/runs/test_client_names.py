"""What clients are called: by the words of a natural partition's column, made safe where need be."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.conftest import Command

import polyfed
from polyfed.engines import Inline, Pool
from polyfed.errors import ConfigError
from polyfed.federation.engine import Engine
from polyfed.federation.roster import why_not_a_name
from polyfed.runs.checkpoint import RunDirectory, read_lines
from polyfed.runs.client_names import safe_names
from polyfed.runs.config import read_config
from polyfed.runs.rounds import Run
from polyfed.runs.setup import set_up
from polyfed.testing import result_of


@pytest.mark.parametrize(
    ("words", "names"),
    [
        (["north", "south"], ["north", "south"]),
        (["1", "2"], ["clinic-1", "clinic-2"]),
        (["0-5", "-7", "7.5"], ["clinic-0-5", "clinic-7", "clinic-7-5"]),
        (["Saint Mary's", "a/b", "../evil", "art_painting"], ["Saint-Mary-s", "a-b", "evil", "art-painting"]),
        (["..", "", "/"], ["clinic", "clinic-2", "clinic-3"]),
        (["server", "Server.x"], ["clinic-server", "Server-x"]),
        (["mlp", "ResNet20"], ["mlp", "ResNet20"]),  # a client may be called as a model is
        (["a b", "a-b", "a_b"], ["a-b-2", "a-b", "a-b-3"]),
        (["North", "north"], ["North", "north-2"]),
        (["a-b", "a b", "a-b-2"], ["a-b", "a-b-3", "a-b-2"]),
        (["Zürich", "京都"], ["Zürich", "京都"]),
        (["client-1", "client-0"], ["client-1", "client-0"]),
    ],
)
def test_words_become_names_that_are_safe_differ_and_stay_as_they_are_where_they_can(
    words: list[str], names: list[str]
) -> None:
    assert safe_names(words, "clinic") == names
    assert all(why_not_a_name(name) is None for name in names)
    assert len({name.casefold() for name in names}) == len(names)


def test_a_column_that_cannot_be_part_of_a_name_is_left_out_and_long_words_are_cut() -> None:
    assert safe_names(["1"], "2nd") == ["client-1"]
    assert safe_names(["1"], "writer_id") == ["writer-id-1"]
    long = safe_names(["n" * 300, "n" * 301], "clinic")
    assert [len(name) for name in long] == [60, 62]


def table(path: Path, words: list[str]) -> dict[str, Any]:
    """A run file over a table with a column of clinics."""
    rng = np.random.default_rng(0)
    rows = [
        f"{a:.3f},{b:.3f},{int(a > b)},{words[n % len(words)]}"
        for n, (a, b) in enumerate(rng.random((120, 2)))
    ]
    path.write_text("\n".join(["a,b,label,clinic", *rows]))
    return {
        "method": "local",
        "rounds": 2,
        "data": {"source": str(path), "partition": {"kind": "natural", "column": "clinic"}},
        "models": {"names": ["mlp-small"]},
        "checkpoint_seconds": 0,
    }


def test_clients_of_a_natural_partition_are_called_by_their_words_everywhere(tmp_path: Path) -> None:
    content = table(tmp_path / "t.csv", ["south", "north", "7"])
    names = ["clinic-7", "north", "south"]
    found = []
    engines: list[Engine] = [Inline(), Pool(2)]
    for place, engine in enumerate(engines):
        run = Run(set_up(read_config(content)), engine, RunDirectory(tmp_path / str(place), new=True))
        run.go()
        run.close()
        assert run.last is not None and list(run.last["clients"]) == names
        assert {path.name.split(".")[0] for path in (run.path / "states").iterdir()} == {*names, "server"}
        assert {file.stem for file in (run.path / "models").glob("*.safetensors")} == set(names)
        assert json.loads((run.path / "data.json").read_text())["clients"] == names
        assert polyfed.load_model(run.path, "north") is not None
        found.append(result_of(run.path))
    assert found[0] == found[1]
    assert "clients" in next(read_lines(tmp_path / "0" / "history.jsonl"))


def test_names_in_the_run_file_and_fewer_clients_than_values_come_first(tmp_path: Path) -> None:
    content = table(tmp_path / "t.csv", ["south", "north", "7"])
    given = {**content, "data": {**content["data"], "names": ["a", "b", "c"]}}
    assert list(set_up(read_config(given)).roster.names) == ["a", "b", "c"]
    fewer = {**content, "data": {**content["data"], "clients": 2}}
    assert list(set_up(read_config(fewer)).roster.names) == ["client-0", "client-1"]


def test_rotated_domains_keep_their_numbers() -> None:
    data = {"limit": 60, "partition": {"kind": "rotated", "angles": [0, 30]}}
    assert list(set_up(read_config({"method": "local", "data": data})).roster.names) == [
        "client-0",
        "client-1",
    ]


@pytest.mark.parametrize("method", ["local", "fedavg"])
def test_a_client_may_be_called_as_its_model_is(method: str, tmp_path: Path) -> None:
    """Names are fixed before models are known: another model changes no client's random streams."""
    content = {**table(tmp_path / "t.csv", ["mlp-small", "server", "north"]), "method": method}
    names = ["mlp-small", "north", "clinic-server"]
    done = polyfed.run(content, out=tmp_path / "run", workers=1)
    assert list(done.federation.roster.names) == names
    found = {file.stem for file in (done.path / "models").glob("*.safetensors")}
    assert found == (set(names) if method == "local" else {"shared_mlp-small"})
    for name in names:
        assert len(polyfed.load_model(done.path, name).predict({"a": [0.1], "b": [0.2]})) == 1


def test_models_are_given_to_natural_clients_by_name_or_number(tmp_path: Path) -> None:
    content = table(tmp_path / "t.csv", ["south", "north", "east"])
    content["models"] = {"names": ["mlp"], "clients": {"south": "mlp-small", 0: "mlp-small"}}
    federation = set_up(read_config(content))
    assert [federation.roster.architecture(index) for index in range(3)] == ["mlp-small", "mlp", "mlp-small"]
    content["models"] = {"clients": {"client-0": "mlp-small"}}
    with pytest.raises(ConfigError, match=r"'client-0' is not a client; write a name \(as east\)"):
        set_up(read_config(content))


def test_the_commands_show_names(command: Command, tmp_path: Path) -> None:
    import yaml

    content = table(tmp_path / "t.csv", ["south", "north", "7"])
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(content))
    shown = command("partition", "run.yaml", "-o", "p.svg").out
    assert all(name in shown for name in ("clinic-7", "north", "south"))
    assert all(
        f"<!-- {name} -->" in (tmp_path / "p.svg").read_text() for name in ("clinic-7", "north", "south")
    )
    result = command("run", "run.yaml", "--workers", 1).out
    assert "north (own / whole)" in result
