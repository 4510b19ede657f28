"""What goes wrong in silence where clients bring their own data, unless somebody thinks of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.conftest import Command
from tests.runs.hospitals import COLUMNS, hospitals, patients, write

import polyfed
from polyfed.errors import ConfigError, DataError, ModelError, RunError, UserError
from polyfed.runs.config import read_config
from polyfed.runs.federation import Federation
from polyfed.runs.setup import set_up
from polyfed.testing import result_of

NAMES = ["north", "south", "west"]


@pytest.fixture
def content(tmp_path: Path) -> dict[str, Any]:
    return hospitals(tmp_path)


def made(content: dict[str, Any], **data: Any) -> Federation:
    return set_up(read_config({**content, "data": {**content["data"], **data}}))


def given(data: dict[Any, Any], **section: Any) -> Federation:
    """A federation whose clients' data are given from Python."""
    return set_up(read_config({"method": "local", "data": section}), data)


def two(tmp_path: Path, first: list[str], second: list[str], **data: Any) -> Federation:
    """Two clients whose rows have these labels in turn."""
    files = {}
    for name, words in (("a", first), ("b", second)):
        x = patients(name)[0]
        files[name] = write(
            tmp_path / f"{name}.csv", x, np.resize(words, len(x)), COLUMNS[:: 1 if name == "a" else -1]
        )
    return set_up(read_config({"method": "local", "data": {"clients": files, "label": "diagnosis", **data}}))


# -- by name, not by place -------------------------------------------------------------------------------------


def test_a_public_table_is_read_by_the_names_of_its_columns(content: dict[str, Any], tmp_path: Path) -> None:
    x, y = patients("elsewhere", 40)
    found = []
    for columns in (COLUMNS, COLUMNS[::-1]):
        public = {"source": write(tmp_path / "public.csv", x, y, columns), "label": "diagnosis"}
        rows = made(content, public=public).holdings.public
        assert rows is not None and rows.dataset.features == COLUMNS
        found.append(rows.inputs())
    assert np.allclose(found[0], found[1])
    (tmp_path / "public.csv").write_text("age,dose,diagnosis\n1,2,benign\n3,4,malignant\n")
    with pytest.raises(DataError, match="has no column 'size', which is learnt from"):
        made(content, public={"source": str(tmp_path / "public.csv"), "label": "diagnosis"})


@pytest.mark.parametrize("where", ["test", "test_set", "public"])
def test_numbers_without_names_do_not_stand_for_columns_with_names(
    content: dict[str, Any], tmp_path: Path, where: str
) -> None:
    x, y = patients("north")
    np.savez(tmp_path / "t.npz", x=x, y=y)
    file = str(tmp_path / "t.npz")
    changes: dict[str, Any] = {where: file}
    if where == "test":
        clients = content["data"]["clients"]
        changes = {"clients": {**clients, "north": {"train": clients["north"], "test": file}}}
    if where == "public":
        changes = {"public": {"source": file}}
    with pytest.raises(
        DataError, match="its columns have no names, but those that models are trained on have"
    ):
        made(content, **changes)


@pytest.mark.parametrize("where", ["test", "test_set", "public"])
def test_images_of_floats_do_not_stand_for_images_of_8_bits(tmp_path: Path, where: str) -> None:
    rng = np.random.default_rng(0)
    y = np.arange(30) % 2
    for name, kind in (("a", np.uint8), ("b", np.uint8), ("floats", np.float32)):
        np.savez(tmp_path / f"{name}.npz", x=rng.integers(0, 256, (30, 8, 8)).astype(kind), y=y)
    a, b, floats = (str(tmp_path / f"{name}.npz") for name in ("a", "b", "floats"))
    data: dict[str, Any] = {"clients": {"a": a, "b": b}}
    if where == "test":
        data["clients"]["a"] = {"train": a, "test": floats}
    else:
        data[where] = floats if where == "test_set" else {"source": floats}
    with pytest.raises(
        DataError, match="its images are floats, but those that models are trained on are 8-bit images"
    ):
        set_up(read_config({"method": "local", "data": data}))


# -- classes are words -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("first", "second", "classes"),
    [
        (["07", "10"], ["07", "10", "X1"], ("07", "10", "X1")),
        (["07", "10"], ["10"], ("07", "10")),
        (["1", "2", "unknown"], ["1.0", "2.0"], ("1", "2", "unknown")),
        (["1", "2"], ["2.0", "3"], ("1", "2", "3")),
        (["true", "false"], ["true", "false", "unknown"], ("false", "true", "unknown")),
        (["caf\u00e9", "tea"], ["cafe\u0301", "tea"], ("caf\u00e9", "tea")),
        (["-1", "1"], ["1"], ("-1", "1")),
    ],
)
def test_a_word_is_the_same_whatever_else_stands_in_its_file(
    tmp_path: Path, first: list[str], second: list[str], classes: tuple[str, ...]
) -> None:
    found = two(tmp_path, first, second).holdings
    assert found.agreement.classes == classes
    assert found.class_counts().sum(axis=1).tolist() == [60, 60]
    listed = two(tmp_path, first, second, classes=list(reversed(classes))).holdings
    assert np.array_equal(listed.class_counts(), found.class_counts()[:, ::-1])


def test_a_public_files_words_are_read_as_the_clients_are(tmp_path: Path) -> None:
    public = write(tmp_path / "public.csv", patients("p")[0], np.resize(["07", "08"], 60))
    found = two(
        tmp_path, ["07", "08"], ["07", "X1"], public={"source": public, "label": "diagnosis"}
    ).holdings
    assert found.public is not None and found.public.dataset.first_class == 0
    assert {found.agreement.classes[label] for label in found.public.labels} == {"07", "08"}


@pytest.mark.parametrize("kind", ["csv", "npz"])
def test_test_rows_that_say_classes_in_another_way_are_refused(
    content: dict[str, Any], tmp_path: Path, kind: str
) -> None:
    x, y = patients("north")
    numbers = (y == "malignant").astype(int)
    data: dict[str, Any] = {name: patients(name) for name in NAMES}
    data["north"] = {"train": (x, y), "test": (x, numbers)}
    if kind == "npz":
        with pytest.raises(
            DataError, match="north has test rows of the class '0', of which nobody has training rows"
        ):
            polyfed.run(method="local", data=data, out=tmp_path / "run")
        return
    test = write(tmp_path / "test.csv", x, numbers.astype(str))
    clients = content["data"]["clients"]
    with pytest.raises(DataError, match="north has test rows of the class '0'"):
        made(content, clients={**clients, "north": {"train": clients["north"], "test": test}})


def test_classes_that_look_alike_are_told_and_gaps_are_no_classes(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert two(tmp_path, ["Benign", "malignant"], ["benign", "malignant"]).holdings.agreement.classes == (
        *("Benign", "benign", "malignant"),
    )
    assert "'Benign', 'benign' are 2 classes, and look like one" in caplog.text
    x = patients("a")[0]
    with pytest.raises(DataError, match=r"nothing in common \(a: 0, 5; b: 1, 2\)"):
        polyfed.run(
            data={"a": (x, np.arange(60) % 2 * 5), "b": (x, 1 + np.arange(60) % 2)}, out=tmp_path / "run"
        )


def test_small_clients_of_many_classes_are_fine_and_a_wrong_label_column_is_not() -> None:
    rng = np.random.default_rng(0)
    letters = np.array([f"letter-{number:02}" for number in range(40)])
    data = {
        name: (rng.normal(size=(50, 4)), rng.permutation(np.resize(letters, 50))) for name in ("a", "b", "c")
    }
    assert len(given(data).holdings.agreement.classes) == 40
    ids = {name: (x, [f"p{row}" for row in range(50)]) for name, (x, _) in data.items()}
    with pytest.raises(
        DataError, match=r"50 different labels in 80 rows of all clients; is this the label column\?"
    ):
        given({"a": ids["a"], "b": (ids["b"][0][:30], ids["b"][1][:30])})


# -- numbers ---------------------------------------------------------------------------------------------------


def test_a_column_of_huge_numbers_is_no_end(content: dict[str, Any], tmp_path: Path) -> None:
    for name in ("north", "south"):
        x, y = patients(name)
        x[:, 1] = x[:, 1] / x[:, 1].max() * 1.7e18
        content["data"]["clients"][name] = write(tmp_path / f"{name}.csv", x, y)
    content["data"]["clients"].pop("west")
    done = polyfed.run(content, out=tmp_path / "run", workers=1)
    assert len(polyfed.load_model(done.path, "north").predict(patients("north")[0])) == 60


def test_who_has_no_training_rows_has_no_constants_of_its_own(tmp_path: Path) -> None:
    partition = {"kind": "dirichlet", "alpha": 0.02, "minimum": 0}
    content = {
        **{"method": "local", "rounds": 1, "models": {"names": ["mlp-small"]}},
        "data": {"limit": 200, "clients": 40, "normalise": "client", "partition": partition},
    }
    done = polyfed.run(content, out=tmp_path / "run", workers=1)
    assert 0 in done.federation.holdings.samples()
    assert polyfed.resume(done.path, rounds=2, workers=1).round == 2


def test_constants_of_all_clients_are_worked_out_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every final model's file names its constants: were they made anew for each, many clients would take for ever."""
    from polyfed.runs import holdings
    from polyfed.runs.cut_data import CutData

    monkeypatch.setattr(holdings, "MOST_KEPT", 3)
    calls = []
    split = CutData.split

    def counted(self: CutData, index: int) -> Any:
        calls.append(index)
        return split(self, index)

    monkeypatch.setattr(CutData, "split", counted)
    content = {"method": "local", "rounds": 1, "data": {"limit": 200, "clients": 20, "normalise": "client"}}
    polyfed.run(content, out=tmp_path / "run", workers=1)
    assert len(calls) < 20 * 8


def test_at_most_so_many_rows_are_public_and_the_last_row_stays_at_home() -> None:
    data = {f"c{number}": patients(f"c{number}", 20) for number in range(6)}
    data["tiny"] = patients("tiny", 1)
    for share, rows, expected in ((0.3, 2, 2), (0.3, None, 36), (0.99, None, 6 * 19)):
        public = {"source": "share", "share": share, "rows": rows}
        found = given(data, public=public)
        assert found.holdings.public is not None
        assert len(found.holdings.public) == expected
        assert min(found.holdings.samples()) == 1


# -- from Python -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("section", "said"),
    [
        ({"limit": 10}, "data.limit is not for clients that bring their own data"),
        ({"clients": 5}, "data.clients is not for clients"),
        ({"partition": {"kind": "iid"}}, "data.partition is not for clients"),
        ({"source": "digits"}, "data.source is not for clients"),
        ({"names": ["x", "y", "z"]}, "data.names is not for clients"),
        ({"each": "*.csv"}, "data.each is not for clients"),
        (
            {"clients": {"a": "x.csv", "b": "y.csv"}},
            "data.clients says what each client brings, and so does data=…",
        ),
    ],
)
def test_what_is_for_one_data_set_is_refused_beside_clients_own(section: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        given({name: patients(name) for name in NAMES}, **section)


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (["north"], "a federation has two clients or more"),
        (["north", "North"], "'north' and 'North' are too much alike"),
        (["north", "Server"], "reads like the server's name"),
        ([True, "north"], "YAML reads on, off, yes and no as true and false"),
        ([1, "north"], "'1' cannot be a name"),
    ],
)
def test_names_are_checked_as_in_a_run_file(names: list[Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        given({name: patients("north") for name in names})
    with pytest.raises(ConfigError, match=said):
        read_config({"data": {"clients": dict.fromkeys(names, "x.csv")}})


def test_the_agreed_order_can_be_given_with_data_from_python() -> None:
    data = {name: patients(name) for name in NAMES}
    section = {"classes": ["malignant", "benign"]}
    assert given(data, **section).holdings.agreement.classes == ("malignant", "benign")


@pytest.mark.parametrize("method", ["fedavg", "fedh2l"])
def test_a_run_is_resumed_in_the_order_in_which_it_began(tmp_path: Path, method: str) -> None:
    data: dict[str, Any] = {name: patients(name) for name in NAMES}
    config = {"data": {"public": {"source": "share", "share": 0.2}}, "checkpoint_seconds": 0}
    whole = polyfed.run(config, method=method, rounds=3, data=data, out=tmp_path / "whole", workers=1)
    part = polyfed.run(config, method=method, rounds=2, data=data, out=tmp_path / "part", workers=1)
    polyfed.resume(part.path, data=dict(reversed(data.items())), rounds=3, workers=1)
    assert result_of(part.path) == result_of(whole.path)
    with pytest.raises(
        ConfigError, match="'west' is missing in what was given; the run began with north, south, west"
    ):
        polyfed.resume(part.path, data={name: data[name] for name in NAMES[:2]}, rounds=4)


def test_a_sweep_over_data_from_python_goes_on(tmp_path: Path) -> None:
    data = {name: patients(name) for name in NAMES}
    for _ in range(2):  # the second time nothing is left to do
        done = polyfed.sweep(
            {"rounds": 1}, {"method": ["local", "fedavg"]}, data=data, out=tmp_path / "sweep", workers=2
        )
        assert [row.finished for row in done.rows] == [1, 1]


def test_what_is_not_a_model_is_told() -> None:
    with pytest.raises(ModelError, match="models=…: 'names' is a list: give a function that makes a model"):
        set_up(read_config({}), None, {"names": ["mlp"]})  # type: ignore[dict-item]


# -- whose, and what -------------------------------------------------------------------------------------------


def test_only_who_changed_is_named_also_where_the_agreement_changes(
    content: dict[str, Any], tmp_path: Path
) -> None:
    done = polyfed.run(content, out=tmp_path / "run", workers=1)
    x, y = patients("north")
    for words, columns in ((y, COLUMNS[::-1]), (np.where(np.arange(60) == 0, "unknown", y), COLUMNS)):
        write(tmp_path / "north.csv", x, words, columns)
        with pytest.raises(RunError, match=r"began with \(north\)"):
            polyfed.resume(done.path, rounds=3)


def test_hidden_folders_are_nobodys_and_a_pattern_needs_a_star(
    content: dict[str, Any], tmp_path: Path
) -> None:
    for name in ("a", "b", ".ipynb_checkpoints"):
        (tmp_path / "h" / name).mkdir(parents=True)
        write(tmp_path / "h" / name / "data.csv", *patients(name))
    del content["data"]["clients"]
    for pattern in ("h/*/data.csv", "h/**/*.csv"):
        assert list(made(content, each=str(tmp_path / pattern)).roster.names) == ["a", "b"]
    (tmp_path / "h" / "deep" / "er").mkdir(parents=True)
    write(tmp_path / "h" / "deep" / "er" / "data.csv", *patients("deeper"))
    names = ["a-data", "b-data", "deep-er-data"]
    assert list(made(content, each=str(tmp_path / "h/**/*.csv")).roster.names) == names
    for pattern in ("/", str(tmp_path), "north.csv"):
        with pytest.raises(DataError, match="has no \\* in it"):
            made(content, each=pattern)


def test_the_column_of_images_is_known_to_predictions(tmp_path: Path, command: Command) -> None:
    from PIL import Image

    rng = np.random.default_rng(0)
    files = {}
    for name in ("north", "south"):
        lines = ["file,label"]
        for row in range(20):
            Image.fromarray(rng.integers(0, 256, (8, 8), dtype=np.uint8)).save(tmp_path / f"{name}-{row}.png")
            lines.append(f"{name}-{row}.png,{'xy'[row % 2]}")
        (tmp_path / f"{name}.csv").write_text("\n".join(lines))
        files[name] = str(tmp_path / f"{name}.csv")
    content = {"method": "local", "rounds": 1, "data": {"clients": files, "image": "file"}}
    polyfed.run(content, out=tmp_path / "run", workers=1)
    assert json.loads((tmp_path / "run" / "data.json").read_text())["image"] == "file"
    assert command("predict", "run", "north.csv", "--client", "north").code == 0


def test_rows_that_somebody_else_trains_on_are_told(
    content: dict[str, Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    clients = content["data"]["clients"]
    made(
        content, clients={**clients, "north": {"train": clients["north"], "test": str(tmp_path / "west.csv")}}
    )
    assert "the test rows of 'north' and client 'west'" in caplog.text
    caplog.clear()
    made(content, public={"source": str(tmp_path / "north.csv"), "label": "diagnosis"})
    assert "data.public and client 'north'" in caplog.text


def test_a_client_called_as_its_model_has_a_line_of_its_own(tmp_path: Path, command: Command) -> None:
    data = {"mlp-small": patients("north"), "b": patients("south")}
    config = {"models": {"names": ["mlp-small"]}}
    polyfed.run(config, method="fedavg", rounds=1, data=data, out=tmp_path / "run", workers=1)
    said = command("show", "run").out
    assert "mlp-small (own)" in said and "client mlp-small (own)" in said


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"test_set": "nowhere.csv"}, "data.test_set: there is no file or folder nowhere.csv in "),
        ({"clients": {"a": "x.csv", "b": "y.csv"}}, "client 'a': there is no file or folder x.csv in "),
        ({"label": "none", "drop": ["diagnosis"]}, "client 'north': data set 'north' has no labels"),
    ],
)
def test_messages_say_whose_data_are_meant(
    content: dict[str, Any], changes: dict[str, Any], said: str
) -> None:
    with pytest.raises(UserError) as error:
        made(content, **changes)
    assert str(error.value).startswith(said)


def test_predictions_of_a_model_that_there_is_not_say_so(
    content: dict[str, Any], tmp_path: Path, command: Command
) -> None:
    polyfed.run({**content, "models": {"names": ["mlp"]}}, out=tmp_path / "run", workers=1)
    for name in ("nobody", "server"):
        said = command("predict", "run", "north.csv", "--client", name)
        assert said.code == 2 and f"no final model '{name}'" in said.err
    with pytest.raises(UserError, match=r"no client of .* is called '3'"):
        polyfed.load_model("run", "north").predict(patients("north")[0], as_client=3)  # type: ignore[arg-type]


def test_servers_scores_on_different_rows_are_told_apart(
    content: dict[str, Any], tmp_path: Path, command: Command
) -> None:
    import csv

    import yaml

    content |= {"method": "fedmd", "rounds": 1}
    file = write(tmp_path / "server.csv", *patients("elsewhere", 40))
    content["variants"] = {"own": {"rounds": 1}, "file": {"data.test_set": file}}
    Path("run.yaml").write_text(yaml.safe_dump(content))
    assert command("sweep", "run.yaml", "--out", "sweep", "--workers", 1).code == 0
    with Path("sweep/results.csv").open() as results:
        rows = list(csv.DictReader(results))
    assert {row["variant"]: row["whole_test"] for row in rows} == {"own": "none", "file": "file"}
    runs = [next(Path("sweep").glob(f"{name}/seed-*")) for name in ("own", "file")]
    said = command("compare", *runs, "--target", 0.5)
    assert said.code == 0 and "global (server), clients' own test rows" in " ".join(said.out.split())
    assert command("compare", runs[0], "--target", 0.5, "--of", "all").code == 2
