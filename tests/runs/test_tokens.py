"""Token ids stay whole numbers: through files and arrays, training, resuming and prediction."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest
import torch
import yaml
from PIL import Image
from torch import Tensor, nn

import polyfed
from polyfed import data
from polyfed.errors import ConfigError, UserError
from polyfed.methods.fedavg import FedAvg
from polyfed.testing import check_method, result_of

WORDS, POSITIONS, CLASSES = 40, 6, 3
RNG = np.random.default_rng(0)
LABELS = RNG.integers(0, CLASSES, 240)
IDS = RNG.integers(0, WORDS, (240, POSITIONS))
IDS[:, 0] = 10 * LABELS + RNG.integers(0, 10, 240)
IDS[0, 1] = WORDS - 1


class Reader(nn.Module):
    """Looks words up; refuses whatever is not int64."""

    def __init__(self, words: int = WORDS) -> None:
        super().__init__()
        self.words = nn.Embedding(words, 8)
        self.head = nn.Linear(8 * POSITIONS, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        assert x.dtype is torch.int64
        out: Tensor = self.head(self.words(x).flatten(1))
        return out


def reader() -> nn.Module:
    return Reader()


BASE: dict[str, Any] = {
    "data": {"inputs": "tokens", "clients": 3, "partition": {"kind": "iid"}},
    "training": {"epochs": 3, "batch": 16, "lr": 0.5},
    "rounds": 2,
}


def table() -> pa.Table:
    columns = {f"t{place}": IDS[:, place] for place in range(POSITIONS)}
    return pa.table({**columns, "label": LABELS})


def with_data(**changes: Any) -> dict[str, Any]:
    return {**BASE, "data": {**BASE["data"], **changes}}


def go(config: dict[str, Any], out: Path, **more: Any) -> polyfed.Run:
    return polyfed.run(config, **{"data": (IDS, LABELS), "models": [reader], "workers": 1, **more}, out=out)


def test_ids_stay_the_whole_numbers_that_they_are() -> None:
    seen = data.load((IDS, LABELS), inputs="tokens")
    assert seen.inputs.dtype == np.int64
    assert seen.rows([0, 5]).inputs().tolist() == IDS[[0, 5]].tolist()
    assert (seen.mean, seen.std) == ((0.0,) * POSITIONS, (1.0,) * POSITIONS)
    assert seen.largest_id == WORDS - 1
    assert seen.notes == ()  # no column of ids looks like an id, nor of another scale
    as_numbers = data.load((IDS, LABELS))
    assert as_numbers.inputs.dtype == np.float32


@pytest.mark.parametrize("kind", ["csv", "parquet", "npz", "arrays"])
def test_every_source_of_columns_gives_the_same_ids(tmp_path: Path, kind: str) -> None:
    source: Any = tmp_path / f"data.{kind}"
    if kind == "csv":
        pyarrow.csv.write_csv(table(), source)
    elif kind == "parquet":
        pyarrow.parquet.write_table(table(), source)
    elif kind == "npz":
        np.savez(source, x=IDS, y=LABELS)
    else:
        source = (torch.from_numpy(IDS), torch.from_numpy(LABELS))
    found = data.load(source, inputs="tokens")
    assert found.rows().inputs().tolist() == IDS.tolist()
    assert found.notes == ()


@pytest.mark.parametrize(
    ("place", "value", "told"),
    [
        ((3, 2), -1, "-1 is not a token id in row 3, column 2: ids are whole numbers from 0"),
        ((4, 1), 2.5, "2.5 is not a token id in row 4, column 1"),
        ((5, 0), np.nan, "a token id is missing in row 5, column 0"),
        ((6, 0), np.inf, "inf is not a token id in row 6, column 0"),
        ((6, 0), 2**40, "is not a token id in row 6, column 0"),
    ],
)
def test_what_is_not_an_id_is_refused_with_its_place(
    tmp_path: Path, place: tuple[int, int], value: float, told: str
) -> None:
    ids = IDS.astype(np.float64)
    ids[place] = value
    with pytest.raises(UserError, match=told):
        go(BASE, tmp_path / "run", data=(ids, LABELS))
    assert not (tmp_path / "run").exists()


def test_a_table_says_the_line_and_the_column(tmp_path: Path) -> None:
    (tmp_path / "ids.csv").write_text("a,b,label\n1,2,x\n3,-4,y\n5,6,x\n")
    with pytest.raises(UserError, match="-4 is not a token id in column 'b', line 3"):
        data.load(tmp_path / "ids.csv", inputs="tokens")


def test_inline_pool_and_resumed_are_one_and_it_learns() -> None:
    # Stacking, too: the share of a padded row is no whole number.
    check_method(
        FedAvg,
        config={**BASE, "rounds": 3, "training": {"epochs": 3, "batch": 16, "lr": 0.2}},
        data=(IDS, LABELS),
        models=[reader],
    )


def test_workers_that_are_spawned_see_the_same_ids() -> None:
    seen = data.load((IDS, LABELS), inputs="tokens").seen_as(classes=("2", "1", "0"))
    again = pickle.loads(pickle.dumps(seen))
    assert again.rows().inputs().equal(seen.rows().inputs())
    assert again.is_tokens


@pytest.mark.parametrize("normalise", ["client", "all"])
def test_ids_cannot_be_normalised(normalise: str) -> None:
    with pytest.raises(ConfigError, match=f"token ids are not normalised: leave normalise={normalise} out"):
        polyfed.prepare({**BASE, "data": {"inputs": "tokens", "normalise": normalise}}, data=(IDS, LABELS))


def test_nobodys_normalisation_is_needed_to_read_new_ids(tmp_path: Path) -> None:
    brought = {"north": (IDS[:100], LABELS[:100]), "south": (IDS[100:], LABELS[100:])}
    data = {"inputs": "tokens", "public": {"source": "share", "share": 0.2}}
    models = {"names": ["reader"], "server": "reader"}
    run = go({**BASE, "data": data, "method": "fedmd", "models": models}, tmp_path / "run", data=brought)
    assert run.config.data.normalise == "none"
    assert len(polyfed.load_model(run.path, "server", reader).predict(IDS[:5]).answers) == 5


@pytest.mark.parametrize("normalise", ["auto", "none"])
def test_clients_bring_ids_of_their_own(tmp_path: Path, normalise: str) -> None:
    brought = {"north": (IDS[:100], LABELS[:100]), "south": (IDS[100:], LABELS[100:])}
    config = {
        **BASE,
        "data": {"inputs": "tokens", "normalise": normalise, "public": {"source": "share", "share": 0.2}},
    }
    run = go({**config, "method": "feddf"}, tmp_path / "run", data=brought)
    assert run.summary["last"]["own"]["mean"] > 0.4  # chance is a third
    public = run.federation.holdings.public
    assert public is not None
    assert public.inputs().dtype is torch.int64  # published rows, put together
    held = run.federation.holdings
    assert held.agreement.largest_id == WORDS - 1
    assert held.agreement.told() == f"{POSITIONS} token ids"


def test_pooled_rows_are_ids(tmp_path: Path) -> None:
    brought = {"north": (IDS[:100], LABELS[:100]), "south": (IDS[100:], LABELS[100:])}
    config = {**BASE, "data": {"inputs": "tokens"}, "method": "pooled"}
    assert go(config, tmp_path / "run", data=brought).summary["last"]["own"]["mean"] > 0.5


def test_ids_of_another_length_are_refused_by_name(tmp_path: Path) -> None:
    brought = {"north": (IDS, LABELS), "south": (IDS[:, :4], LABELS)}
    with pytest.raises(
        UserError, match=r"north: 6 token ids; south: 4 token ids.*pad or cut all to one length"
    ):
        go({**BASE, "data": {"inputs": "tokens"}}, tmp_path / "run", data=brought)


def test_the_model_is_tried_with_the_largest_id_before_the_run(tmp_path: Path) -> None:
    def short() -> nn.Module:
        return Reader(WORDS - 1)

    with pytest.raises(UserError, match=r"model 'short' cannot look up the token id 39.*40 rows or more"):
        go(BASE, tmp_path / "run", models=[short])


def test_the_largest_id_may_be_one_of_public_rows(tmp_path: Path) -> None:
    ids = IDS.copy()
    ids[:, -1] = WORDS
    np.savez(tmp_path / "public.npz", x=ids, y=LABELS)
    public = {"source": str(tmp_path / "public.npz")}
    with pytest.raises(UserError, match="cannot look up the token id 40"):
        go({**with_data(public=public), "method": "feddf"}, tmp_path / "run")


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"method": "fedkf"}, "fedkf learns from inputs that it generates.*token ids"),
        ({"method": "fedorion"}, "noise.*token ids.*method.distillation=false"),
        (
            with_data(public={"source": "noise", "kind": "gaussian", "rows": 10}),
            "data.public.source: noise is numbers, and the data are token ids",
        ),
        ({"models": {"names": ["mlp"]}}, "'mlp' cannot take token ids"),
    ],
)
def test_what_makes_numbers_of_its_own_refuses_ids(
    tmp_path: Path, changes: dict[str, Any], told: str
) -> None:
    models = None if "models" in changes else [reader]
    with pytest.raises(UserError, match=told):
        go({**BASE, **changes}, tmp_path / "run", models=models)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("source", ["digits", "folder"])
def test_images_are_not_ids(tmp_path: Path, image_folder: Callable[[Path], Path], source: str) -> None:
    named = source if source == "digits" else str(image_folder(tmp_path))
    with pytest.raises(UserError, match=r"data.inputs: .* is images, not token ids"):
        polyfed.run(with_data(source=named), models=[reader], out=tmp_path / "run")


@pytest.fixture
def image_folder() -> Callable[[Path], Path]:
    def make(where: Path) -> Path:
        for word in ("a", "b"):
            (where / "images" / word).mkdir(parents=True)
            Image.new("L", (8, 8)).save(where / "images" / word / "0.png")
        return where / "images"

    return make


def test_new_rows_are_ids_too(tmp_path: Path) -> None:
    run = go(BASE, tmp_path / "run")
    model = polyfed.load_model(run.path, "client-0", make=reader)
    assert model.predict(IDS).score is None
    right = np.mean(np.array(model.predict(IDS).classes, dtype=int) == LABELS)
    assert right > 0.6
    with torch.no_grad():
        logits = model(torch.from_numpy(IDS))
    assert logits.argmax(1).tolist() == [int(word) for word in model.predict(IDS).classes]
    with pytest.raises(UserError, match="-5 is not a token id in row 0, column 0"):
        model.predict(IDS - IDS[0, 0] - 5)
    with pytest.raises(UserError, match="cannot look up the token id 139"):
        model.predict(IDS + 100)
    with pytest.raises(UserError, match="6 token ids"):
        model.predict(IDS[:, :3])


def test_a_run_directory_remembers_that_rows_are_ids(tmp_path: Path) -> None:
    pyarrow.csv.write_csv(table(), tmp_path / "ids.csv")
    config = with_data(source=str(tmp_path / "ids.csv"))
    undisturbed = go(config, tmp_path / "one", data=None)
    ready = polyfed.prepare(config, models=[reader], out=tmp_path / "two", workers=1)
    ready.go(lambda run: run.stop())
    ready.close()
    assert yaml.safe_load((ready.path / "config.yaml").read_text())["data"]["inputs"] == "tokens"
    again = polyfed.resume(ready.path, models={"reader": reader}, workers=2)
    assert result_of(again.path)["models"] == result_of(undisturbed.path)["models"]
    model = polyfed.load_model(again.path, "client-1", make=reader)
    assert model.predict(tmp_path / "ids.csv").score is not None
