"""Registering a method: what is not one, or is not whole, is refused in one line."""

from __future__ import annotations

from typing import Any

import pytest

from polyfed import Declaration, Method, register
from polyfed.errors import MethodError
from polyfed.federation import method as methods
from polyfed.learn import Training
from polyfed.methods import Local


class NoName(Method):
    pass


class Numbered(Method):
    name = 3  # type: ignore[assignment]


class Empty(Method):
    name = ""


class Silent(Method):
    name = "silent"


class Heir(Local):
    name = "heir"


class Whole(Method):
    name = "whole"

    def declare(self) -> Declaration:
        return Declaration()


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (NoName, 'NoName has no name: write name = "noname" in it'),
        (Numbered, 'Numbered has no name: write name = "numbered" in it'),
        (Empty, 'Empty has no name: write name = "empty" in it'),
        (
            Silent,
            "Silent does not say what leaves a client: write declare(self) -> Declaration in it",
        ),
        (
            Heir,
            "Heir does not say what leaves a client: write declare(self) -> Declaration in it, with"
            " `return super().declare()` if it is as of Local",
        ),
        (
            Whole(Method.Settings(), Training()),
            "register takes the class of a method: pass Whole, not an object",
        ),
        (lambda: None, "register takes the class of a method: <function"),
        ("fedavg", "register takes the class of a method: 'fedavg' is none"),
    ],
)
def test_what_cannot_be_registered_is_told_in_one_line(
    given: Any, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(methods, "_registered", before := dict(methods._registered))
    with pytest.raises(MethodError) as caught:
        register(given)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)
    assert methods._registered == before
