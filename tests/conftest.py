"""A cache of our own, real data where they are at hand, and a small federation that runs in a second."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

from polyfed.cli import commands as cli
from polyfed.cli import screen
from polyfed.engines import Inline
from polyfed.experiments.jobs import Job
from polyfed.federation.engine import Engine
from polyfed.federation.method import Method
from polyfed.runs.checkpoint import RunDirectory, read_lines
from polyfed.runs.config import read_config
from polyfed.runs.rounds import Run
from polyfed.runs.setup import set_up

MakeRun = Callable[..., Run]


class Said(NamedTuple):
    """What a command printed and how it ended."""

    code: int
    out: str
    err: str


Command = Callable[..., Said]

# Whatever this machine has: no GPU, and output that is no terminal's and as wide as where COLUMNS is not set.
os.environ["CUDA_VISIBLE_DEVICES"] = ""
for variable in ("FORCE_COLOR", "TTY_COMPATIBLE"):
    os.environ.pop(variable, None)
screen.console.width = screen.PLAIN_WIDTH

torch.set_num_threads(1)  # two test processes on two cores: more threads only wait for each other

SMALL: dict[str, Any] = {
    "rounds": 3,
    "data": {"limit": 300, "clients": 4, "partition": {"kind": "dirichlet", "alpha": 1.0}},
    "models": {"names": ["mlp-small"]},
    "training": {"epochs": 1, "batch": 16, "lr": 0.1},
    "checkpoint_seconds": 0,
}


@pytest.fixture(scope="session", autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("POLYFED_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture
def real_data(monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of real data sets: $POLYFED_DATA, else ../shared/data beside the repository."""
    beside = Path(__file__).parents[2] / "shared" / "data"
    folder = Path(os.environ.get("POLYFED_DATA", beside))
    if not (folder / "mnist" / "test.parquet").is_file():
        pytest.skip(f"no real data sets in {folder}; set POLYFED_DATA")
    monkeypatch.setenv("POLYFED_DATA", str(folder))
    return folder


def job(path: Path, small: dict[str, Any], **changes: Any) -> Job:
    """A run of the small federation, with some changes, as one of a grid."""
    return Job(path, read_config({**small, **changes}))


def round_of(path: Path) -> int:
    """The last round that a run's history tells of so far."""
    history = path / "history.jsonl"
    return max((line["round"] for line in read_lines(history)), default=0) if history.exists() else 0


@pytest.fixture
def small() -> dict[str, Any]:
    """The content of a small run file."""
    return {key: dict(value) if isinstance(value, dict) else value for key, value in SMALL.items()}


@pytest.fixture
def make_run(tmp_path: Path, small: dict[str, Any]) -> Iterator[MakeRun]:
    """`make_run(MyMethod, engine, rounds=5, …)`: a run of the small federation, closed afterwards."""
    made: list[Run] = []

    def make(
        method: type[Method] | str | dict[str, Any] = "fedavg",
        engine: Engine | None = None,
        *,
        name: str | None = None,
        settings: dict[str, Any] | None = None,
        **changes: Any,
    ) -> Run:
        content = {**small, "method": "local" if isinstance(method, type) else method}
        for key, value in changes.items():
            content[key] = {**content[key], **value} if isinstance(content.get(key), dict) else value
        config = read_config(content)
        made_here = (
            method(method.Settings(**(settings or {})), config.training) if isinstance(method, type) else None
        )
        federation = set_up(config, method=made_here)
        directory = RunDirectory(tmp_path / (name or f"run-{len(made)}"), new=True)
        made.append(Run(federation, engine or Inline(), directory))
        return made[-1]

    yield make
    for run in made:
        run.close()


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Command:
    """`command("run", "x.yaml")` in an empty folder."""
    monkeypatch.chdir(tmp_path)

    def call(*words: object) -> Said:
        monkeypatch.setattr(sys, "argv", ["polyfed", *map(str, words)])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        printed = capsys.readouterr()
        return Said(int(ended.value.code or 0), printed.out, printed.err)

    return call
