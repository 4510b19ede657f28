"""A fake paper."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from polyfed.experiments import papers
from polyfed.experiments.papers import Paper

FAKE = Path(__file__).parent / "fake.yaml"


Write = Callable[[dict[str, Any]], str]


@pytest.fixture
def fake() -> Paper:
    return papers.load(str(FAKE))


@pytest.fixture
def content() -> dict[str, Any]:
    """The fake paper's file, to be spoilt."""
    return dict(yaml.safe_load(FAKE.read_text()))


@pytest.fixture
def written(tmp_path: Path) -> Write:
    """`written(content)`: the name of a paper's file with that content."""

    def write(content: dict[str, Any]) -> str:
        path = tmp_path / "mine.yaml"
        path.write_text(yaml.safe_dump(content, sort_keys=False))
        return str(path)

    return write
