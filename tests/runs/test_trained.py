"""A model of a run applied to new data: raw rows or images in, classes and probabilities out."""

from __future__ import annotations

import copy
import csv
import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from numpy.typing import NDArray
from PIL import Image
from sklearn import metrics as reference
from tests.conftest import Command
from tests.readers import dataset
from torch import nn

import polyfed
from polyfed.errors import DataError
from polyfed.runs.checkpoint import DESCRIPTION, read_manifest
from polyfed.runs.trained import TrainedModel

Columns = dict[str, NDArray[Any]]


# -- tables --------------------------------------------------------------------------------------------------


def patients(count: int, seed: int) -> Columns:
    """Columns of very different scales, and what came of it."""
    rng = np.random.default_rng(seed)
    ill = rng.integers(0, 2, count)
    return {
        "income": 1e6 + 1e5 * (ill + 0.4 * rng.normal(size=count)),
        "dose": 1e-4 * (ill + 0.4 * rng.normal(size=count)),
        "age": rng.integers(0, 90, count),
        "clinic": np.array(["north", "south"])[rng.integers(0, 2, count)],
        "outcome": np.array(["healthy", "ill"])[ill],
        "id": np.arange(count),
    }


def write(path: Path, columns: Columns, names: list[str]) -> Path:
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(names)
        writer.writerows(zip(*(columns[name].tolist() for name in names), strict=True))
    return path


TRAINED_ON = ["income", "dose", "age"]
CLINICS: dict[str, Any] = {
    "method": "local",
    "rounds": 3,
    "data": {
        "source": "train.csv",
        "label": "outcome",
        "partition": {"kind": "natural", "column": "clinic"},
    },
    "models": {"names": ["mlp-small"]},
}


@pytest.fixture(scope="module")
def clinics(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a finished run over a table."""
    folder = tmp_path_factory.mktemp("clinics")
    source = write(folder / "train.csv", patients(300, 0), [*TRAINED_ON, "clinic", "outcome"])
    content = {**CLINICS, "data": {**CLINICS["data"], "source": str(source)}}
    return polyfed.run(content, out=folder / "run", workers=1).path


def test_predict_prints_the_metrics_that_are_asked_for(
    clinics: Path, command: Command, tmp_path: Path
) -> None:
    new = patients(40, 1)
    write(tmp_path / "new.csv", new, [*TRAINED_ON, "outcome"])
    found = polyfed.load_model(clinics, "north").predict(tmp_path / "new.csv")
    true, said = np.array(new["outcome"]), np.array(found.classes)
    expected = {
        "recall": reference.recall_score(true, said, average="macro"),
        "pr-auc": np.mean(
            [reference.average_precision_score(true == word, found.probabilities[:, place])
             for place, word in enumerate(found.words)]
        ),
        "fbeta_score(beta=2)": reference.fbeta_score(true, said, beta=2, average="macro"),
    }  # fmt: skip
    asked = ["recall", "pr-auc", {"name": "fbeta_score", "beta": 2}]
    assert found.metrics(asked) == pytest.approx(expected)
    assert found.metrics("confusion")["confusion"] == reference.confusion_matrix(true, said).tolist()
    printed = command("predict", clinics, "--client", "north", "new.csv", "--metrics", "recall,pr-auc,mcc")
    lines = printed.err.splitlines()
    assert lines[1:3] == [
        f"recall {100 * expected['recall']:.1f} %",
        f"PR-AUC {100 * expected['pr-auc']:.1f} %",
    ]
    assert lines[3].startswith("MCC ") and "%" not in lines[3]
    settings = command(
        "predict", clinics, "--client", "north", "new.csv", "--metrics", "[{name: fbeta_score, beta: 2}]"
    )
    assert f"fbeta_score(beta=2) {expected['fbeta_score(beta=2)']:.4g}\n" in settings.err
    known = polyfed.load_model(clinics, "north").predict({**new, "outcome": np.array(["ill", *[""] * 39])})
    assert known.metrics("auc, recall")["auc"] is None


@pytest.mark.parametrize(
    ("names", "reason"),
    [
        ("recal", "unknown metric 'recal'; did you mean 'recall'?"),
        ("mae", "mae is for regression, not for task=classification: use balanced-accuracy"),
    ],
)
def test_metrics_that_cannot_be_computed_of_predictions_are_refused(
    clinics: Path, command: Command, tmp_path: Path, names: str, reason: str
) -> None:
    write(tmp_path / "new.csv", patients(10, 1), [*TRAINED_ON, "outcome"])
    said = command("predict", clinics, "--client", "north", "new.csv", "--metrics", names)
    assert (said.code, said.out, said.err.count("\n")) == (2, "", 1)
    assert reason in said.err
    write(tmp_path / "blind.csv", patients(10, 1), [*TRAINED_ON])
    blind = command("predict", clinics, "--client", "north", "blind.csv", "--metrics", "recall")
    assert (blind.code, blind.err) == (
        2,
        "polyfed: --metrics recall: blind.csv does not say what is true of any row\n",
    )


def test_predictions_for_raw_rows_with_shuffled_columns_are_the_models_own_by_hand(
    command: Command, tmp_path: Path
) -> None:
    """From the command line alone: train, predict; the arithmetic is done again here, without polyfed's reading."""
    trained_on, new = patients(300, 0), patients(40, 1)
    write(tmp_path / "train.csv", trained_on, [*TRAINED_ON, "clinic", "outcome"])
    write(tmp_path / "new.csv", new, ["id", "age", "outcome", "dose", "income"])
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(CLINICS))
    assert command("run", "run.yaml", "--out", "run", "--workers", 1).code == 0
    said = command("predict", "run", "--client", "south", "new.csv", "--out", "predictions.csv")
    assert said.code == 0

    raw = np.stack([new[name] for name in TRAINED_ON], axis=1)
    known = np.stack([trained_on[name] for name in TRAINED_ON], axis=1)
    normalised = (raw - known.mean(axis=0)) / known.std(axis=0)
    model = polyfed.load_model("run", "south")
    with torch.no_grad():
        expected = model(torch.tensor(normalised, dtype=torch.float32)).softmax(dim=1).numpy()

    lines = list(csv.DictReader((tmp_path / "predictions.csv").read_text().splitlines()))
    assert list(lines[0]) == ["row", "class", "p(healthy)", "p(ill)"]
    assert [line["row"] for line in lines] == [str(row) for row in range(40)]
    found = np.array([[float(line["p(healthy)"]), float(line["p(ill)"])] for line in lines])
    np.testing.assert_allclose(found, expected, atol=1e-5)
    words = [("healthy", "ill")[place] for place in expected.argmax(axis=1)]
    assert [line["class"] for line in lines] == words
    right = sum(said == true for said, true in zip(words, new["outcome"], strict=True))
    assert right > 30
    assert f"accuracy {100 * right / 40:.1f} % ({right} of 40 rows)" in said.out


def test_the_table_alone_is_printed_and_without_labels_there_is_no_accuracy(
    command: Command, clinics: Path, tmp_path: Path
) -> None:
    write(tmp_path / "new.csv", patients(5, 1), TRAINED_ON)
    blind = command("predict", clinics, "--client", "north", "new.csv")
    assert blind.out.splitlines()[0] == "row,class,p(healthy),p(ill)"
    assert len(blind.out.splitlines()) == 6
    assert not blind.err
    write(tmp_path / "new.csv", patients(5, 1), [*TRAINED_ON, "outcome"])
    labelled = command("predict", clinics, "--client", "north", "new.csv")
    assert labelled.out == blind.out
    assert "of 5 rows)" in labelled.err


def test_a_parquet_table_arrays_and_columns_say_the_same_as_a_csv_file(clinics: Path, tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet

    new = patients(7, 2)
    model = polyfed.load_model(clinics, "north")
    expected = model.predict(write(tmp_path / "new.csv", new, [*reversed(TRAINED_ON)]))
    pa.parquet.write_table(
        pa.table({name: new[name] for name in ("age", *TRAINED_ON[:2])}), tmp_path / "n.parquet"
    )
    rows = np.stack([new[name] for name in TRAINED_ON], axis=1)
    np.savez(tmp_path / "new.npz", x=rows, y=new["outcome"])
    for source in (
        tmp_path / "n.parquet",
        str(tmp_path / "new.npz"),
        rows,
        torch.tensor(rows),
        new,
        (rows, None),
    ):
        found = model.predict(source)
        assert found.classes == expected.classes
        np.testing.assert_array_equal(found.probabilities, expected.probabilities)
    assert model.predict(tmp_path / "new.npz").score == model.predict((rows, new["outcome"])).score
    assert expected.probabilities.shape == (7, 2)
    np.testing.assert_allclose(expected.probabilities.sum(axis=1), 1, rtol=1e-6)


def test_rows_whose_label_training_did_not_know_are_left_out_of_the_accuracy(clinics: Path) -> None:
    new = patients(10, 3)
    labels: list[Any] = new["outcome"].tolist()
    model = polyfed.load_model(clinics, "north")
    found = model.predict({**new, "outcome": np.array([*labels[:8], "dead", ""])})
    assert found.score is not None and found.tally is not None and found.tally[1] == 8
    assert model.predict({**new, "outcome": np.array(["dead"] * 10)}).score is None


def mistakes() -> dict[str, tuple[Columns, list[str], str]]:
    new = patients(4, 1)
    hole = {**new, "dose": np.array(["0.1", "", "0.2", "0.3"])}
    words = {**new, "age": np.array(["old", "young", "old", "old"])}
    return {
        "a column is missing": (
            new,
            ["income", "age"],
            "new.csv has no column 'dose': the model was trained on income",
        ),
        "two are missing": (new, ["age"], "no column 'income' (and 1 more)"),
        "a number is missing": (
            hole,
            TRAINED_ON,
            "column 'dose': a number is missing (NaN) or infinite in row 1",
        ),
        "no rows": ({name: new[name][:0] for name in new}, TRAINED_ON, "new.csv: there are no rows in it"),
        "words": (words, TRAINED_ON, "column 'age': there must be a number in every row, not text"),
    }


@pytest.mark.parametrize("what", list(mistakes()))
def test_a_wrong_table_is_one_line_that_names_the_column(
    command: Command, clinics: Path, tmp_path: Path, what: str
) -> None:
    columns, names, message = mistakes()[what]
    write(tmp_path / "new.csv", columns, names)
    said = command("predict", clinics, "--client", "north", "new.csv")
    assert said.code == 2
    assert message in said.err
    assert len(said.err.splitlines()) == 1
    assert not said.out


def test_arrays_of_a_wrong_shape_or_with_nan_are_refused(clinics: Path) -> None:
    model = polyfed.load_model(clinics, "north")
    for rows, message in (
        (np.ones((3, 2)), "inputs are 3×2, but the model takes rows of 3 numbers"),
        (np.ones(3), "inputs are 3, but"),
        (np.array([[1, 2, 3], [1, np.nan, 3]]), r"in row 1, column 'dose'"),
        (np.ones((0, 3)), "no rows"),
        ((np.ones((2, 3)), np.array(["ill"])), "2 rows, but 1 labels"),
        (
            {"income": [1, 2], "dose": [1, 2, 3], "age": [1, 2]},
            "column 'dose': 3 values, not one for each of 2 rows",
        ),
        ({"income": [1, 2], "dose": [[1], [2]], "age": [1, 2]}, "column 'dose': 2×1 values"),
        ({"income": [], "dose": [], "age": []}, "no rows"),
    ):
        with pytest.raises(DataError, match=message):
            model.predict(rows)


# -- images --------------------------------------------------------------------------------------------------


def pictures(folder: Path, count: int, seed: int, side: int = 8, mode: str = "RGB") -> Path:
    """Images in a folder for each class: bright ones above, or bright ones below."""
    rng = np.random.default_rng(seed)
    for number in range(count):
        word = ("above", "below")[number % 2]
        pixels = rng.integers(0, 120, (side, side, 3), dtype=np.uint8)
        pixels[: side // 2] += np.uint8(100 if word == "above" else 0)
        pixels[side // 2 :] += np.uint8(100 if word == "below" else 0)
        (folder / word).mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).convert(mode).save(folder / word / f"{number}.png")
    return folder


@pytest.fixture(scope="module")
def photographs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("photographs")
    pictures(folder / "train", 80, 0)
    content = {
        "method": "fedavg",
        "rounds": 3,
        "data": {"source": str(folder / "train"), "clients": 2, "partition": {"kind": "iid"}},
        "models": {"names": ["mlp-small"]},
    }
    return polyfed.run(content, out=folder / "run", workers=1).path


def test_a_folder_of_images_is_predicted_as_by_hand(
    command: Command, photographs: Path, tmp_path: Path
) -> None:
    pictures(tmp_path / "new", 10, 1)
    said = command("predict", photographs, "--client", "client-1", "new", "--out", "p.csv")
    assert said.code == 0
    assert "of 10 rows)" in said.out
    lines = list(csv.DictReader((tmp_path / "p.csv").read_text().splitlines()))

    seen = sorted((photographs.parent / "train").rglob("*.png"))
    levels = np.stack([np.asarray(Image.open(file)) for file in seen]) / 255
    files = sorted((tmp_path / "new").rglob("*.png"))
    new = np.stack([np.asarray(Image.open(file)) for file in files]) / 255
    x = (new - levels.mean(axis=(0, 1, 2))) / levels.std(axis=(0, 1, 2))
    with torch.no_grad():
        model = polyfed.load_model(photographs, "client-1")
        expected = model(torch.tensor(x.transpose(0, 3, 1, 2), dtype=torch.float32)).softmax(dim=1).numpy()
    assert [line["row"] for line in lines] == [str(file.relative_to(tmp_path / "new")) for file in files]
    found = np.array([[float(line["p(above)"]), float(line["p(below)"])] for line in lines])
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_images_of_another_size_are_resized_and_grey_ones_made_colour(
    photographs: Path, tmp_path: Path
) -> None:
    model = polyfed.load_model(photographs, "client-0")
    for side, mode in ((24, "RGB"), (8, "L"), (24, "L")):
        found = model.predict(pictures(tmp_path / f"{side}{mode}", 8, 1, side, mode))
        score = found.score
        assert score is not None and score >= 7 / 8
    one = next((tmp_path / "24L").rglob("*.png"))
    assert list(model.predict(one).rows) == [one.name]
    assert model.predict([one, one]).classes == [*model.predict(one).classes] * 2
    flat = tmp_path / "flat"
    flat.mkdir()
    one.rename(flat / "a.png")
    assert model.predict(flat).labels is None


def test_arrays_of_other_channels_floats_or_tables_are_refused_for_images(
    photographs: Path, tmp_path: Path
) -> None:
    model = polyfed.load_model(photographs, "client-0")
    eight_bit = np.zeros((2, 8, 8, 3), dtype=np.uint8)
    for rows, message in (
        (eight_bit[..., :1], "2×8×8×1, but the model takes 8-bit images of 8×8 with 3 channels"),
        (eight_bit / 255, "float64, but the model takes 8-bit images"),
        (eight_bit + np.int64(256), "values from 0 to 255"),
        ({"a": np.ones(2)}, "columns, but the model was trained on 8-bit images"),
        (tmp_path, "no images"),
        (tmp_path / "none", "no file or folder"),
    ):
        with pytest.raises(DataError, match=message):
            model.predict(rows)
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(DataError, match="give a file that ends in"):
        model.predict(tmp_path / "notes.txt")
    (tmp_path / "broken.png").write_bytes(b"no image")
    with pytest.raises(DataError, match="cannot be read as an image"):
        model.predict(tmp_path / "broken.png")


def test_images_in_a_parquet_table_are_predicted(photographs: Path, tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet

    files = sorted(pictures(tmp_path / "new", 4, 1).rglob("*.png"))
    pa.parquet.write_table(
        pa.table({"image": [file.read_bytes() for file in files]}), tmp_path / "new.parquet"
    )
    model = polyfed.load_model(photographs, "client-0")
    assert model.predict(tmp_path / "new.parquet").classes == model.predict(files).classes


def test_digits_given_as_arrays_are_predicted_as_by_hand(small: dict[str, Any], tmp_path: Path) -> None:
    done = polyfed.run(small, method="local", out=tmp_path / "run", workers=1)
    data = dataset(done.federation)
    model = polyfed.load_model(done.path, "client-2")
    x = (data.inputs[:20, ..., 0] / 255 - data.mean[0]) / data.std[0]
    with torch.no_grad():
        logits = model(torch.tensor(x, dtype=torch.float32)[:, None])
    for rows in (data.inputs[:20], data.inputs[:20, ..., 0], data.inputs[:20].astype(np.int64)):
        found = model.predict(rows)
        np.testing.assert_allclose(found.probabilities, logits.softmax(dim=1).numpy(), atol=1e-5)
        assert found.classes == [model.classes[place] for place in logits.argmax(dim=1).tolist()]
    assert model.predict((data.inputs[:20], data.labels[:20])).score is not None  # type: ignore[index]


def test_images_that_were_given_as_floats_are_taken_as_they_are(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(60, 1, 8, 8)).astype(np.float32)
    done = polyfed.run(
        {"data": {"clients": 2}, "models": {"names": ["mlp-small"]}},
        rounds=1,
        data=(torch.tensor(x), torch.arange(60) % 3),
        out=tmp_path / "run",
        workers=1,
    )
    model = polyfed.load_model(done.path, "client-0")
    with torch.no_grad():
        expected = model(torch.tensor(x[:4])).softmax(dim=1).numpy()
    np.testing.assert_allclose(model.predict(torch.tensor(x[:4])).probabilities, expected, atol=1e-6)
    with pytest.raises(DataError, match="normalised floats"):
        model.predict(np.zeros((1, 8, 8, 1), dtype=np.uint8))
    Image.fromarray(np.zeros((8, 8), dtype=np.uint8)).save(tmp_path / "a.png")
    with pytest.raises(
        DataError, match=r"a\.png is an image, but the model takes images as normalised floats"
    ):
        model.predict(tmp_path / "a.png")


# -- which model, which classes --------------------------------------------------------------------------------


def test_the_servers_model_predicts_too_and_only_private_classes_are_answers(tmp_path: Path) -> None:
    """FedMD trains on public labels of other classes: its models have outputs for these too."""
    rng = np.random.default_rng(0)
    np.savez(tmp_path / "public.npz", x=rng.integers(0, 256, (40, 8, 8), dtype=np.uint8), y=np.arange(40) % 4)
    content: dict[str, Any] = {
        "method": {"name": "fedmd", "public_training": {"epochs": 1}, "private_training": {"epochs": 1}},
        "rounds": 1,
        "data": {
            "limit": 200,
            "clients": 2,
            "public": {"source": str(tmp_path / "public.npz"), "classes": "other"},
        },
        "models": {"names": ["mlp-small"], "server": "mlp-small"},
    }
    done = polyfed.run(content, out=tmp_path / "run", workers=1)
    said = json.loads((done.path / DESCRIPTION).read_text())
    assert said["classes"] == [str(number) for number in range(10)]
    assert said["outputs"] == [*said["classes"], "0", "1", "2", "3"]
    rows = dataset(done.federation).inputs[:30]
    for name in ("client-1", "server"):
        model = polyfed.load_model(done.path, name)
        found = model.predict(rows)
        assert found.probabilities.shape == (30, 10)
        np.testing.assert_allclose(found.probabilities.sum(axis=1), 1, rtol=1e-5)


class Odd(nn.Module):
    """A user's model with attributes that are also called `classes` and `predict`."""

    def __init__(self) -> None:
        super().__init__()
        self.classes = 10
        self.layer = nn.Linear(64, self.classes)

    def predict(self, x: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.layer(x.flatten(1))
        return logits

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        assert self.classes == 10
        return self.predict(x)


class Odder(nn.Module):
    """One whose layers are called so."""

    def __init__(self) -> None:
        super().__init__()
        self.predict = nn.Flatten()
        self.classes = nn.Linear(64, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.classes(self.predict(x))
        return logits


def linear() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))


def test_own_models_predict_once_they_are_made_and_the_command_line_says_so(
    command: Command, small: dict[str, Any], tmp_path: Path
) -> None:
    del small["models"]
    done = polyfed.run(small, models={"mine": linear}, out=tmp_path / "run", workers=1)
    rows = dataset(done.federation).inputs[:3]
    model = polyfed.load_model(done.path, "client-0", make=linear)
    assert len(model.predict(rows)) == 3
    np.savez(tmp_path / "new.npz", x=rows)
    said = command("predict", "run", "--client", "client-0", "new.npz")
    assert said.code == 2
    assert len(said.err.splitlines()) == 1
    assert (
        "'mine', a model of your own: from Python, polyfed.load_model('run', 'client-0', make=…)" in said.err
    )


def test_a_model_keeps_what_it_has_of_its_own(small: dict[str, Any], tmp_path: Path) -> None:
    del small["models"]
    done = polyfed.run(small, models={"odd": Odd}, out=tmp_path / "run", workers=1)
    model = polyfed.load_model(done.path, "client-0", make=Odd)
    assert model(torch.zeros(2, 1, 8, 8)).shape == (2, 10)
    assert model.classes == 10  # type: ignore[comparison-overlap]
    done = polyfed.run(small, models={"odder": Odder}, out=tmp_path / "other", workers=1)
    odder = polyfed.load_model(done.path, "client-0", make=Odder)
    assert odder(torch.zeros(2, 1, 8, 8)).shape == (2, 10)


def test_a_loaded_model_is_a_module_as_before_and_can_be_copied_and_pickled(clinics: Path) -> None:
    model = polyfed.load_model(clinics, "north")
    assert isinstance(model, TrainedModel)
    assert type(model).__name__ == "MLP"
    assert not model.training
    assert list(model.state_dict()) == ["body.1.weight", "body.1.bias", "head.weight", "head.bias"]
    rows = np.ones((2, 3))
    expected = model.predict(rows).probabilities
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert other is not model
        np.testing.assert_array_equal(other.predict(rows).probabilities, expected)
        with torch.no_grad():
            next(other.parameters()).zero_()
    np.testing.assert_array_equal(model.predict(rows).probabilities, expected)


# -- what the run directory says -------------------------------------------------------------------------------


def test_a_run_directory_says_what_its_data_are(clinics: Path) -> None:
    said = json.loads((clinics / DESCRIPTION).read_text())
    known = patients(300, 0)
    means = [float(np.mean(known[name].astype(np.float32), dtype=np.float64)) for name in TRAINED_ON]
    mean, std = said.pop("constants")
    assert mean == pytest.approx(means)
    assert len(std) == 3
    assert list(said.pop("fingerprints")) == ["training", "test", "public"]
    assert said == {
        "clients": ["north", "south"],
        "partition_column": "clinic",
        "outputs": ["healthy", "ill"],
        "shape": [3],
        "features": TRAINED_ON,
        "scaled": False,
        "classes": ["healthy", "ill"],
        "label_columns": ["outcome"],
        "image": None,
        "whole_test": "clients",
        "measure": {"measure": "accuracy", "unit": "%", "smaller_is_better": False},
    }


def test_it_is_there_from_the_very_start(small: dict[str, Any], tmp_path: Path) -> None:
    run = polyfed.prepare(small, out=tmp_path / "run", workers=1)
    run.open()
    assert "description" in read_manifest(run.path)
    assert json.loads((run.path / DESCRIPTION).read_text())["clients"] is None
    run.close()
