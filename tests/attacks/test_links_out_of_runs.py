"""A run directory from elsewhere is data: whatever it holds in place of its files, nothing outside of it is harmed."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import SMALL

import polyfed
from polyfed.disk import digest
from polyfed.errors import UserError
from polyfed.report.comparison import compare_runs
from polyfed.runs.manifest import read_manifest, seal

CONFIG = {**SMALL, "rounds": 2, "data": {"limit": 80, "clients": 2}, "method": "local"}
NAMES = (
    "states",
    "models",
    "scratch",
    ".lock",
    "history.jsonl",
    "ledger.jsonl",
    "states.jsonl",
    "config.yaml",
    "data.json",
    "assignment.json",
    "manifest.json",
    "manifest.json.tmp",
    "summary.json",
    "summary.json.tmp",
    "curves.png",
    "curves.png.tmp",
    "failures.log",
    "states/client-0.2.safetensors",
    "states/client-0.1.safetensors",
    "states/server.2.safetensors",
    "states/server.9.safetensors",
    "models/client-0.safetensors",
    "models/clients.json",
    "models/clients.json.tmp",
    "models/stray.safetensors",
)


def linked(place: Path, outside: Path) -> None:
    """A link to a copy of what was there, so that all digests fit."""
    if place.is_dir():
        shutil.copytree(place, outside / "copy")
        shutil.rmtree(place)
    else:
        (outside / "copy").write_bytes(place.read_bytes() if place.exists() else b"precious")
        place.unlink(missing_ok=True)
    place.symlink_to(outside / "copy")


def linked_to_others(place: Path, outside: Path) -> None:
    what = outside / "folder" if place.is_dir() or "." not in place.name[1:] else outside / "file"
    empty(place)
    place.symlink_to(what)


def linked_to_nothing(place: Path, outside: Path) -> None:
    empty(place)
    place.symlink_to(outside / "nothing yet")


def hard_linked(place: Path, outside: Path) -> None:
    if place.is_dir():
        return linked(place, outside)
    (outside / "copy").write_bytes(place.read_bytes() if place.exists() else b"precious")
    place.unlink(missing_ok=True)
    return os.link(outside / "copy", place)


def pipe(place: Path, _outside: Path) -> None:
    empty(place)
    os.mkfifo(place)


def a_socket(place: Path, _outside: Path) -> None:
    empty(place)
    here = Path.cwd()
    os.chdir(place.parent)  # the path of a socket has 108 letters at most
    try:
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(place.name)
    finally:
        os.chdir(here)


def of_the_other_kind(place: Path, _outside: Path) -> None:
    was_folder = place.is_dir()
    empty(place)
    if was_folder:
        place.write_text("a file")
    else:
        place.mkdir()
        (place / "inside.txt").write_text("mine")


def empty(place: Path) -> None:
    if place.is_dir():
        shutil.rmtree(place)
    place.unlink(missing_ok=True)


KINDS: dict[str, Callable[[Path, Path], None]] = {
    "a link": linked,
    "a link to others' files": linked_to_others,
    "a link to nothing": linked_to_nothing,
    "a hard link": hard_linked,
    "a named pipe": pipe,
    "a socket": a_socket,
    "the other kind": of_the_other_kind,
}


def extend(path: Path) -> None:
    polyfed.resume(path, rounds=3, workers=1)


def go_on(path: Path) -> None:
    polyfed.resume(path, workers=1)


def overwrite(path: Path) -> None:
    polyfed.run({**CONFIG, "rounds": 1}, out=path, workers=1, overwrite=True)


def run_there(path: Path) -> None:
    polyfed.run({**CONFIG, "rounds": 1}, out=path, workers=1)


def load(path: Path) -> None:
    polyfed.load_model(path, "client-0")


def compare(path: Path) -> None:
    compare_runs([path]).table()


ACTS = {
    "extended": ("finished", extend),
    "resumed": ("stopped", go_on),
    "overwritten": ("finished", overwrite),
    "an unfinished one overwritten": ("stopped", overwrite),
    "run again": ("killed", run_there),
    "compared": ("finished", compare),
    "applied": ("finished", load),
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run, one stopped after a round, and what is left of one killed at its start."""
    folder = tmp_path_factory.mktemp("runs")
    polyfed.run(CONFIG, out=folder / "finished", workers=1)
    run = polyfed.prepare(CONFIG, out=folder / "stopped", workers=1)
    run.go(lambda now: now.stop())
    run.close()
    killed = polyfed.prepare(CONFIG, out=folder / "killed", workers=1)
    killed.close()
    return folder


@pytest.fixture(autouse=True)
def _no_waiting() -> Iterator[None]:
    """Whoever opens a named pipe waits for ever: this ends it."""

    def give_up(*_: object) -> None:
        raise TimeoutError("a named pipe was waited for")

    before = signal.signal(signal.SIGALRM, give_up)
    signal.alarm(100)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def tree(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for path in sorted(folder.rglob("*")):
        facts = path.lstat()
        content = path.read_bytes() if path.is_file() else None
        found[str(path.relative_to(folder))] = (facts.st_mode, facts.st_mtime_ns, content)
    return found


def attempt(act: Callable[[Path], object], path: Path) -> None:
    """Do it; it succeeds, or is refused in one line."""
    try:
        act(path)
    except UserError as error:
        assert "\n" not in str(error)


@pytest.mark.parametrize("kind", list(KINDS))
@pytest.mark.parametrize("name", list(ACTS))
def test_nothing_outside_is_harmed_whatever_a_run_directory_holds_in_place_of_its_files(
    runs: Path, tmp_path: Path, name: str, kind: str
) -> None:
    begun, act = ACTS[name]
    for number, part in enumerate(NAMES):
        path = shutil.copytree(runs / begun, tmp_path / f"run-{number}")
        outside = tmp_path / f"outside-{number}"
        (outside / "folder").mkdir(parents=True)
        for file in ("file", "folder/client-0.2.safetensors", "folder/precious.txt"):
            (outside / file).write_text("precious")
        KINDS[kind](path / part, outside)
        before = tree(outside)
        attempt(act, path)
        assert tree(outside) == before, part


def reseal(path: Path, **changes: Any) -> None:
    """As somebody would who knows how a run directory is sealed."""
    manifest = {**read_manifest(path), **changes}
    for log in ("history", "ledger", "states"):
        if log not in changes:
            content = (path / f"{log}.jsonl").read_bytes()
            manifest[log] = [len(content), digest(content)]
    (path / "manifest.json").write_text(json.dumps({**manifest, "digest": seal(manifest)}))


OUTSIDE = ["../precious.safetensors", "../../precious.safetensors", "..", ".", "", "a/b", "nul\0", 7, None]


@pytest.mark.parametrize("name", OUTSIDE, ids=repr)
def test_names_of_models_lead_nowhere(runs: Path, tmp_path: Path, name: Any) -> None:
    path = shutil.copytree(runs / "finished", tmp_path / "run")

    def load_that(path: Path) -> object:
        return polyfed.load_model(path, str(stem))

    for folder in (tmp_path, path):
        shutil.copy(path / "models" / "client-0.safetensors", folder / "precious.safetensors")
    stem = name.removesuffix(".safetensors") if isinstance(name, str) else name
    clients = {"architectures": [stem], "which": [0, 0], "files": {str(name): digest(b"")}}
    (path / "models" / "clients.json").write_text(json.dumps(clients))
    (path / "models" / "client-0.safetensors").unlink()
    result = {
        "summary.json": digest((path / "summary.json").read_bytes()),
        "models/clients.json": digest((path / "models" / "clients.json").read_bytes()),
    }
    reseal(path, result=result)
    acts: tuple[Callable[[Path], object], ...] = (load, load_that, extend, overwrite)
    for act in acts:
        attempt(act, path)
        assert (tmp_path / "precious.safetensors").exists()
    with pytest.raises(UserError):
        polyfed.load_model(path, str(stem))


@pytest.mark.parametrize(
    "key", ["round", "server", "history", "states", "seconds", "data", "prepared", "result"]
)
@pytest.mark.parametrize("value", [None, [], {}, "x", -1, 1e400, [1], ["a", 1], [-1, "x"], 10**400], ids=repr)
def test_a_forged_manifest_is_one_line(runs: Path, tmp_path: Path, key: str, value: Any) -> None:
    for begun, acts in (("stopped", (go_on,)), ("finished", (compare, load, extend))):
        path = shutil.copytree(runs / begun, tmp_path / begun)
        reseal(path, **{key: value})
        for act in acts:
            attempt(act, path)


def test_a_run_directory_that_is_given_as_a_link_is_fine(runs: Path, tmp_path: Path) -> None:
    shutil.copytree(runs / "finished", tmp_path / "run-3")
    latest = tmp_path / "latest"
    latest.symlink_to("run-3")
    assert polyfed.resume(latest, rounds=3, workers=1).round == 3
    load(latest)
    compare(latest)
    overwrite(latest)
    assert (tmp_path / "run-3" / "summary.json").exists()


@pytest.mark.parametrize("name", ["states/notes.txt", "states/mine.safetensors", "models/mine.safetensors"])
@pytest.mark.parametrize("begun", ["stopped", "finished"])
def test_files_of_others_in_a_run_directory_stay(runs: Path, tmp_path: Path, begun: str, name: str) -> None:
    path = shutil.copytree(runs / begun, tmp_path / "run")
    (path / name).write_text("mine")
    polyfed.resume(path, rounds=3, workers=1)
    assert (path / name).read_text() == "mine"
    with pytest.raises(UserError, match="is no part of a run"):
        overwrite(path)
    assert (path / name).read_text() == "mine"
