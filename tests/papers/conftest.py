"""A fake paper, and the command line in an empty folder."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from polyfed import cli, papers
from polyfed.papers import Paper

FAKE = Path(__file__).parent / "fake.yaml"


class Said(NamedTuple):
    """What a command printed and how it ended."""

    code: int
    out: str
    err: str


Command = Callable[..., Said]
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


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Command:
    """`command("reproduce", "000")` in an empty folder."""
    monkeypatch.chdir(tmp_path)

    def call(*words: object) -> Said:
        monkeypatch.setattr(sys, "argv", ["polyfed", *map(str, words)])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        printed = capsys.readouterr()
        return Said(int(ended.value.code or 0), printed.out, printed.err)

    return call
