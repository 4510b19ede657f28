"""Settings in words: what can be set, what is allowed, what it means."""

from __future__ import annotations

from typing import Annotated, Literal

import pytest
from pydantic import BaseModel, Field

from polyfed.schema import SECTION, Setting, as_yaml, settings_of


class Inner(BaseModel):
    """A section."""

    model_config = SECTION

    depth: int = 2


class Base(BaseModel):
    model_config = SECTION

    kept: bool = True
    """Below the
    field."""
    changed: int = Field(3, ge=1)
    """Of the base."""


class Outer(Base):
    rate: Annotated[float, Field(gt=0, le=1)] | None = None
    """A rate."""
    word: Literal["a", "b", "c"] = "a"
    names: list[str] = ["x"]
    sizes: dict[str, int] = {}
    inner: Inner | None = Inner(depth=5)
    given: str
    other: Annotated[bool, Field(alias="global")] = False
    changed: int = Field(4, ge=2)


def test_every_key_is_told_with_default_range_and_meaning_own_ones_first() -> None:
    assert settings_of(Outer) == [
        Setting("rate", "null", "a number, above 0 and at most 1, or null", "A rate."),
        Setting("word", "a", "a, b or c", ""),
        Setting("names", "[x]", "a list, of each: text", ""),
        Setting("sizes", "{}", "a map, of each: a whole number", ""),
        Setting("inner", "{depth: 5}", "a section, or null", "", (Inner,)),
        Setting("given", "", "text", ""),
        Setting("global", "false", "true or false", ""),
        Setting("changed", "4", "a whole number, at least 2", "Of the base."),
        Setting("kept", "true", "true or false", "Below the field."),
    ]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "null"),
        (True, "true"),
        (0.1, "0.1"),
        ("a b", "a b"),
        ("null", "'null'"),
        ((1.0, 2.0), "[1.0, 2.0]"),
        (Inner(), "{}"),
        ([Inner(depth=1)], "[{depth: 1}]"),
    ],
    ids=str,
)
def test_a_value_is_written_as_in_a_run_file(value: object, text: str) -> None:
    assert as_yaml(value) == text
