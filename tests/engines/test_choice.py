"""Engines are chosen by name."""

from __future__ import annotations

import pytest

from polyfed.engines import Inline, Pool, make_engine
from polyfed.errors import ConfigError


def test_by_default_one_worker_needs_no_pool() -> None:
    assert isinstance(make_engine(workers=1), Inline)
    assert isinstance(make_engine(workers=2), Pool)
    assert isinstance(make_engine(), Pool)


def test_an_engine_can_be_named() -> None:
    one = make_engine("pool", workers=1, timeout=3.0)
    assert isinstance(one, Pool)
    assert (one.width, one.timeout) == (1, 3.0)
    assert isinstance(make_engine("inline"), Inline)


@pytest.mark.parametrize(
    ("name", "workers", "said"),
    [("poll", None, "did you mean 'pool'"), ("inline", 3, "use --engine pool for 3")],
)
def test_a_mistake_is_said_with_what_to_do(name: str, workers: int | None, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        make_engine(name, workers)
