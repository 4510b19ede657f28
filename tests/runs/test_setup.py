"""A federation set up from a config: the clients' names, the user's own server model, needs that are not met."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.conftest import MakeRun
from torch import nn

import polyfed
from polyfed import Declaration
from polyfed.engines import Inline, Pool
from polyfed.errors import CheckpointError, ConfigError, MethodError
from polyfed.federation import Client, Fields, Fleet, Method, Server, client_step
from polyfed.federation.method import registered
from polyfed.methods.fedavg import FedAvg
from polyfed.models import Budget
from polyfed.runs import config as config_module
from polyfed.runs.checkpoint import read_lines
from polyfed.runs.config import read_config
from polyfed.runs.federation import cohorts_of
from polyfed.runs.setup import set_up
from polyfed.testing import result_of

NAMES = ["north", "south", "east", "west"]


# -- what a run directory says -------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [name for name in registered() if registered()[name].Settings.model_fields])
def test_settings_that_are_written_out_are_read_back_as_they_were(name: str) -> None:
    kind = registered()[name]
    settings = kind.Settings(**({"flavour": "authors"} if "flavour" in kind.Settings.model_fields else {}))
    written = settings.model_dump(mode="json", by_alias=True)
    assert config_module.settings_of(kind, json.loads(json.dumps(written))) == settings


def test_a_run_directory_holds_every_setting_of_the_method_whatever_later_defaults_are() -> None:
    """Else a run that is resumed by another version could go on with other settings, and nobody would know."""
    config = read_config({"method": {"name": "fedkf", "flavour": "authors", "gamma": 0.5}})
    resolved = set_up(config).config
    assert resolved.method.settings.keys() == registered()["fedkf"].Settings.model_fields.keys()
    assert (resolved.method.settings["gamma"], resolved.method.settings["unseen"]) == (0.5, "left-out")
    assert read_config(resolved.as_file()).method_settings() == config.method_settings()


# -- names ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["local", "fedavg"])
def test_named_clients_give_their_names_to_everything_and_the_engines_agree(
    make_run: MakeRun, method: str
) -> None:
    found = []
    for engine in (Inline(), Pool(2)):
        run = make_run(method, engine, data={"names": NAMES})
        run.go()
        found.append(result_of(run.path))
        assert run.last is not None and list(run.last["clients"]) == NAMES
        ledger = [row[0] for line in read_lines(run.path / "ledger.jsonl") for row in line["rows"]]
        assert set(ledger) == set(NAMES)
        kept = {"local": {*NAMES, "server"}, "fedavg": {"server"}}[method]
        assert {path.name.split(".")[0] for path in (run.path / "states").iterdir()} == kept
        for name in NAMES:
            assert polyfed.load_model(run.path, name) is not None
        with pytest.raises(CheckpointError, match="use north, south, east, west"):
            polyfed.load_model(run.path, "client-0")
    assert found[0] == found[1]
    if method == "local":
        assert set(found[0]["models"]) == {f"{name}.safetensors" for name in NAMES}


def test_the_default_names_written_out_change_nothing(make_run: MakeRun) -> None:
    found = []
    for names in (None, [f"client-{index}" for index in range(4)]):
        run = make_run("local", data={"names": names})
        run.go()
        found.append(result_of(run.path))
    assert found[0] == found[1]


def test_a_name_is_what_a_clients_random_streams_are_called_by(make_run: MakeRun) -> None:
    """Another name draws other numbers; the same name in another place, the same initial weights."""
    one, other = (
        make_run("local", data={"names": names}).federation
        for names in (["north", "south", "east", "west"], ["west", "south", "east", "north"])
    )
    makers = (one.population.own_model, other.population.own_model)
    made = (makers[0](0), makers[1](3), makers[1](0))
    weights = [model.state_dict() for model in made]
    assert all(bool((weights[0][key] == weights[1][key]).all()) for key in weights[0])
    assert any(bool((weights[0][key] != weights[2][key]).any()) for key in weights[0])


def test_a_run_with_names_is_resumed_with_them(make_run: MakeRun) -> None:
    whole, part = (make_run("local", data={"names": NAMES}) for _ in range(2))
    whole.go()
    part.go(lambda run: run.stop() if run.round == 1 else None)
    part.close()
    polyfed.resume(part.path, workers=2)
    assert result_of(part.path) == result_of(whole.path)


def test_failures_are_told_by_name(make_run: MakeRun) -> None:
    class Failing(Method):
        name = "failing"

        def declare(self) -> Declaration:
            return Declaration()

        @client_step
        def work(self, me: Client) -> Fields:
            if me.name == "east":
                raise RuntimeError("no")
            return {}

        def round(self, t: int, fleet: Fleet, server: Server) -> None:
            fleet.ask(self.work, fleet.sample())

    run = make_run(Failing, data={"names": NAMES})
    run.go()
    assert run.last is not None
    assert [failure["client"] for failure in run.last["failures"]] == ["east"]


def test_models_are_given_to_clients_by_name_number_and_range(make_run: MakeRun) -> None:
    models = {"names": ["mlp"], "clients": {"north": "cnn-small", "2-3": "mlp-small", "west": "cnn-small"}}
    run = make_run("local", data={"names": NAMES}, models=models)
    found = [run.federation.roster.architecture(index) for index in range(4)]
    assert found == ["cnn-small", "mlp", "mlp-small", "cnn-small"]


def test_names_say_how_many_clients_there_are() -> None:
    content = {"data": {"limit": 300, "names": ["a", "b", "c"]}}
    assert len(set_up(read_config(content)).roster) == 3


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"names": ["a", "b"], "clients": 3}, "data: 2 names for 3 clients"),
        ({"names": ["a", "b", "a"]}, "data.names: 'a' is there twice"),
        ({"names": ["a", "b/c"]}, "data.names: 'b/c' cannot be a name: begin with a letter"),
        ({"names": ["a", ".."]}, "data.names: '..' cannot be a name"),
        ({"names": ["a", "7"]}, "data.names: '7' cannot be a name"),
        ({"names": ["a", ""]}, "data.names: '' cannot be a name"),
        ({"names": ["a", "server"]}, "data.names: 'server' reads like the server's name"),
        ({"names": ["a", "server.b"]}, "data.names: 'server.b' reads like the server's name"),
    ],
)
def test_names_that_cannot_be_used_are_refused_in_one_line(data: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as refused:
        read_config({"data": data})
    assert str(refused.value).startswith(message)
    assert "\n" not in str(refused.value)


def test_names_that_do_not_fit_the_partition_are_refused() -> None:
    rotated = {"limit": 100, "names": ["a", "b"], "partition": {"kind": "rotated", "angles": [0, 30, 60]}}
    with pytest.raises(ConfigError, match=r"data\.names: 2 names for 3 clients"):
        set_up(read_config({"data": rotated, "method": "local"}))


def test_a_key_of_models_clients_that_is_not_a_client_is_refused(make_run: MakeRun) -> None:
    with pytest.raises(
        ConfigError, match=r"models\.clients: 'nord' is not a client; write a name \(as north\)"
    ):
        make_run("local", data={"names": NAMES}, models={"clients": {"nord": "mlp"}})


# -- the user's own server model -----------------------------------------------------------------------------


def linear() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))


def wider() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 10))


def widest() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))


OWN: dict[str, Callable[[], nn.Module]] = {"small": linear, "boss": widest, "large": wider}
FEDMD = {
    "method": {"name": "fedmd", "public_training": None, "private_training": None, "distil": {"epochs": 1}},
    "rounds": 2,
    "data": {"limit": 200, "clients": 4, "public": {"source": "share", "share": 0.2}},
    "training": {"epochs": 1, "batch": 16},
    "checkpoint_seconds": 0,
}


def trained(run: polyfed.Run) -> list[str]:
    return [facts.architecture for facts in run.federation.roster]


def test_an_own_server_model_is_not_dealt_out_to_clients(tmp_path: Path) -> None:
    content = {**FEDMD, "models": {"server": "boss"}}
    run = polyfed.run(content, models=OWN, out=tmp_path / "run", workers=1)
    assert trained(run) == ["small", "large", "small", "large"]
    assert run.server.architecture == "boss"
    assert polyfed.load_model(run.path, "server", make=widest) is not None


def test_an_own_server_model_that_is_listed_is_dealt_out_too(tmp_path: Path) -> None:
    content = {**FEDMD, "models": {"server": "boss", "names": ["small", "boss"]}}
    run = polyfed.prepare(content, models=OWN, out=tmp_path / "run", workers=1)
    assert trained(run) == ["small", "boss", "large", "small"]
    run.close()


def test_an_own_server_model_goes_with_clients_models_that_are_known(tmp_path: Path) -> None:
    content = {**FEDMD, "models": {"server": "boss", "names": ["mlp-small"]}}
    run = polyfed.prepare(content, models={"boss": widest}, out=tmp_path / "run", workers=1)
    assert set(trained(run)) == {"mlp-small"}
    run.close()


def test_an_own_model_that_is_the_only_one_is_the_servers_and_the_clients(tmp_path: Path) -> None:
    content = {**FEDMD, "models": {"server": "boss"}}
    run = polyfed.prepare(content, models={"boss": widest}, out=tmp_path / "run", workers=1)
    assert set(trained(run)) == {"boss"}
    run.close()


@pytest.mark.parametrize("listed", [False, True])
def test_a_run_with_an_own_server_model_is_resumed(tmp_path: Path, listed: bool) -> None:
    """In whichever order the models are given again."""
    models: dict[str, Any] = {"server": "boss", **({"names": ["small", "boss"]} if listed else {})}
    whole = polyfed.run({**FEDMD, "models": models}, models=OWN, out=tmp_path / "whole", workers=1)
    part = polyfed.prepare({**FEDMD, "models": models}, models=OWN, out=tmp_path / "part", workers=1)
    part.go(lambda run: run.stop())
    part.close()
    with pytest.raises(ConfigError, match="'boss' is a model of your own"):
        polyfed.resume(part.path, models={name: OWN[name] for name in ("small", "large")})
    polyfed.resume(part.path, models={name: OWN[name] for name in reversed(OWN)}, workers=1)
    assert result_of(part.path) == result_of(whole.path)


# -- needs ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "changes", "message"),
    [
        (
            "fedavg",
            {"models": {"names": ["mlp", "cnn-small"]}},
            "fedavg needs one architecture for all, here are 2 (mlp, cnn-small): set models.names to one of them"
            " or method.within=architecture",
        ),
        ("fedmd", {}, "fedmd needs a server model: set models.server or method.global=false"),
        ("fdmeta", {}, "fdmeta needs a server model: set models.server"),
        (
            {"name": "fedmd", "global": False},
            {"labels": "none"},
            "fedmd needs labels on the public data: set data.public.labels=own or method.public_training=null",
        ),
        (
            "aggregated",
            {"labels": "none"},
            "aggregated needs labels on the public data: set data.public.labels=own",
        ),
        (
            {"name": "fedmd", "global": False},
            {"source": "noise", "kind": "gaussian", "rows": 5, "share": None},
            "fedmd needs labels on the public data: gaussian noise has none, name another set"
            " or method.public_training=null",
        ),
        (
            "dsfl",
            {"source": "none", "share": None},
            "dsfl needs public data: set data.public.source=share and data.public.share=0.1, or name a data set",
        ),
    ],
)
def test_a_need_that_is_not_met_says_what_to_set(method: Any, changes: dict[str, Any], message: str) -> None:
    public = {"source": "share", "share": 0.2, **{key: changes[key] for key in changes if key != "models"}}
    content = {"method": method, "data": {"limit": 200, "public": public}}
    with pytest.raises(MethodError) as refused:
        set_up(read_config({**content, "models": changes.get("models", {})}))
    assert str(refused.value) == message


# -- costs ---------------------------------------------------------------------------------------------------


def test_a_method_is_built_once(monkeypatch: pytest.MonkeyPatch) -> None:
    built: list[Method] = []
    make = FedAvg.__init__

    def counted(self: FedAvg, *args: Any) -> None:
        built.append(self)
        make(self, *args)

    monkeypatch.setattr(FedAvg, "__init__", counted)
    made = set_up(read_config({"method": "fedavg", "data": {"limit": 200}}))
    assert built == [made.method]
    with pytest.raises(ConfigError, match=r"method\.withn: unknown key, did you mean 'within'"):
        read_config({"method": {"name": "fedavg", "withn": "all"}})


def test_budgets_are_made_once_each_however_many_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Budget] = []

    def counted(**limits: Any) -> Budget:
        made.append(Budget(**limits))
        return made[-1]

    monkeypatch.setattr(config_module, "Budget", counted)
    rng = np.random.default_rng(0)
    crowd = rng.integers(0, 256, (2000, 1, 8, 8), dtype=np.uint8), rng.integers(0, 10, 2000)
    models = {
        "names": ["mlp", "mlp-small"],
        "assign": "budget",
        "budgets": [{"parameters": 30_000}, {"parameters": 5_000}],
    }
    content = {
        "data": {"clients": 1000, "partition": {"kind": "iid"}},
        "models": models,
        "method": "local",
        "cohort": {"dropout": 0.25, "dropout_by": "budget"},
    }
    simulation = set_up(read_config(content), crowd)
    assert [simulation.roster.architecture(index) for index in (0, 1, 998, 999)] == ["mlp", "mlp-small"] * 2
    assert cohorts_of(simulation.config, 1000).weak == frozenset(range(1, 500, 2))
    assert len(made) <= 3 * len(models["budgets"])


def test_facts_of_models_are_written_with_names_only_where_given(make_run: MakeRun) -> None:
    for names in (None, NAMES):
        run = make_run("fedavg", data={"names": names}, rounds=1)
        run.go()
        assert json.loads((run.path / "models" / "clients.json").read_text()).get("names") == names
