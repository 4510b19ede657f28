"""Real data where they are at hand, a cache of our own, and errors that must fit on one line."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

from polyfed.errors import DataError

Refuses = Callable[[str], AbstractContextManager[None]]


@pytest.fixture(scope="session", autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("POLYFED_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture
def real_data(monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of real data sets: $POLYFED_DATA, else ../shared/data beside the repository."""
    beside = Path(__file__).parents[3] / "shared" / "data"
    folder = Path(os.environ.get("POLYFED_DATA", beside))
    if not (folder / "mnist" / "test.parquet").is_file():
        pytest.skip(f"no real data sets in {folder}; set POLYFED_DATA")
    monkeypatch.setenv("POLYFED_DATA", str(folder))
    return folder


@pytest.fixture
def refuses() -> Refuses:
    """`with refuses(part of the message):` a DataError whose message is one line."""

    @contextmanager
    def check(message: str) -> Iterator[None]:
        with pytest.raises(DataError) as caught:
            yield
        text = str(caught.value)
        assert message in text
        assert "\n" not in text
        assert len(text) < 300

    return check
