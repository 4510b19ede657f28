"""Whatever happens to a file of a run, a reader gives the result as it was, or says in one line what is wrong."""

from __future__ import annotations

import json
import random
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.conftest import SMALL, Command, job

import polyfed
from polyfed.errors import UserError
from polyfed.experiments.grid import run_jobs
from polyfed.experiments.jobs import finished_record
from polyfed.experiments.papers.results import Evaluations
from polyfed.report.comparison import compare_runs
from polyfed.report.sweeps import variant_result
from polyfed.report.tables import result_table
from polyfed.runs.history import RunRecord, local_run_for, siblings
from polyfed.runs.manifest import read_manifest
from polyfed.testing import result_of

CONFIG = {
    **SMALL,
    "rounds": 2,
    "data": {"limit": 80, "clients": 2, "names": ["north", "south"]},
    "method": "local",
}

Damage = Callable[[bytes, random.Random], bytes | None]


def cut(data: bytes, draw: random.Random) -> bytes:
    return data[: draw.randrange(max(1, len(data)))]


def flipped(data: bytes, draw: random.Random) -> bytes:
    place = draw.randrange(max(1, len(data)))
    return (
        data[:place]
        + bytes(byte ^ 1 << draw.randrange(8) for byte in data[place : place + 1])
        + data[place + 1 :]
    )


def other_digit(data: bytes, draw: random.Random) -> bytes:
    digits = [place for place, byte in enumerate(data) if byte in b"0123456789"]
    if not digits:
        return data + b"1"
    place = draw.choice(digits)
    other = str((int(chr(data[place])) + draw.randrange(1, 10)) % 10).encode()
    return data[:place] + other + data[place + 1 :]


DAMAGES: dict[str, Damage] = {
    "removed": lambda *_: None,
    "empty": lambda *_: b"",
    "cut": cut,
    "cut elsewhere": cut,
    "a bit": flipped,
    "another bit": flipped,
    "a digit": other_digit,
    "another digit": other_digit,
    "random bytes": lambda data, draw: draw.randbytes(len(data)),
    "longer": lambda data, _: data + data,
    "[]": lambda *_: b"[]\n",
    "null": lambda *_: b"null\n",
    "7": lambda *_: b"7\n",
    "NaN": lambda *_: b"NaN\n",
    "{}": lambda *_: b"{}\n",
    "a huge number": lambda *_: b'{"round": ' + b"9" * 5000 + b"}\n",
    "deep": lambda *_: b"[" * 100_000 + b"\n",
    "deep maps": lambda *_: b'{"a":' * 50_000 + b"\n",
}


def of(record: RunRecord) -> Any:
    """All that a record can be asked for."""
    found = (record.config, record.summary, record.evaluations, record.failure_lines, record.ledger)
    return (*found, record.assignment)


def compared(path: Path) -> Any:
    comparison = compare_runs([path])
    return [row.cells for row in comparison.table().rows], comparison.notes(), of(RunRecord(path))


def shown(path: Path) -> Any:
    record = RunRecord(path)
    return [list(column.cells) for column in result_table(record, None).columns]


def loaded(path: Path) -> Any:
    return {name: value.tolist() for name, value in polyfed.load_model(path, "north").state_dict().items()}


def predicted(path: Path) -> Any:
    rows = torch.linspace(0, 255, 2 * 64).reshape(2, 1, 8, 8).to(torch.uint8)
    found = polyfed.load_model(path, "south").predict(rows.permute(0, 2, 3, 1).numpy())
    return found.classes, found.probabilities.tolist()


def resumed(path: Path) -> Any:
    polyfed.resume(path, workers=1)
    return result_of(path), of(RunRecord(path)), loaded(path)


def swept(path: Path) -> Any:
    """What a sweep says of it: the run's numbers, or among the failures."""
    failures = run_jobs([job(path, {}, **CONFIG)], 1)
    if failures:
        assert finished_record(path) is None
        raise UserError(failures[0].reason)
    record = finished_record(path)
    assert record is not None
    return variant_result("v", {}, 1, [record]), record.summary


def reproduced(path: Path) -> Any:
    if finished_record(path) is None:
        raise UserError("left out")
    found = Evaluations.of(path)
    return [found.value(measure, "last") for measure in ("own.mean", "whole.mean", "sent.round")], found.lines


READERS: dict[str, Callable[[Path], Any]] = {
    "compare": compared,
    "show": shown,
    "load_model": loaded,
    "predict": predicted,
    "resume": resumed,
    "sweep": swept,
    "reproduce": reproduced,
}


def outcome(read: Callable[[Path], Any], path: Path) -> Any:
    """What a reader gives; None if it refuses in one line."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return read(path)
    except UserError as error:
        assert "\n" not in str(error), error
        assert len(str(error)) < 1000
        return None


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("runs") / "run"
    polyfed.run(CONFIG, out=path, workers=1)
    for name in ("curves.png", "failures.log"):
        (path / name).write_text("of no importance")
    return path


def files_of(path: Path) -> list[str]:
    found = [str(file.relative_to(path)) for file in sorted(path.rglob("*")) if file.is_file()]
    return [name for name in found if "north" not in name]  # one client's files are like another's


def hurt(path: Path, name: str, kind: str, again: int = 0) -> None:
    file = path / name
    damaged = DAMAGES[kind](file.read_bytes(), random.Random(f"{name} {kind} {again}"))
    if damaged is None:
        file.unlink()
    else:
        file.write_bytes(damaged)


@pytest.mark.slow
@pytest.mark.parametrize("reader", list(READERS))
def test_a_damaged_run_is_read_as_it_was_or_refused_in_one_line(
    run: Path, tmp_path: Path, reader: str
) -> None:
    read = READERS[reader]
    path = shutil.copytree(run, tmp_path / "run")
    expected = read(path)
    for name in files_of(run):
        for kind in DAMAGES:
            hurt(path, name, kind)
            found = outcome(read, path)
            assert found in (None, expected), (name, kind)
            if name in ("curves.png", "failures.log"):
                assert found == expected, (name, kind)
            if reader in ("resume", "sweep"):  # which write
                shutil.rmtree(path)
                shutil.copytree(run, path)
            else:
                shutil.copyfile(run / name, path / name)


WHERE = {
    "summary.json": "compare",
    "history.jsonl": "compare",
    "ledger.jsonl": "compare",
    "config.yaml": "compare",
    "data.json": "predict",
    "assignment.json": "compare",
    "models/clients.json": "load_model",
    "models/south.safetensors": "predict",
}


@pytest.mark.parametrize("name", list(WHERE))
def test_a_changed_digit_or_bit_in_a_finished_run_is_noticed_and_the_message_says_what_to_do(
    run: Path, tmp_path: Path, name: str
) -> None:
    for kind in ("a bit", "a digit"):
        for again in range(5):
            path = shutil.copytree(run, tmp_path / f"{kind}-{again}")
            hurt(path, name, kind, again)
            if (path / name).read_bytes() == (run / name).read_bytes():
                continue
            for reader in {WHERE[name], "resume"}:
                with pytest.raises(UserError, match=r"truncated or edited since .*: \w+") as caught:
                    READERS[reader](path)
                assert str(path / name) in str(caught.value)


@pytest.mark.parametrize("name", ["summary.json", "models/clients.json", "models/south.safetensors"])
def test_a_damaged_result_is_written_again_as_the_message_says(run: Path, tmp_path: Path, name: str) -> None:
    path = shutil.copytree(run, tmp_path / "run")
    hurt(path, name, "a bit")
    (path / "summary.json").unlink()
    polyfed.resume(path, workers=1)
    for each in ("summary.json", "models/clients.json", "models/south.safetensors", "history.jsonl"):
        assert (path / each).read_bytes() == (run / each).read_bytes()
    assert read_manifest(path) == read_manifest(run)


@pytest.mark.parametrize(
    "name", ["manifest.json", "summary.json", "history.jsonl", "config.yaml", "ledger.jsonl"]
)
def test_a_damaged_neighbour_does_not_spoil_a_good_run(run: Path, tmp_path: Path, name: str) -> None:
    for kind in DAMAGES:
        good = shutil.copytree(run, tmp_path / kind / "good")
        bad = shutil.copytree(run, tmp_path / kind / "bad")
        hurt(bad, name, kind)
        record = RunRecord(good)
        found = local_run_for(record, siblings(good))
        assert found is not None
        result_table(record, found)
        if not (bad / "manifest.json").exists():
            continue  # that is no run: a grid does not begin beside it
        failures = run_jobs([job(good, {}, **CONFIG), job(bad, {}, **CONFIG)], 1)
        assert all(failure.job.path == bad for failure in failures)


def test_a_run_is_not_started_in_a_damaged_one(command: Command, run: Path, tmp_path: Path) -> None:
    (tmp_path / "file.yaml").write_text(json.dumps(CONFIG))
    for name in files_of(run):
        for kind in ("removed", "empty", "cut", "[]", "deep"):
            path = shutil.copytree(run, tmp_path / "run")
            hurt(path, name, kind)
            before = {file: (path / file).read_bytes() for file in files_of(path)}
            said = command("run", "file.yaml", "--out", "run")
            assert (said.code, said.err.count("\n")) == (2, 1), (name, kind, said.err)
            assert {file: (path / file).read_bytes() for file in files_of(path)} == before
            shutil.rmtree(path)


def test_commands_say_it_in_one_line(command: Command, run: Path, tmp_path: Path) -> None:
    for words in (
        ("compare", "run", "--no-figure"),
        ("resume", "run", "--no-figure"),
        ("resume", "run", "--rounds", "3"),
    ):
        for name in ("summary.json", "config.yaml", "manifest.json", "history.jsonl"):
            for kind in ("empty", "a bit", "[]", "deep"):
                path = shutil.copytree(run, tmp_path / "run")
                hurt(path, name, kind)
                said = command(*words)
                if said.code:
                    assert (said.code, said.err.count("\n")) == (2, 1), (words, name, kind, said.err)
                shutil.rmtree(path)
