"""An exported file takes raw rows and says what the model says, and everything that it takes to use it is inside."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from numpy.typing import NDArray
from sklearn.datasets import load_breast_cancer
from tests.conftest import Command
from tests.runs.hospitals import hospitals, patients
from torch import Tensor, nn

import polyfed
from polyfed.errors import CheckpointError, ModelError
from polyfed.runs import export as exporting
from polyfed.runs.export import export
from polyfed.runs.trained import form_of

pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")

Rows = NDArray[Any]
KINDS = ("onnx", "pt")


def answers(file: Path, rows: Rows) -> Rows:
    """What a file says of rows, run as another program would."""
    if file.suffix == ".pt":
        return np.asarray(torch.jit.load(file)(torch.from_numpy(rows)))
    session = onnxruntime.InferenceSession(file)
    ((given,), (said,)) = (session.get_inputs(), session.get_outputs())
    assert (given.name, said.name) == ("rows", told(file)["output"])
    return np.asarray(session.run(None, {"rows": rows})[0])


def told(file: Path) -> dict[str, str]:
    """A file's metadata."""
    if file.suffix == ".pt":
        extra = {"polyfed.json": ""}
        torch.jit.load(file, _extra_files=extra)
        found: dict[str, str] = json.loads(extra["polyfed.json"])
        return found
    return {each.key: each.value for each in onnx.load(file).metadata_props}


# -- tables and images -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def cancer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run over a table whose columns are of very different sizes."""
    folder = tmp_path_factory.mktemp("cancer")
    data = load_breast_cancer()
    words = data.target_names[data.target]
    lines = [
        ",".join([*map(repr, map(float, row)), word]) for row, word in zip(data.data, words, strict=True)
    ]
    names = ",".join([*data.feature_names, "diagnosis"])
    (folder / "cancer.csv").write_text("\n".join([names, *lines]) + "\n")
    content = {
        "name": "cancer",
        "method": "fedavg",
        "rounds": 2,
        "data": {"source": str(folder / "cancer.csv"), "label": "diagnosis", "names": ["north", "south"]},
        "models": {"names": ["mlp-small"], "server": "mlp-small"},
    }
    return polyfed.run(content, out=folder / "run", workers=1).path


@pytest.mark.parametrize("kind", KINDS)
def test_columns_of_a_table_go_in_as_they_come(cancer: Path, tmp_path: Path, kind: str) -> None:
    file = polyfed.export(cancer, "north", tmp_path / f"north.{kind}")
    assert file == tmp_path / f"north.{kind}"
    raw = load_breast_cancer().data.astype(np.float32)
    expected = polyfed.load_model(cancer, "north").predict(raw).probabilities
    assert expected.std() > 0.1
    for count in (1, 7, 569):
        np.testing.assert_allclose(answers(file, raw[:count]), expected[:count], atol=1e-5)
    found = told(file)
    assert json.loads(found.pop("columns")) == list(load_breast_cancer().feature_names)
    assert json.loads(found.pop("classes")) == ["benign", "malignant"]
    assert found == {
        "polyfed": polyfed.__version__,
        "run": "cancer",
        "method": "fedavg",
        "rounds": "2",
        "task": "classification",
        "output": "probabilities",
        "unit": "",
        "client": "north",
        "normalised_as": "north",
        "input": "30 numbers",
    }


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run over images, of two architectures, one of them with BatchNorm."""
    content = {
        "method": "local",
        "rounds": 2,
        "data": {"limit": 400, "clients": 2},
        "models": {"names": ["resnet8", "cnn-small"]},
        "training": {"epochs": 1, "batch": 32},
    }
    return polyfed.run(content, out=tmp_path_factory.mktemp("digits") / "run", workers=1).path


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("client", ["client-0", "client-1"])
def test_images_go_in_as_they_were_read(digits: Path, tmp_path: Path, client: str, kind: str) -> None:
    file = polyfed.export(digits, client, tmp_path / f"model.{kind}")
    model = polyfed.load_model(digits, client)
    raw = np.random.default_rng(1).integers(0, 256, (9, 8, 8, 1), dtype=np.uint8)
    expected = model.predict(raw).probabilities
    for count in (1, 9):
        np.testing.assert_allclose(answers(file, raw[:count]), expected[:count], atol=1e-5)
    assert told(file)["input"] == "8-bit images of 8×8 with 1 channel"
    assert json.loads(told(file)["columns"]) == []


@pytest.mark.parametrize("kind", KINDS)
def test_images_of_floats_go_in_as_floats(tmp_path: Path, kind: str) -> None:
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(60, 9, 8, 3)).astype(np.float32), np.arange(60) % 3
    content = {"method": "local", "rounds": 1, "data": {"clients": 2}, "models": {"names": ["cnn-small"]}}
    path = polyfed.run(content, data=(x, y), out=tmp_path / "run", workers=1).path
    file = polyfed.export(path, "client-0", tmp_path / f"model.{kind}")
    expected = polyfed.load_model(path, "client-0").predict(x[:5]).probabilities
    np.testing.assert_allclose(answers(file, x[:5]), expected, atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_where_each_client_normalises_by_itself_a_file_is_for_one_clients_rows(
    tmp_path: Path, kind: str
) -> None:
    path = polyfed.run(hospitals(tmp_path), method="fedkem", out=tmp_path / "run", workers=1).path
    for client, as_client in (("south", None), ("server", "south"), ("server", "west")):
        file = polyfed.export(path, client, tmp_path / f"model.{kind}", as_client=as_client)
        raw = patients(as_client or client)[0].astype(np.float32)
        model = polyfed.load_model(path, client)
        expected = model.predict(raw, as_client=as_client).probabilities
        np.testing.assert_allclose(answers(file, raw), expected, atol=1e-5)
        assert (told(file)["client"], told(file)["normalised_as"]) == (client, as_client or client)
    with pytest.raises(CheckpointError, match="say as whose rows new ones are read, such as --as north"):
        polyfed.export(path, "server", tmp_path / f"other.{kind}")
    assert not (tmp_path / f"other.{kind}").exists()


# -- the command -----------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_the_command_says_what_it_wrote_and_nothing_of_what_libraries_warn_of(
    cancer: Path, tmp_path: Path, kind: str
) -> None:
    """In a process of its own, where nothing is filtered."""
    (tmp_path / f"north.{kind}").write_text("an older one")
    words = ["export", str(cancer), "--client", "server", "--as", "north", "-o", f"north.{kind}"]
    said = subprocess.run(
        [sys.executable, "-m", "polyfed", *words], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert said.returncode == 0, said.stderr
    wrote = f"wrote north.{kind}: it takes rows as they come and gives probabilities; checked by running it\n"
    assert (said.stdout, said.stderr) == (wrote, "")
    assert [each.name for each in tmp_path.iterdir()] == [f"north.{kind}"]
    raw = load_breast_cancer().data[:5].astype(np.float32)
    assert answers(tmp_path / f"north.{kind}", raw).shape == (5, 2)


def test_no_path_of_this_machine_is_in_a_file(cancer: Path, tmp_path: Path) -> None:
    for kind in KINDS:
        file = polyfed.export(cancer, "north", tmp_path / f"north.{kind}")
        parts = [file.read_bytes()]
        if zipfile.is_zipfile(file):
            with zipfile.ZipFile(file) as whole:
                parts = [whole.read(name) for name in whole.namelist()]
        for hidden in (str(tmp_path), str(cancer), str(Path(polyfed.__file__).parent), sys.prefix):
            assert not any(hidden.encode() in part for part in parts), (kind, hidden)


def test_mistakes_are_one_line_before_anything_is_done(
    command: Command, cancer: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*words: object) -> str:
        said = command("export", cancer, *words)
        assert said.code == 2
        assert said.err.count("\n") == 1
        return said.err

    assert "ends in .onnx, or in .pt for TorchScript" in refused("--client", "north", "-o", "north.h5")
    assert "no final model 'east'" in refused("--client", "east", "-o", "east.pt")
    assert "there is no folder nowhere" in refused("--client", "north", "-o", "nowhere/north.pt")
    Path("folder.pt").mkdir()
    assert "folder.pt is a folder" in refused("--client", "north", "-o", "folder.pt")
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name in ("onnx", "onnxruntime") else find(name)
    )
    said = refused("--client", "north", "-o", "north.onnx")
    assert "ONNX needs onnx and onnxruntime: pip install 'polyfed[export]'; or write a .pt file" in said
    assert command("export", cancer, "--client", "north", "-o", "north.pt").code == 0
    assert {each.name for each in tmp_path.iterdir()} == {"folder.pt", "north.pt"}


def test_a_run_that_has_not_finished_has_nothing_to_export(small: dict[str, Any], tmp_path: Path) -> None:
    run = polyfed.run(small, out=tmp_path / "run", workers=1, listener=lambda run: run.stop())
    with pytest.raises(CheckpointError, match="has not finished"):
        polyfed.export(run.path, "client-0", tmp_path / "model.pt")
    run.finish()
    assert polyfed.export(run.path, "client-0", tmp_path / "model.pt").exists()


# -- models of one's own ---------------------------------------------------------------------------------------


class Fine(nn.Module):
    """A model that computes in other types, by the number of its rows, and looks at their shape."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(64, 10).double()

    def forward(self, x: Tensor) -> Tensor:
        if x.shape[1:] != (1, 8, 8):
            raise ValueError(f"images of 8×8, not {x.shape}")
        found: Tensor = self.body(x.reshape(x.shape[0], -1).double())
        return found


class Changing(Fine):
    """A model whose way depends on the values of its rows: it cannot be traced or exported."""

    def forward(self, x: Tensor) -> Tensor:
        out = super().forward(x)
        return out * 2 if float(x.sum()) > 0 else out


class Stuck(Fine):
    """A model for which the number of rows is a constant of the trace."""

    def forward(self, x: Tensor) -> Tensor:
        count = int(str(len(x)))
        return super().forward(x.reshape(count, 1, 8, 8))


def own_run(make: Callable[[], nn.Module], path: Path, small: dict[str, Any]) -> Path:
    content = {**small, "models": {}, "rounds": 1, "training": {"epochs": 1, "batch": 16, "lr": 0.01}}
    return polyfed.run(content, models={"net": make}, out=path, workers=1).path


@pytest.mark.parametrize("kind", KINDS)
def test_models_of_ones_own_are_made_by_make(
    command: Command, small: dict[str, Any], tmp_path: Path, kind: str
) -> None:
    path = own_run(Fine, tmp_path / "run", small)
    said = command("export", "run", "--client", "client-0", "-o", f"model.{kind}")
    assert said.code == 2
    assert f"polyfed.export('run', 'client-0', 'model.{kind}', make=…)" in said.err
    file = polyfed.export(path, "client-0", tmp_path / f"model.{kind}", make=Fine)
    raw = np.random.default_rng(1).integers(0, 256, (4, 8, 8, 1), dtype=np.uint8)
    expected = polyfed.load_model(path, "client-0", Fine).predict(raw).probabilities
    np.testing.assert_allclose(answers(file, raw), expected, atol=1e-5)


def test_models_that_a_run_names_must_be_trusted(
    command: Command, small: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = "from torch import nn\ndef net(): return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))\n"
    (tmp_path / "export_models.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    polyfed.run({**small, "models": {"names": ["export_models:net"]}}, out=tmp_path / "run", workers=1)
    words = ("export", "run", "--client", "client-0", "-o", "model.pt")
    said = command(*words)
    assert (said.code, said.err.count("\n")) == (2, 1)
    assert "--trust export_models" in said.err
    assert command(*words, "--trust", "export_models").code == 0


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("make", [Changing, Stuck])
def test_a_model_that_cannot_be_exported_is_one_line_and_leaves_nothing_behind(
    small: dict[str, Any],
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    make: Callable[[], nn.Module],
    kind: str,
) -> None:
    path = own_run(make, tmp_path / "run", small)
    file = tmp_path / f"model.{kind}"
    capfd.readouterr()
    with pytest.raises(ModelError) as caught:
        polyfed.export(path, "client-0", file, make=make)
    said = str(caught.value)
    assert said.startswith(f"client-0's model cannot be exported to model.{kind}: ")
    assert make is Stuck or "a branch in it depends on the values of its rows" in said
    assert "\n" not in said
    assert len(said) < 500
    assert [each.name for each in tmp_path.iterdir()] == ["run"]
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("kind", KINDS)
def test_a_file_whose_answers_are_others_is_not_left_behind(
    cancer: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """As if the exporter had made a mistake: what it writes has other constants than the model was trained with."""
    (tmp_path / f"north.{kind}").write_text("an older one")
    monkeypatch.setattr(exporting, "form_of", _shifted(form_of))
    with pytest.raises(
        ModelError, match=r"cannot be exported to north\.\w+: its answers differ by 0\.\d+ there"
    ):
        export(cancer, "north", tmp_path / f"north.{kind}")
    assert (tmp_path / f"north.{kind}").read_text() == "an older one"


def _shifted(made: Callable[..., Any]) -> Callable[..., Any]:
    """The same form, whose deviations are read as others by whoever writes the file."""

    class Shifted:
        def __init__(self, form: Any) -> None:
            self.form, self.reads = form, 0

        def __getattr__(self, name: str) -> Any:
            value = getattr(self.form, name)
            if name == "std":
                self.reads += 1
                return tuple(2 * each for each in value) if self.reads == 1 else value
            return value

    return lambda *args: Shifted(made(*args))


@pytest.mark.parametrize("kind", ["onnx", "pt"])
def test_numbers_come_out_in_their_own_unit(kind: str, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(80, 4)).astype(np.float32)
    y = 1000 + 250 * x[:, 0]
    task = {"name": "regression", "scale": {"mean": 1000, "std": 250}, "unit_name": "g"}
    done = polyfed.run(
        {"task": task, "rounds": 2, "data": {"clients": 2}, "method": "local"},
        data=(x, y),
        out=tmp_path / "run",
        workers=1,
    )
    file = polyfed.export(done.path, "client-0", tmp_path / f"m.{kind}")
    expected = polyfed.load_model(done.path, "client-0").predict(x).answers
    np.testing.assert_allclose(answers(file, x)[:, 0], expected, rtol=1e-5)
    assert (told(file)["output"], told(file)["unit"]) == ("numbers", "g")


@pytest.mark.parametrize("kind", ["onnx", "pt"])
def test_token_ids_go_in_as_they_are_and_the_threshold_is_told(kind: str, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    ids = rng.integers(0, 9, (60, 4))
    words = np.where(ids[:, 0] > 4, "spam", "ham")
    done = polyfed.run(
        {"rounds": 1, "data": {"clients": 2, "inputs": "tokens"}, "method": "local"},
        task={"name": "binary", "positive": "ham", "threshold": 0.3},
        data=(ids, words),
        models={"net": Looked},
        out=tmp_path / "run",
        workers=1,
    )
    file = polyfed.export(done.path, "client-0", tmp_path / f"m.{kind}", make=Looked)
    expected = polyfed.load_model(done.path, "client-0", make=Looked).predict(ids).probabilities
    np.testing.assert_allclose(answers(file, ids.astype(np.int64)), expected, atol=1e-5)
    assert (told(file)["positive"], told(file)["threshold"]) == ("ham", "0.3")


class Looked(nn.Module):
    """The mean of what is looked up."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(9, 4), nn.Linear(4, 2)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.head(self.words(ids).mean(dim=1))
        return logits
