"""Cost depends on the cohort, not on the population. (Round times are compared in benchmarks/population.py.)"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import polyfed
from polyfed.runs.cut_data import CutData

CLIENTS = 10_000


@pytest.fixture(scope="module")
def crowd() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    x = rng.integers(0, 256, (CLIENTS * 20, 1, 8, 8), dtype=np.uint8)
    return x, rng.integers(0, 10, len(x))


def peak_memory(*, anew: bool = False) -> int:
    """The most that this process has had in memory so far; or begin anew from what it has now."""
    if anew:
        Path("/proc/self/clear_refs").write_text("5")
    found = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None
    return int(found[1]) * 1024


@pytest.mark.parametrize("test_split", [True, False])
@pytest.mark.parametrize("method", ["fedavg", {"name": "fedavg", "inactive": "cached"}, "local"], ids=str)
def test_ten_thousand_clients_touch_only_the_cohort(
    crowd: tuple[np.ndarray, np.ndarray],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    method: str | dict[str, str],
    test_split: bool,
) -> None:
    seen: set[int] = set()
    split = CutData.split

    def counted(self: CutData, index: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        seen.add(index)
        return split(self, index)

    monkeypatch.setattr(CutData, "split", counted)
    config = {
        "method": method,
        "rounds": 3,
        "data": {"clients": CLIENTS, "partition": {"kind": "iid"}},
        "models": {"names": ["mlp-small"]},
        "cohort": {"count": 10},
        "evaluate": {"clients": 20},
    }
    data: dict[str, Any] = {"train": crowd}
    if test_split:
        data["test"] = (crowd[0][:200], crowd[1][:200])
    before = peak_memory(anew=True)
    done = polyfed.run(config, data=data, out=tmp_path / "run", workers=1)
    assert done.finished
    assert len(seen) <= 3 * 10 + 20 + 1  # the cohorts, those scored, and one for the only architecture
    assert peak_memory() - before < 5e8
    assert len(list((done.path / "states").glob("client-*"))) <= 30
