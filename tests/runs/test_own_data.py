"""Clients that bring their own data: files, folders or arrays, each with its own units, columns and classes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from tests.conftest import Command
from tests.runs.hospitals import COLUMNS, UNITS, hospitals, patients, write
from torch import nn

import polyfed
from polyfed.errors import CheckpointError, ConfigError, DataError, RunError, UserError
from polyfed.report.measures import further_measures
from polyfed.runs.checkpoint import read_lines
from polyfed.runs.config import read_config
from polyfed.runs.federation import Federation
from polyfed.runs.history import RunRecord
from polyfed.runs.setup import set_up
from polyfed.testing import check_method, result_of

NAMES = ["north", "south", "west"]


@pytest.fixture
def content(tmp_path: Path) -> dict[str, Any]:
    return hospitals(tmp_path)


def changed(content: dict[str, Any], **data: Any) -> dict[str, Any]:
    return {**content, "data": {**content["data"], **data}}


def made(content: dict[str, Any], **data: Any) -> Federation:
    return set_up(read_config(changed(content, **data)))


def refusal(content: dict[str, Any], **data: Any) -> str:
    with pytest.raises(UserError) as error:
        made(content, **data)
    assert "\n" not in str(error.value)
    return str(error.value)


# -- what a client holds ---------------------------------------------------------------------------------------


def test_every_client_holds_its_own_rows_by_name_of_column_and_class(content: dict[str, Any]) -> None:
    held = made(content).holdings
    assert list(held.names) == NAMES
    assert held.agreement.features == COLUMNS
    assert held.agreement.classes == ("benign", "malignant")
    for index, name in enumerate(NAMES):
        own, (x, y) = held.of(index), patients(name)
        assert own.name == name
        for rows in (own.train, own.validation):
            assert rows.raw == pytest.approx(
                x[rows.index], rel=1e-5
            )  # also south's, whose columns are reversed
            assert [own.form.classes[label] for label in rows.labels] == y[rows.index].tolist()
    assert len(held.of(2).test) == 30  # west's file, of which nothing is trained on
    assert held.of(2).test.raw == pytest.approx(patients("west", 30, seed=1)[0], rel=1e-5)
    assert [len(held.of(index).train) for index in range(3)] == held.samples().tolist() == [33, 33, 43]


def test_a_clients_constants_are_those_of_its_training_rows_alone(content: dict[str, Any]) -> None:
    held = made(content).holdings
    for index, name in enumerate(NAMES):
        own = held.of(index)
        x = patients(name)[0][own.train.index].astype(np.float32).astype(np.float64)
        assert own.form.mean == pytest.approx(x.mean(axis=0)) and own.form.std == pytest.approx(x.std(axis=0))
        inputs = own.train.inputs()
        assert inputs.mean(dim=0).abs().max() < 1e-5
        expected = (own.test.raw - x.mean(axis=0)) / x.std(axis=0)
        assert own.test.inputs().numpy() == pytest.approx(expected, abs=1e-4)


def test_all_are_normalised_alike_or_not_at_all(content: dict[str, Any]) -> None:
    fedavg = {**content, "method": {"name": "fedavg", "within": "architecture"}}
    held = made(fedavg, normalise="all").holdings
    trained = [held.of(index).train for index in range(3)]
    whole = np.concatenate([rows.raw for rows in trained]).astype(np.float64)
    for index in range(3):
        assert held.of(index).form.mean == pytest.approx(whole.mean(axis=0), rel=1e-6)
        assert held.of(index).form.std == pytest.approx(whole.std(axis=0), rel=1e-6)
    raw = made(content, normalise="none").holdings.of(1).train
    assert np.array_equal(raw.inputs().numpy(), raw.raw)


def test_who_exchanges_nothing_never_sees_the_statistics_of_others(
    content: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    held = made(content, normalise="all").holdings
    assert (
        "local exchanges nothing, so each client's rows are normalised by its own statistics" in caplog.text
    )
    own = made(content, normalise="client").holdings
    assert [held.of(index).form for index in range(3)] == [own.of(index).form for index in range(3)]


def test_identity_is_the_name_whatever_the_order_of_clients_and_whoever_else_is_there(
    content: dict[str, Any], tmp_path: Path
) -> None:
    """Splits, published rows and fingerprints of a client depend on its name and its data alone."""
    clients = content["data"]["clients"]
    turned = dict(reversed(clients.items()))
    more = {"east": write(tmp_path / "east.csv", *patients("east")), **turned}
    first = made(content)
    for others in (turned, more):
        second = made(content, clients=others)
        for index, name in enumerate(NAMES):
            place = list(others).index(name)
            one, other = first.holdings.of(index), second.holdings.of(place)
            for part in ("train", "validation", "test"):
                assert np.array_equal(getattr(one, part).index, getattr(other, part).index)
            assert one.form == other.form
            assert first.fingerprints[name] == second.fingerprints[name]
            mine = [each.holdings.seen_by(at) for each, at in ((first, index), (second, place))]
            own = [
                seen.public[seen.own_public].inputs()
                for seen in mine
                if seen.public and seen.own_public is not None
            ]
            assert torch.equal(*own)
    renamed = {("centre" if name == "north" else name): file for name, file in clients.items()}
    third = made(content, clients=renamed).holdings.of(0)
    assert not np.array_equal(third.train.index, first.holdings.of(0).train.index)


def test_a_model_more_or_less_changes_nobodys_rows_or_streams(content: dict[str, Any]) -> None:
    one, other = made(content), made({**content, "models": {"names": ["mlp"]}})
    for index in range(3):
        assert np.array_equal(one.holdings.of(index).train.index, other.holdings.of(index).train.index)


def test_new_rows_of_one_client_leave_the_others_fingerprints(
    content: dict[str, Any], tmp_path: Path
) -> None:
    fedavg = {**content, "method": {"name": "fedavg", "within": "architecture"}}
    before = made(fedavg, normalise="all").fingerprints
    write(tmp_path / "south.csv", *patients("south", 61), COLUMNS[::-1])
    after = made(fedavg, normalise="all").fingerprints
    assert [name for name in before if before[name] != after[name]] == ["south"]


def test_a_client_with_one_class_takes_part_and_may_be_tested_on_two(
    content: dict[str, Any], tmp_path: Path
) -> None:
    x, y = patients("north")
    well = y == "benign"
    train = write(tmp_path / "one.csv", x[well], y[well])
    test = write(tmp_path / "two.csv", x[~well], y[~well])
    clients = {**content["data"]["clients"], "north": {"train": train, "test": test}}
    federation = made(content, clients=clients)
    assert federation.holdings.of(0).train.class_counts().tolist()[1] == 0
    assert federation.holdings.of(0).test.class_counts().tolist() == [0, int((~well).sum())]
    counts = federation.holdings.class_counts()
    assert counts.shape == (3, 2) and counts[0].tolist()[1] == (~well).sum()


# -- public rows -----------------------------------------------------------------------------------------------


def test_a_share_is_published_as_its_owner_normalises_it_one_tensor_for_all(content: dict[str, Any]) -> None:
    held = made(content).holdings
    assert held.public is not None and len(held.public) == 3 * 12
    everyone = [held.seen_by(index) for index in range(3)]
    assert all(seen.public is held.public for seen in everyone)
    parts = [seen.own_public for seen in everyone]
    assert sorted(torch.cat(parts).tolist()) == list(range(36))  # type: ignore[arg-type]
    for index, name in enumerate(NAMES):
        own, (x, y) = held.of(index), patients(name)
        kept = np.concatenate(
            [own.train.index, own.validation.index, *([own.test.index] if index < 2 else [])]
        )
        given = np.setdiff1d(np.arange(60), kept)
        mine = held.public[parts[index]]  # type: ignore[index]
        expected = (x[given] - np.array(own.form.mean)) / np.array(own.form.std)
        assert mine.inputs().numpy() == pytest.approx(expected, abs=1e-3)
        assert [own.form.classes[label] for label in mine.labels] == y[given].tolist()


def test_an_external_set_has_its_own_constants_and_the_agreed_classes(
    content: dict[str, Any], tmp_path: Path
) -> None:
    x, y = patients("elsewhere", 40)
    file = write(tmp_path / "public.csv", x * 7 + 3, y, COLUMNS[::-1])
    public = {"source": file, "label": "diagnosis"}
    held = made(content, public=public, classes=["malignant", "benign"]).holdings
    assert held.public is not None
    assert held.public.inputs().mean(dim=0).abs().max() < 1e-5
    assert [held.agreement.classes[label] for label in held.public.labels] == y[held.public.index].tolist()
    raw = made(content, public=public, normalise="none").holdings.public
    assert raw is not None and np.array_equal(raw.inputs().numpy(), raw.raw)


def test_public_noise_and_few_public_rows(content: dict[str, Any]) -> None:
    noise = made(content, public={"source": "noise", "kind": "gaussian", "rows": 10}).holdings.public
    assert noise is not None and noise.inputs().shape == (10, 4)
    few = made(content, public={"source": "share", "share": 0.2, "rows": 6}).holdings.public
    assert few is not None and len(few) == 6
    assert "no client has enough rows to publish one" in refusal(
        content, public={"source": "share", "share": 0.001}
    )


# -- runs ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["local", "fedmd", "fedh2l", "fedkem", "pooled", "fedorion"])
def test_runs_give_the_same_on_every_engine_and_after_a_stop(
    content: dict[str, Any], tmp_path: Path, method: str
) -> None:
    content |= {"method": method, "rounds": 3}
    inline = polyfed.run(content, out=tmp_path / "inline", workers=1)
    pool = polyfed.run(content, out=tmp_path / "pool", workers=2)
    part = polyfed.prepare(content, out=tmp_path / "part", workers=2)
    part.go(lambda run: run.stop())
    part.close()
    assert part.round < 3
    resumed = polyfed.resume(part.path, workers=1)
    assert result_of(inline.path) == result_of(pool.path) == result_of(resumed.path)


def test_a_method_keeps_its_contract_on_clients_own_data(content: dict[str, Any]) -> None:
    config = {**content, "rounds": 3}
    del config["method"]
    check_method(polyfed.methods.DSFL, config=config)


def test_from_python_clients_are_given_by_name_in_any_form(tmp_path: Path) -> None:
    def net() -> nn.Module:
        return nn.Linear(4, 2)

    x, y = patients("south")
    given = {
        "north": patients("north"),
        "south": (torch.tensor(x), y.tolist()),
        "west": {"train": patients("west"), "test": patients("west", 30, seed=1)},
    }
    config = {"models": {"clients": {"south": "large"}}, "checkpoint_seconds": 0}
    models = {"small": net, "large": lambda: nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))}
    own: dict[str, Any] = {"method": "local", "data": given, "models": models, "workers": 1}
    done = polyfed.run(config, **own, rounds=2, out=tmp_path / "run")
    assert [facts.architecture for facts in done.federation.roster] == ["small", "large", "small"]
    saved = done.config.data.as_file()
    assert saved["clients"] == dict.fromkeys(NAMES, "(given from Python)")
    assert {"source", "partition", "names"}.isdisjoint(saved)
    more = polyfed.resume(done.path, data=given, models=models, rounds=3, workers=1)
    whole = polyfed.run(config, **own, rounds=3, out=tmp_path / "whole")
    assert result_of(more.path) == result_of(whole.path)
    with pytest.raises(DataError, match=r"pass them again as data=\{'north': …\}"):
        polyfed.resume(done.path, models=models, rounds=4)


def test_a_torch_data_set_with_numbers_and_words_elsewhere_are_refused(tmp_path: Path) -> None:
    x, y = patients("north")
    numbers = torch.utils.data.TensorDataset(torch.tensor(x), torch.tensor((y == "malignant").astype(int)))
    with pytest.raises(DataError, match=r"nothing in common \(a: benign, malignant; b: 0, 1\)"):
        polyfed.run(data={"a": (x, y), "b": numbers}, method="local", out=tmp_path / "run")


def test_a_model_may_be_called_as_a_client_is(tmp_path: Path) -> None:
    given = {name: patients(name) for name in NAMES}
    models = {"north": lambda: nn.Linear(4, 2)}
    done = polyfed.run(
        {"rounds": 1}, method="fedavg", data=given, models=models, out=tmp_path / "run", workers=1
    )
    for name in NAMES:
        model = polyfed.load_model(done.path, name, make=models["north"])
        assert len(model.predict(given[name][0])) == 60


def test_a_resumed_run_must_have_the_same_data_and_says_whose_are_others(
    content: dict[str, Any], tmp_path: Path
) -> None:
    done = polyfed.run(content, out=tmp_path / "run", workers=1)
    write(tmp_path / "south.csv", *patients("south", seed=5), COLUMNS[::-1])
    with pytest.raises(RunError, match=r"began with \(south\): it cannot be resumed"):
        polyfed.resume(done.path, rounds=3)


# -- test sets -------------------------------------------------------------------------------------------------


def test_without_a_whole_test_set_the_servers_model_is_scored_on_the_clients_rows(
    content: dict[str, Any], tmp_path: Path
) -> None:
    done = polyfed.run({**content, "method": "fedmd"}, out=tmp_path / "run", workers=1)
    last = done.summary["last"]
    assert "whole" not in last
    right = total = 0
    for name in NAMES:
        held = done.federation.holdings.of(NAMES.index(name)).test
        model = polyfed.load_model(done.path, "server")
        found = model.predict((held.raw, held.labels), as_client=name)
        assert found.tally is not None
        right, total = right + found.tally[0], total + found.tally[1]
    assert last["server"]["global"] == pytest.approx(right / total)
    weights = sum(tensor.nbytes for tensor in model.state_dict().values())
    looked = [
        entry
        for line in read_lines(done.path / "ledger.jsonl")
        for entry in line["rows"]
        if entry[3] == "evaluation"
    ]
    down = sum(entry[4] for entry in looked if entry[1:3] == ["down", "weights"])
    assert down == 2 * 3 * weights  # two rounds, three clients: counted, as evaluation


def test_metrics_of_a_servers_model_are_of_all_rows_where_they_add_up_and_else_means_over_clients(
    content: dict[str, Any], tmp_path: Path
) -> None:
    wished = ["auc", "confusion", "recall", "macro-f1", "mcc", "log-loss", "cohen_kappa_score"]
    content |= {"method": "fedmd", "evaluate": {"metrics": wished}}
    done = polyfed.run(content, out=tmp_path / "run", workers=1)
    found = done.summary["last"]["server_metrics"]["global"]
    (a, b), (c, d) = found["confusion"]
    assert a + b + c + d == 10 + 10 + 30
    assert found["recall"] == pytest.approx((a / (a + b) + d / (c + d)) / 2)
    assert found["macro-f1"] == pytest.approx(a / (2 * a + b + c) + d / (2 * d + b + c))
    spread = (a + b) * (c + d) * (a + c) * (b + d)
    assert found["mcc"] == pytest.approx((a * d - b * c) / spread**0.5)
    assert 0 <= found["auc"] <= 1
    titles = {
        measure.key.rpartition(".")[2]: measure.title
        for measure in further_measures(RunRecord(done.path), "last")
    }
    assert titles["recall"] == "global (server), recall, clients' own test rows"
    assert titles["log-loss"] == "global (server), log loss (a number), clients' own test rows"
    for name, title in (("auc", "AUC"), ("cohen_kappa_score", "cohen_kappa_score (a number)")):
        assert titles[name] == f"global (server), {title}, mean over clients' own test rows"
    assert not any(
        "sums" in score for line in RunRecord(done.path).history for score in line.get("clients", {}).values()
    )


def test_a_file_of_the_servers_is_the_whole_test_set(
    content: dict[str, Any], tmp_path: Path, command: Command
) -> None:
    x, y = patients("elsewhere", 40)
    file = write(tmp_path / "server.csv", x * 3, y, COLUMNS[::-1])
    done = polyfed.run(
        {**changed(content, test_set=file), "method": "fedmd"}, out=tmp_path / "run", workers=1
    )
    assert {"own", "whole"} <= done.summary["last"].keys()
    assert {tuple(score["whole"])[1] for score in done.last["clients"].values()} == {40}  # type: ignore[index]
    said = command("show", "run")
    assert "the server's test set, mean" in said.out and "global (server), the server's test set" in said.out
    assert "whole test set" not in said.out
    with pytest.raises(DataError, match="there is no file"):
        made(content, test_set="nowhere.csv")


def test_a_test_set_that_somebody_trains_on_is_told(
    content: dict[str, Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    made(content, test_set=str(tmp_path / "north.csv"))
    assert "data.test_set and client 'north'" in caplog.text and "60 of 60 test rows" in caplog.text


def test_a_cut_set_may_be_tested_on_another_file_and_normalised_by_client(tmp_path: Path) -> None:
    x, y = patients("north", 200)
    source, test = (
        write(tmp_path / "all.csv", x, y),
        write(tmp_path / "test.csv", *patients("north", 50, seed=3)),
    )
    data = {"source": source, "label": "diagnosis", "clients": 3, "test_set": test, "normalise": "client"}
    federation = set_up(read_config({"method": "local", "data": data}))
    assert federation.holdings.whole_test_is == "file" and federation.whole_rows == 50
    for index in range(3):
        own = federation.holdings.of(index)
        assert own.train.inputs().mean(dim=0).abs().max() < 1e-5
        seen = federation.holdings.seen_by(index).whole_test
        assert seen is not None
        expected = (patients("north", 50, seed=3)[0] - np.array(own.form.mean)) / np.array(own.form.std)
        assert seen.inputs().numpy() == pytest.approx(expected, abs=1e-4)
    assert not isinstance(federation.holdings.constants, tuple) and set(federation.holdings.constants) == {
        "client-0",
        "client-1",
        "client-2",
    }


# -- new data --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("finished")
    content = hospitals(folder) | {"method": "fedmd", "rounds": 8}
    return polyfed.run(content, out=folder / "run", workers=1).path


def test_a_model_normalises_as_the_client_it_is_of(finished: Path) -> None:
    for name in NAMES:
        model = polyfed.load_model(finished, name)
        score = model.predict(str(finished.parent / f"{name}.csv")).score or 0
        assert score > 0.85, name
        other = NAMES[NAMES.index(name) - 1]
        assert (model.predict(patients(name), as_client=other).score or 1) < score


def test_a_shared_or_server_model_asks_as_whom(finished: Path, command: Command) -> None:
    model = polyfed.load_model(finished, "server")
    assert model.classes == ("benign", "malignant")
    with pytest.raises(
        CheckpointError, match=r"say as whose rows .* --as north .*the clients are north, south, west"
    ):
        model.predict(patients("north"))
    assert (model.predict(patients("south"), as_client="south").score or 0) > 0.8
    with pytest.raises(CheckpointError, match=r"no client of .* is called 'nort': use north, south, west"):
        model.predict(patients("north"), as_client="nort")
    rows = finished.parent / "south.csv"
    said = command("predict", finished, rows, "--client", "server")
    assert said.code == 2 and "--as north" in said.err and said.out == ""
    said = command("predict", finished, rows, "--client", "server", "--as", "south")
    assert said.code == 0 and said.out.count("\n") == 61


def test_a_model_that_is_shared_is_used_as_each_client_reads(content: dict[str, Any], tmp_path: Path) -> None:
    content |= {"method": "fedavg", "models": {"names": ["mlp-small"]}, "rounds": 8}
    done = polyfed.run(content, out=tmp_path / "run", workers=1)
    assert [file.name for file in (done.path / "models").glob("*.safetensors")] == [
        "shared_mlp-small.safetensors"
    ]
    for name in NAMES:
        assert (polyfed.load_model(done.path, name).predict(patients(name)).score or 0) > 0.8
    with pytest.raises(CheckpointError, match="the model 'mlp-small' is not one client's"):
        polyfed.load_model(done.path, "mlp-small").predict(patients("north"))


def test_a_models_file_carries_the_normalisation_of_its_client(finished: Path) -> None:
    from safetensors import safe_open

    said = json.loads((finished / "data.json").read_text())["constants"]
    for name in (*NAMES, "server"):
        with safe_open(finished / "models" / f"{name}.safetensors", "pt") as file:
            [text] = file.metadata().values()
        facts = json.loads(text)
        assert facts["columns"] == list(COLUMNS) and facts["classes"] == ["benign", "malignant"]
        assert facts["constants"] == (None if name == "server" else said[name])
    assert said["south"][0][0] == pytest.approx(100 * 3.0, rel=0.2)
    assert UNITS["south"] == 100


# -- in a run file ---------------------------------------------------------------------------------------------


def test_each_makes_a_client_of_every_match(content: dict[str, Any], tmp_path: Path) -> None:
    for name in ("Saint Mary", "north", "2nd"):
        (tmp_path / "hospitals" / name).mkdir(parents=True)
        write(tmp_path / "hospitals" / name / "data.csv", *patients(name))
    del content["data"]["clients"]
    federation = made(content, each=str(tmp_path / "hospitals" / "*" / "data.csv"))
    assert list(federation.roster.names) == ["client-2nd", "Saint-Mary", "north"]
    saved = read_config(federation.config.as_file())
    assert saved.data.each is None and list(saved.data.clients or ()) == list(federation.roster.names)  # type: ignore[arg-type]
    assert "nothing matches" in refusal(content, each=str(tmp_path / "no" / "*.csv"))
    assert "two clients or more" in refusal(content, each=str(tmp_path / "nor*.csv"))


def test_folders_of_images_are_a_federation_if_the_user_says_so(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for hospital, classes in {"a": "xy", "b": "yz", "c": "z"}.items():
        for word in classes:
            folder = tmp_path / "scans" / hospital / word
            folder.mkdir(parents=True)
            for number in range(12):
                Image.fromarray(rng.integers(0, 256, (8, 8), dtype=np.uint8)).save(folder / f"{number}.png")
    with pytest.raises(DataError, match=r"if a and b are clients, set data\.each"):
        set_up(read_config({"method": "local", "data": {"source": str(tmp_path / "scans")}}))
    federation = set_up(read_config({"method": "local", "data": {"each": str(tmp_path / "scans/*")}}))
    assert list(federation.roster.names) == ["a", "b", "c"]
    assert federation.holdings.agreement.classes == ("x", "y", "z")
    assert federation.holdings.class_counts().tolist() == [[12, 12, 0], [0, 12, 12], [0, 0, 12]]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"source": "digits"}, "source is for one data set that is cut, and here each client brings its own"),
        ({"partition": {"kind": "iid"}}, "partition is for one data set that is cut"),
        ({"limit": 10}, "limit is for one data set that is cut"),
        ({"names": ["a", "b", "c"]}, "names is for one data set that is cut"),
        ({"each": "*.csv"}, "clients and each: give one of them"),
        ({"clients": {"a": "x.csv"}}, "data.clients: a federation has two clients or more"),
        ({"clients": {"a": "x.csv", "server": "y.csv"}}, "'server' reads like the server's name"),
        ({"clients": {"a": "x.csv", "7": "y.csv"}}, "'7' cannot be a name"),
        ({"clients": {"a": "x.csv", "b": {"trian": "y.csv"}}}, "data.clients: b.train: is missing"),
        (
            {"clients": {"a": "x.csv", "b": 7}},
            "'b' brings a file, a folder, or {train: a file, test: a file}",
        ),
        ({"clients": {"a": "x.csv", "b": ""}}, "'b' brings a file, a folder"),
        ({"clients": ["a.csv", "b.csv"]}, "give a number of clients, or what each brings"),
        ({"clients": "a.csv"}, "give a number of clients, or what each brings"),
        ({"clients": {"a": "x.csv", "b": "y.csv"}}, "client 'a': there is no file or folder x.csv"),
        ({"classes": ["benign"]}, "at least two classes are needed"),
        ({"classes": ["benign", "benign"]}, "'benign' is there twice"),
        (
            {"classes": ["benign", "ill"]},
            "north has rows of the class 'malignant', which data.classes does not list",
        ),
        ({"normalise": "each"}, "data.normalise: must be 'auto', 'client', 'all' or 'none'"),
        ({"drop": ["agee"]}, "data.drop: no client has a column 'agee': did you mean 'age'?"),
        ({"label": "dose"}, "client 'north'"),
    ],
)
def test_mistakes_are_told_in_one_line(content: dict[str, Any], changes: dict[str, Any], said: str) -> None:
    assert said in refusal(content, **changes)


def test_classes_are_for_clients_that_bring_their_own_and_validation_stays_at_home(
    content: dict[str, Any],
) -> None:
    with pytest.raises(ConfigError, match="classes is for clients that bring their own data"):
        set_up(read_config({"data": {"classes": ["a", "b"]}}))
    content["evaluate"] = {"validation": "everyone"}
    assert "needs everybody's validation rows in one place" in refusal(content)


def test_a_column_that_only_some_have_can_be_dropped(content: dict[str, Any], tmp_path: Path) -> None:
    file = tmp_path / "north.csv"
    lines = file.read_text().splitlines()
    file.write_text("\n".join([f"id,{lines[0]}", *(f"p{row},{line}" for row, line in enumerate(lines[1:]))]))
    assert "only numbers can be learnt from, but 'id' is text" in refusal(content)
    assert made(content, drop=["id"]).holdings.agreement.features == COLUMNS


def test_class_words_that_look_like_numbers_somewhere_are_the_same_words(tmp_path: Path) -> None:
    x = patients("a")[0]
    first = write(tmp_path / "a.csv", x, np.array(["07", "1a"] * 30))
    second = write(tmp_path / "b.csv", x, np.array(["07"] * 60))
    content = {"method": "local", "data": {"clients": {"a": first, "b": second}, "label": "diagnosis"}}
    federation = made(content, classes=["07", "1a"])
    assert federation.holdings.class_counts().tolist() == [[30, 30], [60, 0]]


def test_clients_that_bring_the_same_rows_are_told(
    content: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    file = content["data"]["clients"]["north"]
    made(content, clients={"a": file, "b": file})
    assert "clients 'a' and 'b' bring the same rows" in caplog.text


def test_the_commands_show_clients_own_data(
    content: dict[str, Any], tmp_path: Path, command: Command
) -> None:
    import yaml

    Path("run.yaml").write_text(yaml.safe_dump({**content, "method": "fedmd"}))
    said = command("partition", "run.yaml")
    assert said.code == 0 and "north" in said.out and "malignant" in said.out
    for method in ("local", "fedmd"):
        assert (
            command("run", "run.yaml", "--set", f"method={method}", "--out", method, "--workers", 1).code == 0
        )
    said = command("compare", "local", "fedmd")
    assert said.code == 0 and "gain" in said.out and "all:" not in said.out
    assert "global (server), clients' own test rows" in said.out
    said = command(
        "sweep", "run.yaml", "--set", "method=local,fedmd", "--seeds", 2, "--out", "sweep", "--workers", 2
    )
    assert said.code == 0 and Path("sweep/cost.png").exists()
    assert (
        command("sweep", "run.yaml", "--set", "method=local,fedmd", "--seeds", 2, "--out", "sweep").code == 0
    )


def test_many_small_clients_need_no_open_file_each(tmp_path: Path) -> None:
    import resource

    for number in range(150):
        write(tmp_path / f"c{number}.csv", *patients(f"c{number}", 12))
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (120, hard))
    try:
        content = {"method": "local", "data": {"each": str(tmp_path / "*.csv"), "label": "diagnosis"}}
        assert len(set_up(read_config(content)).roster) == 150
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
