"""A forger can compute digests anew: whatever the files of a run then say, a reader uses it or refuses it in one line."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import yaml
from tests.attacks.conftest import unharmed
from tests.conftest import SMALL, Command

import polyfed
from polyfed.cli.predicting import as_csv
from polyfed.disk import digest
from polyfed.errors import UserError
from polyfed.federation.message import METADATA_KEY
from polyfed.report.assignments import assignment_table, clients_table
from polyfed.report.comparison import compare_runs
from polyfed.report.run_figure import run_figure
from polyfed.report.tables import confusion_table, result_table
from polyfed.runs.history import RunRecord
from polyfed.runs.manifest import seal

CONFIG = {
    **SMALL,
    "rounds": 1,
    "data": {"limit": 80, "clients": 2, "names": ["north", "south"]},
    "models": {"names": ["mlp-small"], "server": "mlp-small"},
    "evaluate": {"metrics": "confusion"},
    "method": "fedavg",
}
MISSING = object()
WRONG: list[Any] = [
    *(MISSING, None, True, -1, 0, 3, 10**9, 10**18, 10**400, 0.5, -1e308, 1e308, float("nan"), float("inf")),
    *(
        "",
        "\x1b[31m" + "x" * 10_000,
        "../..",
        "os:abort",
        [],
        [[]],
        [None],
        ["a"] * 3,
        [10**9] * 3,
        [1, 10**5, 10**5],
    ),
    *({}, {"a": {"b": None}}, {"mean": "x"}, {"": []}),
]
FIXED = {"data.json": "description", "assignment.json": "assignment", "config.yaml": "config"}


def places(content: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The way to every value in there; of a long list only the first."""
    yield path
    inside = (
        content.items()
        if isinstance(content, dict)
        else enumerate(content[:1])
        if isinstance(content, list)
        else ()
    )
    for key, value in inside:
        yield from places(value, (*path, key))


def changed(content: Any, path: tuple[Any, ...], value: Any) -> Any:
    """The content with another value in one place."""
    if not path:
        return {} if value is MISSING else value
    first, *rest = path
    copy = dict(content) if isinstance(content, dict) else list(content)
    if value is MISSING and not rest:
        del copy[first]
    else:
        copy[first] = changed(copy[first], tuple(rest), value)
    return copy


def forge(path: Path, name: str, content: Any) -> None:
    """Write a file of a run, and the digests that it takes."""
    manifest = json.loads((path / "manifest.json").read_text())
    text = yaml.safe_dump(content) if name.endswith(".yaml") else json.dumps(content)
    data = (text + "\n").encode()
    if name == "manifest.json":
        manifest = content if isinstance(content, dict) else {}
    elif name in FIXED:
        manifest[FIXED[name]] = digest(data)
    elif name.endswith(".jsonl"):
        manifest[name.removesuffix(".jsonl")] = [len(data), digest(data)]
    else:
        manifest["result"][name] = digest(data)
    (path / name).write_bytes(data)
    manifest.pop("digest", None)
    (path / "manifest.json").write_text(json.dumps({**manifest, "digest": seal(manifest)}))


def shown(path: Path) -> None:
    record = RunRecord(path)
    assignment_table(record.assignment)
    clients_table(record.assignment, record.client_names)
    assert record.finished or record.config
    result_table(record, None)
    confusion_table(record)
    assert record.failure_lines is not None
    assert record.ledger is not None


def compared(path: Path) -> None:
    comparison = compare_runs([path])
    comparison.table()
    comparison.further_table()
    comparison.notes()


def predicted(path: Path) -> None:
    rows = np.arange(3 * 64, dtype=np.uint8).reshape(3, 8, 8, 1)
    as_csv(polyfed.load_model(path, "north").predict(rows))


def reopened(path: Path) -> None:
    polyfed.reopen(path, workers=1).close()


READERS: dict[str, tuple[Callable[[Path], None], ...]] = {
    "data.json": (predicted, shown),
    "assignment.json": (shown,),
    "models/clients.json": (predicted,),
    "summary.json": (shown, compared),
    "config.yaml": (shown, reopened),
    "history.jsonl": (shown,),
    "ledger.jsonl": (shown,),
    "manifest.json": (shown, predicted),
}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("runs") / "run"
    polyfed.run(CONFIG, out=path, workers=1)
    return path


@pytest.mark.parametrize("name", list(READERS))
def test_any_wrong_value_in_any_place_is_used_or_refused_in_one_line(
    run: Path, tmp_path: Path, name: str
) -> None:
    text = (run / name).read_text()
    content = yaml.safe_load(text.splitlines()[0] if name.endswith(".jsonl") else text)
    path = shutil.copytree(run, tmp_path / "run")
    refusals = 0
    with unharmed():
        for place in places(content):
            for value in WRONG:
                forge(path, name, changed(content, place, value))
                for read in READERS[name]:
                    try:
                        read(path)
                    except UserError as error:
                        refusals += 1
                        assert "\n" not in str(error), (place, value)
                        assert len(str(error)) < 1000, (place, value)
                    except Exception as error:
                        raise AssertionError(
                            f"{name}, {place} = {value!r:.50}: {read.__name__}: {error!r}"
                        ) from error
                shutil.copyfile(run / "manifest.json", path / "manifest.json")
    assert refusals
