"""Exceptions, exits and unknown words in one line."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

import polyfed
from polyfed.errors import describe, describe_exit, describe_os_error, nearest


def test_an_exception_is_described_in_one_line_of_bounded_length() -> None:
    assert describe(ValueError("two\n  lines")) == "ValueError: two lines"
    assert describe(KeyError()) == "KeyError"
    assert len(describe(ValueError("x" * 1000))) == 300


@pytest.mark.parametrize(
    ("code", "text"),
    [
        (1, "exit code 1"),
        (0, "exit code 0"),
        (None, "exit code None"),
        (-signal.SIGKILL, "signal SIGKILL"),
        (-signal.SIGSEGV, "signal SIGSEGV"),
    ],
)
def test_an_exit_is_described_by_its_code_or_signal(code: int | None, text: str) -> None:
    assert describe_exit(code) == text


def test_what_the_system_refuses_is_told_in_words(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    told = {
        file / "x" / "y": f"{file} is a file, not a folder",
        tmp_path: f"{tmp_path} is a folder, not a file",
        tmp_path / "no": f"there is no {tmp_path / 'no'}",
        tmp_path / "no" / "x": f"there is no folder {tmp_path / 'no'}",
    }
    for path, words in told.items():
        with pytest.raises(OSError, match=re.escape(str(path))) as caught:
            path.read_text()
        assert describe_os_error(caught.value) == words
    assert (
        describe_os_error(PermissionError(13, "Permission denied", "x")) == "no permission to read or write x"
    )
    assert describe_os_error(OSError(28, "No space left on device", "x")) == "x: No space left on device"
    assert describe_os_error(OSError(28, "No space left on device")) == "No space left on device"


def test_an_unknown_word_is_answered_with_the_nearest_or_with_all() -> None:
    assert nearest("fedagv", ["local", "fedavg"]) == "did you mean 'fedavg'?"
    assert nearest("FEDAGV", ["local", "FedAvg"]) == "did you mean 'FedAvg'?"
    assert nearest("x", ["local", "fedavg"]) == "known: fedavg, local"
    assert nearest("x", ["local", "fedavg"], "polyfed methods") == "`polyfed methods` lists them"
    assert nearest("x", []) == "there are none"


def calls_of_nearest() -> Iterator[tuple[str, str]]:
    """Every line of the source in which a message has such a hint, and the rest of that message after it."""
    for path in Path(polyfed.__file__).parent.rglob("*.py"):
        for line in path.read_text(encoding="utf-8").splitlines():
            if "{nearest(" in line:
                yield f"{path.name}: {line.strip()}", line.rpartition("{nearest(")[2].partition(")}")[2]


def test_the_hint_is_the_end_of_its_message() -> None:
    """It ends with a question mark, or with a list: what follows it would read badly."""
    calls = list(calls_of_nearest())
    assert len(calls) > 10
    assert [line for line, rest in calls if rest not in ('")', '"', '{more}"')] == []
