from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image
from pydantic import ValidationError

from polyfed.data import PublicSettings, Rows, load, make_public, noise
from polyfed.data.domains import rotate
from polyfed.data.public import adapt
from polyfed.data.storage import Draft, StoredDataSet, in_memory

Refuses = Callable[[str], AbstractContextManager[None]]


def rng() -> np.random.Generator:
    return np.random.default_rng(0)


def test_no_public_set_leaves_all_rows_private() -> None:
    data = load("digits")
    public, private = make_public(PublicSettings(), data, rng())
    assert public is None
    assert np.array_equal(private, np.arange(len(data)))


def test_a_share_is_held_out_of_the_private_rows_by_class() -> None:
    data = load("digits")
    public, private = make_public(PublicSettings(source="share", share=0.1), data, rng())
    assert public is not None
    assert len(public) == 144
    assert not set(public.index) & set(private)
    assert len(public) + len(private) == len(data)
    assert (abs(public.class_counts() - data.rows().class_counts() / 10) <= 1).all()


def test_rows_limit_a_share_and_the_rest_stays_private() -> None:
    data = load("digits")
    public, private = make_public(PublicSettings(source="share", share=0.5, rows=30), data, rng())
    assert public is not None
    assert (len(public), len(private)) == (30, len(data) - 30)


def test_a_share_of_rotated_images_takes_all_copies() -> None:
    data = rotate(load("digits", "test"), (0.0, 30.0))
    public, private = make_public(PublicSettings(source="share", share=0.1), data, rng())
    assert public is not None
    assert len(public) == 72
    assert not set(public.column("origin")) & set(data.column("origin")[private])


def test_every_domain_shares_as_much_of_each_class() -> None:
    data = rotate(load("digits", "test"), (0.0, 30.0), shared_split=False)
    settings = PublicSettings(source="share", share=0.25)
    public, _ = make_public(settings, data, rng(), domain="domain")
    assert public is not None
    whole = data.column("domain") * 10 + data.need_labels()
    expected, found = np.bincount(whole) / 4, np.bincount(whole[public.index])
    assert (abs(found - expected) < 1).all()


def test_labels_can_be_hidden(refuses: Refuses) -> None:
    settings = PublicSettings(source="share", share=0.1, labels="none")
    public, _ = make_public(settings, load("digits"), rng())
    assert public is not None
    assert public.inputs().shape == (144, 1, 8, 8)
    with refuses("no labels"):
        _ = public.labels


def test_another_set_is_brought_to_the_private_shape(real_data: Path) -> None:
    private_set = load(real_data / "cifar100" / "test.parquet")
    settings = PublicSettings(source="digits", rows=100)
    public, private = make_public(settings, private_set, rng())
    assert public is not None
    assert public.inputs(torch.channels_last).shape == (100, 3, 32, 32)
    assert len(private) == len(private_set)
    pixels = public.dataset.inputs
    assert np.array_equal(pixels[..., 0], pixels[..., 2])
    assert len(set(public.dataset.mean)) == 1
    assert public.class_counts().tolist() == [10] * 10
    again, _ = make_public(settings, private_set, rng())
    assert again is not None
    assert isinstance(public.dataset, StoredDataSet)
    assert isinstance(again.dataset, StoredDataSet)
    assert again.dataset.folder == public.dataset.folder
    grey = adapt(private_set, load("digits"))
    assert grey.shape == (1, 8, 8)
    # Pillow's grey is the usual luma, 0.299 R + 0.587 G + 0.114 B
    luma = np.array(private_set.mean) @ [0.299, 0.587, 0.114]
    assert grey.rows([0, 1]).inputs().shape == (2, 1, 8, 8)
    assert np.asarray(grey.inputs).mean() / 255 == pytest.approx(luma, abs=0.02)


def test_impossible_public_sets_are_refused(refuses: Refuses) -> None:
    data = load("digits")
    with refuses("some must be public"):
        make_public(PublicSettings(source="share", share=0.0001), data, rng())
    vectors = in_memory(Draft("v", np.zeros((4, 3), np.float32), np.array([0, 1, 0, 1]), ("a", "b")))
    with refuses("only 8-bit images"):
        make_public(PublicSettings(source="digits"), vectors, rng())
    with refuses("there is no data set 'digitz': did you mean 'digits'?"):
        make_public(PublicSettings(source="digitz"), data, rng())


def test_a_public_table_has_the_columns_of_the_private_one_in_their_order(
    tmp_path: Path, refuses: Refuses
) -> None:
    (tmp_path / "mine.csv").write_text("id,a,b,label\n5,1,2,x\n4,3,4,y\n")
    (tmp_path / "public.csv").write_text("city,label,b,a\nUlm,x,20,10\nBonn,y,40,30\n")
    mine = load(tmp_path / "mine.csv", drop=["id"])
    public, _ = make_public(PublicSettings(source=str(tmp_path / "public.csv")), mine, rng())
    assert public is not None
    assert public.dataset.features == ("a", "b")
    assert public.dataset.inputs.tolist() == [[10, 20], [30, 40]]
    (tmp_path / "public.csv").write_text("label,a\nx,10\ny,20\n")
    with refuses("public.csv has no column 'b', which is learnt from"):
        make_public(PublicSettings(source=str(tmp_path / "public.csv")), mine, rng())


def test_public_labels_keep_the_private_numbers_where_some_classes_are_absent(tmp_path: Path) -> None:
    (tmp_path / "mine.csv").write_text("a,label\n1,0\n2,1\n3,2\n")
    (tmp_path / "public.csv").write_text("a,label\n1,0\n2,2\n")
    mine = load(tmp_path / "mine.csv")
    public, _ = make_public(PublicSettings(source=str(tmp_path / "public.csv")), mine, rng())
    assert public is not None
    assert (public.dataset.first_class, public.labels.tolist()) == (0, [0, 2])


def test_a_public_set_of_images_is_decoded_once_whatever_it_is_used_beside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("POLYFED_DATA", str(tmp_path))
    for name in ("a/1.png", "b/2.png"):
        (tmp_path / "folder" / name).parent.mkdir(parents=True)
        Image.fromarray(np.zeros((8, 8), np.uint8)).save(tmp_path / "folder" / name)
    (tmp_path / "mnist").mkdir()
    cells = [(tmp_path / "folder" / name).read_bytes() for name in ("a/1.png", "b/2.png")]
    pq.write_table(pa.table({"image": cells, "label": [0, 1]}), tmp_path / "mnist" / "train.parquet")
    for source in (tmp_path / "folder", "mnist"):
        found = [load(source, like=private) for private in (None, load("digits"))]
        assert len({data.folder for data in found if isinstance(data, StoredDataSet)}) == 1


def test_a_public_set_that_is_the_private_set_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    make_public(PublicSettings(source="digits"), load("digits"), rng())
    assert "private rows are public too" in caplog.text


# -- noise -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", noise.KINDS)
def test_noise_is_a_public_set_without_labels_in_the_normalised_space_of_the_data(
    kind: noise.Kind, tmp_path: Path
) -> None:
    data = load("digits")
    settings = PublicSettings(source="noise", kind=kind, rows=7)
    public, private = make_public(settings, data, rng(), tmp_path)
    assert public is not None
    assert public.dataset.labels is None and public.dataset.classes == ()
    assert np.array_equal(private, np.arange(len(data)))
    stream = torch.Generator().manual_seed(int(rng().integers(2**62)))
    assert torch.equal(public.inputs(), noise.draw(kind, 7, (1, 8, 8), stream, data.limits))
    elsewhere, _ = make_public(settings, data, rng(), tmp_path / "another")
    other, _ = make_public(settings, data, np.random.default_rng(1), tmp_path)
    assert elsewhere is not None and other is not None
    assert elsewhere.dataset.fingerprint == public.dataset.fingerprint != other.dataset.fingerprint


def test_noise_beside_feature_vectors_is_gaussian(refuses: Refuses) -> None:
    inputs = np.array([[0, 50], [2, 70], [4, 90], [6, 110]], np.float32)
    vectors = in_memory(Draft("v", inputs, np.array([0, 1, 0, 1]), ("a", "b")))
    public, _ = make_public(PublicSettings(source="noise", kind="gaussian", rows=2000), vectors, rng())
    assert public is not None
    assert public.inputs().shape == (2000, 2)
    assert public.inputs().std(dim=0).tolist() == pytest.approx([1, 1], abs=0.05)
    with refuses("'dead-leaves' noise is images, and here are rows of 2 numbers: use gaussian"):
        make_public(PublicSettings(source="noise", kind="dead-leaves", rows=5), vectors, rng())


# -- other classes -------------------------------------------------------------------------------------------


def written(path: Path, words: Sequence[str], rows: int = 40) -> str:
    """An .npz of images of 8×8 whose labels are these words in turn."""
    images = np.random.default_rng(0).integers(256, size=(rows, 8, 8), dtype=np.uint8)
    np.savez(path, x=images, y=np.array([words[row % len(words)] for row in range(rows)]))
    return str(path)


def things(count: int) -> list[str]:
    return [f"thing-{number:02}" for number in range(count)]


DIGITS = [str(number) for number in range(10)]


def public_beside_digits(source: str, **settings: Any) -> Rows:
    public, _ = make_public(PublicSettings(source=source, **settings), load("digits"), rng())
    assert public is not None
    return public


def test_other_classes_are_numbered_behind_the_private_ones(tmp_path: Path) -> None:
    public = public_beside_digits(written(tmp_path / "other.npz", things(20)))
    assert sorted(set(public.labels.tolist())) == list(range(10, 30))
    assert public.dataset.first_class == 10
    assert public.dataset.classes == tuple(things(20))
    assert public.class_counts().tolist() == [2] * 20
    alone = load(tmp_path / "other.npz").rows(public.index)
    assert torch.equal(public.labels, alone.labels + 10)
    assert torch.equal(public.inputs(), alone.inputs())
    assert public.dataset.fingerprint != alone.dataset.fingerprint


def test_classes_of_the_same_names_keep_their_numbers(tmp_path: Path) -> None:
    public = public_beside_digits(written(tmp_path / "same.npz", DIGITS))
    assert sorted(set(public.labels.tolist())) == list(range(10))
    assert public.dataset.first_class == 0


@pytest.mark.parametrize(
    ("words", "classes", "first"),
    [(DIGITS, "other", 10), (DIGITS, "same", 0), (things(10), "same", 0), (things(3), "same", 0)],
    ids=["the same as other", "the same", "other as the same", "fewer as the same"],
)
def test_whether_classes_are_the_same_can_be_told(
    tmp_path: Path, words: list[str], classes: str, first: int
) -> None:
    public = public_beside_digits(written(tmp_path / "set.npz", words), classes=classes)
    assert public.dataset.first_class == first
    assert int(public.labels.min()) == first


def test_more_public_classes_than_private_cannot_be_the_same(tmp_path: Path, refuses: Refuses) -> None:
    source = written(tmp_path / "more.npz", things(20))
    with refuses("they cannot mean the same (data.public.classes)"):
        public_beside_digits(source, classes="same")


def test_without_labels_there_are_no_other_classes(tmp_path: Path) -> None:
    source = written(tmp_path / "more.npz", things(20))
    assert public_beside_digits(source, labels="none").dataset.first_class == 0
    assert public_beside_digits("share", share=0.1).dataset.first_class == 0


@pytest.mark.parametrize(
    "wrong",
    [
        *(
            {"source": "share"},
            {"share": 0.1},
            {"source": "share", "share": 1.0},
            {"rows": 0},
            {"sauce": "none"},
        ),
        *({"source": "noise", "kind": "gaussian"}, {"source": "noise", "rows": 5}, {"kind": "gaussian"}),
        {"source": "noise", "kind": "pink", "rows": 5},
    ],
)
def test_settings_are_checked(wrong: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        PublicSettings.model_validate(wrong)
