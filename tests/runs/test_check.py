"""A method's own check of a federation: before anything of a run is written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.conftest import Command

import polyfed
from polyfed import FederationFacts
from polyfed.errors import MethodError
from polyfed.federation import method as methods
from polyfed.runs.config import read_config
from polyfed.runs.federation import Federation
from polyfed.runs.setup import set_up

MIXED: dict[str, Any] = {"data": {"limit": 300, "clients": 4}, "models": {"names": ["mlp", "cnn-small"]}}


def checked(content: dict[str, Any]) -> Federation:
    config = read_config(content)
    return set_up(config, method=Choosy(Choosy.Settings(), config.training))


class Choosy(polyfed.methods.Local):
    """Wants an even number of clients."""

    name = "choosy"
    seen: list[FederationFacts] = []  # noqa: RUF012

    def check(self, federation: FederationFacts) -> None:
        self.seen.append(federation)
        if len(federation.roster) % 2:
            raise MethodError(f"choosy pairs clients, here are {len(federation.roster)}: set data.clients=4")


def test_a_check_sees_the_federation() -> None:
    public = {"source": "share", "share": 0.2}
    content = {**MIXED, "data": {**MIXED["data"], "public": public}}
    content["models"] = {"names": ["mlp", "cnn-small"], "server": "mlp-small"}
    made = checked(content)
    seen = Choosy.seen[-1]
    assert made.holdings.public is not None
    assert (seen.shape, seen.outputs, seen.classes) == ((1, 8, 8), 10, 10)
    assert (seen.public, seen.server) == (len(made.holdings.public), "mlp-small")
    assert [facts.architecture for facts in seen.roster] == ["mlp", "cnn-small", "mlp", "cnn-small"]
    assert [seen.feature_count(name) for name in seen.roster.architectures] == [128, 64]
    checked(MIXED)
    assert (Choosy.seen[-1].public, Choosy.seen[-1].server) == (None, None)


CHOOSY = """
from polyfed import Method, MethodSettings
from polyfed.errors import MethodError
from polyfed.federation import method as methods
from polyfed.methods import Local

class Settings(MethodSettings):
    least: int = 4
    never: int = 0

class Choosy(Local):
    name = "choosy-plug-in"
    Settings = Settings

    def declare(self):
        return super().declare()

    def check(self, federation):
        if federation.roster[0].samples == self.settings.never:
            raise MethodError(f"choosy cannot take {self.settings.never} samples: try another seed")
        if len(federation.roster) < self.settings.least:
            raise MethodError(f"choosy needs {self.settings.least} clients: set data.clients={self.settings.least}")
"""


@pytest.fixture
def choosy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run file with a plug-in's method that refuses it."""
    (tmp_path / "plug_in_choosy.py").write_text(CHOOSY)
    folder = tmp_path / "plug_in_choosy-1.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: plug_in_choosy\nVersion: 1.0\n")
    (folder / "entry_points.txt").write_text("[polyfed.methods]\nchoosy-plug-in = plug_in_choosy:Choosy\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(methods, "_registered", dict(methods._registered))
    file = tmp_path / "run.yaml"
    file.write_text("method: choosy-plug-in\nrounds: 1\ndata: {limit: 200, clients: 3}\n")
    return file


def test_a_check_that_fails_is_one_line_and_leaves_no_run_directory(command: Command, choosy: Path) -> None:
    for words in (("run", choosy), ("run", choosy, "--out", "mine")):
        said = command(*words)
        assert (said.code, said.err) == (2, "polyfed: choosy needs 4 clients: set data.clients=4\n")
        assert not Path("mine").exists() and not Path("polyfed-runs").exists()
    assert command("run", choosy, "--set", "data.clients=4", "--out", "mine").code == 0


def test_a_sweep_checks_every_run_before_the_first_one_starts(command: Command, choosy: Path) -> None:
    said = command("sweep", choosy, "--set", "method.least=2,5", "--out", "swept")
    assert said.code == 2
    assert said.err == "polyfed: method.least=5: choosy needs 5 clients: set data.clients=5\n"
    assert not Path("swept").exists()


def test_a_sweep_checks_every_seed_too(command: Command, choosy: Path) -> None:
    """Another seed deals out other rows: here one that the method refuses."""
    content = {"data": {"limit": 200, "clients": 3}, "method": "local"}
    samples = [set_up(read_config({**content, "seed": seed})).roster[0].samples for seed in (0, 1)]
    assert samples[0] != samples[1]
    settings = ("--set", "method.least=2", "--set", f"method.never={samples[1]}")
    said = command("sweep", choosy, *settings, "--seeds", 2, "--out", "swept")
    assert (said.code, said.err.count("\n")) == (2, 1)
    assert f"choosy cannot take {samples[1]} samples" in said.err
    assert not Path("swept").exists()
