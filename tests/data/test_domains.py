from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import numpy as np

from polyfed.data import DataSet, Rotated, load, make_partition, prepare, split_client
from polyfed.data.domains import rotate
from polyfed.data.storage import Draft, in_memory

Refuses = Callable[[str], AbstractContextManager[None]]


def cross() -> DataSet:
    """Two 5×5 images: a bar to the right of the middle, and a bar above it."""
    pixels = np.zeros((2, 5, 5, 1), dtype=np.uint8)
    pixels[0, 2, 3:] = 200
    pixels[1, :2, 2] = 200
    return in_memory(Draft("cross", pixels, np.array([0, 1]), ("right", "up")))


def test_a_quarter_turn_by_hand() -> None:
    turned = rotate(cross(), (0.0, 90.0))
    assert np.array_equal(turned.inputs[0], cross().inputs[0])
    assert np.array_equal(turned.inputs[2], cross().inputs[1])  # right becomes up, counter-clockwise
    assert turned.column("domain").tolist() == [0, 0, 1, 1]
    assert turned.column("origin").tolist() == [0, 1, 0, 1]
    assert turned.column_names["domain"] == ("0°", "90°")
    assert turned.labels is not None
    assert turned.labels.tolist() == [0, 1, 0, 1]
    assert turned.mean == cross().mean


def test_without_a_shared_split_every_copy_is_an_origin() -> None:
    assert rotate(cross(), (0.0, 90.0), shared_split=False).column("origin").tolist() == [0, 1, 2, 3]


def test_rotated_mnist_is_split_alike_in_every_domain(real_data: Path) -> None:
    settings = Rotated()
    data = prepare(settings, load("mnist", "test", limit=1000))
    assert prepare(settings, data) is data
    partition = make_partition(settings, data, None, np.random.default_rng(0))
    assert partition.names == ("0°", "20°", "40°", "60°")
    assert partition.sizes.tolist() == [1000] * 4
    origin = data.column("origin")
    tests = []
    for client in range(4):
        rng = np.random.default_rng(9)
        train, _, test = split_client(partition.rows(client), data.need_labels(), 0.1, 0.15, rng, by=origin)
        assert len(test) == 150
        assert not set(origin[train]) & set(origin[test])
        tests.append(set(origin[test].tolist()))
    assert tests[0] == tests[1] == tests[2] == tests[3]
    # rotating moves ink but hardly makes or loses any
    ink = [data.inputs[partition.rows(client)].mean() for client in range(4)]
    assert max(ink) - min(ink) < 0.05 * max(ink)


def test_only_8_bit_images_and_different_angles(refuses: Refuses) -> None:
    floats = in_memory(Draft("f", np.zeros((2, 3), np.float32), np.array([0, 1]), ("a", "b")))
    with refuses("8-bit images"):
        rotate(floats, (0.0,))
    with refuses("must differ"):
        rotate(cross(), (0.0, 0.0))
