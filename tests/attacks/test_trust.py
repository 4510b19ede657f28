"""What a file names is imported only where the user has said so; without that it is refused in one line, unseen."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from tests.attacks.conftest import Refused
from tests.attacks.test_forged_runs import forge, forge_model
from tests.conftest import SMALL, Command

import polyfed
from polyfed import plug_ins
from polyfed.errors import ConfigError, ModelError
from polyfed.federation.message import METADATA_KEY, header_of

TRAP = """
from pathlib import Path
Path("sprung").write_text("imported")

from torch import nn

def net(shape, outputs):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, outputs))
"""
CONFIG = {**SMALL, "rounds": 2, "data": {"limit": 80, "clients": 2}, "method": "local"}
FLAGS = ("--trust", "trap_models")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with a module that tells when it is imported, and a run file that names it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    (tmp_path / "trap_models.py").write_text(TRAP)
    (tmp_path / "run.yaml").write_text(yaml.safe_dump({**CONFIG, "models": {"names": ["trap_models:net"]}}))
    np.savez(tmp_path / "rows.npz", x=np.zeros((2, 8, 8, 1), dtype=np.uint8))
    yield tmp_path
    forget()


def forget() -> None:
    plug_ins.named_function.cache_clear()
    sys.modules.pop("trap_models", None)
    Path("sprung").unlink(missing_ok=True)


@pytest.fixture
def runs(folder: Path) -> Path:
    """A finished run and one that was stopped, both of models of the module; as if others had made them."""
    polyfed.run("run.yaml", out="done", workers=1)
    begun = polyfed.prepare("run.yaml", out="begun", workers=1)
    begun.go(lambda run: run.stop())
    begun.close()
    forget()
    return folder


def test_commands_that_read_a_file_import_what_it_names_only_if_told_so(runs: Path, command: Command) -> None:
    reading = {
        "predict": ("predict", "done", "rows.npz", "--client", "client-0"),
        "resume": ("resume", "begun", "--workers", 1, "--no-figure"),
        "more rounds": ("resume", "done", "--rounds", 3, "--workers", 1, "--no-figure"),
        "partition": ("partition", "run.yaml"),
        "partition of a run": ("partition", "begun/config.yaml"),
    }
    for name, words in reading.items():
        said = command(*words)
        assert (said.code, said.err.count("\n")) == (2, 1), (name, said)
        assert "the module trap_models" in said.err and "add --trust trap_models" in said.err, name
        said = command(*words, "--trust", "trap", "--trust", "trap_models.inner", "--trust", "os")
        assert said.code == 2, name
        assert not Path("sprung").exists(), name
        assert "trap_models" not in sys.modules, name
    for words in (("show", "done"), ("show", "begun"), ("compare", "done", "begun", "--no-figure")):
        assert command(*words).code == 0
        assert not Path("sprung").exists(), words
    for name, words in reading.items():
        assert command(*words, *FLAGS).code == 0, name
        assert Path("sprung").exists(), name
        forget()


def test_python_is_asked_too_and_what_a_program_has_imported_is_no_trust(runs: Path) -> None:
    import trap_models  # type: ignore[import-not-found]

    for read in (polyfed.reopen, polyfed.resume):
        with pytest.raises(
            ModelError, match=r"config\.yaml names the module trap_models.*trust=\['trap_models'\]"
        ):
            read("begun", workers=1)
    with pytest.raises(ModelError, match="add --trust trap_models"):
        polyfed.load_model("done", "client-0", trust=("os", "trap"))
    with pytest.raises(ConfigError, match=r"--trust trap_models\.py:net: give the name of a module"):
        polyfed.load_model("done", "client-0", trust=["trap_models.py:net"])
    assert polyfed.load_model("done", "client-0", make=lambda: trap_models.net((1, 8, 8), 10))
    assert polyfed.load_model("done", "client-0", trust="trap_models")
    assert polyfed.resume("begun", trust=["trap_models"], workers=1).finished


def test_a_metric_of_ones_own_is_imported_only_if_told_so(folder: Path, command: Command) -> None:
    (folder / "trap_models.py").write_text(TRAP + "\ndef cost(labels):\n    return 1.0\n")
    content = {**CONFIG, "evaluate": {"metrics": ["recall", "trap_models:cost"]}}
    (folder / "run.yaml").write_text(yaml.safe_dump(content))
    polyfed.run("run.yaml", out="done", workers=1)
    begun = polyfed.prepare("run.yaml", out="begun", workers=1)
    begun.go(lambda run: run.stop())
    begun.close()
    forget()
    for more in (("begun",), ("done", "--rounds", 3)):
        words = ("resume", *more)
        said = command(*words, "--workers", 1, "--no-figure")
        assert (said.code, said.err.count("\n")) == (2, 1), words
        assert "the module trap_models" in said.err and "add --trust trap_models" in said.err
    assert command("partition", "run.yaml").code == 2
    for shows in (("show", "done"), ("compare", "done", "--no-figure")):
        said = command(*shows)
        assert said.code == 0
        assert "trap_models:cost (a number), own test data" in " ".join(said.out.split())
    assert command("predict", "done", "rows.npz", "--client", "client-0").code == 0
    assert not Path("sprung").exists() and "trap_models" not in sys.modules
    with pytest.raises(ModelError, match=r"trust=\['trap_models'\]"):
        polyfed.resume("begun", workers=1)
    assert command("resume", "begun", "--workers", 1, "--no-figure", *FLAGS).code == 0
    assert Path("sprung").exists()


def test_a_forged_file_calls_nothing(folder: Path, refused: Refused) -> None:
    polyfed.run({**CONFIG, "rounds": 1}, out="run", workers=1)
    config = yaml.safe_load(Path("run/config.yaml").read_text())
    for name in ("os:abort", "signal:pause", "trap_models:net", "polyfed.cli.commands:main"):
        _calls_nothing(folder, refused, name, config)
    assert not Path("sprung").exists()


def _calls_nothing(folder: Path, refused: Refused, name: str, config: dict[str, Any]) -> None:
    file = folder / "run" / "models" / "client-0.safetensors"
    written = json.loads(header_of(file.read_bytes())["__metadata__"][METADATA_KEY])
    forge_model(folder / "run", "client-0.safetensors", {
        "architecture": name, "shape": [1, 8, 8], "outputs": 10, "norm": "batch", "features": None,
        **{key: written[key] for key in ("columns", "classes", "constants")},
    })  # fmt: skip
    module = name.partition(":")[0]
    assert f"add --trust {module}" in refused("predict", "run", "rows.npz", "--client", "client-0")
    for models in ({"names": [name]}, {"server": name}, {"shares": {name: 0.5}}, {"clients": {"0": name}}):
        forge(folder / "run", "config.yaml", {**config, "models": {**config["models"], **models}})
        assert f"add --trust {module}" in refused("resume", "run", "--rounds", 3)
    for wish in (name, {"name": name, "smaller_is_better": True}, {"function": name}):
        forge(
            folder / "run", "config.yaml", {**config, "evaluate": {**config["evaluate"], "metrics": [wish]}}
        )
        assert f"add --trust {module}" in refused("resume", "run", "--rounds", 3)


def test_what_the_user_types_or_installs_is_trusted(
    folder: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("plain.yaml").write_text(json.dumps(CONFIG))
    assert command("partition", "plain.yaml", "--set", "models.names=trap_models:net,mlp").code == 0
    assert command("models", "trap_models:net", "--shape", "1x8x8").code == 0
    forget()
    information = folder / "trap-1.0.dist-info"
    information.mkdir()
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: trap\nVersion: 1.0\n")
    (information / "entry_points.txt").write_text("[polyfed.methods]\ntrap = trap_models:Trap\n")
    assert command("partition", "run.yaml").code == 0


def test_a_hint_can_be_copied(runs: Path, command: Command) -> None:
    assert "`polyfed resume begun --trust trap_models` goes on" in command("show", "begun").out
    assert "polyfed resume begun --trust trap_models`" in " ".join(command("compare", "begun").err.split())


def test_a_sweep_goes_on_with_what_its_own_file_names(runs: Path) -> None:
    polyfed.sweep("run.yaml", {}, out="sweep", workers=1)
    (path,) = Path("sweep").glob("**/manifest.json")
    (path.parent / "summary.json").unlink()  # as if it had been killed
    assert not polyfed.sweep("run.yaml", {}, out="sweep", workers=1).failures
    assert (path.parent / "summary.json").exists()
