"""Methods of other packages, found through entry points: one that is broken costs nobody else anything."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.conftest import Command

from polyfed import Declaration, plug_ins
from polyfed.errors import MethodError
from polyfed.federation import method as methods
from polyfed.federation.method import find, registered

GOOD = """
from polyfed import Declaration, Method

class Mine(Method):
    name = "mine"

    def declare(self):
        return Declaration()
"""

Install = Callable[[str, str, str], None]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """Put a package with one entry point where Python finds it, as pip would."""
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(methods, "_registered", dict(methods._registered))
    monkeypatch.setattr(plug_ins, "_warned", set())

    def put(name: str, target: str, content: str) -> None:
        module = target.partition(":")[0]
        (tmp_path / f"{module}.py").write_text(content)
        folder = tmp_path / f"{module}-1.0.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module}\nVersion: 1.0\n")
        (folder / "entry_points.txt").write_text(f"[polyfed.methods]\n{name} = {target}\n")

    yield put
    for module in [name for name in sys.modules if name.startswith("plug_in_")]:
        del sys.modules[module]


def test_a_plug_in_is_found_by_its_name(install: Install) -> None:
    install("mine", "plug_in_good:Mine", GOOD)
    assert find("mine").__module__ == "plug_in_good"
    assert "mine" in registered()


@pytest.mark.parametrize(
    ("target", "content", "said"),
    [
        ("plug_in_broken:Mine", "import not_there", "cannot be loaded: ModuleNotFoundError"),
        ("plug_in_raises:Mine", "1 / 0", "cannot be loaded: ZeroDivisionError"),
        ("plug_in_absent:Other", GOOD, "cannot be loaded: AttributeError"),
        ("plug_in_function:Mine", "def Mine(): ...", "is not a Method"),
        ("plug_in_misnamed:Mine", GOOD.replace('"mine"', '"other"'), "calls itself 'other'"),
    ],
    ids=["import error", "raises", "absent", "not a method", "another name"],
)
def test_a_broken_plug_in_is_one_line_and_costs_the_others_nothing(
    install: Install, caplog: pytest.LogCaptureFixture, target: str, content: str, said: str
) -> None:
    install("mine", target, content)
    with caplog.at_level(logging.WARNING):
        assert find("fedavg").name == "fedavg"
        assert not caplog.records  # not even loaded
        assert "fedavg" in registered()
        registered()
    (record,) = caplog.records
    assert said in record.getMessage()
    with pytest.raises(MethodError, match=said):
        find("mine")


HIDDEN = (
    "the plug-in plug_in_same:Mine is not used: there is a method called 'fedavg' already,"
    " polyfed.methods.fedavg:FedAvg; rename the plug-in"
)


@pytest.mark.parametrize("look", [registered, lambda: {"fedavg": find("fedavg")}], ids=["registered", "find"])
def test_a_plug_in_named_like_a_built_in_is_told_so(
    install: Install, caplog: pytest.LogCaptureFixture, look: Callable[[], dict[str, type[methods.Method]]]
) -> None:
    install("fedavg", "plug_in_same:Mine", GOOD.replace("mine", "fedavg"))
    with caplog.at_level(logging.WARNING):
        assert look()["fedavg"].__module__ == "polyfed.methods.fedavg"
        look()
    (record,) = caplog.records
    assert record.getMessage() == HIDDEN
    assert "plug_in_same" not in sys.modules  # not loaded for that


@pytest.mark.parametrize("words", [("methods",), ("run", "my.yaml")], ids=["methods", "run"])
def test_the_command_line_tells_it_too(
    install: Install, caplog: pytest.LogCaptureFixture, command: Command, words: tuple[str, ...]
) -> None:
    install("fedavg", "plug_in_same:Mine", GOOD.replace("mine", "fedavg"))
    Path("my.yaml").write_text("{method: fedavg, rounds: 1, data: {limit: 100, clients: 2}}")
    assert command(*words).code == 0
    assert [record.getMessage() for record in caplog.records] == [HIDDEN]


def test_a_plug_in_that_is_used_is_not_told_to_be_hidden(
    install: Install, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    """Its class may live elsewhere than where its entry point finds it."""
    install("mine", "plug_in_front:Mine", "from plug_in_core import Mine")
    (tmp_path / "plug_in_core.py").write_text(GOOD)
    with caplog.at_level(logging.WARNING):
        assert find("mine").__module__ == "plug_in_core"
        assert find("mine") is registered()["mine"]
    assert not caplog.records


def test_the_second_of_two_plug_ins_of_one_name_is_told_so(
    install: Install, caplog: pytest.LogCaptureFixture
) -> None:
    install("mine", "plug_in_first:Mine", GOOD)
    install("mine", "plug_in_second:Mine", GOOD)
    with caplog.at_level(logging.WARNING):
        used = find("mine").__module__
    other = {"plug_in_first": "plug_in_second", "plug_in_second": "plug_in_first"}[used]
    (record,) = caplog.records
    assert f"the plug-in {other}:Mine is not used" in record.getMessage()


def test_a_built_in_method_cannot_be_replaced_by_a_class_of_its_name(install: Install) -> None:
    own = type(
        "FedAvg", (methods.Method,), {"name": "fedavg", "__module__": "elsewhere", "declare": Declaration}
    )
    with pytest.raises(
        MethodError, match=r"two methods are called 'fedavg', polyfed.methods.fedavg:FedAvg and"
    ):
        methods.register(own)
    again = type("Mine", (methods.Method,), {"name": "mine", "__module__": "mine", "declare": Declaration})
    assert methods.register(again) is methods.register(again)
