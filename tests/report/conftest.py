"""Finished runs to be shown, and a terminal of any width."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import pytest
from rich.console import Console, RenderableType
from tests.conftest import SMALL

import polyfed
from polyfed.runs.history import RunRecord

Shown = Callable[[RenderableType, int], str]


@pytest.fixture(scope="package")
def records(tmp_path_factory: pytest.TempPathFactory) -> dict[str, RunRecord]:
    """A run each of local, fedavg and, with public data and a model at the server, fedmd."""
    folder = tmp_path_factory.mktemp("runs")
    public = {
        "data": {**SMALL["data"], "public": {"source": "share", "share": 0.2}},
        "models": {**SMALL["models"], "server": "mlp-small"},
    }
    fedmd = {"name": "fedmd", "public_rows": 40}
    for name, method, changes in (
        ("local", "local", {}),
        ("fedavg", "fedavg", {}),
        ("fedmd", fedmd, public),
    ):
        content: dict[str, Any] = {**SMALL, "name": name, "method": method, **changes}
        polyfed.run(content, out=folder / name, workers=1)
    return {path.name: RunRecord(path) for path in folder.iterdir()}


@pytest.fixture
def shown() -> Shown:
    """What something looks like in a terminal of so many columns."""

    def show(what: RenderableType, width: int) -> str:
        console = Console(width=width, record=True, file=io.StringIO())
        console.print(what)
        return console.export_text()

    return show
