from __future__ import annotations

import pickle
from collections.abc import Callable
from contextlib import AbstractContextManager

import numpy as np
import pytest
import torch

from polyfed.data import DataSet
from polyfed.data.storage import Draft, in_memory

Refuses = Callable[[str], AbstractContextManager[None]]


def small(channels: int = 3, rows: int = 12) -> DataSet:
    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 256, (rows, 4, 5, channels), dtype=np.uint8)
    return in_memory(Draft("small", pixels, np.arange(rows) % 3, ("a", "b", "c")))


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_inputs_are_normalised_in_the_wanted_layout(channels: int, layout: torch.memory_format) -> None:
    data = small(channels)
    index = np.array([7, 0, 3])
    x = data.rows(index).inputs(layout)
    by_hand = (data.inputs[index] / 255.0 - np.array(data.mean)) / np.array(data.std)  # N×H×W×C
    assert x.dtype == torch.float32
    assert x.shape == (3, *data.shape)
    assert x.is_contiguous(memory_format=layout)
    np.testing.assert_allclose(x.numpy(), by_hand.transpose(0, 3, 1, 2), atol=1e-6)


def test_constants_are_mean_and_deviation_of_each_channel_in_unit_scale() -> None:
    pixels = np.zeros((2, 1, 1, 3), dtype=np.uint8)
    pixels[0, 0, 0] = [0, 51, 9]
    pixels[1, 0, 0] = [255, 153, 9]
    data = in_memory(Draft("two", pixels, np.array([0, 1]), ("a", "b")))
    # channel 0: 0 and 1; channel 1: 0.2 and 0.6; channel 2 is constant, so its deviation counts as 1
    assert data.mean == pytest.approx((0.5, 0.4, 9 / 255))
    assert data.std == pytest.approx((0.5, 0.2, 1.0))


def test_images_are_grey_or_in_colour() -> None:
    assert [small(channels).mode for channels in (1, 3)] == ["L", "RGB"]
    assert in_memory(Draft("f", np.zeros((2, 3), np.float32), None, ())).mode is None


def test_features_are_normalised_one_by_one() -> None:
    data = in_memory(Draft("f", np.array([[1, 5], [3, 5]], np.float32), np.array([0, 1]), ("a", "b")))
    assert data.shape == (2,)
    assert data.rows().inputs().tolist() == [[-1.0, 0.0], [1.0, 0.0]]


def test_rows_of_rows_by_slice_numbers_tensor_and_mask() -> None:
    rows = small().rows([5, 6, 7, 8])
    assert rows[1:3].index.tolist() == [6, 7]
    assert rows[[3, 0]].index.tolist() == [8, 5]
    assert rows[torch.tensor([2])].index.tolist() == [7]
    assert rows[np.array([True, False, False, True])].index.tolist() == [5, 8]
    assert rows[[]].inputs().shape == (0, 3, 4, 5)


def test_labels_and_class_counts() -> None:
    rows = small().rows([0, 3, 4])
    x, y = rows.tensors()
    assert (len(x), y.tolist(), y.dtype) == (3, [0, 0, 1], torch.int64)
    assert rows.class_counts().tolist() == [2, 1, 0]
    assert rows.class_counts(5).tolist() == [2, 1, 0, 0, 0]


def test_the_index_is_a_copy_that_no_one_can_change() -> None:
    mine = np.array([1, 2])
    rows = small().rows(mine)
    mine[0] = 9
    assert rows.index.tolist() == [1, 2]
    with pytest.raises(ValueError, match="read-only"):
        rows.index[0] = 3


def test_bad_rows_and_missing_labels_are_refused(refuses: Refuses) -> None:
    with refuses("go from 0 to 11"):
        small().rows([12])
    with refuses("go from 0 to 11"):
        small().rows([-1])
    with refuses("no labels"):
        _ = small().without_labels().rows([1]).labels
    with refuses("has no column 'domain'"):
        small().column("domain")


def test_another_process_gets_the_arrays_of_a_set_that_is_only_in_memory() -> None:
    data = small().with_labels_from(5)
    back = pickle.loads(pickle.dumps(data))
    assert np.array_equal(back.inputs, data.inputs)
    assert np.array_equal(back.need_labels(), np.arange(12) % 3 + 5)
    assert (back.fingerprint, back.first_class) == (data.fingerprint, 5)


def test_the_fingerprint_depends_on_every_part() -> None:
    def make(pixel: int = 0, label: int = 0, word: str = "a", code: int = 0) -> str:
        pixels = np.full((2, 2, 2, 1), pixel, dtype=np.uint8)
        labels = np.array([label, 1])
        return in_memory(Draft("x", pixels, labels, (word, "b"), {"c": np.array([code, 0])})).fingerprint

    assert make() == make()
    assert len({make(), make(pixel=1), make(label=1), make(word="z"), make(code=1)}) == 5
