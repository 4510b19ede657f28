"""Models of other packages and of files: found when asked for, refused in one line, and nobody else pays for them."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from tests.conftest import Command
from torch import nn

from polyfed import models, plug_ins
from polyfed.errors import ModelError
from polyfed.models import (
    Network,
    build,
    file_name,
    is_known,
    naming,
    outside,
    own_maker,
    size,
    sizes,
    table,
)

Install = Callable[[str, str, str], None]
SHAPE = (1, 8, 8)

GOOD = """
from torch import nn
from polyfed import models

def tiny(shape, outputs, norm):
    assert norm in ("batch", "group")
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 5), nn.ReLU(), nn.Linear(5, outputs))

def network(shape, outputs, norm):
    return models.build("mlp-small", shape, outputs, norm=norm)
"""

MINE = """
from torch import nn
from polyfed import models

CONSTANT = 3
module = nn.Linear(2, 2)

def fixed():
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))

def fitted(shape, outputs):
    return nn.Sequential(nn.Flatten(), nn.Linear(shape[1] * shape[2], outputs))

def normed(outputs, norm, width=7):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, width), nn.Linear(width, outputs + (norm == "group")))

def any_of_them(**settings):
    return fixed()

class Net(nn.Module):
    def __init__(self, width=6):
        super().__init__()
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(64, width), nn.Linear(width, 10))

    def forward(self, x):
        return self.layers(x)

def wants(size):
    return fixed()

def positional(shape, /):
    return fixed()

def no_model():
    return 3

def lazy(outputs):
    return nn.Sequential(nn.Flatten(), nn.LazyLinear(outputs))

def breaks(outputs):
    return nn.Linear(1, outputs / 0)
"""


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """Put a package with one entry point where Python finds it, as pip would."""
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(plug_ins, "_warned", set())
    monkeypatch.setattr(outside, "_factories", {})
    sizes._listed.cache_clear()

    def put(name: str, target: str, content: str) -> None:
        module = target.partition(":")[0]
        (tmp_path / f"{module}.py").write_text(content)
        folder = tmp_path / f"{module}-1.0.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module}\nVersion: 1.0\n")
        (folder / "entry_points.txt").write_text(f"[polyfed.models]\n{name} = {target}\n")

    yield put
    for module in [name for name in sys.modules if name.startswith("models_plug_in_")]:
        del sys.modules[module]


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A module in the current directory, which is not on the path."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    plug_ins.named_function.cache_clear()
    (tmp_path / "models_of_mine.py").write_text(MINE)
    yield "models_of_mine"
    sys.modules.pop("models_of_mine", None)
    plug_ins.named_function.cache_clear()


# -- plug-ins ------------------------------------------------------------------------------------------------


def test_a_plug_ins_model_is_made_by_its_name(install: Install) -> None:
    assert not is_known("tiny")
    install("tiny", "models_plug_in_good:tiny", GOOD)
    assert is_known("tiny") and is_known("Tiny")
    maker = own_maker("tiny", SHAPE, 10, "group")
    assert maker is not None
    assert isinstance(maker(), nn.Sequential)
    assert size("tiny", SHAPE, 10).parameters == 64 * 5 + 5 + 5 * 10 + 10


def test_a_plug_in_that_makes_a_network_can_be_built(install: Install) -> None:
    install("net", "models_plug_in_net:network", GOOD)
    model = build("net", SHAPE, 10, features=4)
    assert isinstance(model, Network) and model.name == "net"
    assert models.feature_count(model, SHAPE) == 4


def test_a_plug_in_that_makes_a_plain_module_is_no_network(install: Install) -> None:
    install("tiny", "models_plug_in_plain:tiny", GOOD)
    with pytest.raises(ModelError, match="made a Sequential; it must make a Network"):
        build("tiny", SHAPE, 10)


def test_plug_ins_are_listed_after_the_others(install: Install, command: Command) -> None:
    install("mlp-Tiny", "models_plug_in_listed:tiny", GOOD)
    assert [row.name for row in table("mlp*", SHAPE)] == ["mlp", "mlp-large", "mlp-small", "mlp-Tiny"]
    assert [row.name for row in table("*-l*", SHAPE)] == ["mlp-large", "vgg11-linear"]
    said = command("models", "MLP-t*", "--shape", "1x8x8")
    assert said.code == 0
    row = next(line for line in said.out.splitlines() if "Tiny" in line)
    assert row.split()[1:3] == ["385", "370"] and row.split()[-2:] == ["5", "default"]


@pytest.mark.parametrize(
    ("target", "content", "said"),
    [
        ("models_plug_in_broken:tiny", "import not_there", "cannot be loaded: ModuleNotFoundError"),
        ("models_plug_in_raises:tiny", "1 / 0", "cannot be loaded: ZeroDivisionError"),
        ("models_plug_in_absent:other", GOOD, "cannot be loaded: AttributeError"),
        ("models_plug_in_number:tiny", "tiny = 3", r"is not a function \(shape, outputs, norm\)"),
        ("models_plug_in_no_model:tiny", "def tiny(*_): return 3", "gave a int, not an nn.Module"),
        (
            "models_plug_in_fails:tiny",
            "def tiny(*_): 1 / 0",
            r"cannot be made: ZeroDivisionError.*fails\.py:1",
        ),
    ],
    ids=["import error", "raises", "absent", "a number", "makes no model", "fails"],
)
def test_a_broken_plug_in_is_one_line_and_costs_the_others_nothing(
    install: Install, caplog: pytest.LogCaptureFixture, target: str, content: str, said: str
) -> None:
    install("mlp-tiny", target, content)
    with caplog.at_level(logging.WARNING):
        build("mlp", SHAPE, 10)
        assert own_maker("mlp", SHAPE, 10, "batch") is None
        assert not caplog.records  # not even loaded
        assert [row.name for row in table("mlp*", SHAPE)] == models.names("mlp*")
        table("mlp*", SHAPE)
    (record,) = caplog.records
    assert "\n" not in record.getMessage()
    with pytest.raises(ModelError, match=said) as refused:
        size("mlp-tiny", SHAPE)
    assert str(refused.value) in record.getMessage()


def test_a_plug_in_that_does_not_take_the_shape_is_left_out(
    install: Install, caplog: pytest.LogCaptureFixture
) -> None:
    install("tiny", "models_plug_in_shape:tiny", GOOD)
    with caplog.at_level(logging.WARNING):
        assert [row.name for row in table("t*", (20,))] == []
    assert "cannot be listed: model 'tiny' cannot take inputs of shape (20,)" in caplog.text


def test_a_plug_in_named_like_a_built_in_is_not_used(
    install: Install, caplog: pytest.LogCaptureFixture
) -> None:
    install("mlp", "models_plug_in_same:tiny", GOOD)
    with caplog.at_level(logging.WARNING):
        assert own_maker("mlp", SHAPE, 10, "batch") is None
        assert [row.name for row in table("mlp", SHAPE)] == ["mlp"]
    assert "the plug-in model 'mlp' is not used: there is a model of that name already" in caplog.text


def test_an_unknown_name_is_answered_with_a_plug_ins_too(install: Install) -> None:
    install("gigantic", "models_plug_in_near:tiny", GOOD)
    with pytest.raises(ModelError, match=r"unknown model 'gigantc'; did you mean 'gigantic'\?"):
        build("gigantc", SHAPE, 10)


# -- functions of modules ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("function", "outputs"),
    [("fixed", 10), ("fitted", 4), ("normed", 5), ("any_of_them", 10), ("Net", 10)],
)
def test_a_function_is_given_what_it_takes_by_name(mine: str, function: str, outputs: int) -> None:
    name = f"{mine}:{function}"
    assert is_known(name)
    maker = own_maker(name, SHAPE, 4, "group")
    assert maker is not None
    assert maker()(torch.zeros(2, *SHAPE)).shape == (2, outputs)


@pytest.mark.parametrize(
    ("function", "said"),
    [
        ("wants", "wants 'size': its arguments may be called shape, outputs and norm, others need a default"),
        ("positional", "wants 'shape': its arguments"),
        ("no_model", "gave a int, not an nn.Module"),
        ("breaks", r"cannot be made: ZeroDivisionError: .* \(models_of_mine\.py:\d+\)"),
        ("absent", "cannot be loaded: AttributeError"),
        ("CONSTANT", "is a int: name a function that makes a model"),
        ("module", "is a Linear: name a function that makes a model"),
    ],
)
def test_a_function_that_cannot_be_used_is_told_in_one_line(mine: str, function: str, said: str) -> None:
    with pytest.raises(ModelError, match=said) as refused:
        size(f"{mine}:{function}", SHAPE)
    assert "\n" not in str(refused.value)


def test_a_module_that_is_not_there_says_where_to_start(mine: str) -> None:
    with pytest.raises(ModelError) as refused:
        own_maker("models_of_nobody:net", SHAPE, 4, "batch")
    assert str(refused.value) == (
        "model 'models_of_nobody:net' cannot be loaded: ModuleNotFoundError: No module named 'models_of_nobody';"
        " start polyfed where models_of_nobody.py is"
    )


def test_a_function_is_listed_by_itself(mine: str) -> None:
    (row,) = table(f"{mine}:Net", SHAPE)
    assert (row.name, row.features, row.size.macs) == (f"{mine}:Net", 6, 64 * 6 + 6 * 10)
    assert size(f"{mine}:lazy", SHAPE, 7).macs == 64 * 7


# -- names that become files' --------------------------------------------------------------------------------


def test_a_file_name_is_safe_and_nobody_elses() -> None:
    assert file_name("my_models:small_net") == "my_models+small_net"
    assert file_name("resnet20") == "resnet20"
    assert not naming.NAME.fullmatch("my_models+small_net")


@pytest.mark.parametrize(
    "name", ["../evil:net", "a/b:net", ":net", "module:", "a:b:c", "a b:c", "C:\\evil:net"]
)
def test_only_modules_and_functions_are_references(name: str) -> None:
    assert not is_known(name)


@pytest.mark.parametrize("name", ["a/b", "../evil", "", "server", "a:b"])
def test_a_name_that_cannot_be_a_files_is_not_registered(name: str) -> None:
    with pytest.raises(ModelError, match="a model cannot be called"):
        models.register(name)


def test_a_plug_in_whose_name_cannot_be_a_files_is_refused(install: Install) -> None:
    install("../evil", "models_plug_in_evil:tiny", GOOD)
    with pytest.raises(ModelError, match=r"a model cannot be called '\.\./evil'"):
        own_maker("../evil", SHAPE, 10, "batch")
