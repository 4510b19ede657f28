"""A forger can compute digests anew: whatever the files of a run then say, it is used or refused in one line."""

from __future__ import annotations

import json
import random
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
from polyfed.federation.message import METADATA_KEY, header_of
from polyfed.report.assignments import assignment_table, clients_table
from polyfed.report.comparison import compare_runs
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


def forge_model(path: Path, name: str, facts: Any) -> None:
    """Write other facts into a model's file, and the digests that it takes."""
    file = path / "models" / name
    text = facts if isinstance(facts, str) else json.dumps(facts)
    data = safetensors.torch.save(safetensors.torch.load(file.read_bytes()), {METADATA_KEY: text})
    file.write_bytes(data)
    clients = json.loads((path / "models" / "clients.json").read_text())
    clients["files"][name] = digest(data)
    forge(path, "models/clients.json", clients)


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


TRIES = {"data.json": len(WRONG), "models/clients.json": len(WRONG), "config.yaml": 1, "summary.json": 1}
"""Of `WRONG` in each place: all where a file is short, else some, always the same ones."""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("runs") / "run"
    polyfed.run(CONFIG, out=path, workers=1)
    return path


def refused_or_used(read: Callable[[Path], Any], path: Path, what: str) -> bool:
    """Whether it was refused; anything but a line that a user can read is an error here."""
    try:
        read(path)
    except UserError as error:
        assert "\n" not in str(error), what
        assert len(str(error)) < 1000, what
        return True
    except Exception as error:
        raise AssertionError(f"{what}: {read.__name__}: {error!r}") from error
    return False


@pytest.mark.parametrize("name", list(READERS))
def test_any_wrong_value_in_any_place_is_used_or_refused_in_one_line(
    run: Path, tmp_path: Path, name: str
) -> None:
    text = (run / name).read_text()
    content = yaml.safe_load(text.splitlines()[0] if name.endswith(".jsonl") else text)
    path = shutil.copytree(run, tmp_path / "run")
    refused = 0
    with unharmed():
        for place in places(content):
            values = random.Random(str(place)).sample(WRONG, TRIES.get(name, 2))
            for value in values:
                forge(path, name, changed(content, place, value))
                for read in READERS[name]:
                    refused += refused_or_used(read, path, f"{name}, {place} = {value!r:.50}")
                shutil.copyfile(run / "manifest.json", path / "manifest.json")
    assert refused


FORGED_METRICS: list[dict[str, Any]] = [
    {"anything at all": 0.5},
    {"\x1b[31mrecall": 0.5},
    {"recall": 1.5},
    {"recall": -0.1},
    {"mcc": -1.1},
    {"log-loss": 1e9},
    {"r2": 1.5},
    {"cohen_kappa_score": 1e31},
    {"my_module:cost": float("nan")},
    {"my_module:cost": [[1]]},
    {"recall": [[1]]},
    {"confusion": 0.5},
    {"my_module:cost" * 30: 0.5},
]


@pytest.mark.parametrize("metrics", FORGED_METRICS, ids=str)
def test_metrics_that_no_run_can_have_are_refused(run: Path, tmp_path: Path, metrics: dict[str, Any]) -> None:
    path = shutil.copytree(run, tmp_path / "run")
    (line,) = (json.loads(text) for text in (run / "history.jsonl").read_text().splitlines())
    client = next(iter(line["clients"].values()))
    over = {
        name: value if isinstance(value, list) else dict.fromkeys(("mean", "worst", "best", "spread"), value)
        for name, value in metrics.items()
    }
    for place, forged in (
        ("server_metrics", {**line, "server_metrics": {"global": metrics}}),
        ("summary", {**line, "summary": {**line["summary"], "metrics": {"own": over}}}),
        ("clients", {**line, "clients": {"north": {**client, "metrics": {"own": metrics}}}}),
    ):
        if place == "summary" and metrics == {"confusion": 0.5}:
            continue
        forge(path, "history.jsonl", forged)
        assert refused_or_used(lambda found: list(RunRecord(found).history), path, f"{place}: {metrics}")
        shutil.copyfile(run / "manifest.json", path / "manifest.json")
    honest = {"my_module:cost": 3.5, "fbeta_score(beta=2)": 0.5, "recall": None, "r2": -1e20}
    forge(path, "history.jsonl", {**line, "server_metrics": {"global": honest}})
    assert not refused_or_used(lambda found: list(RunRecord(found).history), path, str(honest))


def test_a_models_file_says_what_it_is_or_is_refused_before_anything_is_built(
    run: Path, tmp_path: Path
) -> None:
    path = shutil.copytree(run, tmp_path / "run")
    name = "shared_mlp-small.safetensors"
    facts = json.loads(header_of((run / "models" / name).read_bytes())["__metadata__"][METADATA_KEY])
    forged = [changed(facts, place, value) for place in places(facts) for value in WRONG]
    for architecture in ("wrn-10-100000", "wrn-999994-1", "wrn-994-100", "vgg19", "resnet152", "mlp-large"):
        forged.append({**facts, "architecture": architecture})
    forged += [
        {**facts, "shape": [1, 10**5, 10**5], "architecture": "mlp"},
        {**facts, "features": 2**16},
        "[" * 10**5,
    ]
    with unharmed():
        for number, each in enumerate(forged):
            forge_model(path, name, each)
            same = json.dumps(each) == json.dumps(facts)
            assert refused_or_used(predicted, path, f"{number}: {each!r:.100}") is not same


@pytest.mark.parametrize(
    "name", ["ledger.jsonl", "states.jsonl", "states/server.1.safetensors", "states/north.1"]
)
def test_a_damaged_ledger_or_state_of_a_finished_run_is_told_by_every_reader(
    command: Command, tmp_path: Path, name: str
) -> None:
    polyfed.run(
        {**CONFIG, "method": "local", "models": {"names": ["mlp-small"]}}, out=tmp_path / "run", workers=1
    )
    (file,) = tmp_path.glob(f"run/{name}*")
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)
    for words in (("show", "run"), ("compare", "run", "--no-figure"), ("resume", "run", "--no-figure")):
        said = command(*words)
        assert (said.code, said.err.count("\n")) == (2, 1), (words, said)
        assert f"{file.relative_to(tmp_path)} was truncated or edited" in said.err
    with pytest.raises(UserError, match="was truncated or edited"):
        polyfed.reopen("run", workers=1)
