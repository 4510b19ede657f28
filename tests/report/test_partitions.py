"""Who holds what, as a table."""

from __future__ import annotations

import numpy as np
from tests.report.conftest import Shown
from tests.report.test_tables import rows_of

from polyfed.data import NUMBER_LABELS
from polyfed.report.partitions import grouping_of, partition_table


def test_a_partition_shows_every_class_where_these_are_few() -> None:
    rows = rows_of(partition_table(np.array([[5, 0], [1, 2]]), ["cat", "dog"], ["mlp", "cnn"]))
    assert rows["0"] == {
        "client": "0",
        "model": "mlp",
        "samples": "5",
        "classes": "1",
        "cat": "5",
        "dog": "·",
    }
    assert rows["1"]["dog"] == "2"


def test_a_partition_of_many_classes_and_clients_is_abridged() -> None:
    counts = np.ones((60, 25), dtype=int)
    counts[:, 3] = 26
    table = partition_table(counts, [str(number) for number in range(25)], ["mlp"] * 60)
    rows = rows_of(table)
    assert len(rows) == 51
    assert rows["7"]["largest class"] == "52.0 %"
    assert rows["…"]["model"] == "10 more"
    assert table.title == "60 clients, 3000 samples"


def test_a_partition_whose_rows_are_not_told_apart_shows_samples_alone(shown: Shown) -> None:
    grouping = grouping_of(("rows",), NUMBER_LABELS)
    table = partition_table(np.array([[40], [60]]), ("rows",), ["mlp", "cnn"], ["north", "south"], grouping)
    lines = [line.split() for line in shown(table, 80).splitlines()]
    assert ["client", "model", "samples"] in lines
    assert [line for line in lines if line[1:2] in (["mlp"], ["cnn"])] == [
        ["north", "mlp", "40"],
        ["south", "cnn", "60"],
    ]
