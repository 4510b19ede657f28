"""Exceptions, exits and unknown words in one line."""

from __future__ import annotations

import signal

import pytest

from polyfed.errors import describe, describe_exit, nearest


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


def test_an_unknown_word_is_answered_with_the_nearest_or_with_all() -> None:
    assert nearest("fedagv", ["local", "fedavg"]) == "did you mean 'fedavg'?"
    assert nearest("x", ["local", "fedavg"]) == "known: fedavg, local"
