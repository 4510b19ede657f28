"""Noise as the public set: every method that distils learns through it, and a run on it is resumed to the same bits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.readers import dataset

import polyfed
from polyfed.data import noise
from polyfed.runs.config import read_config
from polyfed.runs.setup import set_up
from polyfed.testing import result_of

METHODS: dict[str, dict[str, Any]] = {
    "fedmd": {"public_training": None, "global": False},
    "dsfl": {},
    "ktpfl": {},
    "feddf": {},
}


def config(small: dict[str, Any], method: str, kind: str) -> dict[str, Any]:
    public = {"source": "noise", "kind": kind, "rows": 40}
    wanted = {"name": method, **METHODS[method]}
    return {**small, "rounds": 2, "method": wanted, "data": {**small["data"], "public": public}}


@pytest.mark.parametrize(
    ("method", "kind"), list(zip(METHODS, ["gaussian", "dead-leaves", "stylegan", "gaussian"], strict=True))
)
def test_a_run_on_noise_is_resumed_elsewhere_to_the_same_bits(
    small: dict[str, Any], tmp_path: Path, method: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = config(small, method, kind)
    whole = polyfed.run(content, out=tmp_path / "whole", workers=2)
    assert whole.federation.holdings.public is not None and len(whole.federation.holdings.public) == 40
    stopped = polyfed.prepare(content, out=tmp_path / "stopped", workers=1)
    stopped.go(lambda now: now.stop())
    stopped.close()
    monkeypatch.setenv(
        "POLYFED_CACHE", str(tmp_path / "cache")
    )  # nothing of the noise is there: it is drawn again
    resumed = polyfed.resume(tmp_path / "stopped", workers=1)
    assert result_of(resumed.path) == result_of(whole.path)


def test_a_server_draws_noise_for_a_round_as_the_data_are_normalised(small: dict[str, Any]) -> None:
    """What a method's round does that needs no public set: one stream by name, other noise in every round."""
    federation = set_up(read_config(small))
    server = federation.server()
    server.round = 1
    once, again = (
        noise.draw("dead-leaves", 4, server.shape, server.rng("noise"), server.limits) for _ in range(2)
    )
    server.round = 2
    later = noise.draw("dead-leaves", 4, server.shape, server.rng("noise"), server.limits)
    assert torch.equal(once, again) and not torch.equal(once, later)
    x = dataset(federation).rows().inputs()  # digits have black and white pixels
    assert once.min() >= x.min() and once.max() <= x.max()
    assert server.limits is not None
    assert [side[0] for side in server.limits] == pytest.approx([x.min().item(), x.max().item()])
