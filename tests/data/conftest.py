"""Errors about data must fit on one line."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import pytest

from polyfed.errors import DataError

Refuses = Callable[[str], AbstractContextManager[None]]


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
