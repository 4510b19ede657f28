"""What tests read of federations."""

from __future__ import annotations

from polyfed.data import DataSet, Rows
from polyfed.runs.cut_data import CutData
from polyfed.runs.federation import Federation


def whole_test(federation: Federation) -> Rows:
    """The whole test set of a federation that has one."""
    rows = federation.holdings.whole_test
    assert rows is not None
    return rows


def dataset(federation: Federation) -> DataSet:
    """The data set that a federation is cut of."""
    assert isinstance(federation.holdings, CutData)
    return federation.holdings.dataset
