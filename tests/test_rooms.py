"""The inside of a room is private: other rooms import from its face, and the face hides no module of its own."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import polyfed

SOURCE = Path(polyfed.__file__).parent
ROOMS = ["data", "learn", "engines", "models"]
PACKAGES = sorted(path.parent for path in SOURCE.rglob("__init__.py"))


def dotted(path: Path) -> str:
    """The name of a module or a package: `polyfed.data.storage`."""
    return ".".join(path.relative_to(SOURCE.parent).with_suffix("").parts)


def inner_modules(package: Path) -> set[str]:
    folders = {path.parent.name for path in package.glob("*/__init__.py")}
    return folders | {path.stem for path in package.glob("*.py")} - {"__init__", "__main__"}


def exported(package: Path) -> set[str]:
    """What a package says in `__all__`."""
    for statement in ast.parse((package / "__init__.py").read_text(encoding="utf-8")).body:
        if isinstance(statement, ast.Assign) and ast.unparse(statement.targets[0]) == "__all__":
            return set(ast.literal_eval(statement.value))
    return set()


def trespasses(code: str, room: str) -> Iterator[str]:
    """The places where code that lies outside of a room reaches for what the room does not export."""
    face = exported(SOURCE / room)
    inside = inner_modules(SOURCE / room) - face
    package = f"polyfed.{room}"
    tree = ast.parse(code)
    called = set()  # what the room itself is called in this code
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
            yield from (f"line {node.lineno}: {name}" for name in names if name.startswith(f"{package}."))
        elif isinstance(node, ast.ImportFrom) and node.module == "polyfed":
            called |= {alias.asname or alias.name for alias in node.names if alias.name == room}
        elif isinstance(node, ast.ImportFrom) and node.module == package:
            names = [alias.name for alias in node.names if alias.name not in face]
            yield from (f"line {node.lineno}: {package}.{name} is not exported" for name in names)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith(f"{package}."):
            yield f"line {node.lineno}: {node.module}"
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) in called and node.attr in inside:
            yield f"line {node.lineno}: {package}.{node.attr}"


def hidden_modules(package: Path) -> set[str]:
    """Modules of a package whose names its `__init__` gives to something else."""
    hidden = set()
    for node in ast.walk(ast.parse((package / "__init__.py").read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module != dotted(package):
            hidden |= {alias.asname or alias.name for alias in node.names}
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            hidden.add(node.name)
    return hidden & inner_modules(package)


@pytest.mark.parametrize("room", ROOMS)
def test_other_rooms_import_only_what_a_room_exports(room: str) -> None:
    outside = [path for path in SOURCE.rglob("*.py") if SOURCE / room not in path.parents]
    found = [
        f"{dotted(path)}, {trespass}"
        for path in sorted(outside)
        for trespass in trespasses(path.read_text(encoding="utf-8"), room)
    ]
    assert found == [], f"import it from polyfed.{room}, and export it there if it is not yet"


@pytest.mark.parametrize("package", PACKAGES, ids=dotted)
def test_no_name_of_a_package_hides_one_of_its_modules(package: Path) -> None:
    assert hidden_modules(package) == set()


@pytest.mark.parametrize(
    "code",
    [
        "from polyfed.data.storage import stored",
        "from polyfed.data import storage",
        "import polyfed.data.storage",
        "def late():\n    from polyfed.data.storage import stored",
        "from polyfed import data\ndata.storage.stored()",
        "from polyfed import data as sets\nsets.storage.stored()",
    ],
)
def test_every_way_into_a_room_is_noticed(code: str) -> None:
    assert len(list(trespasses(code, "data"))) == 1


@pytest.mark.parametrize(
    "code", ["from polyfed.data import load, augment", "from polyfed import data\ndata.load()"]
)
def test_a_rooms_face_is_open_to_all(code: str) -> None:
    assert list(trespasses(code, "data")) == []


def test_nothing_names_the_simulation_but_the_place_that_makes_it() -> None:
    """Everything else reads a federation through its protocol, so that it may be one of distant nodes."""
    named = [path for path in SOURCE.rglob("*.py") if re.search(r"\bSimulation\b", path.read_text())]
    assert [path.relative_to(SOURCE).as_posix() for path in named] == ["runs/setup.py"]
