"""Learning through public data is worth it: on the whole test set, clients know more than each would alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import polyfed

FEDERATION: dict[str, Any] = {
    "rounds": 4,
    "seed": 0,  # chosen before anything was run
    "data": {
        "clients": 8,
        "partition": {"kind": "dirichlet", "alpha": 0.3},
        "public": {"source": "share", "share": 0.3},
    },
    "models": {"names": ["mlp-small", "mlp", "cnn-small", "cnn"], "server": "cnn"},
    "training": {"epochs": 2, "lr": 0.05, "batch": 16},
    "evaluate": {"every": 4},
}
MARGIN = 0.03
LOCAL_ROUNDS = 9
"""As many epochs on private data as FedMD has in all, 10 before and 2 in each of 4 rounds; the others have fewer."""


def reached(method: str | dict[str, Any], out: Path, **changes: Any) -> dict[str, Any]:
    """What the last round has come to."""
    done = polyfed.run({**FEDERATION, **changes}, method=method, out=out, workers=1)
    last: dict[str, Any] = done.summary["last"]
    return last


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> float:
    """The mean over clients of their accuracy on the whole test set, each having learnt alone."""
    folder = tmp_path_factory.mktemp("local") / "run"
    last = reached("local", folder, rounds=LOCAL_ROUNDS, evaluate={"every": LOCAL_ROUNDS})
    mean: float = last["whole"]["mean"]
    return mean


@pytest.mark.parametrize(
    "method",
    [
        {"name": "fedmd", "public_training": None},
        {"name": "fedmd", "public_training": {"epochs": 3}},
        {"name": "feddf"},
        {"name": "dsfl"},
        {"name": "fdmeta"},
        {"name": "ktpfl"},
        {"name": "cronus"},
    ],
    ids=["fedmd", "fedmd with public labels", "feddf", "dsfl", "fdmeta", "ktpfl", "cronus"],
)
def test_clients_know_more_of_the_whole_than_alone(
    method: dict[str, Any], local: float, tmp_path: Path
) -> None:
    """And so does the server's model, or the ensemble of them, where there is one."""
    last = reached(method, tmp_path / "run")
    assert last["whole"]["mean"] > local + MARGIN
    for accuracy in last.get("server", {}).values():
        assert accuracy > local + MARGIN
