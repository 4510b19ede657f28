"""Whatever number a run file has for whichever key, it is refused in one line or costs nothing when a run is set up."""

from __future__ import annotations

import types
from collections.abc import Iterator
from typing import Any, Union, get_args, get_origin

import pytest
from pydantic import BaseModel
from tests.attacks.conftest import unharmed
from tests.conftest import SMALL
from torch import nn

from polyfed.errors import UserError
from polyfed.federation.method import registered
from polyfed.runs.config import RunConfig, read_config
from polyfed.runs.setup import set_up

HUGE = [10**10, 10**18, 10**400, 1e308]
BASE = {**SMALL, "data": {"limit": 80, "clients": 2, "public": {"source": "share", "share": 0.2}}}


def contents(annotation: Any, value: Any) -> Iterator[Any]:
    """What can be given for a key of this type, with one number in it that is this value."""
    origin, inner = get_origin(annotation), get_args(annotation)
    if annotation in (int, float):
        yield value
    elif isinstance(annotation, type) and issubclass(annotation, BaseModel):
        kind = annotation.model_fields.get("kind")
        tag = {} if kind is None or not isinstance(kind.default, str) else {"kind": kind.default}
        for name, field in annotation.model_fields.items():
            for each in contents(field.annotation, value):
                yield {**tag, field.alias or name: each}
    elif origin in (list, tuple):
        yield from ([each] for each in contents(inner[0], value))
    elif origin is dict:
        yield from ({"mlp": each} for each in contents(inner[1], value))
    elif origin in (Union, types.UnionType) or hasattr(annotation, "__metadata__"):
        for option in inner if origin in (Union, types.UnionType) else inner[:1]:
            yield from contents(option, value)


def merged(content: Any, more: Any) -> Any:
    if not isinstance(content, dict) or not isinstance(more, dict):
        return more
    return {**content, **{key: merged(content.get(key), value) for key, value in more.items()}}


def test_every_number_of_a_run_file_is_refused_or_harmless_when_a_run_is_set_up() -> None:
    tried = set()
    with unharmed():
        for value in HUGE:
            for more in contents(RunConfig, value):
                tried.add(str(more).replace(str(value), ""))
                _refused_or_set_up(merged(BASE, more), and_set_up=value in (10**18, 1e308))
    assert len(tried) > 40


def test_every_number_of_every_methods_settings_is_refused_or_read() -> None:
    for name, method in registered().items():
        for value in HUGE:
            for more in contents(method.Settings, value):
                _refused_or_set_up({**BASE, "method": {"name": name, **more}}, and_set_up=False)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"training": {"batch": 10**18}}, "training.batch: must be at most 1e+06"),
        ({"server_threads": 10**10}, "server_threads: must be at most 1024"),
        ({"models": {"features": 10**6}}, "models.features: must be at most 65536"),
        ({"rounds": 10**19}, "rounds: must be at most 1e+18, not a number of 20 digits"),
        ({"method": {"name": "feddf", "public_rows": 10**30}}, "method.public_rows: must be at most 1e+18"),
        (
            {"data": {"public": {"source": "noise", "kind": "gaussian", "rows": 10**10}}},
            r"data.public.rows: 10000000000 rows of noise take",
        ),
        ({"data": {"public": {"source": "noise", "kind": "stylegan", "rows": 10**9}}}, "rows of noise take"),
        ({"method": {"name": "x" * 10_000}}, "method.name: must have at most 100 letters"),
    ],
)
def test_what_is_too_large_is_said_with_what_is_allowed(more: dict[str, Any], said: str) -> None:
    with unharmed(), pytest.raises(UserError, match=said.replace("+", r"\+")):
        set_up(read_config({**SMALL, **more}))


def test_a_model_of_ones_own_is_not_tried_with_a_huge_batch() -> None:
    config = read_config({**BASE, "training": {"batch": 10**6}})
    with unharmed():
        federation = set_up(config, None, {"net": nn.Sequential(nn.Flatten(), nn.Linear(64, 10))})
        assert federation.assignment.models["net"].memory_bytes


def _refused_or_set_up(content: dict[str, Any], *, and_set_up: bool = True) -> None:
    try:
        config = read_config(content)
        if and_set_up:
            assert set_up(config).assignment
    except UserError as error:
        assert "\n" not in str(error), content
        assert len(str(error)) < 1000, content
    except Exception as error:
        raise AssertionError(f"{content}: {error!r}") from error
